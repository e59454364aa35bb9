"""A run that was stopped and resumed equals the unbroken run (B21-B23, B25, B33-B38)."""

import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim.lr_scheduler import OneCycleLR, StepLR
from torch.utils.data import DataLoader

from composer import Callback, Trainer
from composer.callbacks import CheckpointSaver
from composer.optim import (
    CosineAnnealingScheduler,
    CosineAnnealingWithWarmupScheduler,
    DecoupledAdamW,
    LinearWithWarmupScheduler,
    StepScheduler,
)
from tests.composer.trainer.models import Classifier, Rows

BATCHES = 12  # 12 samples, batch 2, 2 epochs


class Watch(Callback):
    """Notes learning rates and random states at the start of each batch."""

    def __init__(self) -> None:
        self.lrs: dict[int, float] = {}
        self.randomness: dict[int, tuple[Any, ...]] = {}

    def batch_start(self, state: Any, logger: Any) -> None:
        batch = int(state.timestamp.batch)
        self.lrs[batch] = state.optimizers[0].param_groups[0]["lr"]
        self.randomness[batch] = (
            torch.get_rng_state().sum().item(),
            random.getstate()[1][:5],
            np.random.get_state()[1][:5].tolist(),
        )


def make(folder: Path, **kwargs: Any) -> tuple[Trainer, Classifier, Watch]:
    model, watch = Classifier(dropout=0.1), Watch()
    loader = kwargs.pop("loader", None) or DataLoader(
        Rows(12), batch_size=2, shuffle=True, num_workers=kwargs.pop("num_workers", 0)
    )
    stop = [kwargs.pop("stop")] if "stop" in kwargs else []
    schedule = kwargs.pop("schedule", lambda _: CosineAnnealingWithWarmupScheduler(t_warmup="2ba"))
    optimizer = DecoupledAdamW(model.parameters(), lr=0.05)
    settings: dict[str, Any] = {
        "max_duration": "2ep",
        "save_interval": "1ba",
        "save_folder": str(folder),
        "deterministic_mode": True,
    } | kwargs
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Deterministic mode")
        trainer = Trainer(
            model=model,
            train_dataloader=loader,
            optimizers=optimizer,
            schedulers=schedule(optimizer),
            seed=7,
            callbacks=[watch, *stop],
            progress_bar=False,
            **settings,
        )
    return trainer, model, watch


