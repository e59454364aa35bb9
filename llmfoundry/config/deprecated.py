"""Old spellings of a recipe: translated with one warning, or refused with their replacement."""

import warnings
from collections.abc import Mapping
from typing import Any

from llmfoundry.config.problems import Problems
from llmfoundry.utils.warnings import VersionedDeprecationWarning

__all__ = ["check_retired", "translate_deprecated"]

RENAMED: Mapping[str, str] = {
    "global_seed": "seed",
    "icl_max_seq_len": "icl_seq_len",
    "eval_loaders": "eval_loader",
    "icl_tasks_str": "icl_tasks",
    "eval_gauntlet_str": "eval_gauntlet",
    "tokenizer_name": "tokenizer.name",
}
"""Old key -> where its value belongs."""

RETIRED: Mapping[str, str] = {
    "loggers.mosaicml": "the platform is gone; use wandb, mlflow, tensorboard or file_logger",
    "callbacks.async_eval": "it needs a platform that is gone; evaluate with eval_loader, or run "
    "an evaluation job on the saved checkpoints",
    "device": "the device is found by itself; hide GPUs with CUDA_VISIBLE_DEVICES= to use the CPU",
    "grad_accum": "say how much one device computes at once: device_train_microbatch_size",
    "load_format": "it follows from load_path",
}
"""Key or component that went away -> what does its work now."""


def translate_deprecated(cfg: dict[str, Any]) -> dict[str, Any]:
    """Moves old keys to their new places and says so in one warning.

    Raises:
        ValueError: Old and new key are both set and disagree.
    """
    moved = []
    for old, new in RENAMED.items():
        if old not in cfg:
            continue
        section, name = _section_of(cfg, new)
        value = cfg.pop(old)
        present = section.get(name)
        if present is not None and value is not None and present != value:
            raise ValueError(
                f"{old}={value!r} is an old name of {new}, which is {present!r} in this recipe. "
                f"Remove {old}."
            )
        if present is None:
            section[name] = value
        moved.append(f"{old} -> {new}")
    if moved:
        warnings.warn(
            VersionedDeprecationWarning(
                f"This recipe uses old keys, which were translated: {', '.join(moved)}.", "1.0"
            ),
            stacklevel=2,
        )
    return cfg


def _section_of(cfg: dict[str, Any], path: str) -> tuple[dict[str, Any], str]:
    section, _, name = path.rpartition(".")
    if not section:
        return cfg, name
    if not isinstance(cfg.get(section), dict):
        cfg[section] = {}
    return cfg[section], name


def check_retired(cfg: dict[str, Any], problems: Problems) -> None:
    """Notes keys and components that no longer exist, and takes them out of further checks."""
    for path, cure in RETIRED.items():
        section, _, name = path.rpartition(".")
        holder = cfg.get(section) if section else cfg
        if isinstance(holder, dict) and name in holder:
            problems.add(path, f"this is gone: {cure}.")
            del holder[name]
