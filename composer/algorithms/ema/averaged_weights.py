"""A second set of weights that follows the model's, and changes places with them.

The one store of EMA, SWA and CheckpointAveraging. Names are those of the model without wrappers, so
that a checkpoint fits replicas, shards and one process; sharded weights have sharded averages.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from composer.core.sharded_state import placed_as
from composer.distributed.wrapping import plain_name
from composer.utils.gradients import as_sharded, local_part
from composer.utils.misc import reshard, unwrap_model

__all__ = ["EMAParameters", "compute_ema"]

Named = dict[str, torch.Tensor]


class EMAParameters:
    """Copies of a model's trained parameters and of its buffers, by name.

    Args:
        model: The model to copy; None for no copies yet.
        device: Where the copies live; None for where the weights are.
    """

    def __init__(
        self, model: torch.nn.Module | None = None, device: torch.device | None = None
    ) -> None:
        self.device = device
        self.named_parameters_dict: Named = {}
        self.named_buffers_dict: Named = {}
        if model is None:
            return
        parameters, buffers = _weights_of(model)
        trained = {name: p for name, p in parameters.items() if p.requires_grad}
        self.named_parameters_dict = {name: self._copied(p) for name, p in trained.items()}
        self.named_buffers_dict = {name: self._copied(b) for name, b in buffers.items()}

    def named_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields the copies of parameters by name."""
        yield from self.named_parameters_dict.items()

    def named_buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields the copies of buffers by name."""
        yield from self.named_buffers_dict.items()

    @torch.no_grad()
    def swap_params(self, model: torch.nn.Module) -> None:
        """Puts the copies into the model, and what was in the model into the copies."""
        for copy, weight in self._pairs(model):
            held = weight.clone()
            weight.copy_(copy)
            copy.copy_(held)

    @torch.no_grad()
    def transfer_ema_params(self, model: torch.nn.Module) -> None:
        """Copies the copies into the model."""
        for copy, weight in self._pairs(model):
            weight.copy_(copy)

    @torch.no_grad()
    def move_towards(self, model: "torch.nn.Module | EMAParameters", share: float) -> None:
        """Moves each copy by ``share`` of its way to a model's weight, or another copy, in place.

        Counters, which have no way in between, become the model's.
        """
        _move(self._pairs(model), share)

    def move_params_to_device(self, destination_model: torch.nn.Module) -> None:
        """Puts the copies where they belong, sharded as the model's weights are."""
        for _ in self._pairs(destination_model):
            pass

    def state_dict(self) -> dict[str, Named]:
        """Returns the copies themselves."""
        return {
            "named_parameters_dict": self.named_parameters_dict,
            "named_buffers_dict": self.named_buffers_dict,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over copies; they find their device and shards when they meet the model."""
        self.named_parameters_dict = dict(state["named_parameters_dict"])
        self.named_buffers_dict = dict(state["named_buffers_dict"])

    def _copied(self, tensor: torch.Tensor) -> torch.Tensor:
        copy = tensor.detach().clone()
        return copy if self.device is None else copy.to(self.device)

    def _pairs(
        self, model: "torch.nn.Module | EMAParameters"
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yields each copy with the model's weight: of shards, this rank's parts."""
        for held, weights in zip(
            (self.named_parameters_dict, self.named_buffers_dict), _weights_of(model), strict=True
        ):
            for name, copy in held.items():
                # Checkpoints of older releases have the names of the model in its wrapper.
                weight = weights.get(name, weights.get(name.removeprefix("module.")))
                if weight is None:
                    continue
                if (as_sharded(copy) is None) != (as_sharded(weight) is None):
                    copy = placed_as(copy, weight)
                held[name] = copy = copy.to(self.device or weight.device)
                yield local_part(copy), local_part(weight)


@torch.no_grad()
def compute_ema(
    model: torch.nn.Module, ema_model: torch.nn.Module | EMAParameters, smoothing: float = 0.99
) -> None:
    """Makes ``ema_model``, in place, ``smoothing * ema_model + (1 - smoothing) * model``.

    Args:
        model: The model that is trained.
        ema_model: The average; what it has by the same names is changed.
        smoothing: How much of the average stays, 0 to 1.

    Raises:
        ValueError: If ``ema_model`` is something else.
    """
    if isinstance(ema_model, EMAParameters):
        ema_model.move_towards(model, 1 - smoothing)
        return
    if not isinstance(ema_model, torch.nn.Module):
        raise ValueError(
            f"ema_model is a {type(ema_model).__name__}; give a torch.nn.Module or EMAParameters."
        )
    both = zip(_weights_of(ema_model), _weights_of(model), strict=True)
    pairs = (
        (local_part(average), local_part(weights[name]))
        for averages, weights in both
        for name, average in averages.items()
        if name in weights
    )
    _move(pairs, 1 - smoothing)


def _move(pairs: Iterator[tuple[torch.Tensor, torch.Tensor]], share: float) -> None:
    moved: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
    for copy, weight in pairs:
        if copy.is_floating_point():
            moved[0].append(copy.detach())
            moved[1].append(weight.detach().to(copy.device))
        else:
            copy.copy_(weight)
    if moved[0]:
        torch._foreach_lerp_(*moved, share)  # pyright: ignore[reportPrivateImportUsage]


def _weights_of(model: torch.nn.Module | EMAParameters) -> tuple[Named, Named]:
    """Returns the parameters and the buffers by the names of the model without wrappers."""
    if isinstance(model, EMAParameters):
        return model.named_parameters_dict, model.named_buffers_dict
    model = unwrap_model(model)
    reshard(model)
    parameters: Named = {plain_name(name): p for name, p in model.named_parameters()}
    return parameters, {plain_name(name): b for name, b in model.named_buffers()}
