"""Every callback, logger and part of the profiler survives what a Trainer may do with it."""

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MetricCollection

import composer.callbacks
import composer.profiler
from composer import Engine, Event, Logger, State, Trainer
from composer.callbacks import CheckpointSaver, FreeOutputs, Generate
from composer.core.logger_destination import LoggerDestination
from composer.devices import DeviceCPU
from composer.loggers import (
    ConsoleLogger,
    FileLogger,
    InMemoryLogger,
    ProgressBarLogger,
    TensorboardLogger,
)
from composer.models import ComposerClassifier, HuggingFaceModel
from composer.profiler import Profiler, ProfilerAction
from tests.composer.models.conftest import make_model, make_tokenizer  # noqa: F401

CALLBACKS = [getattr(composer.callbacks, name) for name in composer.callbacks.__all__]
PARTS = [
    getattr(composer.profiler, name)
    for name in ("JSONTraceHandler", "SystemProfiler", "TorchProfiler")
]
LOGGERS = [ConsoleLogger, FileLogger, InMemoryLogger, ProgressBarLogger, TensorboardLogger]
WATCHED = {"monitor": "MulticlassAccuracy", "dataloader_label": "train"}
SETTINGS = {
    "EarlyStopper": WATCHED,
    "ThresholdStopper": {**WATCHED, "threshold": 0.99},
    "ExportForInferenceCallback": {"save_format": "torchscript", "save_path": "model.pth"},
    "MLPerfCallback": {"root_folder": ".", "index": 0},
    "Generate": {"prompts": ["w3", "w4 w5"], "interval": "1ba", "max_new_tokens": 2},
    "LoadCheckpoint": {"load_path": "old/latest-rank0.pt", "load_weights_only": True},
}

pytestmark = pytest.mark.filterwarnings(
    "ignore:The .* only works on CUDA devices:UserWarning",
    "ignore:cache_clear_cmd is not given:UserWarning",
    "ignore:The system description is incomplete:UserWarning",
    "ignore:.*torch.jit.*:DeprecationWarning",
)


def make(cls):
    return cls(**SETTINGS.get(cls.__name__, {}))


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def hf_model(make_model, make_tokenizer):  # noqa: F811
    return lambda: HuggingFaceModel(make_model("gpt2"), make_tokenizer())


def classifier(with_train_metrics=True):
    torch.manual_seed(1)
    none = None if with_train_metrics else MetricCollection([])
    return ComposerClassifier(torch.nn.Linear(4, 3), num_classes=3, train_metrics=none)


def rows(text=False):
    generator = torch.Generator().manual_seed(2)
    if text:
        ids = torch.randint(3, 60, (4, 5), generator=generator)
        data: Any = [{"input_ids": row, "labels": row} for row in ids]
        return DataLoader(data, batch_size=2)
    x = torch.randn(4, 4, generator=generator)
    return DataLoader(TensorDataset(x, torch.tensor([0, 1, 2, 0])), batch_size=2)


def idle_profiler():
    return Profiler(schedule=lambda _: ProfilerAction.SKIP, trace_handlers=[])


def engine_with(callback):
    model = classifier()
    state = State(
        model=model,
        rank_zero_seed=0,
        run_name="run",
        device=DeviceCPU(),
        max_duration="10ep",
        optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
        callbacks=[callback],
    )
    state.set_dataloader(rows(), "train")
    state.profiler = idle_profiler()
    state.profiler.bind_to_state(state)
    destinations = [callback] if isinstance(callback, LoggerDestination) else []
    return Engine(state, Logger(state, destinations))


def trainer_with(callback, hf_model, **settings):
    is_text = isinstance(callback, Generate)
    is_logger = isinstance(callback, LoggerDestination)
    model = hf_model() if is_text else classifier(not isinstance(callback, FreeOutputs))
    return Trainer(
        model=model,
        optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
        train_dataloader=rows(is_text),
        eval_dataloader=rows(is_text),
        max_duration="1ep",
        device="cpu",
        progress_bar=False,
        callbacks=None if is_logger else callback,
        loggers=settings.pop("loggers", callback if is_logger else None),
        **settings,
    )


def save_old_run():
    trainer = trainer_with(CheckpointSaver("old"), classifier)
    trainer.fit()
    trainer.close()


ALL = [*CALLBACKS, *PARTS, *LOGGERS]


@pytest.mark.parametrize("cls", ALL)
def test_fit_may_start_and_end_several_times(cls):
    engine = engine_with(make(cls))
    engine.run_event(Event.INIT)
    for _ in range(2):
        engine.run_event(Event.FIT_START)
        engine.run_event(Event.FIT_END)
    engine.close()


@pytest.mark.parametrize("cls", ALL)
def test_closing_twice_and_beginning_anew(cls):
    callback = make(cls)
    engine = engine_with(callback)
    engine.run_event(Event.INIT)
    engine.close()
    engine.close()
    again = engine_with(callback)
    again.run_event(Event.INIT)
    again.close()
    for _ in range(2):
        callback.close(again.state, again.logger)
        callback.post_close()


@pytest.mark.parametrize("cls", ALL)
def test_a_run_that_goes_on(cls, hf_model):
    if cls.__name__ == "LoadCheckpoint":
        save_old_run()
    callback = make(cls)
    trainer = trainer_with(callback, hf_model, profiler=idle_profiler())
    trainer.fit()
    assert trainer.state.timestamp.batch == 2
    trainer.fit(duration="1ep")
    assert trainer.state.timestamp.batch == 4
    trainer.close()


@pytest.mark.parametrize("logger_cls", LOGGERS)
@pytest.mark.parametrize("cls", CALLBACKS)
def test_every_logger_takes_what_every_callback_says(cls, logger_cls, hf_model):
    if cls.__name__ == "LoadCheckpoint":
        save_old_run()
    trainer = trainer_with(make(cls), hf_model, loggers=logger_cls())
    trainer.fit()
    trainer.close()
