"""A run driven by hand: the real State and Engine, in the Trainer's order of events."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch

from composer.core.engine import Engine
from composer.core.event import Event
from composer.core.logger import Logger
from composer.core.logger_destination import LoggerDestination
from composer.core.state import State
from composer.devices.device_cpu import DeviceCPU


class Regression(torch.nn.Module):
    """Two layers, so that there are several parameters."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = torch.nn.Linear(4, 4)
        self.last = torch.nn.Linear(4, 1)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.first(batch)))


class Evaluation:
    """As much of an Evaluator as State and callbacks look at."""

    def __init__(self, label: str, values: Sequence[float]) -> None:
        self.label = label
        self.values = list(values)
        self.dataloader = [0, 1]


class Value:
    """A metric that has a value."""

    def __init__(self, value: float) -> None:
        self.value = value

    def compute(self) -> torch.Tensor:
        return torch.tensor(self.value)


class HandRun:
    """Trains ``Regression`` on random rows, event by event, until ``max_duration``.

    Args:
        plugins: Callbacks and loggers; loggers also become destinations.
        evaluation: Runs after every epoch, and gives its values one by one to the metric ``m``.
        batch_seconds: What the clock is told that a batch took.
    """

    def __init__(
        self,
        *plugins: Any,
        algorithms: Sequence[Any] = (),
        max_duration: str = "2ep",
        batches_per_epoch: int = 3,
        batch_size: int = 4,
        tokens_per_sample: int = 0,
        run_name: str = "run",
        model: torch.nn.Module | None = None,
        evaluation: Evaluation | None = None,
        batch_seconds: float = 0.5,
        precision: str = "fp32",
    ) -> None:
        self.batch_size = batch_size
        self.tokens_per_batch = tokens_per_sample * batch_size
        self.batch_seconds = batch_seconds
        self.loader = [torch.randn(batch_size, 4) for _ in range(batches_per_epoch)]
        self.evaluation = evaluation
        model = model or Regression()
        self.state = State(
            model=model,
            rank_zero_seed=0,
            run_name=run_name,
            device=DeviceCPU(),
            max_duration=max_duration,
            optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
            algorithms=list(algorithms),
            callbacks=list(plugins),
            evaluators=[] if evaluation is None else [evaluation],
            precision=precision,
        )
        destinations = [each for each in plugins if isinstance(each, LoggerDestination)]
        self.logger = Logger(self.state, destinations)
        self.engine = Engine(self.state, self.logger)
        self.engine.run_event(Event.INIT)
        self.state.set_dataloader(self.loader, "train")

    def loaded(self, state_dict: dict[str, Any] | None = None) -> "HandRun":
        """Fires the events of loading, and loads what a run's ``state.state_dict()`` gave."""
        self.engine.run_event(Event.BEFORE_LOAD)
        if state_dict is not None:
            self.state.load_state_dict(state_dict, self.logger)
        self.engine.run_event(Event.AFTER_LOAD)
        return self

    def fit(self) -> "HandRun":
        state, fire = self.state, self.engine.run_event
        fire(Event.FIT_START)
        while not self._is_done():
            if state.timestamp.batch_in_epoch.value == 0:
                fire(Event.EPOCH_START)
            for batch in self.loader[state.timestamp.batch_in_epoch.value :]:
                self.train_batch(batch)
                if self._is_done():
                    break
            if state.timestamp.batch_in_epoch.value == len(self.loader):
                state.advance_epoch()
                fire(Event.EPOCH_END)
                self._evaluate()
                fire(Event.EPOCH_CHECKPOINT)
        fire(Event.FIT_END)
        return self

    def _is_done(self) -> bool:
        return self.state.timestamp >= self.state.max_duration

    def train_batch(self, batch: torch.Tensor) -> None:
        state, fire = self.state, self.engine.run_event
        state.batch = batch
        for event in (Event.AFTER_DATALOADER, Event.BATCH_START):
            fire(event)
        self.logger.log_metrics({"time/batch": state.timestamp.batch.value})
        fire(Event.BEFORE_TRAIN_BATCH)
        state.optimizers[0].zero_grad()
        fire(Event.BEFORE_FORWARD)
        state.outputs = state.model(batch)
        fire(Event.AFTER_FORWARD)
        state.loss = (state.outputs - batch.sum(dim=1, keepdim=True)).square().mean()
        fire(Event.AFTER_LOSS)
        fire(Event.BEFORE_BACKWARD)
        state.loss.backward()
        fire(Event.AFTER_BACKWARD)
        fire(Event.AFTER_TRAIN_BATCH)
        state.optimizers[0].step()
        self.logger.log_metrics({"loss/train/total": state.loss.item()})
        state.advance_batch(
            self.batch_size, self.tokens_per_batch, timedelta(seconds=self.batch_seconds)
        )
        fire(Event.BATCH_END)
        fire(Event.BATCH_CHECKPOINT)

    def _evaluate(self) -> None:
        if self.evaluation is None:
            return
        state, fire = self.state, self.engine.run_event
        label = self.evaluation.label
        state.set_dataloader(self.evaluation.dataloader, label)
        state.eval_timestamp = type(state.timestamp)()
        fire(Event.EVAL_START)
        for _ in self.evaluation.dataloader:
            fire(Event.EVAL_BATCH_START)
            state.eval_timestamp = state.eval_timestamp.to_next_batch(
                self.batch_size, 0, timedelta(seconds=self.batch_seconds)
            )
            fire(Event.EVAL_BATCH_END)
        value = self.evaluation.values.pop(0)
        state.eval_metrics[label] = {"m": Value(value)}
        self.logger.log_metrics({f"metrics/{label}/m": value})
        fire(Event.EVAL_END)
        state.set_dataloader(self.loader, "train")

    def close(self) -> None:
        self.engine.close()
