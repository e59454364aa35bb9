"""What a trace must be, and a run that makes one."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch

from composer.core.logger_destination import LoggerDestination
from composer.profiler import JSONTraceHandler, Profiler, cyclic_schedule
from composer.trainer import Trainer
from composer.utils import dist
from tests.composer.trainer.models import Classifier, Rows, rows_loader

OWN = "BEiCM"


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def read_trace(path: Any) -> list[dict[str, Any]]:
    """Reads a trace strictly, and checks it against the trace event format."""
    events = json.loads(Path(path).read_text(), parse_constant=_refuse)
    assert isinstance(events, list)
    last_ts: dict[tuple[int, int], float] = {}
    spans: dict[tuple[int, int], list[str]] = {}
    for event in events:
        assert event["ph"] in OWN + "Xstfbne", event
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int), event
        assert 0 <= event["pid"] < 2**31 and isinstance(event["name"], str), event
        track = event["pid"], event["tid"]
        if event["ph"] == "M":
            assert event["args"] and "ts" not in event, event
            continue
        assert isinstance(event["ts"], int | float) and event["ts"] >= last_ts.get(track, 0), event
        last_ts[track] = event["ts"]
        if event["ph"] == "B":
            spans.setdefault(track, []).append(event["name"])
        elif event["ph"] == "E":
            assert spans[track].pop() == event["name"], event
        elif event["ph"] == "X":
            assert event["dur"] >= 0, event
        elif event["ph"] == "C":
            assert all(isinstance(value, int | float) for value in event["args"].values()), event
        elif event["ph"] == "i":
            assert event["s"] in "gpt", event
    assert not any(spans.values()), spans
    return events


def parents(events: list[dict[str, Any]], pid: int = 0) -> set[tuple[str, str]]:
    """Returns, of one rank's spans, which stands directly within which, as (outer, inner)."""
    found = set()
    stacks: dict[int, list[str]] = {}
    for event in events:
        stack = stacks.setdefault(event["tid"], [])
        if event["pid"] != pid:
            continue
        if event["ph"] == "B":
            if stack:
                found.add((stack[-1], event["name"]))
            stack.append(event["name"])
        elif event["ph"] == "E":
            stack.pop()
    return found


def named(events: list[dict[str, Any]], name: str, phase: str) -> list[dict[str, Any]]:
    return [event for event in events if event["name"] == name and event["ph"] == phase]


class Keeper(LoggerDestination):
    """Keeps uploaded files in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def upload_file(self, state, remote_file_name, file_path, *, overwrite):
        target = self.folder / remote_file_name
        assert overwrite or not target.exists()
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file_path, target)

    def can_upload_files(self):
        return True


def make_profiler(folder: Any, schedule: Any = None, *handlers: Any, **settings: Any) -> Profiler:
    settings = {"sys_prof_cpu": False, "torch_prof_folder": f"{folder}/torch", **settings}
    for name in ("profile_memory", "with_flops"):
        settings.setdefault(f"torch_prof_{name}", False)
    return Profiler(
        schedule or cyclic_schedule(warmup=0, active=2),
        handlers or JSONTraceHandler(folder=f"{folder}/traces"),
        **settings,
    )


def make_trainer(profiler: Any, **settings: Any) -> Trainer:
    model = Classifier()
    return Trainer(
        model=model,
        optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
        train_dataloader=rows_loader(12, sampler=dist.get_sampler(Rows(12))),
        progress_bar=False,
        device="cpu",
        profiler=profiler,
        **{"max_duration": "1ep", **settings},
    )


def profiled(profiler: Any, **settings: Any) -> Trainer:
    trainer = make_trainer(profiler, **settings)
    trainer.fit()
    trainer.close()
    return trainer
