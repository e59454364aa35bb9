"""The parts of a run written to a folder."""

import json
import warnings
from pathlib import Path

import pytest
import torch

from composer.checkpoint import save as module
from composer.checkpoint.save import (
    CheckpointSaveOptions,
    save_checkpoint_to_disk,
    save_model_to_disk,
    save_optim_to_disk,
    save_state_dict_to_disk,
)
from tests.composer.checkpoint.runs import make_state


def files(folder: str | Path) -> list[str]:
    return sorted(
        str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file()
    )


def test_layout(tmp_path: Path) -> None:
    state = make_state(steps=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        folder = save_checkpoint_to_disk(f"{tmp_path}/{{run_name}}", state)
    assert folder == str(tmp_path / "run" / "ep0-ba3")
    assert files(folder) == [
        "composer_metadata.json",
        "model/model.pt",
        "optim/optim.pt",
        "resumption.pkl",
    ]
    metadata = json.loads((Path(folder) / module.METADATA_CHECKPOINT_FILENAME).read_text())
    assert (metadata["model_name"], metadata["sharded_state_dict"]) == ("Net", False)


def test_options(tmp_path: Path) -> None:
    state = make_state(steps=1)
    what = {"save_optimizer": False, "save_resumption_state": False, "dir_prefix": "here"}
    folder = save_checkpoint_to_disk(str(tmp_path), state, what)
    assert files(folder) == ["composer_metadata.json", "model/model.pt"]
    options = CheckpointSaveOptions(**what, precision="bf16", include_keys="0.*", overwrite=True)
    save_checkpoint_to_disk(str(tmp_path), state, options)
    saved = torch.load(tmp_path / "here" / "model" / "model.pt", weights_only=True)
    assert set(saved) == {"0.weight", "0.bias"} and saved["0.bias"].dtype == torch.bfloat16


def test_what_is_there_stays_unless_told(tmp_path: Path) -> None:
    state = make_state(steps=1)
    path = save_model_to_disk(state.model, str(tmp_path))
    assert path == str(tmp_path / "model" / "model.pt")
    with pytest.raises(ValueError, match="already exists"):
        save_model_to_disk(state.model, str(tmp_path))
    assert save_model_to_disk(state.model, str(tmp_path), overwrite=True) == path
    path = save_optim_to_disk(state.model, state.optimizers[0], str(tmp_path))
    assert path == str(tmp_path / "optim" / "optim.pt")


def test_other_formats(tmp_path: Path) -> None:
    with pytest.raises(NotImplementedError, match="safetensors"):
        save_state_dict_to_disk({}, str(tmp_path / "a.pt"), save_format="safetensors")
