"""Which modules of a model are units of sharding, and whether their parameters allow it."""

from __future__ import annotations

import contextlib
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from composer.utils.parallelism import FSDP2Config

__all__ = [
    "WrapFn",
    "check_param_tying",
    "generate_composer_model_policy",
    "generate_default_policy",
    "get_direct_children_from_composer_model",
    "get_standalone_and_tied_modules",
    "legalize_param_sharing_between_modules",
    "modules_to_shard",
]

WrapFn = Callable[[torch.nn.Module], "bool | dict[str, Any]"]
_INNER = "_checkpoint_wrapped_module"
_INFIXES = (f"{_INNER}.", "_orig_mod.")


def plain_name(name: str) -> str:
    """Returns the name that a parameter or module has without wrappers around its parents."""
    for infix in _INFIXES:
        name = name.replace(infix, "")
    return name


def inside(module: torch.nn.Module) -> torch.nn.Module:
    """Returns the module inside of wrappers that recompute or offload, or the module itself."""
    while (inner := module._modules.get(_INNER)) is not None:
        module = inner
    return module


def _is_metric(module: torch.nn.Module) -> bool:
    # Asked by name: importing torchmetrics takes seconds, and a model need not have any.
    return any(kind.__name__ in ("Metric", "MetricCollection") for kind in type(module).__mro__)


