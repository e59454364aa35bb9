"""llmfoundry's own callbacks, on states that hold what they read."""

import gc
import signal
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from composer.core.time import Time
from composer.optim import DecoupledAdamW
from llmfoundry.callbacks import run_timeout_callback
from llmfoundry.callbacks.fdiff_callback import FDiffMetrics
from llmfoundry.callbacks.resumption_callbacks import GlobalLRScaling, LayerFreezing
from llmfoundry.callbacks.run_timeout_callback import RunTimeoutCallback
from llmfoundry.callbacks.scheduled_gc_callback import ScheduledGarbageCollector


class Log:
    def __init__(self) -> None:
        self.metrics: list[dict[str, float]] = []

    def log_metrics(self, metrics: dict[str, float]) -> None:
        self.metrics.append(metrics)


def at_batch(batch: int) -> Any:
    return SimpleNamespace(timestamp=SimpleNamespace(batch=Time(batch, "ba")))


def test_garbage_is_collected_when_due_only(monkeypatch: pytest.MonkeyPatch) -> None:
    collected: list[Any] = []
    monkeypatch.setattr(gc, "collect", lambda *generation: collected.append(generation))
    callback = ScheduledGarbageCollector(batch_interval=4, gen_1_batch_interval=2)
    logger: Any = Log()
    callback.fit_start(at_batch(0), logger)
    assert not gc.isenabled() and collected == [()]
    collected.clear()
    for batch in range(1, 5):
        callback.before_dataloader(at_batch(batch), logger)
    assert collected == [(1,), (1,), ()]
    callback.eval_start(at_batch(4), logger)
    assert gc.isenabled()
    callback.eval_end(at_batch(4), logger)
    assert not gc.isenabled()
    callback.fit_end(at_batch(4), logger)
    assert gc.isenabled()
    callback.fit_start(at_batch(0), logger)
    callback.close(at_batch(0), logger)
    assert gc.isenabled()
    with pytest.raises(ValueError, match="at least one batch"):
        ScheduledGarbageCollector(0)


def test_rates_are_scaled() -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = DecoupledAdamW(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5)
    state: Any = SimpleNamespace(optimizers=[optimizer], schedulers=[schedule])
    GlobalLRScaling(lr_scale=0.1, wd_pct=0.2).fit_start(state, Log())  # type: ignore[arg-type]
    group = optimizer.param_groups[0]
    assert group["lr"] == pytest.approx(0.05)
    assert group["weight_decay"] == pytest.approx(0.01)
    assert group["initial_lr"] == pytest.approx(0.1)
    assert schedule.base_lrs == [pytest.approx(0.1)]


def test_layers_are_frozen_by_name() -> None:
    model = torch.nn.Linear(2, 2)
    state: Any = SimpleNamespace(model=model)
    logger: Any = Log()
    LayerFreezing(["weight"]).fit_start(state, logger)
    assert not model.weight.requires_grad and model.bias.requires_grad
    with pytest.raises(ValueError, match=r"no parameters \['wieght'\]"):
        LayerFreezing(["wieght"]).fit_start(state, logger)
    with pytest.raises(ValueError, match="freeze nothing"):
        LayerFreezing([]).fit_start(state, logger)


def test_changes_of_metrics() -> None:
    logger: Any = Log()
    callback = FDiffMetrics(diff_train_metrics=True)
    for loss, accuracy in ((3.0, 0.1), (2.0, 0.3)):
        state: Any = SimpleNamespace(
            train_metric_values={"Accuracy": torch.tensor(accuracy)},
            total_loss_dict={"loss/train/total": loss},
            dataloader_label="eval",
            eval_metrics={"eval": {"CE": SimpleNamespace(compute=lambda v=loss: torch.tensor(v))}},
        )
        callback.batch_end(state, logger)
        callback.eval_end(state, logger)
    assert logger.metrics == [
        {"metrics/train/Accuracy_fdiff": pytest.approx(0.2), "loss/train/total_fdiff": -1.0},
        {"metrics/eval/CE_fdiff": -1.0},
    ]


def test_a_run_that_does_not_end_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = threading.Event()
    monkeypatch.setattr(
        run_timeout_callback.os, "kill", lambda pid, number: number == signal.SIGINT and sent.set()
    )
    state: Any = None
    callback = RunTimeoutCallback(timeout=0)
    callback.fit_end(state, Log())  # type: ignore[arg-type]
    assert sent.wait(5)
    patient = RunTimeoutCallback(timeout=1000)
    patient.fit_end(state, Log())  # type: ignore[arg-type]
    timer = patient.timer
    patient.post_close()
    assert timer is not None and timer.finished.is_set()