def run(folder: Path, **kwargs: Any) -> tuple[Trainer, Classifier, Watch]:
    trainer, model, watch = make(folder, **kwargs)
    trainer.fit()
    trainer.close()
    return trainer, model, watch


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_equal_bits(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("unbroken")
    trainer, model, watch = run(folder)
    return folder, model, watch


def checkpoint_at(folder: Path, batch: int) -> str:
    (found,) = folder.glob(f"ep*-ba{batch}-rank0.pt")
    return str(found)


def test_epochs_have_orders_of_their_own(unbroken: Any) -> None:
    seen = [i for ids in unbroken[1].seen for i in ids]
    assert sorted(seen[:12]) == sorted(seen[12:]) == list(range(12))
    assert seen[:12] != seen[12:] and seen[:12] != list(range(12))


@pytest.mark.parametrize("stop", range(1, BATCHES))
def test_b33_b34_b21_resumed_anywhere_equals_the_unbroken_run(
    stop: int, unbroken: Any, tmp_path: Path
) -> None:
    folder, whole, watch = unbroken
    _, model, resumed = run(tmp_path, load_path=checkpoint_at(folder, stop))
    assert model.seen == whole.seen[stop:]
    assert_equal_bits(weights(model), weights(whole))
    assert resumed.lrs == {b: lr for b, lr in watch.lrs.items() if b >= stop}
    assert resumed.randomness == {b: r for b, r in watch.randomness.items() if b >= stop}


@pytest.mark.parametrize(
    ("schedule", "settings"),
    [
        (lambda _: LinearWithWarmupScheduler("4sp"), {"max_duration": "24sp"}),
        (lambda _: [CosineAnnealingScheduler("9ba"), StepScheduler("1ep", gamma=0.5)], {}),
        (lambda optimizer: StepLR(optimizer, 1), {}),
        (
            lambda optimizer: OneCycleLR(optimizer, 0.1, total_steps=13),
            {"step_schedulers_every_batch": True},
        ),
    ],
    ids=["samples", "two", "by epoch", "by batch"],
)
def test_b21_any_schedule_resumes(schedule: Any, settings: Any, tmp_path: Path) -> None:
    settings = settings | {"schedule": schedule}
    _, _, watch = run(tmp_path / "whole", **settings)
    for stop in (1, 6, 11):
        path = checkpoint_at(tmp_path / "whole", stop)
        _, _, resumed = run(tmp_path / str(stop), load_path=path, **settings)
        assert resumed.lrs == {b: lr for b, lr in watch.lrs.items() if b >= stop}


def test_b23_prolonged_past_the_end_of_its_schedule(tmp_path: Path) -> None:
    settings = {"schedule": lambda _: CosineAnnealingScheduler("12ba", alpha_f=0.1)}
    _, _, short = run(tmp_path / "a", **settings)
    path = checkpoint_at(tmp_path / "a", 12)
    _, _, longer = run(tmp_path / "b", max_duration="18ba", load_path=path, **settings)
    lrs = list((short.lrs | longer.lrs).values())
    assert lrs == sorted(lrs, reverse=True)
    assert lrs[13:] == pytest.approx([0.005] * 5)
    with pytest.raises(ValueError, match="t_max 12ba must be .* max_duration 18ba"):
        make(
            tmp_path / "c",
            max_duration="18ba",
            schedule=lambda _: CosineAnnealingWithWarmupScheduler("2ba", "12ba"),
        )


@pytest.mark.parametrize("stop", [3, 6])
def test_b38_workers_do_not_change_what_is_resumed(stop: int, tmp_path: Path) -> None:
    _, whole, watch = run(tmp_path / "a", num_workers=2)
    _, model, resumed = run(
        tmp_path / "b", num_workers=2, load_path=checkpoint_at(tmp_path / "a", stop)
    )
    assert model.seen == whole.seen[stop:]
    assert_equal_bits(weights(model), weights(whole))
    assert resumed.randomness[stop] == watch.randomness[stop]


def test_b35_stopped_and_resumed_twice(unbroken: Any, tmp_path: Path) -> None:
    _, whole, _ = unbroken
    seen: list[list[int]] = []
    for stop in (3, 8, None):  # as a killed job: the schedule spans the whole run each time
        extra = {} if stop is None else {"stop": StopAt(stop)}
        trainer, model, _ = make(tmp_path, run_name="twice", autoresume=True, **extra)
        if stop is None:
            trainer.fit()
        else:
            with pytest.raises(Stopped):
                trainer.fit()
        trainer.close()
        seen += model.seen
    assert seen == whole.seen
    assert_equal_bits(weights(model), weights(whole))


class Stopped(Exception):
    pass


class StopAt(Callback):
    def __init__(self, batch: int):
        self.batch = batch

    def batch_start(self, state: Any, logger: Any) -> None:
        if int(state.timestamp.batch) == self.batch:
            raise Stopped


def test_a_generator_of_the_users_is_moved_over_epochs_that_are_done(tmp_path: Path) -> None:
    def loader() -> DataLoader:
        return DataLoader(
            Rows(12), batch_size=2, shuffle=True, generator=torch.Generator().manual_seed(5)
        )

    _, whole, _ = run(tmp_path / "a", loader=loader())
    _, model, _ = run(tmp_path / "b", loader=loader(), load_path=checkpoint_at(tmp_path / "a", 9))
    assert model.seen == whole.seen[9:]
    assert_equal_bits(weights(model), weights(whole))


def test_evaluation_does_not_move_training(unbroken: Any, tmp_path: Path) -> None:
    _, whole, _ = unbroken
    _, model, _ = run(
        tmp_path,
        eval_dataloader=DataLoader(Rows(6), batch_size=2, shuffle=True),
        eval_interval="1ba",
    )
    assert_equal_bits(weights(model), weights(whole))


@pytest.mark.parametrize("epoch", [1, 2])
def test_b37_counters_after_resuming_at_an_epochs_end(epoch: int, tmp_path: Path) -> None:
    def counters(trainer: Trainer) -> tuple[int, int, int]:
        timestamp = trainer.state.timestamp
        return int(timestamp.batch), int(timestamp.epoch), int(timestamp.batch_in_epoch)

    trainer, _, _ = run(tmp_path / "a", max_duration="3ep", save_interval="1ep")
    assert counters(trainer) == (18, 3, 0)
    path = tmp_path / "a" / f"ep{epoch}-ba{6 * epoch}-rank0.pt"
    trainer, model, _ = run(
        tmp_path / "b", max_duration="3ep", save_interval="1ep", load_path=str(path)
    )
    assert counters(trainer) == (18, 3, 0)
    assert len(model.seen) == 6 * (3 - epoch)


def test_b22_a_longer_duration_wins_over_the_stored_one(tmp_path: Path) -> None:
    run(tmp_path / "a", save_interval="1ep")
    trainer, model, _ = run(
        tmp_path / "b", max_duration="4ep", load_path=str(tmp_path / "a" / "ep2-ba12-rank0.pt")
    )
    assert len(model.seen) == 12
    assert int(trainer.state.timestamp.epoch) == 4


def test_b25_finished_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = {"run_name": "done", "autoresume": True, "save_interval": "1ep"}
    run(tmp_path, **settings)
    trainer, model, _ = run(tmp_path, **settings)
    assert model.seen == []
    assert "already reached max_duration=2ep" in caplog.text
    trainer, _, _ = make(tmp_path / "x", load_path=checkpoint_at(tmp_path, 12))
    with pytest.raises(ValueError, match=r"2ep.*2ep"):
        trainer.fit()
    trainer.close()


def test_b25_finished_but_for_the_end_of_its_epoch(tmp_path: Path) -> None:
    settings = {"run_name": "done", "autoresume": True, "save_interval": "12ba"}
    run(tmp_path, **settings)
    trainer, model, _ = run(tmp_path, **settings)
    assert model.seen == []
    assert int(trainer.state.timestamp.epoch) == 2


def test_autoresume_says_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="run_name"):
        make(tmp_path, autoresume=True)
    with pytest.raises(ValueError, match="save_folder"):
        make(tmp_path, autoresume=True, run_name="x", save_folder=None)
    with pytest.raises(ValueError, match="save_latest_filename"):
        make(tmp_path, autoresume=True, run_name="x", save_latest_filename=None)


