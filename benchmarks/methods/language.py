"""Trains a small MPT on Shakespeare by `yamls/mpt-tiny-cpu.yaml`: one job of `run.py`."""

import json
import sys
from pathlib import Path
from typing import Any

from clock import StepClock, measure
from omegaconf import DictConfig, OmegaConf

from composer import Trainer
from llmfoundry import registry
from llmfoundry.command_utils.train import train as train_by_recipe
from llmfoundry.config.loading import load_recipe

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "data" / "methods"
SIZES = {
    "small": {},
    "large": {"model.d_model": 192, "model.n_heads": 6, "model.n_layers": 6},
}


NOT_SAVED = ("save_folder", "save_interval", "save_num_checkpoints_to_keep", "autoresume")


def recipe_of(job: dict[str, Any]) -> DictConfig:
    """The recipe with a job's changes to it: each value takes the place of what was there."""
    changes = {
        "variables.data_local": str(DATA / "tokens"),
        "variables.tokenizer": str(DATA / "tokenizer"),
        "variables.global_seed": job["seed"],
        "max_duration": f"{job['steps']}ba",
        "eval_interval": f"{job['steps']}ba" if job["evaluate"] else 0,
        "scheduler.t_warmup": "25ba",
        "log_to_console": False,
        "callbacks": {"step_clock": {}},
        **SIZES[job["size"]],
        **job["settings"],
    }
    recipe = load_recipe(ROOT / "yamls" / "mpt-tiny-cpu.yaml")
    # A section before its keys: a grid changes the learning rate of a row's own optimizer.
    for name, value in sorted(changes.items(), key=lambda item: item[0].count(".")):
        OmegaConf.update(recipe, name, value, merge=False, force_add=True)
    for name in NOT_SAVED:
        recipe.pop(name)
    return recipe


def train(job: dict[str, Any]) -> Trainer:
    """Trains by the recipe of a job."""
    return train_by_recipe(recipe_of(job))


if __name__ == "__main__":
    registry.callbacks.register("step_clock", func=StepClock)
    measure(json.loads(sys.argv[1]), train, "LanguageCrossEntropy")
