"""FP8: large linear layers multiply in 8-bit floating point, by torchao or emulated."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch

from composer.algorithms.fp8.emulated_linear import EmulatedFloat8Linear
from composer.algorithms.utils.surgery import ModelSurgery, OnNoMatch, report_no_match
from composer.core.event import Event
from composer.core.logger import Logger
from composer.core.protocols import RunOrder
from composer.core.state import State
from composer.utils.import_helpers import MissingConditionalImportError

_CHANGED = (EmulatedFloat8Linear.__name__, "Float8Linear")  # the latter is torchao's
LayerFilter = Callable[[torch.nn.Linear, str], bool]
"""Takes a linear layer and its name; tells whether it is to multiply in fp8."""


def apply_fp8(
    model: torch.nn.Module,
    min_elements: int = 2**22,
    skip: Sequence[str] = ("lm_head",),
    filter: LayerFilter | None = None,
    emulate: bool = False,
    on_no_match: OnNoMatch = "raise",
) -> list[str]:
    """Has large linear layers multiply in fp8; returns their names. See `FP8` for the arguments.

    Weights, their names and what the optimizer knows of them stay.

    Raises:
        NoMatchError: If no layer is large enough.
        MissingConditionalImportError: If torchao is not installed, which does it on GPUs.
        ValueError: If the device cannot multiply in fp8.
    """
    names = [
        name
        for name, module in model.named_modules()
        # Not a subclass: it may compute something else.
        if type(module) is torch.nn.Linear
        and name.rpartition(".")[2] not in skip
        and (filter(module, name) if filter else _pays(module, min_elements))
    ]
    changed = any(type(m).__name__ in _CHANGED for m in model.modules())  # before
    if not names and not changed:
        report_no_match("FP8", f"no linear layer of more than {min_elements} weights", on_no_match)
    elif emulate:
        for name in names:
            model.get_submodule(name).__class__ = EmulatedFloat8Linear
    elif names:
        _check_device()
        _convert_with_torchao(model, names)
    return names


def _pays(layer: torch.nn.Linear, min_elements: int) -> bool:
    """Tells whether kernels take the shape, and save more than rounding costs."""
    return all(size % 16 == 0 for size in layer.weight.shape) and (
        layer.weight.numel() > min_elements
    )


def _convert_with_torchao(model: torch.nn.Module, names: Sequence[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torchao about its other parts
        try:
            from torchao.float8 import (  # pyright: ignore[reportMissingImports]  # optional
                convert_to_float8_training,
            )
        except ImportError as error:
            raise MissingConditionalImportError("fp8", "torchao") from error
    before = {name: vars(model.get_submodule(name)) for name in names}
    convert_to_float8_training(model, module_filter_fn=lambda _, name: name in before)
    for name, attributes in before.items():  # such as what an initialisation is told by
        new = vars(model.get_submodule(name))
        new.update({key: value for key, value in attributes.items() if key not in new})


def _check_device() -> None:
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9):
        raise ValueError(
            "FP8 needs a GPU that multiplies in fp8 (compute capability 8.9 or higher), and there "
            "is none here; emulate=True shows on any device what it does to quality."
        )


class FP8(ModelSurgery):
    """Has large linear layers multiply in 8-bit floating point, inputs and gradients included.

    On GPUs it is torchao's dynamic scaling by tensor, which pays only compiled (`compile_config`)
    and only for large matrices: independent measurements find 1.17 to 1.43 times the raw speed for
    large ones, and a loss for small ones. The kernels have not been run in the making of this
    algorithm, which had no GPU; its conversion and its emulated numerics are tested.

    Args:
        min_elements: Only layers with more weights than this are changed; below about 4 million,
            rounding costs more than it saves. Both sizes must be multiples of 16.
        skip: Names of layers (their last part) that stay as they are: the output head.
        filter: A function of a layer and its name that chooses layers instead of ``min_elements``.
        emulate: Whether to round as fp8 does, but to multiply in fp32, to see on any device what it
            does to quality.
        on_no_match: ``"raise"`` or ``"warn"`` if no layer is large enough.
    """

    run_order: ClassVar[RunOrder] = "last"  # others are to find the linear layers

    def __init__(
        self,
        min_elements: int = 2**22,
        skip: Sequence[str] = ("lm_head",),
        filter: LayerFilter | None = None,
        emulate: bool = False,
        on_no_match: OnNoMatch = "raise",
    ) -> None:
        super().__init__(on_no_match)
        self.min_elements = min_elements
        self.skip = tuple(skip)
        self.filter = filter
        self.emulate = emulate

    @staticmethod
    def required_on_load() -> bool:
        """Tells that weights stay what they were: they load with it and without."""
        return False

    def apply(self, event: Event, state: State, logger: Logger) -> int | None:
        """Changes the layers of the model."""
        arguments: dict[str, Any] = {"emulate": self.emulate, "on_no_match": self.on_no_match}
        names = apply_fp8(state.model, self.min_elements, self.skip, self.filter, **arguments)
        logger.log_hyperparameters({"fp8/num_layers": len(names)})