def get_direct_children_from_composer_model(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Returns the children of a ComposerModel that compute: all but its metrics."""
    return [child for child in model.children() if not _is_metric(inside(child))]


def _checked(answer: bool | dict[str, Any]) -> bool | dict[str, Any]:
    if isinstance(answer, dict):
        valid = FSDP2Config.settable_attrs()
        if not answer.keys() <= valid:
            raise KeyError(
                f"Invalid FSDP2 config keys in wrap_fn return value. Valid keys are: {valid}; got "
                f"{sorted(answer.keys() - valid)}"
            )
    return answer


def _decide(
    module: torch.nn.Module,
    asked: WrapFn | None,
    default: bool,
    answers: dict[torch.nn.Module, bool | dict[str, Any]],
) -> None:
    """Fills ``answers`` for a module and all below it; the nearest ``fsdp_wrap_fn`` is asked."""
    bare = inside(module)
    flag = getattr(bare, "_fsdp_wrap", None)
    if flag is not None:
        warnings.warn(
            "The _fsdp_wrap attribute will be removed in a future release. Please use fsdp_wrap_fn "
            "instead.",
            DeprecationWarning,
            stacklevel=2,
        )
        answer: bool | dict[str, Any] = bool(flag)
    elif asked is not None:
        answer = _checked(asked(bare))
    else:
        answer = default
    answers.setdefault(bare, answer)
    own: WrapFn | None = getattr(bare, "fsdp_wrap_fn", None)
    for child in bare.children():
        _decide(child, own or asked, False, answers)


def _policy(answers: dict[torch.nn.Module, bool | dict[str, Any]]) -> Any:
    from torch.distributed.fsdp.wrap import CustomPolicy

    return CustomPolicy(lambda module: answers.get(inside(module), False))


def generate_default_policy(parent_model: torch.nn.Module) -> Any:
    """Returns the policy of a model by its modules' own words; what it says nothing of, is not.

    Asked are a module's ``_fsdp_wrap`` (deprecated), then the ``fsdp_wrap_fn(module)`` of the
    nearest parent that has one.

    Raises:
        KeyError: If ``fsdp_wrap_fn`` returns a setting that does not exist.
    """
    answers: dict[torch.nn.Module, bool | dict[str, Any]] = {}
    _decide(parent_model, getattr(parent_model, "fsdp_wrap_fn", None), False, answers)
    return _policy(answers)


def generate_composer_model_policy(composer_model: torch.nn.Module) -> Any:
    """Returns the policy of a ComposerModel: every child is a unit, and what its modules say.

    Raises:
        KeyError: If ``fsdp_wrap_fn`` returns a setting that does not exist.
    """
    answers: dict[torch.nn.Module, bool | dict[str, Any]] = {composer_model: False}
    asked: WrapFn | None = getattr(composer_model, "fsdp_wrap_fn", None)
    for child in get_direct_children_from_composer_model(composer_model):
        flag = getattr(inside(child), "_fsdp_wrap", None)
        _decide(child, asked, True, answers)
        if flag is None and answers[inside(child)] is False:
            answers[inside(child)] = True
    return _policy(answers)


def modules_to_shard(model: torch.nn.Module, policy: Any) -> dict[torch.nn.Module, dict[str, Any]]:
    """Returns the units of sharding and their own settings, in the order of ``model.modules()``."""
    asked: WrapFn = getattr(policy, "_lambda_fn", policy)
    units: dict[torch.nn.Module, dict[str, Any]] = {}
    inner: set[torch.nn.Module] = set()
    for module in model.modules():
        # A wrapper that recomputes stands for what is inside: gathered once for both passes.
        if module in inner:
            continue
        bare = inside(module)
        if bare is not module:
            inner.update(each for each in module.modules() if inside(each) is bare)
            inner.discard(module)
        answer = asked(bare)
        if answer is not False and next(module.parameters(), None) is not None:
            units[module] = answer if isinstance(answer, dict) else {}
    return units


def _owners(modules: Iterable[torch.nn.Module]) -> dict[torch.nn.Parameter, list[int]]:
    owners: dict[torch.nn.Parameter, list[int]] = defaultdict(list)
    for index, module in enumerate(modules):
        for parameter in module.parameters():
            owners[parameter].append(index)
    return owners


def get_standalone_and_tied_modules(
    modules: list[torch.nn.Module],
) -> tuple[list[torch.nn.Module], set[torch.nn.Module]]:
    """Parts modules into those that share no parameter with another of them, and the others."""
    tied = {
        modules[index]
        for holders in _owners(modules).values()
        if len(holders) > 1
        for index in holders
    }
    return [module for module in modules if module not in tied], tied


def legalize_param_sharing_between_modules(
    model: torch.nn.Module, modules_to_shard: list[torch.nn.Module]
) -> None:
    """Refuses units that share a parameter with a module beside them.

    Such a parameter would be sharded with its unit and looked for, whole, by the other module.

    Raises:
        ValueError: If a parameter of a unit is used outside of it.
    """
    names = {module: name for name, module in model.named_modules()}
    inner = {below for unit in modules_to_shard for below in unit.modules()}
    shared = {p for unit in modules_to_shard for p in unit.parameters()}
    for module in model.modules():
        if module in inner:
            continue
        for name, parameter in module.named_parameters(recurse=False):
            if parameter in shared:
                raise ValueError(
                    "Parameter sharing detected between modules to be sharded and module "
                    f"{names[module]!r} ({name}): shard their common parent instead, so that both "
                    "are in one unit"
                )


def check_units(model: torch.nn.Module, units: Iterable[torch.nn.Module]) -> None:
    """Refuses units that share a parameter with a unit or module beside them.

    Raises:
        ValueError: If tied parameters are not in one and the same innermost unit.
    """
    names = {module: name for name, module in model.named_modules()}
    for parent, siblings in _levels(model, set(units), model, {model: []}).items():
        _, tied = get_standalone_and_tied_modules(siblings)
        if tied:
            raise ValueError(
                "Detected tied parameters between modules designated for FSDP wrapping: "
                f"{sorted(names[module] for module in tied)} share one; shard their common parent "
                "instead of them"
            )
        legalize_param_sharing_between_modules(parent, siblings)


def _levels(
    module: torch.nn.Module,
    units: set[torch.nn.Module],
    parent: torch.nn.Module,
    found: dict[torch.nn.Module, list[torch.nn.Module]],
) -> dict[torch.nn.Module, list[torch.nn.Module]]:
    """Returns the units by the unit (or model) that is next above them."""
    for child in module.children():
        above = parent
        if child in units:
            if child not in found[parent]:
                found[parent].append(child)
            found.setdefault(child, [])
            above = child
        _levels(child, units, above, found)
    return found


def _ties(model: torch.nn.Module) -> list[list[str]]:
    groups: dict[torch.nn.Parameter, list[str]] = defaultdict(list)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        groups[parameter].append(plain_name(name))
    return sorted(sorted(names) for names in groups.values())


@contextlib.contextmanager
def check_param_tying(model: torch.nn.Module) -> Iterator[None]:
    """Sees to it that parameters that are one before the block are one after it.

    Raises:
        RuntimeError: If a parameter was tied or untied.
    """
    before = _ties(model)
    yield
    after = _ties(model)
    if before != after:
        changed = [group for group in before if group not in after]
        raise RuntimeError(
            f"Parameter tying relationship changed during the context: {changed or after}"
        )
