"""Token dropping: middle layers compute a random part of the tokens, at first a small one."""

import functools
from collections.abc import Callable
from typing import Any

import torch

from composer.core.algorithm import Algorithm
from composer.core.event import Event
from composer.core.logger import Logger
from composer.core.state import State
from composer.core.time import Time
from composer.optim.schedule_time import fraction_done


class TokenDropper:
    """The share of tokens that wrapped layers compute, and how a layer computes only some.

    Which tokens these are is drawn for each row, layer and forward; the others pass the layer by.
    """

    def __init__(self) -> None:
        self.kept = 1.0
        self.multiple_of = 1

    def num_kept(self, length: int) -> int:
        """Returns how many of so many tokens are computed."""
        if self.kept >= 1:
            return length
        kept = round(self.kept * length / self.multiple_of) * self.multiple_of
        return min(length, max(1, kept))

    def run(
        self, layer: torch.nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Calls a layer's forward, in training on some tokens of each row only."""
        name = None if args else next(iter(kwargs))
        x_BSE: torch.Tensor = args[0] if name is None else kwargs[name]
        rows, length = x_BSE.shape[:2]
        num_kept = self.num_kept(length)
        if not layer.training or num_kept == length:
            return forward(*args, **kwargs)
        draw = torch.rand(rows, length, device=x_BSE.device)
        index_BK = draw.topk(num_kept, dim=1).indices.sort(dim=1).values
        args = tuple(_of_tokens(each, index_BK, length) for each in args)
        kwargs = {key: _of_tokens(each, index_BK, length) for key, each in kwargs.items()}
        output = forward(*args, **kwargs)
        y_BKE = output if isinstance(output, torch.Tensor) else output[0]
        index_BKE = index_BK[..., None].expand_as(y_BKE)
        y_BSE = x_BSE.to(y_BKE.dtype).scatter(1, index_BKE, y_BKE)
        return y_BSE if isinstance(output, torch.Tensor) else (y_BSE, *output[1:])


def _of_tokens(value: Any, index_BK: torch.Tensor, length: int) -> Any:
    """Returns what an argument of a layer is for some tokens of each row.

    Tensors hold positions in their second dimension, or are attention masks with four dimensions.
    An object says it itself with ``of_tokens(index, length)``. A cache is left out: it is empty in
    training, and nobody reads what a layer would put there.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if hasattr(value, "of_tokens"):
        return value.of_tokens(index_BK, length)
    if isinstance(value, torch.Tensor):
        return _of_tensor(value, index_BK, length)
    if isinstance(value, list | tuple):
        return tuple(_of_tokens(each, index_BK, length) for each in value)
    if hasattr(value, "get_seq_length") and value.get_seq_length() in (0, length):
        return None
    raise ValueError(
        f"TokenDropping does not know what a layer's argument of type {type(value).__name__} is "
        "for some of the tokens; use attn_implementation sdpa or eager."
    )


def _of_tensor(value: torch.Tensor, index_BK: torch.Tensor, length: int) -> torch.Tensor:
    rows = index_BK.size(0)
    dims = (2, 3) if value.ndim == 4 else (1,)
    fits = value.ndim in (2, 3, 4) and value.size(0) in (1, rows)
    if not fits or any(value.size(dim) not in (1, length) for dim in dims):
        raise ValueError(
            f"TokenDropping does not know what a layer's argument of shape {tuple(value.shape)} is "
            f"for some of {rows} x {length} tokens."
        )
    value = value.expand(rows, *value.shape[1:])
    for dim in dims:
        if value.size(dim) == length:
            shape = [rows] + [1] * (value.ndim - 1)
            shape[dim] = index_BK.size(1)
            sizes = [*value.shape[:dim], index_BK.size(1), *value.shape[dim + 1 :]]
            value = value.gather(dim, index_BK.view(shape).expand(sizes))
    return value


def apply_token_dropping(
    model: torch.nn.Module, layers: str | None = None, num_whole: int = 1
) -> TokenDropper:
    """Has the middle layers of a transformer compute a part of the tokens; returns what sets it.

    Until its ``kept`` is set below 1, and in evaluation, nothing changes. Names of modules and
    parameters stay, so checkpoints fit with and without.

    Args:
        model: The model.
        layers: The name of the list of layers (such as ``model.transformer.blocks``); by default
            the one list of equal layers with the most parameters.
        num_whole: How many layers at either end compute all tokens.

    Raises:
        ValueError: If there are no such layers.
    """
    blocks = _largest_stack(model) if layers is None else model.get_submodule(layers)
    if not isinstance(blocks, torch.nn.ModuleList) or len(blocks) <= 2 * num_whole:
        raise ValueError(
            f"TokenDropping found {'no list' if layers is None else layers} of more than "
            f"{2 * num_whole} layers in the model; name a ModuleList with `layers`, or lower "
            f"num_whole={num_whole}."
        )
    dropper = TokenDropper()
    for block in list(blocks)[num_whole : len(blocks) - num_whole]:
        own = getattr(block.__dict__.get("forward"), "func", None)
        if isinstance(getattr(own, "__self__", None), TokenDropper):
            del block.forward  # of a run before this one
        block.forward = functools.partial(dropper.run, block, block.forward)
    return dropper


def _largest_stack(model: torch.nn.Module) -> torch.nn.Module | None:
    lists = [each for each in model.modules() if isinstance(each, torch.nn.ModuleList)]
    stacks = [each for each in lists if len({type(layer) for layer in each}) == 1]
    return max(stacks, key=lambda each: sum(p.numel() for p in each.parameters()), default=None)


class TokenDropping(Algorithm):
    """Middle layers compute a random part of the tokens, which grows until it is all of them.

    Random layerwise token dropping (arXiv 2211.11586): each layer but those at the ends draws its
    own tokens; the others pass it by. Kept tokens keep their positions and see each other as masks
    have it. Evaluation computes all tokens. It works on models whose layers stand in a
    ``ModuleList`` and take hidden states first: MPT, GPT-2, the Llama family, BERT. With
    ``compile_config`` each new number of tokens is compiled anew: use a large ``multiple_of``.

    Logs ``token_dropping/kept``, the share of tokens that middle layers compute.

    Args:
        initial_kept: The share of the tokens that middle layers compute at first.
        duration: The share of training in which it grows, evenly, to all tokens.
        multiple_of: Kept tokens of a sequence are a multiple of this many, as kernels like it.
        layers: The name of the list of layers; by default the largest list of equal layers.
        num_whole: How many layers at either end compute all tokens.

    Raises:
        ValueError: If a setting is out of range, the model has no such layers, or ranks share
            sequences or layers (tensor and context parallelism), which would draw different tokens.
    """

    def __init__(
        self,
        initial_kept: float = 0.25,
        duration: float = 0.7,
        multiple_of: int = 16,
        layers: str | None = None,
        num_whole: int = 1,
    ) -> None:
        if not 0 < initial_kept < 1 or not 0 < duration <= 1 or multiple_of < 1 or num_whole < 0:
            raise ValueError(
                f"initial_kept={initial_kept} and duration={duration} are shares (above 0; below 1 "
                f"and at most 1), multiple_of={multiple_of} is at least 1 and num_whole={num_whole}"
                " at least 0."
            )
        self.initial_kept = initial_kept
        self.duration = duration
        self.multiple_of = multiple_of
        self.layers = layers
        self.num_whole = num_whole
        self.dropper: TokenDropper | None = None

    def match(self, event: Event, state: State) -> bool:
        """Matches when the model has been built, when a batch begins, and at the end."""
        return event in (Event.INIT, Event.BATCH_START, Event.FIT_END)

    def apply(self, event: Event, state: State, logger: Logger) -> int | None:
        """Prepares the layers; then says how many tokens they compute, in the end all."""
        if event is Event.INIT:
            if state.tp_config is not None or state.cp_config is not None:
                raise ValueError(
                    "TokenDropping does not go together with tensor or context parallelism: ranks "
                    "that share a sequence would draw different tokens. Leave one of them out."
                )
            self.dropper = apply_token_dropping(state.model, self.layers, self.num_whole)
            self.dropper.multiple_of = self.multiple_of
            return
        assert self.dropper is not None
        if event is Event.FIT_END:
            self.dropper.kept = 1.0
            return
        done = fraction_done(state, Time.from_duration(self.duration))
        self.dropper.kept = self.initial_kept + (1 - self.initial_kept) * done
        logger.log_metrics({"token_dropping/kept": self.dropper.kept})
