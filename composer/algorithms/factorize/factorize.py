"""Factorize: wide layers replaced by two narrow ones (Denil et al., 1306.0543)."""

import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch.optim import Optimizer

from composer.algorithms.factorize.factorize_modules import (
    FactorizedConv2d,
    FactorizedLinear,
    factorizing_could_speedup,
)
from composer.algorithms.utils.surgery import (
    ModelSurgery,
    OnNoMatch,
    computes_as,
    report_no_match,
    stays,
)
from composer.core.event import Event
from composer.core.logger import Logger
from composer.core.state import State
from composer.utils.module_surgery import count_module_instances, replace_module_classes

M = TypeVar("M", bound=torch.nn.Module)

LOG_NUM_CONV2D_REPLACEMENTS_KEY = "factorize/num_conv2d_replacements"
LOG_NUM_LINEAR_REPLACEMENTS_KEY = "factorize/num_linear_replacements"


def apply_factorization(
    model: M,
    factorize_convs: bool = True,
    factorize_linears: bool = True,
    min_channels: int = 512,
    latent_channels: float = 0.25,
    min_features: int = 512,
    latent_features: float = 0.25,
    optimizers: Optimizer | Sequence[Optimizer] | None = None,
    on_no_match: OnNoMatch = "raise",
) -> M:
    """Replaces wide layers by two narrow ones each, initialised anew; changes the model.

    A layer stays if two would cost more, or if it shares its weight with another, as the head of a
    language model does with the embedding.

    Args:
        model: The model.
        factorize_convs: Whether to replace convolutions.
        factorize_linears: Whether to replace linear layers, of GPT-2's kind too.
        min_channels: Convolutions that read or make fewer channels are left alone.
        latent_channels: The channels in between; below 1, as a part of the smaller of both.
        min_features: Linear layers that read or make fewer features are left alone.
        latent_features: The features in between; below 1, as a part of the smaller of both.
        optimizers: The optimizer, whose parameters are exchanged too.
        on_no_match: ``"raise"`` or ``"warn"`` if there is no such layer.

    Raises:
        NoMatchError: If there is no such layer.
        ValueError: If neither kind is to be replaced.
    """
    _check_kinds(factorize_convs, factorize_linears)
    uses = Counter(id(p) for _, p in model.named_parameters(remove_duplicate=False))

    def conv(module: Any, index: int) -> torch.nn.Module | None:
        is_wide = min(module.in_channels, module.out_channels) >= min_channels
        if not is_wide or not computes_as(module, torch.nn.Conv2d):
            return None
        if uses[id(module.weight)] > 1 or not factorizing_could_speedup(module, latent_channels):
            return None
        return FactorizedConv2d.from_conv2d(module, index, latent_channels=latent_channels)

    def linear(module: Any, index: int) -> torch.nn.Module | None:
        sizes = _sizes_of_linear(module)
        if sizes is None or min(sizes) < min_features or uses[id(module.weight)] > 1:
            return None
        like = torch.nn.Linear(*sizes, bias=module.bias is not None, device="meta")
        if not factorizing_could_speedup(like, latent_features):
            return None
        weight = module.weight
        return FactorizedLinear(
            *sizes, module.bias is not None, latent_features, weight.device, weight.dtype
        ).train(module.training)

    policies: dict[Any, Any] = {FactorizedConv2d: stays, FactorizedLinear: stays}
    if factorize_convs:
        policies[torch.nn.Conv2d] = conv
    if factorize_linears:
        policies |= dict.fromkeys(_linear_classes(), linear)
    if not replace_module_classes(model, policies, optimizers):
        wanted = " or ".join(
            [f"Conv2d of min_channels={min_channels}"] * factorize_convs
            + [f"Linear of min_features={min_features}"] * factorize_linears
        )
        report_no_match("Factorize", f"no {wanted} for which two layers cost less", on_no_match)
    return model


def _linear_classes() -> list[Any]:
    """Returns torch's linear layer, and transformers' if a model may have it."""
    transformers: Any = sys.modules.get("transformers.pytorch_utils")
    return [torch.nn.Linear] + ([transformers.Conv1D] if transformers else [])


def _sizes_of_linear(module: Any) -> tuple[int, int] | None:
    """Returns how many features a linear layer reads and makes; None if it is used otherwise."""
    if type(module).__name__ == "Conv1D":  # GPT-2's, whose weight is the other way round
        return tuple(module.weight.shape)
    # That of torch's attention is never called: only its weight is read.
    is_read = isinstance(module, torch.nn.modules.linear.NonDynamicallyQuantizableLinear)
    if is_read or not computes_as(module, torch.nn.Linear):
        return None
    return module.in_features, module.out_features


def _check_kinds(factorize_convs: bool, factorize_linears: bool) -> None:
    if not (factorize_convs or factorize_linears):
        raise ValueError(
            "factorize_convs and factorize_linears are both False, so that Factorize would do "
            "nothing; set one of them, or leave Factorize out."
        )


class Factorize(ModelSurgery):
    """Replaces wide layers by two narrow ones each, which compute faster.

    Args:
        factorize_convs: Whether to replace convolutions.
        factorize_linears: Whether to replace linear layers, of GPT-2's kind too.
        min_channels: Convolutions that read or make fewer channels are left alone.
        latent_channels: The channels in between; below 1, as a part of the smaller of both.
        min_features: Linear layers that read or make fewer features are left alone.
        latent_features: The features in between; below 1, as a part of the smaller of both.
        on_no_match: ``"raise"`` or ``"warn"`` if there is no such layer.

    Raises:
        ValueError: If neither kind is to be replaced.
    """

    def __init__(
        self,
        factorize_convs: bool = True,
        factorize_linears: bool = True,
        min_channels: int = 256,
        latent_channels: float = 0.25,
        min_features: int = 256,
        latent_features: float = 128,
        on_no_match: OnNoMatch = "raise",
    ) -> None:
        super().__init__(on_no_match)
        _check_kinds(factorize_convs, factorize_linears)
        self.factorize_convs = factorize_convs
        self.factorize_linears = factorize_linears
        self.min_channels = min_channels
        self.latent_channels = latent_channels
        self.min_features = min_features
        self.latent_features = latent_features

    def apply(self, event: Event, state: State, logger: Logger) -> int | None:
        """Changes the layers of the model."""
        apply_factorization(
            state.model,
            self.factorize_convs,
            self.factorize_linears,
            self.min_channels,
            self.latent_channels,
            self.min_features,
            self.latent_features,
            state.optimizers,
            self.on_no_match,
        )
        hparams = {}
        if self.factorize_convs:
            count = count_module_instances(state.model, FactorizedConv2d)
            hparams[LOG_NUM_CONV2D_REPLACEMENTS_KEY] = count
        if self.factorize_linears:
            count = count_module_instances(state.model, FactorizedLinear)
            hparams[LOG_NUM_LINEAR_REPLACEMENTS_KEY] = count
        logger.log_hyperparameters(hparams)
        return None
