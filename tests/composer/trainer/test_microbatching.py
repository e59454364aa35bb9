"""A micro-batch size found by trying: agreed on by all ranks, and without effect on the update."""

import warnings
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from composer import Evaluator, Event, Trainer
from composer.trainer import _assemble
from composer.utils import dist
from tests.composer.trainer.models import Classifier, Rows
from tests.launch import run_ranks


class Small(Classifier):
    """Runs out of memory above a size, or once at a chosen micro-batch of a chosen batch."""

    def __init__(self, fits: int = 99, fails_at: tuple[int, int] | None = None):
        super().__init__()
        self.fits = fits
        self.fails_at = fails_at
        self.batch = -1
        self.calls = 0
        self.sizes: list[int] = []

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        size = len(batch["x"])
        self.sizes.append(size)
        call, self.calls = self.calls, self.calls + 1
        if size > self.fits or (self.fails_at == (self.batch, call)):
            self.fails_at = None if size <= self.fits else self.fails_at
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate a lot.")
        return super().forward(batch)


def trainer_of(model: Small, size: Any, **kwargs: Any) -> Trainer:
    rows = Rows(32)
    world_size = dist.get_world_size()
    trainer = Trainer(
        model=model,
        optimizers=torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9),
        train_dataloader=DataLoader(
            rows, batch_size=8 // world_size, sampler=dist.get_sampler(rows)
        ),
        max_duration="1ep",
        device_train_microbatch_size=size,
        progress_bar=False,
        **kwargs,
    )
    start = trainer.engine.run_event

    def note(event: Any) -> Any:
        if event is Event.BATCH_START:
            model.batch, model.calls = int(trainer.state.timestamp.batch), 0
        return start(event)

    trainer.engine.run_event = note  # type: ignore[method-assign]
    return trainer


def weights_after(model: Small, size: Any) -> list[float]:
    trainer = trainer_of(model, size)
    trainer.fit()
    trainer.close()
    return torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()


@pytest.fixture
def auto_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_assemble, "supports_finding_a_size", lambda name: True)


def test_auto_is_refused_on_the_cpu() -> None:
    with pytest.raises(ValueError, match="not supported on cpu"):
        trainer_of(Small(), "auto")


@pytest.mark.usefixtures("auto_anywhere")
@pytest.mark.parametrize("fits", [1, 3, 8])
def test_size_is_halved_until_it_fits(fits: int) -> None:
    model = Small(fits)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        weights = weights_after(model, "auto")
    assert weights == pytest.approx(weights_after(Small(), 8), abs=1e-6)
    expected = {1: 1, 3: 2, 8: 8}[fits]
    assert model.sizes[-1] == expected
    assert sum("memory ran out" in str(w.message) for w in seen) == {1: 3, 3: 2, 8: 0}[fits]


@pytest.mark.usefixtures("auto_anywhere")
def test_nothing_smaller_than_one() -> None:
    trainer = trainer_of(Small(0), "auto")
    with warnings.catch_warnings(), pytest.raises(RuntimeError, match="single sample"):
        warnings.simplefilter("ignore")
        trainer.fit()
    trainer.close()


@pytest.mark.usefixtures("auto_anywhere")
def test_other_errors_are_not_taken_for_it() -> None:
    class Broken(Small):
        def forward(self, batch: dict[str, Any]) -> torch.Tensor:
            raise RuntimeError("CUDA error: an illegal memory access")

    trainer = trainer_of(Broken(), "auto")
    with pytest.raises(
        RuntimeError, match="Encountered non-addressable cuda error while using auto"
    ):
        trainer.fit()
    trainer.close()


@pytest.mark.usefixtures("auto_anywhere")
def test_size_grows_again_and_a_failed_try_doubles_the_patience() -> None:
    model = Small(4)
    trainer = trainer_of(model, "auto")
    loop = trainer._run.train_loop(None)
    sizer = loop.sizer
    sizer.patience = 1
    sizes = []
    run = sizer.run

    def noted(batch: Any) -> Any:
        losses = run(batch)
        sizes.append(trainer.state.device_train_microbatch_size)
        return losses

    sizer.run = noted
    trainer._run.train_loop = lambda on_tokens: loop  # type: ignore[method-assign]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit()
    assert sizes == [4, 4, 4, 4]
    assert model.sizes == [8, 4, 4, 8, 4, 4, 4, 4, 8, 4, 4]
    assert sizer.patience == 4
    trainer.close()


def on_ranks(rank: int, batch: int, call: int) -> tuple[list[float], int]:
    _assemble.supports_finding_a_size = lambda name: True
    fails = (batch, call) if dist.get_global_rank() == rank else None
    model = Small(fails_at=fails)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        weights = weights_after(model, "auto")
    return weights, model.sizes[-1]


@pytest.mark.parametrize(("rank", "batch", "call"), [(0, 0, 0), (1, 2, 0), (1, 3, 0)])
def test_ranks_agree_wherever_memory_runs_out(rank: int, batch: int, call: int) -> None:
    expected = weights_after(Small(), 8)
    for weights, size in run_ranks(on_ranks, 2, rank, batch, call):
        assert weights == pytest.approx(expected, abs=1e-5)
        assert size == 2


@pytest.mark.filterwarnings("ignore:device_eval_microbatch_size='auto'")
def test_evaluation_counts_each_sample_once_when_memory_runs_out() -> None:
    model, rows = Small(2), Rows(10)
    trainer = Trainer(
        model=model, optimizers=torch.optim.SGD(model.parameters(), lr=0.1), progress_bar=False
    )
    evaluator = Evaluator(
        label="auto", dataloader=DataLoader(rows, batch_size=5), device_eval_microbatch_size="auto"
    )
    trainer.eval(evaluator)
    metric = trainer.state.eval_metrics["auto"]["MulticlassAccuracy"]
    expected = (model.net(rows.x).argmax(-1) == rows.y).float().mean().item()
    assert metric.compute().item() == pytest.approx(expected)
    assert model.sizes == [5, 2, 2, 1, 2, 2, 1]
    trainer.close()


def test_a_batch_smaller_than_a_part_is_taken_whole_and_warned_about() -> None:
    loader = DataLoader(Rows(6), batch_size=4)
    trainer = Trainer(
        model=Classifier(),
        train_dataloader=loader,
        max_duration="1ep",
        device_train_microbatch_size=4,
        optimizers=torch.optim.SGD(Classifier().parameters(), lr=0.1),
    )
    with pytest.warns(UserWarning, match="Cannot split tensor of length 2 into batches of size 4"):
        trainer.fit()


def test_a_duration_in_iterations_of_no_length_is_refused() -> None:
    trainer = Trainer(
        model=Classifier(),
        train_dataloader=DataLoader(Rows(4), batch_size=4),
        max_duration="3iter",
        optimizers=torch.optim.SGD(Classifier().parameters(), lr=0.1),
    )
    with pytest.raises(ValueError, match="max_duration=.*counts iterations"):
        trainer.fit()


def test_no_interval_at_all_is_refused_at_the_start() -> None:
    with pytest.raises(ValueError, match="eval_interval=None says nothing"):
        Trainer(
            model=Classifier(),
            eval_dataloader=DataLoader(Rows(4), batch_size=4),
            eval_interval=None,  # type: ignore[arg-type]
            optimizers=torch.optim.SGD(Classifier().parameters(), lr=0.1),
        )
