"""The Trainer's arguments: what they do, and what is refused before the first step."""

import logging
import os
import signal
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from composer import Algorithm, Callback, DataSpec, Event, Time, Trainer
from composer.loggers import InMemoryLogger, LoggerDestination
from composer.optim import (
    CosineAnnealingWithWarmupScheduler,
    LinearScheduler,
    MultiStepWithWarmupScheduler,
)
from tests.composer.trainer.models import Classifier, Rows, rows_loader


def make(model: Classifier | None = None, **kwargs: Any) -> Trainer:
    model = model or Classifier()
    settings: dict[str, Any] = {
        "model": model,
        "optimizers": torch.optim.SGD(model.parameters(), lr=0.1),
        "train_dataloader": rows_loader(),
        "max_duration": "1ep",
        "progress_bar": False,
    }
    return Trainer(**(settings | kwargs))


@pytest.mark.parametrize(
    ("kwargs", "error", "words"),
    [
        ({"model": torch.nn.Linear(2, 2)}, ValueError, "give a ComposerModel"),
        ({"max_duration": "10dur"}, ValueError, "max_duration='10dur'"),
        ({"max_duration": "1h"}, ValueError, "not in wall-clock time"),
        ({"max_duration": 0}, ValueError, "must be positive"),
        ({"scale_schedule_ratio": 0.5}, ValueError, "no scheduler was given"),
        ({"seed": -1}, ValueError, "seed=-1"),
        ({"seed": 2**32}, ValueError, "between 0 and"),
        ({"device": "abacus"}, ValueError, "abacus"),
        ({"device": "cpu", "precision": "amp_fp16"}, ValueError, "not supported for CPU training."),
        ({"device_train_microbatch_size": "auto"}, ValueError, "auto"),
        ({"device_train_microbatch_size": 0}, ValueError, "positive number"),
        ({"device_train_microbatch_size": "many"}, ValueError, "'many'"),
        ({"parallelism_config": {"fsdpp": {}}}, ValueError, "did you mean .fsdp."),
        ({"train_dataloader": [{"x": 1}]}, ValueError, "no `batch_size`"),
    ],
)
def test_bad_arguments_are_refused(kwargs: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        make(**kwargs)


def test_two_optimizers_are_refused_in_words() -> None:
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(NotImplementedError, match="parameter groups"):
        make(model, optimizers=[optimizer, optimizer])


def test_missing_data_and_duration_are_named() -> None:
    trainer = make(train_dataloader=None)
    with pytest.raises(ValueError, match="train_dataloader"):
        trainer.fit()
    trainer.close()
    trainer = make(max_duration=None)
    with pytest.raises(ValueError, match="max_duration"):
        trainer.fit()
    trainer.close()


class Endless(IterableDataset):
    def __iter__(self) -> Any:
        while True:
            yield Rows(1)[0]


def test_b30_endless_loader_has_no_epochs() -> None:
    trainer = make(train_dataloader=DataLoader(Endless(), batch_size=2), max_duration="2ep")
    with pytest.raises(ValueError, match="max_duration cannot be specified in epochs"):
        trainer.fit()
    trainer.close()
    trainer = make(train_dataloader=DataLoader(Endless(), batch_size=2), max_duration="3ba")
    trainer.fit()
    assert int(trainer.state.timestamp.batch) == 3
    trainer.close()
    trainer = make(
        train_dataloader=DataLoader(Endless(), batch_size=2),
        max_duration="2ep",
        train_subset_num_batches=2,
    )
    trainer.fit()
    assert int(trainer.state.timestamp.batch) == 4
    trainer.close()


def test_b62_nothing_to_train_on_is_no_endless_loop() -> None:
    loader = DataLoader(Rows(3), batch_size=8, drop_last=True)
    trainer = make(train_dataloader=loader, max_duration="5ba")
    with pytest.raises(ValueError, match="drop_last"):
        trainer.fit()
    trainer.close()
    trainer = make(train_dataloader=loader, max_duration="1ep")
    with pytest.warns(UserWarning, match="No batches were trained for global rank 0"):
        trainer.fit()
    trainer.close()


def test_no_optimizer_means_sgd_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="No optimizer was specified. Defaulting to DecoupledSGDW"):
        trainer = make(optimizers=None)
    assert trainer.state.optimizers[0].param_groups[0]["lr"] == 0.1
    trainer.close()


