"""How much a micro-batch weighs: one denominator a step, over all ranks and micro-batches."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from composer.core.data_spec import DataSpec
from composer.core.microbatch import count_labelled_tokens
from composer.core.state import State
from composer.trainer._dataloading import Counts, Number
from composer.trainer._in_step import InStep, copies_of_a_batch
from composer.utils import dist


class Weighted(NamedTuple):
    """A micro-batch with its share of the step's loss (summed, the shares average to 1)."""

    batch: Any
    weight: float | torch.Tensor
    is_empty: bool
    """True if the micro-batch has no target: its loss, a mean over nothing, counts as zero."""
    is_repeated: bool = False
    """True if it was there before, and runs again because other ranks have more of them."""

    def share_of(self, loss: torch.Tensor) -> torch.Tensor:
        """Returns the loss times the weight; a whole batch's loss without another operation."""
        is_whole = isinstance(self.weight, float) and self.weight == 1.0
        return loss if is_whole else loss * self.weight


def target_counter(
    model: torch.nn.Module, data_spec: DataSpec, on_tokens: bool | None
) -> Callable[[Any], Number]:
    """Returns the function that counts what a batch's loss is a mean over.

    Samples if ``on_tokens`` is false, or if it is None and the model says that its loss is no mean
    over tokens (its ``num_loss_tokens`` is None). Otherwise tokens with a target, by the first who
    knows: the model, the DataSpec, the labels of a language model's batch. If nobody does, it is
    samples, or all tokens if ``on_tokens`` is true.
    """
    count_tokens = getattr(model, "num_loss_tokens", None)
    says_samples = count_tokens is None and hasattr(model, "num_loss_tokens")
    if on_tokens is False or (on_tokens is None and says_samples):
        return data_spec.get_num_samples_in_batch
    if count_tokens is not None:
        return count_tokens

    def count(batch: Any) -> Number:
        targets = data_spec.count_targets(batch)
        if targets is None:
            targets = count_labelled_tokens(batch)
        if targets is not None:
            return targets
        if on_tokens is None:
            return data_spec.get_num_samples_in_batch(batch)
        tokens = data_spec.get_num_tokens_in_batch(batch)
        if not tokens:
            raise ValueError(
                "accumulate_train_batch_on_tokens=True, and no tokens are found in a batch; give a "
                "DataSpec with get_num_tokens_in_batch, or set it to False to weigh by samples."
            )
        return tokens

    return count


class Weigher:
    """Weighs micro-batches so that each target counts once, however the batch was split.

    Args:
        count: counts the targets of a (micro-)batch on the host.
        recount: whether algorithms may have changed the batch since it was loaded and counted, so
            that its targets, and their sum over the ranks, must be counted again (one small
            all-reduce that stays on the device).
        in_step: has all ranks run equally many passes, where they must.
    """

    def __init__(
        self, state: State, count: Callable[[Any], Number], recount: bool, in_step: InStep
    ):
        self.state = state
        self.count = count
        self.recount = recount
        self.in_step = in_step
        self.world_size = dist.get_world_size()
        self.num_batches = self.world_size // copies_of_a_batch(state)
        self.loaded: Counts | None = None
        """What the current batch held when it was loaded."""

    def weigh(self, microbatches: Sequence[Any]) -> list[Weighted]:
        """Returns the micro-batches that have targets (or one without), with their weights."""
        assert self.loaded is not None
        if len(microbatches) == 1 and not self.recount:
            counts = [self.loaded.rank_targets]
        else:
            counts = [self.count(microbatch) for microbatch in microbatches]
        denominator = self._denominator(sum(counts))
        pairs = [pair for pair in zip(microbatches, counts, strict=True) if pair[1] > 0]
        weighted = [Weighted(batch, n / denominator, is_empty=False) for batch, n in pairs]
        if not pairs:  # the backward pass must run on every rank, or the others wait for it
            weighted = [Weighted(microbatches[0], 0.0, is_empty=True)]
        passes = self.in_step.passes([each.batch for each in weighted])
        repeated = (each.microbatch for each in passes if not each.counts)
        return weighted + [Weighted(batch, 0.0, True, is_repeated=True) for batch in repeated]

    def _denominator(self, local: Number) -> Any:
        if self.world_size == 1:
            return local
        if not self.recount:
            assert self.loaded is not None
            return self.loaded.targets / self.num_batches
        total = self.state.device.tensor_to_device(torch.tensor(float(local)))
        dist.all_reduce(total, "SUM")
        return total / self.world_size
