"""Initialises parameters: which distribution (``init_config.name``), and how for each module kind.

The rules by module kind are tried in the order in which ``module_init_fns`` lists them. All of them
work on a whole tensor, also where the parameter is a shard of it.
"""

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor, distribute_tensor

from llmfoundry.layers_registry import module_init_fns, norms, param_init_fns
from llmfoundry.models.layers.dmoe import DroplessMLP, ExpertMLP

__all__ = [
    "baseline_param_init_fn_",
    "embedding_init",
    "fc_init",
    "fused_init_helper_",
    "generic_param_init_fn_",
    "init_own_params_",
    "kaiming_normal_param_init_fn_",
    "kaiming_uniform_param_init_fn_",
    "moe_init",
    "multihead_attention_init",
    "neox_param_init_fn_",
    "norm_init",
    "small_param_init_fn_",
    "torch_default_param_init_fn_",
    "xavier_normal_param_init_fn_",
    "xavier_uniform_param_init_fn_",
]

InitFn = Callable[[torch.Tensor], Any]


@torch.no_grad()
def _fill(param: torch.Tensor, init_fn_: InitFn) -> None:
    """Runs ``init_fn_`` on the whole of ``param``; a sharded one gets its part of rank 0's."""
    if not isinstance(param, DTensor):
        init_fn_(param)
        return
    whole = torch.empty(param.shape, dtype=param.dtype, device=param.device)
    init_fn_(whole)
    sharded = distribute_tensor(whole, param.device_mesh, param.placements)
    param.to_local().copy_(sharded.to_local())


def fused_init_helper_(
    param: torch.Tensor, init_fn_: InitFn, fused: tuple[int, Sequence[int]]
) -> None:
    """Initialises each part of a fused weight as the matrix that it is on its own.

    Args:
        param: The fused weight.
        init_fn_: Initialises one tensor in place.
        fused: The dimension of the parts, and the indices where a new part begins.
    """
    dim, splits = fused
    edges = [0, *splits, param.size(dim)]
    for start, end in zip(edges[:-1], edges[1:], strict=True):
        init_fn_(param.narrow(dim, start, end - start))


def _residual_divisor(init_div_is_residual: Any, n_layers: int | None) -> float | None:
    """Returns what residual projections are divided by; None for nothing."""
    value = init_div_is_residual
    if value is False:
        return None
    if value is True:
        if n_layers is None:
            raise ValueError("init_div_is_residual: true needs n_layers, which was not given.")
        return math.sqrt(2 * n_layers)
    if isinstance(value, (int, float)):
        return float(value)
    if isinstance(value, str) and value.isnumeric():
        return float(value)
    raise ValueError(
        "Expected init_div_is_residual to be a bool or a number (a string of digits is one), but "
        f"got {value!r}."
    )


def _divide_residual_(module: Any, divisor: float | None) -> None:
    if divisor is not None and getattr(module, "_is_residual", False):
        with torch.no_grad():
            module.weight.div_(divisor)


def fc_init(
    module: torch.nn.Module, init_fn_: InitFn, div_is_residual: float | None, **_: Any
) -> bool:
    """Initialises a linear layer: its parts, if fused, each for itself; biases become zero."""
    if not isinstance(module, torch.nn.Linear):
        return False
    fused = getattr(module, "_fused", None)
    if fused is None:
        _fill(module.weight, init_fn_)
    else:
        _fill(module.weight, lambda weight: fused_init_helper_(weight, init_fn_, fused))
    if module.bias is not None:
        _fill(module.bias, torch.nn.init.zeros_)
    _divide_residual_(module, div_is_residual)
    return True


def _embedding_init_fn(
    init_fn_: InitFn, emb_init_std: float | None, emb_init_uniform_lim: Any
) -> InitFn:
    if emb_init_std is not None:
        if emb_init_std == 0:
            warnings.warn("emb_init_std is 0: embeddings become 0.", stacklevel=2)
        return functools.partial(torch.nn.init.normal_, mean=0.0, std=emb_init_std)
    if emb_init_uniform_lim is None:
        return init_fn_
    limits = emb_init_uniform_lim
    if isinstance(limits, Sequence):
        if len(limits) > 2:
            raise ValueError(
                f"emb_init_uniform_lim takes a limit or a pair [low, high], but got {limits}."
            )
        if len(limits) == 1:
            limits = (-limits[0], limits[0])
    else:
        limits = (-limits, limits)
    low, high = limits
    if low == high:
        warnings.warn(f"emb_init_uniform_lim: all embeddings become {low}.", stacklevel=2)
    return functools.partial(torch.nn.init.uniform_, a=low, b=high)