def test_fit_takes_new_data_schedulers_and_evaluation() -> None:
    model, memory = Classifier(), InMemoryLogger()
    trainer = make(model, train_dataloader=None, max_duration=None, loggers=memory)
    trainer.fit(
        train_dataloader=rows_loader(6),
        duration="4ba",
        schedulers=LinearScheduler(alpha_f=0.0),
        eval_dataloader=rows_loader(4),
        eval_interval="2ba",
    )
    assert int(trainer.state.timestamp.batch) == 4
    assert trainer.state.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.1 * 0.25)
    assert [int(t.batch) for t, _ in memory.data["metrics/eval/MulticlassAccuracy"]] == [2, 4]
    trainer.fit(duration="1ba", device_train_microbatch_size=1)
    assert [len(ids) for ids in model.seen[-2:]] == [1, 1]
    trainer.fit(reset_time=True, duration="1ba")
    assert int(trainer.state.timestamp.batch) == 1
    trainer.close()


def test_scale_schedule_ratio_scales_the_duration() -> None:
    trainer = make(max_duration="4ep", scale_schedule_ratio=0.5, schedulers=LinearScheduler())
    assert trainer.state.max_duration == "2ep"
    trainer.close()
    with pytest.raises(ValueError, match="leaves nothing"):
        make(max_duration="1ep", scale_schedule_ratio=0.5, schedulers=LinearScheduler())


def test_b18_warmup_in_another_unit_is_refused_before_the_first_step() -> None:
    with pytest.raises(ValueError, match=r"(?s)warmup.*tok|tok.*warmup"):
        make(schedulers=CosineAnnealingWithWarmupScheduler(t_warmup="100tok"), max_duration="2ep")


@pytest.mark.parametrize(
    "waits",
    [
        {"max_duration": "100tok"},
        {"schedulers": LinearScheduler(t_max="100tok")},
        {"schedulers": MultiStepWithWarmupScheduler("100tok", ["5ba"])},  # no step would be taken
        {"eval_interval": "100tok", "eval_dataloader": rows_loader()},
    ],
    ids=lambda waits: next(iter(waits)),
)
def test_b18_c5_waiting_for_tokens_that_nobody_counts_is_refused(waits: dict[str, Any]) -> None:
    trainer = make(**waits)
    with pytest.raises(ValueError, match="tok.*get_num_tokens_in_batch"):
        trainer.fit()
    assert int(trainer.state.timestamp.batch) <= 1
    trainer.close()
    counted = DataSpec(rows_loader(), get_num_tokens_in_batch=lambda batch: 20)
    trainer = make(train_dataloader=counted, **waits)
    trainer.fit()
    trainer.close()


def test_b19_no_schedule_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for schedulers in (None, LinearScheduler()):
            trainer = make(max_duration="2ep", schedulers=schedulers)
            trainer.fit()
            trainer.close()


@pytest.mark.parametrize("unit", ["2ep", "12ba", "24sp"])
def test_b17_warmup_as_long_as_the_run(unit: str) -> None:
    lrs: list[float] = []

    class Lr(Callback):
        def batch_end(self, state: Any, logger: Any) -> None:
            lrs.append(state.schedulers[0].get_last_lr()[0])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = make(
            max_duration=unit,
            schedulers=CosineAnnealingWithWarmupScheduler(t_warmup=unit),
            callbacks=Lr(),
        )
        trainer.fit()
    assert lrs == pytest.approx([0.1 * i / 12 for i in range(12)])
    trainer.close()


def test_torch_schedulers_step_by_epoch() -> None:
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    trainer = make(model, optimizers=optimizer, schedulers=scheduler, max_duration="2ep")
    trainer.fit()
    assert optimizer.param_groups[0]["lr"] == 0.25
    trainer.close()


