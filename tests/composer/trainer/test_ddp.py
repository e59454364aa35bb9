"""Two replicas train as one process does on the same batches."""

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from composer import Trainer
from composer.distributed import DDPSyncStrategy
from composer.distributed.ddp import average_gradients
from composer.utils import dist
from tests.composer.trainer.models import Classifier, Rows, TokenLosses, token_batches
from tests.launch import run_ranks


def train_rows(strategy: str, microbatch: int) -> tuple[list[float], list[float]]:
    model = Classifier()
    rows = Rows(16)
    world_size = dist.get_world_size()
    trainer = Trainer(
        model=model,
        optimizers=torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9),
        train_dataloader=DataLoader(
            rows, batch_size=4 // world_size, sampler=dist.get_sampler(rows)
        ),
        max_duration="2ep",
        device_train_microbatch_size=microbatch,
        ddp_sync_strategy=strategy,
        progress_bar=False,
        seed=1,
    )
    losses = []

    def note(*_: Any) -> None:
        losses.append(trainer.state.total_loss_dict["loss/train/total"])

    trainer.state.callbacks[:] = []
    step = trainer.state.advance_batch
    trainer.state.advance_batch = lambda *a, **k: (note(), step(*a, **k))[1]  # type: ignore[method-assign]
    trainer.fit()
    trainer.close()
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert int(trainer.state.timestamp.sample) == 32
    return losses, flat.tolist()


@pytest.mark.parametrize("strategy", [s.value for s in DDPSyncStrategy])
@pytest.mark.parametrize("microbatch", [1, 2])
def test_two_ranks_equal_one(strategy: str, microbatch: int) -> None:
    one_losses, one = train_rows(strategy, 4)
    for losses, weights in run_ranks(train_rows, 2, strategy, microbatch):
        assert losses == pytest.approx(one_losses, abs=1e-5)
        assert weights == pytest.approx(one, abs=1e-5)


class NotesGradients(torch.optim.SGD):
    """Runs a first pass on each rank alone, as SAM does, and notes what both passes gave."""

    gradients: list[list[float]] = []

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for ddp_sync in (False, True):
            closure(ddp_sync=ddp_sync)
            parts = [p.grad.flatten() for group in self.param_groups for p in group["params"]]
            self.gradients.append(torch.cat(parts).tolist())
        return super().step()


def two_passes() -> list[list[float]]:
    model, rows = Classifier(), Rows(8)
    trainer = Trainer(
        model=model,
        optimizers=NotesGradients(model.parameters(), lr=0.1),
        train_dataloader=DataLoader(rows, batch_size=4, sampler=dist.get_sampler(rows)),
        device_train_microbatch_size=2,
        max_duration="1ep",
        progress_bar=False,
    )
    trainer.fit()
    trainer.close()
    return NotesGradients.gradients


def test_a_pass_may_stay_on_its_rank() -> None:
    (alone, shared), (other_alone, other_shared) = run_ranks(two_passes, 2)
    assert shared == other_shared
    mean = [(a + b) / 2 for a, b in zip(alone, other_alone, strict=True)]
    assert alone != other_alone and shared == pytest.approx(mean, abs=1e-6)


class OneOfTwo(torch.nn.Module):
    """Uses one weight on rank 0 and another on rank 1."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList([torch.ones(1), torch.ones(1), torch.ones(1)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weights[dist.get_global_rank()] * x


def average_where_one_has_none() -> list[Any]:
    model = OneOfTwo()
    model(torch.tensor([4.0])).backward()
    average_gradients(model)
    return [None if w.grad is None else w.grad.item() for w in model.weights]


def test_a_gradient_that_one_rank_lacks_counts_as_zero_there() -> None:
    assert run_ranks(average_where_one_has_none, 2) == [[2.0, 2.0, None]] * 2


def train_uneven() -> tuple[float, float]:
    """Rank 0 holds 9 targets, rank 1 holds 1 and a row without any."""
    model = TokenLosses()
    if dist.get_global_rank() == 0:
        batch = token_batches([[1] * 9 + [0]], [1.0])
    else:
        batch = token_batches([[1] + [0] * 9, [0] * 10], [2.0, 5.0])
    trainer = Trainer(
        model=model,
        optimizers=torch.optim.SGD(model.parameters(), lr=1.0),
        train_dataloader=[batch],
        max_duration="1ba",
        device_train_microbatch_size=1,
        progress_bar=False,
    )
    trainer.fit()
    trainer.close()
    return trainer.state.total_loss_dict["loss/train/total"], model.weight.item()


def test_targets_are_counted_over_ranks() -> None:
    for loss, weight in run_ranks(train_uneven, 2):
        assert loss == pytest.approx(1.1, abs=1e-6)
        assert weight == pytest.approx(1 - 1.1, abs=1e-6)


def train_with_an_empty_rank() -> float:
    model = TokenLosses()
    row = [1, 1] if dist.get_global_rank() == 0 else [0, 0]
    trainer = Trainer(
        model=model,
        optimizers=torch.optim.SGD(model.parameters(), lr=1.0),
        train_dataloader=[token_batches([row], [3.0])],
        max_duration="1ba",
        device_train_microbatch_size=1,
        progress_bar=False,
    )
    trainer.fit()
    trainer.close()
    return model.weight.item()


def test_a_rank_without_targets_adds_nothing() -> None:
    assert run_ranks(train_with_an_empty_rank, 2) == pytest.approx([-2.0, -2.0])


def train_unequal_lengths() -> int:
    model = Classifier()
    size = 6 if dist.get_global_rank() == 0 else 4
    trainer = Trainer(
        model=model,
        optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
        train_dataloader=[Batch(i) for i in range(size)],
        max_duration="1ep",
        device_train_microbatch_size=2,
        progress_bar=False,
    )
    trainer.fit()
    trainer.close()
    return int(trainer.state.timestamp.batch)


class Batch(dict):
    def __init__(self, index: int):
        rows = Rows(2)
        super().__init__(x=rows.x, y=rows.y, id=torch.tensor([index, index]))


def test_an_epoch_ends_when_a_rank_has_no_batch_left() -> None:
    assert run_ranks(train_unequal_lengths, 2) == [4, 4]
