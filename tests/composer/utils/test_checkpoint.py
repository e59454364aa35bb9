"""The user's word on checkpoints, and the names that programs look for at this address."""

import sys
import types
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from composer.utils import checkpoint

NAMES = (
    "PartialFilePath _COMPOSER_STATES_FILENAME _ensure_valid_checkpoint _is_rng_key "
    "_torch_load_with_validation _write_checkpoint_file download_checkpoint "
    "download_object_or_file get_save_filename glob_filter load_checkpoint safe_torch_load "
    "save_checkpoint"
)


@pytest.mark.parametrize("name", NAMES.split())
def test_names(name: str) -> None:
    assert getattr(checkpoint, name) is not None


def test_how_torch_names_shards() -> None:
    assert checkpoint._TORCH_DISTRIBUTED_CHECKPOINTS_FILENAME == "__0_0.distcp"
    assert checkpoint._TORCH_DISTRIBUTED_CHECKPOINTS_METADATA_FILENAME == ".metadata"
    assert checkpoint._COMPOSER_STATES_FILENAME == "composer_states.pt"


@pytest.fixture
def path(tmp_path: Path) -> str:
    torch.save({"state": {}}, tmp_path / "a.pt")
    return str(tmp_path / "a.pt")


def test_without_a_function_everything_is_read(path: str) -> None:
    assert checkpoint._get_checkpoint_validation_function() is None
    assert checkpoint._ensure_valid_checkpoint(path) == path


def test_the_function_that_the_environment_names(monkeypatch, path: str) -> None:
    seen = []
    module = types.ModuleType("strict_house")
    module.check = lambda path, specs: seen.append((path, specs)) or len(seen) == 1
    monkeypatch.setitem(sys.modules, "strict_house", module)
    monkeypatch.setenv("CHECKPOINT_VALIDATION_FUNCTION", "strict_house.check")
    assert checkpoint._torch_load_with_validation(path, map_location="cpu") == {"state": {}}
    with pytest.raises(ValueError, match="not valid"):
        checkpoint.safe_torch_load(path)
    assert seen == [(path, None)] * 2


@pytest.mark.parametrize("answer", [True, False])
def test_a_function_put_in_its_place(path: str, answer: bool) -> None:
    where = "composer.utils.checkpoint._get_checkpoint_validation_function"
    with patch(where, lambda: lambda path, specs: answer):
        if answer:
            checkpoint._torch_load_with_validation(path, map_location="cpu")
        else:
            with pytest.raises(ValueError, match="not valid"):
                checkpoint._torch_load_with_validation(path, map_location="cpu")


@pytest.mark.parametrize(
    ("key", "value", "is_one"),
    [
        ("rng.0.cuda", ("rng", 0, "cuda"), True),
        ("rng.12.numpy", ("rng", 12, "numpy"), True),
        ("rng.0.numpy", ("rng", 0), False),
        ("rng.0.other", ("rng", 0, "other"), False),
        ("state.rng.cuda", ("state", "rng", "cuda"), False),
        ("rng.0.torch", "rng", False),
    ],
)
def test_keys_of_generators(key: str, value: object, is_one: bool) -> None:
    assert checkpoint._is_rng_key(key, value) is is_one