def embedding_init(
    module: torch.nn.Module,
    init_fn_: InitFn,
    emb_init_std: float | None,
    emb_init_uniform_lim: Any,
    **_: Any,
) -> bool:
    """Initialises an embedding; the row of the padding token becomes zero."""
    if not isinstance(module, torch.nn.Embedding):
        return False
    fill_ = _embedding_init_fn(init_fn_, emb_init_std, emb_init_uniform_lim)

    def init_(weight: torch.Tensor) -> None:
        fill_(weight)
        if module.padding_idx is not None:
            weight[module.padding_idx].zero_()

    _fill(module.weight, init_)
    return True


def norm_init(module: Any, **_: Any) -> bool:
    """Initialises a norm: weight one, bias zero."""
    kinds = tuple(kind for kind in norms.get_all().values() if isinstance(kind, type))
    if not isinstance(module, kinds):
        return False
    if getattr(module, "weight", None) is not None:
        _fill(module.weight, torch.nn.init.ones_)
    if getattr(module, "bias", None) is not None:
        _fill(module.bias, torch.nn.init.zeros_)
    return True


def multihead_attention_init(
    module: torch.nn.Module,
    init_fn_: InitFn,
    d_model: int | None,
    div_is_residual: float | None,
    **_: Any,
) -> bool:
    """Initialises torch's own ``nn.MultiheadAttention``, its three inputs each for itself."""
    if not isinstance(module, torch.nn.MultiheadAttention):
        return False
    if module._qkv_same_embed_dim:
        width = module.embed_dim
        splits = (0, [width, 2 * width])
        _fill(module.in_proj_weight, lambda weight: fused_init_helper_(weight, init_fn_, splits))
    else:
        for weight in (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight):
            _fill(weight, init_fn_)
    for bias in (module.in_proj_bias, module.bias_k, module.bias_v, module.out_proj.bias):
        if bias is not None:
            _fill(bias, torch.nn.init.zeros_)
    _fill(module.out_proj.weight, init_fn_)
    _divide_residual_(module.out_proj, div_is_residual)
    return True


def moe_init(
    module: torch.nn.Module, init_fn_: InitFn, div_is_residual: float | None, **_: Any
) -> bool:
    """Initialises experts: each matrix as the linear layer that it is, and biases to zero.

    Those of torch_dmoe are drawn as they are stored, all experts' as one matrix, and are not
    divided, as published models have it.
    """
    if isinstance(module, DroplessMLP):
        if module.bias is not None:
            _fill(module.bias, torch.nn.init.zeros_)
        return True
    if not isinstance(module, ExpertMLP):
        return False
    for name, weight in module.named_parameters(recurse=False):
        divisor = div_is_residual if name == "w2" else None
        _fill(weight, functools.partial(_init_experts_, module, name, init_fn_, divisor))
    return True


def _init_experts_(
    module: ExpertMLP, name: str, init_fn_: InitFn, divisor: float | None, weight: torch.Tensor
) -> None:
    if module.inits_whole:
        init_fn_(weight)
        return
    for w_IO in module.by_expert(name, weight):
        init_fn_(w_IO.mT)  # a linear layer's weight, whose second dimension is what goes in
        if divisor is not None:
            w_IO.div_(divisor)


def generic_param_init_fn_(
    module: torch.nn.Module,
    init_fn_: InitFn,
    n_layers: int | None = None,
    d_model: int | None = None,
    init_div_is_residual: int | float | str | bool = True,
    emb_init_std: float | None = None,
    emb_init_uniform_lim: tuple[float, float] | float | None = None,
    **kwargs: Any,
) -> None:
    """Initialises the parameters that ``module`` itself owns, by the rule for its kind.

    Args:
        module: The module; its children are left alone.
        init_fn_: Initialises one weight in place.
        n_layers: The model's depth.
        d_model: The model's width.
        init_div_is_residual: What output projections of residual branches are divided by: True for
            ``sqrt(2 * n_layers)``, False for nothing, or a number (``.inf`` has them begin at
            zero, so that each block begins as the identity).
        emb_init_std: Embeddings are normal with this deviation.
        emb_init_uniform_lim: Embeddings are uniform within this limit or pair.
        **kwargs: The rest of ``init_config``, which needs nothing here.

    Raises:
        NotImplementedError: The module owns parameters, and no rule knows its kind.
    """
    del kwargs
    settings = {
        "init_fn_": init_fn_,
        "d_model": d_model,
        "div_is_residual": _residual_divisor(init_div_is_residual, n_layers),
        "emb_init_std": emb_init_std,
        "emb_init_uniform_lim": emb_init_uniform_lim,
    }
    for rule in module_init_fns.get_all().values():
        if rule(module=module, **settings):
            return
    if next(module.parameters(recurse=False), None) is not None:
        raise NotImplementedError(
            f"{type(module).__name__} parameters are not initialized by any rule of "
            "module_init_fns. Register one for it."
        )


