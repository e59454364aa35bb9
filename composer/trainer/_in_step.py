"""Ranks that share a model's weights: equally many forward passes, and one batch a group."""

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from composer.core.data_spec import DataSpec
from composer.core.state import State
from composer.distributed.mesh import num_copies_of_a_batch, num_copies_of_activations
from composer.utils import dist
from composer.utils.iter_helpers import map_collection
from composer.utils.model_wrapper import ModelWrapper
from composer.utils.reproducibility import MAX_SEED

log = logging.getLogger(__name__)


class Pass(NamedTuple):
    """A forward pass over a micro-batch."""

    microbatch: Any
    counts: bool
    """False if it is there only for the other ranks, which wait for this one's weights."""


class InStep:
    """Has every rank run as many forward passes as any, where they meet in each of them.

    Args:
        state: The state; a model that is not sharded needs none of this, and pays nothing.
        ranks_meet: Whether ranks wait for each other in a pass even of a model that is not sharded.
    """

    def __init__(self, state: State, ranks_meet: bool = False):
        self.device = state.device
        is_spread = state.fsdp_enabled or isinstance(state.model, ModelWrapper)
        self.is_needed = (is_spread or ranks_meet) and dist.get_world_size() > 1
        self._last: Any = None

    def passes(self, microbatches: Sequence[Any]) -> list[Pass]:
        """Returns this rank's passes, the last micro-batch repeated where others have more.

        Raises:
            ValueError: On all ranks, if one has to run a pass and never had a batch.
        """
        passes = [Pass(microbatch, counts=True) for microbatch in microbatches]
        if not self.is_needed:
            return passes
        if microbatches:
            self._last = microbatches[-1]
        packed = torch.tensor([len(passes), int(self._last is None)])
        packed = self.device.tensor_to_device(packed)
        dist.all_reduce(packed, "MAX")
        most, someone_has_none = packed.tolist()
        if someone_has_none:
            raise ValueError(
                "a rank has no batch at all, and a sharded model needs every rank in every forward "
                "pass: give each rank at least one batch (more data, or a smaller batch size)"
            )
        return passes + [Pass(self._last, counts=False)] * (most - len(passes))


def copies_of_a_batch(state: State) -> int:
    """Returns how many neighbouring ranks work on one and the same batch."""
    return num_copies_of_a_batch(state.device_mesh)


def seed_of_draws(state: State) -> int:
    """Returns what a rank's generators start from.

    Ranks that split layers have the same activations, and must drop the same of them. All others
    compute other samples, or other tokens, and draw other numbers.
    """
    return _seed_of_group(state, num_copies_of_activations(state.device_mesh))


def seed_of_batches(state: State) -> int:
    """Returns what the order of a rank's samples is drawn from, the same for ranks of one batch."""
    return _seed_of_group(state, copies_of_a_batch(state))


def _seed_of_group(state: State, size: int) -> int:
    return (state.rank_zero_seed + dist.get_global_rank() // size) % (MAX_SEED + 1)


def share_batches(state: State, data_spec: DataSpec) -> None:
    """Has the ranks of a tensor or context group draw the same samples.

    A DistributedSampler over all ranks, as ``dist.get_sampler`` makes it before the Trainer knows
    of groups, is set to one share a group. Other loaders must do so by themselves, and are checked.
    """
    copies = copies_of_a_batch(state)
    sampler: Any = getattr(data_spec.dataloader, "sampler", None)
    is_of_all_ranks = (
        isinstance(sampler, torch.utils.data.DistributedSampler)
        and sampler.num_replicas == dist.get_world_size()
    )
    if copies == 1 or not is_of_all_ranks:
        return
    log.info("%d neighbouring ranks share each batch: the sampler is set so.", copies)
    sampler.__init__(
        sampler.dataset,
        num_replicas=dist.get_world_size() // copies,
        rank=dist.get_global_rank() // copies,
        shuffle=sampler.shuffle,
        seed=sampler.seed,
        drop_last=sampler.drop_last,
    )


def check_shared(state: State, batch: Any) -> None:
    """Refuses a batch that differs within a group of ranks that work on one batch.

    Raises:
        ValueError: On all ranks, if one differs.
    """
    copies = copies_of_a_batch(state)
    if copies == 1:
        return
    prints = dist.all_gather_object(_fingerprint(batch))
    for first in range(0, len(prints), copies):
        if len(set(prints[first : first + copies])) > 1:
            raise ValueError(
                f"ranks {first} to {first + copies - 1} share one batch (tensor or context "
                "parallelism), and their loaders gave different ones: give a DistributedSampler "
                f"num_replicas=world size // {copies} and rank=rank // {copies}, or a "
                f"StreamingDataset replication={copies}"
            )


def _fingerprint(batch: Any) -> tuple[float, ...]:
    sums: list[float] = []

    def add(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            weights = torch.arange(1, value.numel() + 1, dtype=torch.float64)
            sums.append(float(value.detach().flatten().cpu().double() @ weights))
        return value

    map_collection(batch, add)
    return tuple(sums)
