"""A loaded batch is trained on in several steps: the data, the clock and the schedule stay."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from composer import Callback, Trainer
from composer.algorithms import BatchSizeWarmup
from composer.callbacks import StabilityMonitor
from composer.loggers import InMemoryLogger
from composer.optim import CosineAnnealingWithWarmupScheduler, DecoupledAdamW
from tests.composer.trainer.models import Classifier, Rows, TokenLosses, token_batches
from tests.launch import run_ranks

BATCHES = 6  # 24 samples, batch 4


class Steps(Callback):
    """Notes the samples, the learning rate and the clock of each step."""

    def __init__(self) -> None:
        self.found: list[tuple[int, list[int], float]] = []

    def after_train_batch(self, state: Any, logger: Any) -> None:
        rate = state.optimizers[0].param_groups[0]["lr"]
        self.found.append((int(state.timestamp.batch), state.batch["id"].tolist(), rate))


def train(*callbacks: Any, **kwargs: Any) -> Trainer:
    model = Classifier(dropout=0.1)
    algorithms = kwargs.pop("algorithms", BatchSizeWarmup({"0dur": 4, "2ba": 2, "0.5dur": 1}))
    trainer = Trainer(
        model=model,
        train_dataloader=DataLoader(Rows(24), batch_size=kwargs.pop("batch_size", 4)),
        optimizers=DecoupledAdamW(model.parameters(), lr=0.05),
        schedulers=kwargs.pop("schedulers", None),
        max_duration="1ep",
        algorithms=algorithms,
        callbacks=list(callbacks),
        progress_bar=False,
        seed=3,
        **kwargs,
    )
    trainer.fit()
    trainer.close()
    return trainer


def test_each_sample_is_in_one_step_and_rates_follow_the_root() -> None:
    steps, memory = Steps(), InMemoryLogger()
    trainer = train(steps, loggers=memory, schedulers=CosineAnnealingWithWarmupScheduler("2ba"))
    assert [ids for _, ids, _ in steps.found] == [
        *([i] for i in range(8)),
        [8, 9],
        [10, 11],
        *([i, i + 1, i + 2, i + 3] for i in range(12, 24, 4)),
    ]
    assert [batch for batch, _, _ in steps.found] == [0] * 4 + [1] * 4 + [2] * 2 + [3, 4, 5]
    plain = Steps()
    without = train(plain, algorithms=None, schedulers=CosineAnnealingWithWarmupScheduler("2ba"))
    rates = {batch: rate for batch, _, rate in plain.found}
    factors = {0: 0.5, 1: 0.5, 2: 0.5**0.5, 3: 1, 4: 1, 5: 1}
    for batch, _, rate in steps.found:
        assert rate == pytest.approx(rates[batch] * factors[batch])
    clock = trainer.state.timestamp
    assert (clock.batch, clock.sample, clock.epoch) == (BATCHES, 24, 1)
    groups = (each.state.optimizers[0].param_groups[0]["lr"] for each in (trainer, without))
    assert next(groups) == next(groups), "schedulers find the rates as they left them"
    logged = memory.data["batch_size_warmup/steps_in_batch"]
    assert [value for _, value in logged] == [4, 4, 2, 1, 1, 1]


@pytest.mark.parametrize(("scaling", "factor"), [("linear", 0.25), ("none", 1.0)])
def test_rules_of_the_rate(scaling: str, factor: float) -> None:
    steps = Steps()
    train(steps, algorithms=BatchSizeWarmup({"0ba": 4}, lr_scaling=scaling))
    assert {rate for _, _, rate in steps.found} == {0.05 * factor}


def test_it_equals_the_same_steps_in_batches_of_their_own() -> None:
    """Two steps of a batch are two batches of half the size."""
    halves = train(algorithms=None, batch_size=2)
    divided = train(algorithms=BatchSizeWarmup({"0ba": 2}, lr_scaling="none"))
    for name, value in halves.state.model.state_dict().items():
        assert torch.equal(divided.state.model.state_dict()[name], value), name
    assert int(divided.state.timestamp.batch) == BATCHES


def test_a_step_is_the_mean_over_its_targets_and_the_loss_that_of_all() -> None:
    """Rows of 1 and 9 targets in one step, 4 and none in the next: both are logged as one mean."""
    rows = [[1] + [0] * 9, [1] * 9 + [0], [1] * 4 + [0] * 6, [0] * 10]
    batch = token_batches(rows, [1.0, 2.0, 3.0, 4.0])
    gradients: list[float] = []

    class Note(Callback):
        def after_train_batch(self, state: Any, logger: Any) -> None:
            gradients.append(state.model.weight.grad.item())

    found = {}
    for microbatch in (1, 2):
        gradients.clear()
        model = TokenLosses()
        trainer = Trainer(
            model=model,
            train_dataloader=[batch],
            optimizers=torch.optim.SGD(model.parameters(), lr=0.0),
            max_duration="1ba",
            device_train_microbatch_size=microbatch,
            algorithms=BatchSizeWarmup({"0ba": 4}),
            callbacks=Note(),
            progress_bar=False,
        )
        trainer.fit()
        trainer.close()
        found[microbatch] = list(gradients), trainer.state.total_loss_dict["loss/train/total"]
    assert found[1] == found[2]
    assert len(found[1][0]) == 3, "the share without a target gets no step"
    whole = TokenLosses()
    trainer = Trainer(
        model=whole,
        train_dataloader=[batch],
        optimizers=torch.optim.SGD(whole.parameters(), lr=0.0),
        max_duration="1ba",
        device_train_microbatch_size=4,
        progress_bar=False,
    )
    trainer.fit()
    trainer.close()
    assert found[1][1] == pytest.approx(trainer.state.total_loss_dict["loss/train/total"])


def test_a_run_resumed_amid_the_warm_up_equals_the_unbroken_one(tmp_path: Path) -> None:
    saving: dict[str, Any] = {
        "save_folder": str(tmp_path),
        "save_filename": "ba{batch}.pt",
        "save_interval": "1ba",
        "run_name": "run",
        "save_overwrite": True,
        "schedulers": CosineAnnealingWithWarmupScheduler("2ba"),
    }
    whole = train(**saving).state.model.state_dict()
    for batch in (1, 2, 3):
        resumed = train(load_path=str(tmp_path / f"ba{batch}.pt"), **saving).state.model
        for name, value in whole.items():
            assert torch.equal(resumed.state_dict()[name], value), (batch, name)


def test_a_batch_that_does_not_divide_is_divided_into_fewer_steps() -> None:
    steps = Steps()
    train(steps, algorithms=BatchSizeWarmup({"0ba": 4}), batch_size=9)  # 9, 9 and 6 samples
    assert [len(ids) for _, ids, _ in steps.found] == [3] * 3 + [3] * 3 + [2] * 3


def _on_ranks(sizes: list[int]) -> tuple[list[list[int]], list[torch.Tensor]]:
    from composer.utils import dist

    steps, model = Steps(), Classifier()
    rank, data = dist.get_global_rank(), Rows(24)
    own = [data[index] for index in range(rank, 24, 2)]
    batches = [own[start : start + sizes[rank]] for start in range(0, 12, sizes[rank])]
    trainer = Trainer(
        model=model,
        train_dataloader=[torch.utils.data.default_collate(batch) for batch in batches],
        optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
        max_duration="2ba",
        device_train_microbatch_size=4,
        algorithms=BatchSizeWarmup({"0ba": 2}, lr_scaling="none"),
        callbacks=steps,
        progress_bar=False,
    )
    trainer.fit()
    trainer.close()
    return [ids for _, ids, _ in steps.found], [p.detach() for p in model.parameters()]


def test_two_ranks_step_together() -> None:
    (first, weights), (second, others) = run_ranks(_on_ranks, 2, [4, 4])
    assert first == [[0, 2], [4, 6], [8, 10], [12, 14]] and second[0] == [1, 3]
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for start in range(0, 16, 4):
        rows = torch.utils.data.default_collate([Rows(24)[i] for i in range(start, start + 4)])
        optimizer.zero_grad()
        model.loss(model(rows), rows).backward()
        optimizer.step()
    for one, two, expected in zip(weights, others, model.parameters()):
        assert torch.equal(one, two)
        torch.testing.assert_close(one, expected.detach())


def test_ranks_with_different_numbers_of_samples_do_not_divide() -> None:
    (first, _), (second, _) = run_ranks(_on_ranks, 2, [4, 2])
    assert [len(ids) for ids in first] == [4, 4] and [len(ids) for ids in second] == [2, 2]


@pytest.mark.parametrize(("action", "batches"), [("stop", 2), ("skip_step", 3)])
def test_what_is_amiss_in_an_early_step_of_a_batch_counts(action: str, batches: int) -> None:
    data, model = Rows(12), Classifier()
    data.x[4] = float("nan")  # in the first of the second batch's two steps
    guard = StabilityMonitor(action)
    trainer = Trainer(
        model=model,
        train_dataloader=DataLoader(data, batch_size=4),
        optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
        max_duration="1ep",
        algorithms=BatchSizeWarmup({"0ba": 2}),
        callbacks=guard,
        progress_bar=False,
    )
    trainer.fit()
    trainer.close()
    assert (trainer.state.timestamp.batch, guard.num_skipped) == (batches, 1)
    assert all(bool(p.isfinite().all()) for p in model.parameters())


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"schedule": {"0ba": 1}}, "more than that"),
        ({"schedule": {"0ba": 0, "1ba": 2}}, "at least 1"),
        ({"lr_scaling": "cubic"}, "use sqrt, linear, none"),
    ],
)
def test_refusals(kwargs: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        BatchSizeWarmup(**kwargs)


def test_two_that_divide_are_refused() -> None:
    both = [BatchSizeWarmup({"0ba": 2}), BatchSizeWarmup({"0ba": 4})]
    with pytest.raises(ValueError, match="would both divide"):
        train(algorithms=both)