def torch_default_param_init_fn_(module: torch.nn.Module, **kwargs: Any) -> None:
    """Calls the module's own ``reset_parameters``, if it has one."""
    del kwargs
    reset = getattr(module, "reset_parameters", None)
    if callable(reset):
        reset()


def _normal_param_init_fn_(module: torch.nn.Module, std: float, **kwargs: Any) -> None:
    generic_param_init_fn_(
        module, functools.partial(torch.nn.init.normal_, mean=0.0, std=std), **kwargs
    )


def baseline_param_init_fn_(module: torch.nn.Module, init_std: float | None, **kwargs: Any) -> None:
    """Draws weights from a normal distribution with deviation ``init_std``."""
    if init_std is None:
        raise ValueError(
            "You must set model.init_config['init_std'] to a float value to use the default "
            "initialization scheme."
        )
    _normal_param_init_fn_(module, init_std, **kwargs)


def small_param_init_fn_(module: torch.nn.Module, d_model: int, **kwargs: Any) -> None:
    """Draws weights with deviation ``sqrt(2 / (5 d_model))`` (arXiv 1910.05895)."""
    _normal_param_init_fn_(module, math.sqrt(2 / (5 * d_model)), d_model=d_model, **kwargs)


def neox_param_init_fn_(
    module: torch.nn.Module, n_layers: int, d_model: int, **kwargs: Any
) -> None:
    """Draws as small_init_, and divides residual projections by ``n_layers / sqrt(10)``."""
    kwargs["init_div_is_residual"] = n_layers / math.sqrt(10)
    small_param_init_fn_(module, d_model=d_model, n_layers=n_layers, **kwargs)


def _kaiming(
    torch_init_: Callable[..., Any],
    module: torch.nn.Module,
    init_gain: float = 0,
    fan_mode: str = "fan_in",
    init_nonlinearity: str = "leaky_relu",
    **kwargs: Any,
) -> None:
    init_fn_ = functools.partial(
        torch_init_, a=init_gain, mode=fan_mode, nonlinearity=init_nonlinearity
    )
    generic_param_init_fn_(module, init_fn_, **kwargs)


def _xavier(
    torch_init_: Callable[..., Any], module: torch.nn.Module, init_gain: float = 0, **kwargs: Any
) -> None:
    generic_param_init_fn_(module, functools.partial(torch_init_, gain=init_gain), **kwargs)


def kaiming_uniform_param_init_fn_(module: torch.nn.Module, **kwargs: Any) -> None:
    """Draws weights as torch's ``kaiming_uniform_``."""
    _kaiming(torch.nn.init.kaiming_uniform_, module, **kwargs)


def kaiming_normal_param_init_fn_(module: torch.nn.Module, **kwargs: Any) -> None:
    """Draws weights as torch's ``kaiming_normal_``."""
    _kaiming(torch.nn.init.kaiming_normal_, module, **kwargs)


def xavier_uniform_param_init_fn_(module: torch.nn.Module, **kwargs: Any) -> None:
    """Draws weights as torch's ``xavier_uniform_``; the default gain of 0 makes them zero."""
    _xavier(torch.nn.init.xavier_uniform_, module, **kwargs)


def xavier_normal_param_init_fn_(module: torch.nn.Module, **kwargs: Any) -> None:
    """Draws weights as torch's ``xavier_normal_``; the default gain of 0 makes them zero."""
    _xavier(torch.nn.init.xavier_normal_, module, **kwargs)


def init_own_params_(
    module: torch.nn.Module, init_config: dict[str, Any], n_layers: int, d_model: int
) -> None:
    """Initialises the parameters that ``module`` itself owns, as a model's ``init_config`` says."""
    settings = dict(init_config)
    init_ = param_init_fns.get(settings.pop("name"))
    init_(module=module, n_layers=n_layers, d_model=d_model, **settings)
