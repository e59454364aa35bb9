"""A recipe on two ranks under DeepSpeed is what it is on one."""

import importlib.util
import itertools
from pathlib import Path
from typing import Any

import pytest

from llmfoundry.command_utils.train import train_from_yaml
from tests.launch import run_ranks
from tests.llmfoundry.command_utils.test_train import RECIPE, data, overrides

__all__ = ["data"]

CONFIG = "{zero_optimization: {stage: %d, stage3_param_persistence_threshold: 10}}"


def _losses(folder: Path, save: Path, stage: int | None, tied: bool) -> list[float]:
    settings = {"model.tie_word_embeddings": tied, "model.init_device": "cpu"}
    if stage is not None:
        settings["deepspeed_config"] = CONFIG % stage
    trainer = train_from_yaml(str(RECIPE), overrides(folder, save, **settings))
    logger: Any = next(each for each in trainer.logger.destinations if hasattr(each, "data"))
    losses = [float(value) for _, value in logger.data["loss/train/total"]]
    losses.append(float(trainer.state.eval_metric_values["LanguageCrossEntropy"]))
    trainer.close()
    return losses


def _every_stage(folder: Path, save: Path) -> dict[tuple[int, bool], list[float]]:
    return {
        (stage, tied): _losses(folder, save / f"{stage}-{tied}", stage, tied)
        for stage, tied in itertools.product((2, 3), (True, False))
    }


@pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason="deepspeed is not installed"
)
def test_a_recipe_under_zero_equals_one_process(data: Path, tmp_path: Path) -> None:
    expected = {tied: _losses(data, tmp_path / f"one-{tied}", None, tied) for tied in (True, False)}
    found = run_ranks(_every_stage, 2, data, tmp_path)[0]
    for (_, tied), losses in found.items():
        assert losses == pytest.approx(expected[tied], abs=1e-5)