def test_schedules_multiply() -> None:
    lrs: list[float] = []

    class Note(Callback):
        def batch_end(self, state: Any, logger: Any) -> None:
            lrs.append(state.optimizers[0].param_groups[0]["lr"])

    trainer = make(
        schedulers=[LinearScheduler(), LinearScheduler()], max_duration="4ba", callbacks=Note()
    )
    trainer.fit()
    assert lrs == pytest.approx([0.1 * (left / 4) ** 2 for left in (4, 3, 2, 1)])
    assert len(trainer.state.schedulers) == 1
    trainer.close()


@pytest.mark.parametrize("size", [4, "auto"])
def test_ranks_that_share_a_sequence_train_on_one_at_a_time(size: Any) -> None:
    class Shared(DataSpec):
        seq_parallel_world_size = 2

    with pytest.raises(ValueError, match="seq_parallel_world_size=2"):
        make(train_dataloader=Shared(rows_loader()), device_train_microbatch_size=size)


def test_a_micro_batch_size_that_was_set_outlives_a_second_fit() -> None:
    trainer = make(max_duration=None)
    trainer.fit(duration="1ba")
    trainer.state.device_train_microbatch_size = 1
    trainer.fit(duration="1ba")
    assert trainer.state.device_train_microbatch_size == 1
    trainer.fit(duration="1ba", train_dataloader=rows_loader(12, batch_size=4))
    assert trainer.state.device_train_microbatch_size == 4
    trainer.close()


def test_an_algorithm_may_put_in_another_model() -> None:
    other = Classifier()

    class Replace(Algorithm):
        def match(self, event: Event, state: Any) -> bool:
            return event is Event.INIT

        def apply(self, event: Event, state: Any, logger: Any) -> None:
            state.model = other
            state.optimizers = torch.optim.SGD(other.parameters(), lr=0.1)

    trainer = make(algorithms=Replace())
    trainer.fit()
    assert len(other.seen) == 6 and trainer._original_model is other
    trainer.close()


def test_optimizers_that_run_the_model_themselves() -> None:
    model = Classifier()
    events: list[str] = []

    class Order(Callback):
        def run_event(self, event: Event, state: Any, logger: Any) -> None:
            events.append(event.value)

    trainer = make(
        model,
        optimizers=torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2),
        max_duration="1ba",
        callbacks=Order(),
    )
    before = [p.clone() for p in model.parameters()]
    trainer.fit()
    assert events.count("after_backward") >= 2  # the closure ran more than once in the step
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    trainer.close()


def test_b58_two_trainers_in_one_process() -> None:
    def shared() -> list[Any]:
        handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
        names = (None, "composer")
        return [
            *(handlers, sys.excepthook, sys.stdout, sys.stderr, dict(os.environ)),
            *(torch.are_deterministic_algorithms_enabled(), torch.get_default_dtype()),
            *(threading.enumerate(), [logging.getLogger(name).handlers[:] for name in names]),
        ]

    before = shared()
    first = make()
    first.fit()
    with pytest.warns(UserWarning, match="Deterministic mode"):
        second = make(deterministic_mode=True)
    assert torch.are_deterministic_algorithms_enabled()
    second.fit()
    second.close()
    first.close()
    assert shared() == before


def test_a_callback_serves_one_open_trainer() -> None:
    callback = Callback()
    first = make(callbacks=callback)
    with pytest.raises(RuntimeError, match="open callback or logger from a previous trainer"):
        make(callbacks=callback)
    first.close()
    make(callbacks=callback).close()


def test_losses_of_any_form_are_named() -> None:
    class Named(Classifier):
        def loss(self, outputs: Any, batch: Any) -> Any:
            value = super().loss(outputs, batch)
            return {"a": value, "b": 2 * value}

    class Several(Classifier):
        def loss(self, outputs: Any, batch: Any) -> Any:
            value = super().loss(outputs, batch)
            return value, value * 3

    class Weighted(Classifier):
        def loss(self, outputs: Any, batch: Any) -> Any:
            value = super().loss(outputs, batch)
            return {"total": value, "shown": 5 * value.detach()}

    for model, factors in (
        (Named(), {"a": 1, "b": 2, "total": 3}),
        (Several(), {"loss0": 1, "loss1": 3, "total": 4}),
        (Weighted(), {"total": 1, "shown": 5}),
    ):
        trainer = make(model, max_duration="1ba", device_train_microbatch_size=1)
        trainer.fit()
        logged = trainer.state.total_loss_dict
        assert logged.keys() == {f"loss/train/{name}" for name in factors}
        one = logged["loss/train/total"] / factors["total"]
        for name, factor in factors.items():
            assert logged[f"loss/train/{name}"] == pytest.approx(factor * one, rel=1e-5)
        trainer.close()


