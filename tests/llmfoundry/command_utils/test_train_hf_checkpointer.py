"""A recipe with ``hf_checkpointer``: what its page says, and saving without training."""

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from composer.callbacks.checkpoint_saver import CheckpointSaver
from llmfoundry.callbacks.hf_checkpointer import HuggingFaceCheckpointer
from llmfoundry.command_utils.train import train_from_yaml
from tests.llmfoundry.command_utils.test_train import RECIPE, data, overrides

__all__ = ["data"]


def _settings(data: Path, folder: Path, callbacks: str, **more: Any) -> list[str]:
    return overrides(data, folder, callbacks=callbacks, **more)


def test_the_page_tells_the_recipe(data: Path, tmp_path: Path) -> None:
    callbacks = f"{{hf_checkpointer: {{save_folder: '{tmp_path}/{{run_name}}', save_interval: 3ba,"
    callbacks += " license: mit}, lr_monitor: {}}"
    trainer = train_from_yaml(str(RECIPE), _settings(data, tmp_path, callbacks))
    kinds = [type(each) for each in trainer.state.callbacks]
    assert kinds[-2:] == [CheckpointSaver, HuggingFaceCheckpointer]
    trainer.close()
    folders = tmp_path / "mpt-tiny-cpu" / "huggingface"
    assert sorted(path.name for path in folders.iterdir()) == ["ba3", "ba6"]
    page = (folders / "ba6" / "README.md").read_text()
    assert "license: mit" in page and "d_model: 16" in page and "max_duration: 6ba" in page
    assert "metrics/eval/LanguageCrossEntropy" in page and "loss/train/total" in page
    assert str(data / "tokens") in page
    assert "6 batches, 48 samples" in page


def test_a_checkpoint_becomes_a_folder_without_training(data: Path, tmp_path: Path) -> None:
    callbacks = f"{{hf_checkpointer: {{save_folder: {tmp_path}/hf, save_interval: 3ba}}}}"
    trainer = train_from_yaml(str(RECIPE), _settings(data, tmp_path, callbacks))
    trainer.close()
    expected = load_file(tmp_path / "hf/huggingface/ba6/model.safetensors")
    again = callbacks.replace("/hf", "/again")
    trainer = train_from_yaml(
        str(RECIPE), _settings(data, tmp_path, again, only_hf_checkpoint="true", autoresume="true")
    )
    trainer.close()
    assert [path.name for path in (tmp_path / "again/huggingface").iterdir()] == ["ba6"]
    found = load_file(tmp_path / "again/huggingface/ba6/model.safetensors")
    assert found.keys() == expected.keys()
    assert all(found[name].equal(expected[name]) for name in found)
    with pytest.raises(ValueError, match="needs one hf_checkpointer"):
        train_from_yaml(str(RECIPE), _settings(data, tmp_path, "{}", only_hf_checkpoint="true"))
