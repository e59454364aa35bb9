"""Losses stay on the device until somebody asks for one."""

import copy
import pickle
from typing import Any

import pytest
import torch

from composer import Trainer
from composer.loggers import ConsoleLogger
from composer.trainer._clock import LazyLosses
from tests.composer.trainer.models import Classifier, rows_loader


def losses() -> LazyLosses:
    return LazyLosses({"a": torch.tensor(1.5), "b": torch.tensor(2.0)})


@pytest.mark.parametrize(
    "read",
    [
        lambda d: d["a"],
        lambda d: d.get("a"),
        lambda d: next(iter(d.values())),
        lambda d: dict(d.items())["a"],
        lambda d: copy.deepcopy(d)["a"],
        lambda d: pickle.loads(pickle.dumps(d))["a"],
    ],
)
def test_reading_gives_floats(read: Any) -> None:
    value = read(losses())
    assert isinstance(value, float) and value == 1.5


def test_it_is_a_dict() -> None:
    assert losses() == {"a": 1.5, "b": 2.0}
    assert list(losses()) == ["a", "b"] and len(losses()) == 2
    assert repr(losses()) == "{'a': 1.5, 'b': 2.0}"
    assert losses().get("c") is None
    assert LazyLosses({}) == {}


def test_a_step_that_nobody_logs_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []
    state: dict[str, Any] = {"trainer": None}

    def noting(name: str) -> Any:
        plain = getattr(torch.Tensor, name)

        def noted(self: torch.Tensor, *args: Any) -> Any:
            if state["trainer"] is not None:
                reads.append(f"{int(state['trainer'].state.timestamp.batch)}")
            return plain(self, *args)

        return noted

    model = Classifier()
    trainer = Trainer(
        model=model,
        optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
        train_dataloader=[next(iter(rows_loader(2)))] * 10,
        device_train_microbatch_size=2,
        max_duration="10ba",
        progress_bar=False,
        loggers=ConsoleLogger(log_interval="5ba"),
    )
    for name in ("item", "tolist", "__float__", "__int__", "__bool__"):
        monkeypatch.setattr(torch.Tensor, name, noting(name))
    model.forward = lambda batch: model.net(batch["x"])  # type: ignore[method-assign]
    state["trainer"] = trainer
    trainer.fit()
    state["trainer"] = None
    trainer.close()
    assert set(reads) <= {"1", "5", "10"}, reads
