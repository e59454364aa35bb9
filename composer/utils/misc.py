"""Questions about a model or this process that fit no other file; public under this name."""

from __future__ import annotations

import builtins
import contextlib
import re
import socket
import string
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from composer.utils.lazy import handed_on
from composer.utils.model_wrapper import ModelWrapper
from composer.utils.string_enum import StringEnum

__all__ = [
    "STR_TO_DTYPE",
    "ParallelismType",
    "add_vision_dataset_transform",
    "get_free_tcp_port",
    "is_model_ddp",
    "is_model_fsdp",
    "is_model_fsdp2",
    "is_notebook",
    "model_eval_mode",
    "partial_format",
    "reshard",
    "unwrap_model",
    "warning_on_one_line",
]

STR_TO_DTYPE = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class ParallelismType(StringEnum):
    """The names of the axes of the device mesh."""

    DATA_PARALLEL_SHARD = "data_parallel_shard"
    DATA_PARALLEL_REPLICATE = "data_parallel_replicate"
    CONTEXT_PARALLEL = "context_parallel"
    TENSOR_PARALLEL = "tensor_parallel"


def _fsdp_module() -> ModuleType | None:
    """Returns torch's FSDP package if somebody imported it: before that no model is sharded.

    Importing it here to ask would cost every start several tenths of a second.
    """
    return sys.modules.get("torch.distributed.fsdp")


def is_model_ddp(model: torch.nn.Module) -> bool:
    """Tells whether the model is wrapped for distributed data parallel training."""
    return isinstance(model, DistributedDataParallel)


def is_model_fsdp2(model: torch.nn.Module) -> bool:
    """Tells whether the model or one of its children is sharded by ``fully_shard``."""
    fsdp = _fsdp_module()
    if fsdp is None:
        return False
    return any(isinstance(module, fsdp.FSDPModule) for module in (model, *model.children()))


def is_model_fsdp(model: torch.nn.Module) -> bool:
    """Tells whether the model or one of its children is sharded, by any generation of FSDP."""
    fsdp = _fsdp_module()
    if fsdp is None:
        return False
    kinds = (fsdp.FSDPModule, fsdp.FullyShardedDataParallel)
    return any(isinstance(module, kinds) for module in (model, *model.children()))


def reshard(model: torch.nn.Module) -> None:
    """Lets go of whole weights that units of sharding keep after a pass without gradients.

    Beside them a change of the shards would go unseen.
    """
    fsdp = _fsdp_module()
    if fsdp is None:
        return
    for module in model.modules():
        if isinstance(module, fsdp.FSDPModule):
            module.reshard()  # type: ignore[operator]  # torch's mixin for modules


# Where torch.compile and activation checkpointing keep what they wrap.
_WRAPPED = ("_orig_mod", "_checkpoint_wrapped_module")


def unwrap_model(model: torch.nn.Module) -> torch.nn.Module:
    """Returns the model that the user gave, without wrappers.

    They are those of DDP, ``torch.compile``, activation checkpointing and DeepSpeed.
    """
    while True:
        if is_model_ddp(model) or isinstance(model, ModelWrapper):
            model = model.module  # type: ignore[assignment]  # DDP's module is a Module
            continue
        inner = [model._modules[name] for name in _WRAPPED if name in model._modules]
        if not inner:
            return model
        model = inner[0]  # type: ignore[assignment]  # a wrapper has one


def is_notebook() -> bool:
    """Tells whether this runs in IPython or a notebook."""
    return hasattr(builtins, "__IPYTHON__")


def get_free_tcp_port() -> int:
    """Returns a TCP port of this machine that is free now."""
    with socket.socket() as listener:
        listener.bind(("", 0))
        return int(listener.getsockname()[1])


def warning_on_one_line(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: object = None,
    line: str | None = None,
) -> str:
    """Formats a warning on one line: give it to ``warnings.formatwarning``."""
    del file, line
    return f"{category.__name__}: {message} (source: {filename}:{lineno})\n"


@contextlib.contextmanager
def model_eval_mode(model: torch.nn.Module) -> Iterator[None]:
    """Puts the model into eval mode, and every module back into its own mode afterwards."""
    # Each module has its own flag: a frozen batch norm that was in eval mode stays there.
    was_training = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in was_training:
            module.training = training


class _LeaveUnknown(string.Formatter):
    """Formats what it knows and leaves every other field as it was written."""

    def get_field(
        self, field_name: str, args: Any, kwargs: Mapping[str, Any]
    ) -> tuple[Any, int | str]:
        try:
            return super().get_field(field_name, args, kwargs)
        except (IndexError, KeyError):
            return _Unknown(field_name), field_name

    def convert_field(self, value: Any, conversion: Any) -> Any:
        if isinstance(value, _Unknown):
            return _Unknown(f"{value.name}!{conversion}") if conversion else value
        return super().convert_field(value, conversion)


class _Unknown:
    """A field without a value, which formats to itself."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __format__(self, format_spec: str) -> str:
        return "{" + self.name + (f":{format_spec}" if format_spec else "") + "}"


_AUTO_NUMBERED = re.compile(r"\{([:!][^{}]*)?\}")


def partial_format(s: str, *args: Any, **kwargs: Any) -> str:
    """Formats ``s`` and leaves the placeholders that have no value.

    >>> partial_format("{run_name}/ep{epoch}", run_name="x")
    'x/ep{epoch}'
    """
    # A bare {} beyond the positional arguments has no name to keep, so it is told apart here.
    num_given = len(args)
    seen = 0

    def protect(match: re.Match[str]) -> str:
        nonlocal seen
        seen += 1
        return match.group(0) if seen <= num_given else "{" + match.group(0) + "}"

    return _LeaveUnknown().vformat(_AUTO_NUMBERED.sub(protect, s), args, kwargs)


class _InTurn:
    """Applies transforms one after another, as torchvision's ``Compose`` does."""

    def __init__(self, transforms: list[Callable[..., Any]]) -> None:
        self.transforms = transforms

    def __call__(self, image: Any) -> Any:
        for transform in self.transforms:
            image = transform(image)
        return image


_TO_TENSOR = ("ToTensor", "PILToTensor", "ToImage")


def add_vision_dataset_transform(
    dataset: Any, transform: Callable[..., Any], is_tensor_transform: bool = False
) -> None:
    """Adds a transform to a dataset of images, before or after their conversion to tensors.

    Torchvision's datasets are such, and others of the same shape: the attribute ``transform`` is a
    function of an image, which may keep its steps in a list ``transforms``.

    Args:
        dataset: A dataset with a ``transform`` attribute; changed in place.
        transform: What to add.
        is_tensor_transform: Whether ``transform`` takes tensors and goes after ``ToTensor``.
    """
    present = getattr(dataset, "transform", None)
    if present is None:
        warnings.warn(
            f"The transform of {type(dataset).__name__} was None, so {transform} is now its only "
            "one; it is not known whether it will see a tensor",
            stacklevel=2,
        )
        present = transform
    else:
        steps = list(getattr(present, "transforms", (present,)))
        kinds = [type(step).__name__ in _TO_TENSOR for step in steps]
        place = kinds.index(True) + int(is_tensor_transform) if any(kinds) else len(steps)
        steps.insert(place, transform)
        if hasattr(present, "transforms"):
            present.transforms = steps
        else:
            present = _InTurn(steps)
    dataset.transform = present
    # Where torchvision keeps it a second time, beside that of the targets.
    if hasattr(getattr(dataset, "transforms", None), "transform"):
        dataset.transforms.transform = present


__getattr__ = handed_on({"create_interval_scheduler": "composer.core.intervals"})
