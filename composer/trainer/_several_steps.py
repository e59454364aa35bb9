"""Several optimizer steps for one loaded batch, where an algorithm asks for smaller ones."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from composer.core.data_spec import DataSpec
from composer.core.protocols import DividesBatches
from composer.core.state import State
from composer.distributed.deepspeed import ZeroModel
from composer.trainer._losses import Losses
from composer.trainer._microbatching import FixedSize
from composer.trainer._targets import Weigher
from composer.utils import dist


class SeveralSteps:
    """Trains on a loaded batch in as many optimizer steps as an algorithm says.

    Each step takes an equal share of every rank's samples, at a learning rate that the algorithm
    may lower. A batch that does not divide so is divided into fewer steps; so that all ranks do the
    same, one of which ranks hold different numbers is not divided. Shares without a target are
    passed over.

    Args:
        sizer: cuts the samples of a step to fit into memory, and runs it.
        weigher: counts targets.

    Raises:
        ValueError: if several algorithms would divide batches, or DeepSpeed runs the steps.
    """

    def __init__(
        self,
        state: State,
        sizer: FixedSize,
        data_spec: DataSpec,
        weigher: Weigher,
        dividers: list[DividesBatches],
    ):
        names = [type(each).__name__ for each in dividers]
        if len(names) > 1:
            raise ValueError(f"{' and '.join(names)} would both divide batches; leave one out.")
        if isinstance(state.model, ZeroModel):
            raise ValueError(
                f"{names[0]} and deepspeed_config do not go together: DeepSpeed counts on one step "
                "a batch; use parallelism_config, or leave the algorithm out."
            )
        self.state = state
        self.sizer = sizer
        self.data_spec = data_spec
        self.weigher = weigher
        self.divider = dividers[0]
        split, count = sizer.split, data_spec.get_num_samples_in_batch
        # A share may be smaller than a micro-batch, of which the split of a whole batch warns.
        sizer.split = lambda batch, size: split(batch, min(size, count(batch)))

    def run(self, batch: Any) -> Losses:
        """Trains on the batch and returns its losses, each target counting once."""
        steps = self._divisor(batch, self.divider.steps_in_batch(self.state))
        if steps == 1:
            return self.sizer.run(batch)
        size = int(self.data_spec.get_num_samples_in_batch(batch)) // steps
        shares = self._with_targets(self.data_spec.split_batch(batch, size))
        whole = sum(targets for _, targets in shares)
        losses = Losses()
        with self._scaled_rates(self.divider.lr_factor(steps)):
            for share, targets in shares:
                self.state.batch = share
                losses.add(self.sizer.run(share), targets / whole)
        self.state.batch = batch
        return losses

    def _divisor(self, batch: Any, wanted: int) -> int:
        """Returns the number of equal shares, at most ``wanted``, that all ranks can make."""
        samples = self.data_spec.get_num_samples_in_batch(batch)
        if wanted == 1 or samples != int(samples):
            return 1
        if dist.get_world_size() > 1:
            packed = self.state.device.tensor_to_device(torch.tensor([samples, -samples]))
            dist.all_reduce(packed, "MAX")
            most, least = packed.tolist()
            if most != -least:
                return 1
        return max(steps for steps in range(1, wanted + 1) if samples % steps == 0)

    def _with_targets(self, shares: Any) -> list[tuple[Any, float]]:
        """Returns the shares in which some rank has a target, with their number over all ranks."""
        counts = torch.tensor([float(self.weigher.count(share)) for share in shares])
        if dist.get_world_size() > 1:
            counts = self.state.device.tensor_to_device(counts)
            dist.all_reduce(counts, "SUM")
        return [pair for pair in zip(shares, counts.tolist(), strict=True) if pair[1] > 0]

    @contextmanager
    def _scaled_rates(self, factor: float) -> Iterator[None]:
        """Multiplies learning rates for a while; schedulers find them as they left them."""
        groups = [group for each in self.state.optimizers for group in each.param_groups]
        rates = [group["lr"] for group in groups]
        for group in groups:
            group["lr"] = group["lr"] * factor
        try:
            yield
        finally:
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate
