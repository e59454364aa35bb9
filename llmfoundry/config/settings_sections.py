"""Whether the sections that name no component have only keys that something reads."""

import dataclasses
import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from composer.core.precision import Precision
from composer.utils.parallelism import CPConfig, FSDP2Config, FSDPConfig, TPConfig
from llmfoundry import registry
from llmfoundry.config.problems import Problems, suggestion

__all__ = ["check_sections"]


def check_sections(cfg: Mapping[str, Any], problems: Problems) -> None:
    """Notes unknown keys and unknown choices of the sections without a registry of their own."""
    fsdp_keys = {each.name for each in dataclasses.fields(FSDPConfig)}
    _check_keys(cfg, "fsdp_config", fsdp_keys | FSDP2Config.settable_attrs(), problems)
    tp_keys = {each.name for each in dataclasses.fields(TPConfig)} - {"device_mesh", "layer_plan"}
    _check_keys(cfg, "tp_config", tp_keys | {"strategy"}, problems)
    cp_keys = {each.name for each in dataclasses.fields(CPConfig)} - {"device_mesh"}
    _check_keys(cfg, "cp_config", cp_keys, problems)
    compile_keys = set(inspect.signature(torch.compile).parameters) - {"model"} | {"per_block"}
    _check_keys(cfg, "compile_config", compile_keys, problems)
    _check_tp(cfg.get("tp_config"), problems)
    _check_precision(cfg.get("precision"), problems)
    for key in ("icl_tasks", "eval_gauntlet"):
        if cfg.get(key) is not None:
            problems.add(
                key,
                "in-context-learning evaluation is not part of this version. Evaluate with "
                "eval_loader, or remove the key.",
            )
    if cfg.get("profiler") is not None:
        problems.add("profiler", "profiling is not part of this version. Remove the key.")


def _check_keys(
    cfg: Mapping[str, Any], section: str, known: Iterable[str], problems: Problems
) -> None:
    settings = cfg.get(section)
    known = set(known)
    for key in settings.keys() - known if isinstance(settings, dict) else ():
        problems.add_unknown(f"{section}.{key}", known)


def _check_tp(settings: Any, problems: Problems) -> None:
    if not isinstance(settings, dict):
        return
    for key in ("strategy", "tensor_parallel_degree"):
        if key not in settings:
            problems.add(f"tp_config.{key}", "missing; tensor parallelism needs it.")
    strategy = settings.get("strategy")
    if strategy is not None and strategy not in registry.tp_strategies:
        hint = suggestion(str(strategy), registry.tp_strategies.names())
        problems.add("tp_config.strategy", f"there is no strategy {strategy!r}. {hint}")


def _check_precision(precision: Any, problems: Problems) -> None:
    known = [each.value for each in Precision]
    if isinstance(precision, str) and precision not in known:
        hint = suggestion(precision, known)
        problems.add("precision", f"there is no precision {precision!r}. {hint}")
