"""Settings that would do nothing in the recipe that they stand in: refused, not ignored."""

from typing import Any

from llmfoundry.config.problems import Problems

__all__ = ["check_no_effect"]

# Setting that takes part only if another is set -> that other and the value that asks for nothing.
# A recipe that says `save_folder: null` has switched saving off on purpose, and may keep the rest.
DEPENDS_ON: dict[str, tuple[str, Any]] = {
    "save_filename": ("save_folder", None),
    "save_latest_filename": ("save_folder", None),
    "save_overwrite": ("save_folder", False),
    "save_weights_only": ("save_folder", False),
    "save_num_checkpoints_to_keep": ("save_folder", -1),
    "save_ignore_keys": ("save_folder", None),
    "only_composer_checkpoint": ("save_folder", False),
    "autoresume": ("save_folder", False),
    "load_weights_only": ("load_path", False),
    "load_strict_model_weights": ("load_path", True),
    "load_ignore_keys": ("load_path", None),
    "eval_first": ("eval_loader", False),
    "icl_seq_len": ("icl_tasks", None),
    "icl_subset_num_batches": ("icl_tasks", None),
    "eval_gauntlet": ("icl_tasks", None),
}


def check_no_effect(cfg: dict[str, Any], problems: Problems) -> None:
    """Notes settings that nothing will read because what they belong to is not asked for."""
    for name, (needed, idle) in DEPENDS_ON.items():
        if cfg.get(name, idle) == idle or needed in cfg:
            continue
        problems.add(
            name,
            f"{cfg[name]!r} has no effect without {needed}. Set {needed}, remove {name}, or write "
            f"{needed}: null to keep it for later.",
        )
