"""Feed-forward layers: the plain MLP and the gated one.

Legend: B batch, S sequence, E model width, F hidden width.
"""

import functools
import logging
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from llmfoundry.models.layers.fc import build_fc

__all__ = [
    "MPTGLU",
    "MPTMLP",
    "build_mptglu",
    "build_mptmlp",
    "quickgelu_activation",
    "relu_squared",
    "resolve_ffn_act_fn",
    "resolve_ffn_hidden_size",
]

log = logging.getLogger(__name__)

Activation = Callable[[torch.Tensor], torch.Tensor]


def quickgelu_activation(input: torch.Tensor) -> torch.Tensor:
    """Approximates GELU by ``x * sigmoid(1.702 x)``."""
    return input * torch.sigmoid(1.702 * input)


def relu_squared(input: torch.Tensor) -> torch.Tensor:
    """Squares what ReLU leaves (Primer, arXiv 2109.08668)."""
    return F.relu(input).square()


OWN_ACTIVATIONS: dict[str, Activation] = {
    "quick_gelu": quickgelu_activation,
    "relu_squared": relu_squared,
}


def resolve_ffn_act_fn(config: dict[str, Any] | None = None) -> Activation:
    """Returns the activation that ``ffn_act_fn`` names; exact GELU if it names none.

    Args:
        config: ``name`` (``quick_gelu``, ``relu_squared`` or a function of
            ``torch.nn.functional``) and that function's keyword arguments.

    Raises:
        ValueError: There is no such function.
    """
    kwargs = dict(config) if config else {"name": "gelu", "approximate": "none"}
    name = kwargs.pop("name")
    function = OWN_ACTIVATIONS.get(name) or getattr(F, name, None)
    if function is None:
        raise ValueError(
            f"Unrecognized activation function name ({name}). Use quick_gelu, "
            "relu_squared or a function of torch.nn.functional, such as gelu, silu or relu."
        )
    return functools.partial(function, **kwargs) if kwargs else function


def resolve_ffn_hidden_size(
    d_model: int, expansion_ratio: int | float, ffn_hidden_size: int | None = None
) -> int:
    """Returns the hidden width: the one given, else ``d_model * expansion_ratio``.

    Raises:
        ValueError: The product is no whole number.
    """
    if ffn_hidden_size is not None:
        log.info(
            "`expansion_ratio` (=%s) ignored: ffn_hidden_size=%s.", expansion_ratio, ffn_hidden_size
        )
        return ffn_hidden_size
    hidden_size = int(d_model * expansion_ratio)
    if hidden_size != d_model * expansion_ratio:
        raise ValueError(
            f"`d_model * expansion_ratio` must be an integer ({d_model=}; {expansion_ratio=}; "
            f"d_model * expansion_ratio={d_model * expansion_ratio})."
        )
    return hidden_size


class MPTMLP(torch.nn.Module):
    """Two linear layers with an activation between them.

    Args:
        d_model: Width in and out.
        expansion_ratio: Hidden width over ``d_model``.
        fc_type: ``name`` and keyword arguments of the linear layers.
        ffn_hidden_size: Hidden width; wins over ``expansion_ratio``.
        act_fn: The activation; exact GELU by default.
        device: Where the parameters are made.
        bias: Whether the linear layers have biases.
    """

    def __init__(
        self,
        d_model: int,
        expansion_ratio: int | float,
        fc_type: dict[str, Any] | None = None,
        ffn_hidden_size: int | None = None,
        act_fn: Activation | None = None,
        device: str | torch.device | None = None,
        bias: bool = True,
    ) -> None:
        super().__init__()
        hidden_size = resolve_ffn_hidden_size(d_model, expansion_ratio, ffn_hidden_size)
        fc = {**(fc_type or {"name": "torch"}), "bias": bias, "device": device}
        self.up_proj = build_fc(in_features=d_model, out_features=hidden_size, fc_kwargs=fc)
        self.act = act_fn or resolve_ffn_act_fn()
        self.down_proj = build_fc(in_features=hidden_size, out_features=d_model, fc_kwargs=fc)
        self.down_proj._is_residual = True

    def forward(self, x_BSE: torch.Tensor) -> torch.Tensor:
        """Returns ``down(act(up(x)))``."""
        return self.down_proj(self.act(self.up_proj(x_BSE)))


class MPTGLU(MPTMLP):
    """The MLP with a gate: ``down(act(gate(x)) * up(x))``."""

    def __init__(
        self,
        d_model: int,
        expansion_ratio: int | float,
        fc_type: dict[str, Any] | None = None,
        ffn_hidden_size: int | None = None,
        act_fn: Activation | None = None,
        device: str | torch.device | None = None,
        bias: bool = True,
    ) -> None:
        super().__init__(d_model, expansion_ratio, fc_type, ffn_hidden_size, act_fn, device, bias)
        fc = {**(fc_type or {"name": "torch"}), "bias": bias, "device": device}
        self.gate_proj = build_fc(
            in_features=d_model, out_features=self.up_proj.out_features, fc_kwargs=fc
        )

    def forward(self, x_BSE: torch.Tensor) -> torch.Tensor:
        """Returns ``down(act(gate(x)) * up(x))``."""
        return self.down_proj(self.act(self.gate_proj(x_BSE)) * self.up_proj(x_BSE))


def build_mptmlp(
    d_model: int,
    expansion_ratio: int | float,
    fc_type: dict[str, Any] | None = None,
    ffn_hidden_size: int | None = None,
    ffn_act_fn: dict[str, Any] | None = None,
    device: str | torch.device | None = None,
    bias: bool = True,
) -> MPTMLP:
    """Builds the plain MLP of ``ffn_type: mptmlp``."""
    act_fn = resolve_ffn_act_fn(ffn_act_fn)
    return MPTMLP(d_model, expansion_ratio, fc_type, ffn_hidden_size, act_fn, device, bias)


def build_mptglu(
    d_model: int,
    expansion_ratio: int | float,
    fc_type: dict[str, Any] | None = None,
    ffn_hidden_size: int | None = None,
    ffn_act_fn: dict[str, Any] | None = None,
    device: str | torch.device | None = None,
    bias: bool = True,
) -> MPTGLU:
    """Builds the gated MLP of ``ffn_type: mptglu``."""
    act_fn = resolve_ffn_act_fn(ffn_act_fn)
    return MPTGLU(d_model, expansion_ratio, fc_type, ffn_hidden_size, act_fn, device, bias)
