"""The order of events equals the one recorded with Composer 0.32."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from composer import Callback, Event, State, Trainer
from tests.composer.trainer.models import Classifier, Rows

RECORDS = json.loads((Path(__file__).parents[2] / "golden" / "events" / "events.json").read_text())


class Recorder(Callback):
    def __init__(self) -> None:
        self.events: list[list[Any]] = []

    def run_event(self, event: Event, state: State, logger: Any) -> None:
        timestamp = state.timestamp
        self.events.append(
            [
                event.value,
                int(timestamp.epoch),
                int(timestamp.batch),
                int(state.eval_timestamp.batch),
            ]
        )
        super().run_event(event, state, logger)

    def close(self, state: State, logger: Any) -> None:
        self.events.append(["close"])

    def post_close(self) -> None:
        self.events.append(["post_close"])


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record["name"])
def test_events_are_those_of_composer(record: dict[str, Any], tmp_path: Path) -> None:
    recorder = Recorder()
    model = Classifier()
    saving = {}
    if record["save_interval"] is not None:
        saving = {"save_folder": str(tmp_path), "save_interval": record["save_interval"]}
    trainer = Trainer(
        model=model,
        optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
        train_dataloader=DataLoader(Rows(record["train_rows"]), batch_size=record["batch_size"]),
        eval_dataloader=DataLoader(Rows(record["eval_rows"]), batch_size=record["batch_size"]),
        max_duration=record["max_duration"],
        eval_interval=record["eval_interval"],
        device_train_microbatch_size=record["microbatch"],
        callbacks=recorder,
        progress_bar=False,
        **{name: int(value) for name, value in record["extra"].items()},
        **saving,
    )
    recorder.events.append(["-- Trainer() returned"])
    trainer.fit()
    recorder.events.append(["-- fit() returned"])
    rows = DataLoader(Rows(record["eval_rows"]), batch_size=record["batch_size"])
    for call in record["events"]:
        if call == ["-- predict() returned"]:
            trainer.predict(rows)
            recorder.events.append(call)
        elif call == ["-- eval() returned"]:
            trainer.eval()
            recorder.events.append(call)
    trainer.close()
    assert recorder.events == record["events"]
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(record["checkpoint_files"])