def test_b41_another_global_batch_within_an_epoch_is_refused(tmp_path: Path) -> None:
    run(tmp_path, max_duration="4ba")
    for size in (1, 3, 6):
        trainer, _, _ = make(
            tmp_path / str(size),
            loader=DataLoader(Rows(12), batch_size=size),
            load_path=checkpoint_at(tmp_path, 4),
        )
        with pytest.raises(ValueError, match="after 8 samples in 4 batches"):
            trainer.fit()
        trainer.close()


def test_an_epoch_may_be_made_shorter_than_where_it_stands(tmp_path: Path) -> None:
    run(tmp_path, max_duration="4ba")
    trainer, model, _ = run(
        tmp_path / "shorter", load_path=checkpoint_at(tmp_path, 4), train_subset_num_batches=3
    )
    assert int(trainer.state.timestamp.epoch) == 2
    assert len(model.seen) == 3


def test_b51_the_folder_of_a_saver_given_as_a_callback_is_resumed_from(tmp_path: Path) -> None:
    for batches in (3, 2):
        saver = CheckpointSaver(folder=str(tmp_path / "own"), save_interval="1ba")
        trainer, model, _ = make(
            tmp_path,
            save_folder=None,
            stop=saver,
            run_name="own",
            autoresume=True,
            max_duration="5ba" if batches == 2 else "3ba",
        )
        assert trainer._checkpoint_saver is saver
        trainer.fit()
        trainer.close()
        assert len(model.seen) == batches


def test_fit_again_goes_on(tmp_path: Path, unbroken: Any) -> None:
    _, whole, _ = unbroken
    trainer, model, _ = make(tmp_path, max_duration=None)
    trainer.fit(duration="1ep")
    trainer.fit(duration="1ep")
    trainer.close()
    assert model.seen == whole.seen