def test_hyperparameters_of_the_run_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Hparams(LoggerDestination):
        seen: dict[str, Any] = {}

        def log_hyperparameters(self, hyperparameters: dict[str, Any]) -> None:
            self.seen.update(hyperparameters)

    destination = Hparams()
    trainer = make(loggers=destination, seed=4, auto_log_hparams=True)
    assert destination.seen["rank_zero_seed"] == 4
    assert destination.seen["num_nodes"] == 1
    assert destination.seen["num_cpus_per_node"] == 1
    assert destination.seen["max_duration"] == "1ep"
    assert destination.seen["is_model_compiled"] is False
    trainer.close()


def test_run_names(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make()
    seconds, first, second = trainer.state.run_name.split("-")
    assert seconds.isdigit() and first.isalpha() and second.isalpha()
    trainer.close()
    monkeypatch.setenv("RUN_NAME", "from-run")
    trainer = make()
    assert trainer.state.run_name == "from-run"
    trainer.close()
    monkeypatch.setenv("COMPOSER_RUN_NAME", "from-composer")
    trainer = make()
    assert trainer.state.run_name == "from-composer"
    trainer.close()


def test_saved_checkpoints_and_saving_on_demand(tmp_path: Path) -> None:
    trainer = make()
    assert trainer.saved_checkpoints == []
    with pytest.raises(ValueError, match="In order to use save_checkpoint_to_save_folder"):
        trainer.save_checkpoint_to_save_folder()
    trainer.close()
    trainer = make(save_folder=str(tmp_path), save_interval="3ba")
    trainer.fit()
    assert [Path(p).name for p in trainer.saved_checkpoints] == [
        "ep0-ba3-rank0.pt",
        "ep0-ba6-rank0.pt",
    ]
    trainer.close()


def test_bf16_trains_on_the_cpu() -> None:
    class Noted(Classifier):
        dtype = None

        def loss(self, outputs: Any, batch: Any) -> Any:
            self.dtype = outputs.dtype
            return super().loss(outputs, batch)

    model = Noted()
    trainer = make(model, precision="amp_bf16", device="cpu")
    trainer.fit()
    assert model.dtype is torch.bfloat16
    assert all(p.dtype is torch.float32 for p in model.parameters())
    trainer.close()


def test_stop_training_ends_after_the_batch() -> None:
    class Stop(Callback):
        def batch_end(self, state: Any, logger: Any) -> None:
            if int(state.timestamp.batch) == 2:
                state.stop_training()

    trainer = make(callbacks=Stop())
    trainer.fit()
    assert trainer.state.timestamp.batch == Time(2, "ba")
    trainer.close()


def test_iterations_end_and_begin_with_their_events() -> None:
    events: list[tuple[str, int]] = []

    class Iterations(Callback):
        def run_event(self, event: Event, state: Any, logger: Any) -> None:
            if event.value.startswith("iteration"):
                events.append((event.value, int(state.timestamp.batch)))

    trainer = make(callbacks=Iterations(), max_duration="4ep")
    trainer.state._iteration_length = "2ep"
    trainer.fit()
    one = ["iteration_end", "iteration_checkpoint"]
    assert events == [
        ("iteration_start", 0),
        *[(name, 12) for name in one],
        ("iteration_start", 12),
        *[(name, 24) for name in one],
    ]
    trainer.close()


def test_log_level_reaches_the_package() -> None:
    level = logging.getLogger("composer").level
    make(python_log_level="warning").close()
    assert logging.getLogger("composer").level == logging.WARNING
    logging.getLogger("composer").setLevel(level)
