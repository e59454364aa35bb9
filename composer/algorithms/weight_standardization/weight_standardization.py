"""Weight standardization: convolutions with weights of mean 0, variance 1 (Qiao, 1903.10520)."""

import warnings
from typing import Any

import torch
from torch.nn.utils import parametrize

from composer.algorithms.utils.surgery import ModelSurgery, OnNoMatch, report_no_match
from composer.core.event import Event
from composer.core.logger import Logger
from composer.core.state import State

_CONVS = (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)


class WeightStandardizer(torch.nn.Module):
    """Brings the weights of each output channel to mean 0 and variance 1."""

    def forward(self, W: torch.Tensor) -> torch.Tensor:
        """Returns the standardized weights."""
        dims = tuple(range(1, W.ndim))
        variance, mean = torch.var_mean(W, dim=dims, keepdim=True, correction=0)
        return (W - mean) * torch.rsqrt(variance + 1e-10)


def apply_weight_standardization(
    module: torch.nn.Module, n_last_layers_ignore: int = 0, on_no_match: OnNoMatch = "raise"
) -> int:
    """Standardizes the weights of convolutions whenever they are used; changes the model.

    Args:
        module: The model.
        n_last_layers_ignore: How many of the last convolutions are left alone.
        on_no_match: ``"raise"`` or ``"warn"`` if no convolution remains.

    Returns:
        How many convolutions were changed.

    Raises:
        NoMatchError: If no convolution remains.
        ValueError: If the number of layers is negative.
    """
    _check_count(n_last_layers_ignore)
    convs = _convs_in_order(module, order_matters=n_last_layers_ignore > 0)
    convs = convs[: max(len(convs) - n_last_layers_ignore, 0)]
    for conv in convs:
        if not any(isinstance(each, WeightStandardizer) for each in conv.modules()):
            parametrize.register_parametrization(conv, "weight", WeightStandardizer())
    if not convs:
        wanted = "no Conv1d, 2d or 3d"
        if n_last_layers_ignore:
            wanted += f" besides the last n_last_layers_ignore={n_last_layers_ignore}"
        report_no_match("WeightStandardization", wanted, on_no_match)
    return len(convs)


def _check_count(n_last_layers_ignore: int) -> None:
    if n_last_layers_ignore < 0:
        raise ValueError(f"n_last_layers_ignore={n_last_layers_ignore} must not be negative.")


def _convs_in_order(module: torch.nn.Module, order_matters: bool) -> list[torch.nn.Module]:
    """Returns the convolutions in the order in which they run, or else are defined."""
    defined: list[torch.nn.Module] = [m for m in module.modules() if isinstance(m, _CONVS)]
    if not order_matters:
        return defined
    try:
        nodes: Any = torch.fx.symbolic_trace(module).graph.nodes
    except Exception as error:  # what a model's own code raises when it is traced is up to it
        warnings.warn(
            f"The model cannot be traced ({error}), so that n_last_layers_ignore counts its layers "
            "in the order in which they are defined, which may not be that in which they run.",
            stacklevel=4,
        )
        return defined
    called = [module.get_submodule(node.target) for node in nodes if node.op == "call_module"]
    run: list[torch.nn.Module] = [m for m in dict.fromkeys(called) if isinstance(m, _CONVS)]
    return run + [each for each in defined if each not in run]


class WeightStandardization(ModelSurgery):
    """Standardizes the weights of convolutions, which lets small batches train well.

    Args:
        n_last_layers_ignore: How many of the last convolutions are left alone.
        on_no_match: ``"raise"`` or ``"warn"`` if no convolution remains.
    """

    def __init__(self, n_last_layers_ignore: int = 0, on_no_match: OnNoMatch = "raise") -> None:
        super().__init__(on_no_match)
        _check_count(n_last_layers_ignore)
        self.n_last_layers_ignore = n_last_layers_ignore

    @staticmethod
    def required_on_load() -> bool:
        """Says no, as it always has: a run that loads such weights names it itself."""
        return False

    def apply(self, event: Event, state: State, logger: Logger) -> int | None:
        """Changes the convolutions of the model."""
        count = apply_weight_standardization(
            state.model, self.n_last_layers_ignore, self.on_no_match
        )
        logger.log_hyperparameters({"WeightStandardization/num_weights_standardized": count})
        return None
