"""A small run for the checkpoint tests: a State with something in each part."""

from typing import Any

import torch

from composer.core.algorithm import Algorithm
from composer.core.callback import Callback
from composer.core.event import Event
from composer.core.logger import Logger
from composer.core.state import State
from composer.devices.device_cpu import DeviceCPU


class Net(torch.nn.Sequential):
    """Two layers; what an algorithm adds takes no part."""

    def __init__(self) -> None:
        super().__init__(torch.nn.Linear(2, 4), torch.nn.Linear(4, 1))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self[1](self[0](rows))


class Counter(Callback):
    """A callback with a state of its own."""

    def __init__(self) -> None:
        self.seen = 0

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


class Widen(Algorithm):
    """Changes the model's parts, so that a checkpoint of it fits no other model."""

    def __init__(self, width: int = 3, name: str = "extra") -> None:
        self.width = width
        self.name = name

    def __repr__(self) -> str:
        return f"{type(self).__name__}(width={self.width},name={self.name!r})"

    @staticmethod
    def required_on_load() -> bool:
        return True

    def match(self, event: Event, state: State) -> bool:
        return event == Event.INIT

    def apply(self, event: Event, state: State, logger: Logger) -> None:
        if self.width < 0:
            raise RuntimeError("no negative widths")
        state.model.add_module(self.name, torch.nn.Linear(2, self.width))


class WidenFirst(Widen):
    """The same, but ahead of all others."""

    run_order = "first"


class Harmless(Algorithm):
    """An algorithm that a checkpoint need not know."""

    def match(self, event: Event, state: State) -> bool:
        return False

    def apply(self, event: Event, state: State, logger: Logger) -> None:
        raise AssertionError("never matches")


def make_state(*algorithms: Algorithm, steps: int = 0, run_name: str = "run") -> State:
    """Makes a State, applies its algorithms, and trains ``steps`` batches."""
    model = Net()
    state = State(
        model=model,
        rank_zero_seed=0,
        run_name=run_name,
        device=DeviceCPU(),
        max_duration="10ba",
        algorithms=list(algorithms),
        callbacks=[Counter()],
    )
    for algorithm in algorithms:
        if algorithm.match(Event.INIT, state):
            algorithm.apply(Event.INIT, state, Logger(state))
    state.optimizers = torch.optim.Adam(model.parameters(), lr=0.1)
    state.schedulers = torch.optim.lr_scheduler.StepLR(state.optimizers[0], 2)
    for _ in range(steps):
        model(torch.randn(3, 2)).sum().backward()
        state.optimizers[0].step()
        state.optimizers[0].zero_grad()
        state.schedulers[0].step()
        state.callbacks[0].seen += 1
        state.advance_batch(3, 0, None)
    return state
