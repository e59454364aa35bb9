"""Every logger, every method: one that fails while the run goes on is warned about once.

Twice over: the logger's own methods raise, and what the logger stands on (a stream, a file, the
service's run) breaks under it.
"""

import io
import logging
import os
import sys
import types
import warnings
from collections import Counter

import pytest
import torch

import composer.loggers
from composer.core.callback import Callback
from composer.core.event import Event
from composer.core.logger_destination import LoggerDestination
from composer.loggers import ConsoleLogger, FileLogger, InMemoryLogger, ProgressBarLogger
from tests.composer.plugins import Evaluation, HandRun

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning:mlflow.*"
)

# What is called before work starts, where an error is the user's to see; and what asks a question.
BEFORE_WORK = {"init", "before_load", "after_load", "load_state_dict"}
QUESTIONS = {"state_dict", "download_file", "can_upload_files", "can_download_file"} | {
    "path_placeholders",
    "run_event",
}
HEARD = {event.value for event in Event} | {"close", "post_close"}
TOLD = {name for name in vars(LoggerDestination) if name.startswith(("log_", "upload_"))}


class TellsEverything(Callback):
    """Uses every way there is to tell something."""

    def __init__(self, file):
        self.file = file

    def batch_end(self, state, logger):
        logger.log_hyperparameters({"batch": state.timestamp.batch.value})
        logger.log_metrics({"a": 1, "b": torch.tensor(2.0)})
        logger.log_table(["a"], [[1]], "table")
        logger.log_images(torch.zeros(1, 3, 4, 4), "images")
        logger.log_distribution("weights", torch.zeros(4))
        logger.log_traces({"algorithm_traces/A/Event.INIT": 1})
        logger.upload_file("file", self.file, overwrite=True)


def make(name, folder):
    """Returns a logger that needs nobody outside of this machine."""
    kind = getattr(composer.loggers, name)
    if name in ("ConsoleLogger", "ProgressBarLogger"):
        return kind(stream=io.StringIO(), log_traces=True)
    settings = {
        "FileLogger": {
            "filename": str(folder / "log.txt"),
            "capture_stdout": False,
            "capture_stderr": False,
        },
        "MLFlowLogger": {
            "tracking_uri": f"sqlite:///{folder}/mlflow.db",
            "log_system_metrics": False,
            "synchronous": True,
        },
        "SlackLogger": {"slack_logging_api_key": "key", "channel_id": "channel"},
        "TensorboardLogger": {"log_dir": str(folder), "flush_interval": 1},
        "TrackioLogger": {"project": "project", "init_kwargs": {"auto_log_cpu": False}},
        "WandBLogger": {"project": "project", "log_artifacts": True},
    }
    return kind(**settings.get(name, {}))


@pytest.fixture
def made(request, tmp_path, monkeypatch):
    package = PACKAGES.get(request.param)
    if request.param == "CometMLLogger":
        # Comet's own would patch what is imported after it, for the rest of the session.
        comet = types.SimpleNamespace(Experiment=FakeExperiment)
        monkeypatch.setitem(sys.modules, "comet_ml", comet)
    elif package is not None:
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    for name, value in {"MODE": "offline", "SILENT": "true", "DIR": str(tmp_path)}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    if package == "slack_sdk":
        monkeypatch.setattr("slack_sdk.WebClient.chat_postMessage", lambda *args, **kwargs: None)
    if package == "trackio":
        monkeypatch.setattr("trackio.init", lambda *args, **kwargs: FakeExperiment())
    yield make(request.param, tmp_path)
    if request.param == "MLFlowLogger":
        import mlflow

        mlflow.end_run()
    if package == "wandb":
        import wandb

        wandb.finish()
        wandb.teardown()


class FakeExperiment:
    """Takes everything."""

    def __init__(self, **kwargs):
        self.config = {}

    def __getattr__(self, name):
        return lambda *args, **kwargs: None


PACKAGES = {
    "MLFlowLogger": "sqlalchemy",
    "SlackLogger": "slack_sdk",
    "TensorboardLogger": "tensorboard",
    "TrackioLogger": "trackio",
    "WandBLogger": "wandb",
}
NOT_HERE = {"Logger", "LoggerDestination", "MosaicMLLogger", "NeptuneLogger"} | {
    "RemoteUploaderDownloader"  # may stop the run: it carries checkpoints
}
ALL = sorted(set(composer.loggers.__all__) - NOT_HERE)


def run_with(logger, tmp_path, break_it):
    """Trains, breaking the logger once work has started; returns what was warned of."""
    file = tmp_path / "file"
    file.write_text("text")
    run = HandRun(
        TellsEverything(file), logger, max_duration="2ep", evaluation=Evaluation("eval", [1, 2])
    ).loaded()
    break_it(logger)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run.fit()
        for event in (Event.BEFORE_DATALOADER, Event.PREDICT_START):  # the rest is in a fit
            run.engine.run_event(event)
        run.close()
    assert run.state.timestamp == "2ep"
    return [str(each.message) for each in caught if "failed (" in str(each.message)]


@pytest.mark.parametrize("made", ALL, indirect=True)
def test_every_method_that_fails(made, tmp_path, caplog):
    kind = type(made)
    methods = {
        name
        for name in (HEARD | TOLD) - BEFORE_WORK - QUESTIONS
        if getattr(kind, name) is not getattr(LoggerDestination, name)
    }
    called = Counter()

    def break_it(logger):
        for name in methods:

            def fails(*args, name=name, **kwargs):
                called[name] += 1
                raise OSError("injected")

            setattr(logger, name, fails)

    expected = f"{kind.__name__} failed (OSError: injected)"
    with caplog.at_level(logging.ERROR, "composer.core.engine"):
        told = run_with(made, tmp_path, break_it)
    assert [text[: len(expected)] for text in told] == [expected]
    assert set(called) >= methods - {"post_close"}  # whoever cannot close is not asked for more
    assert "log_metrics" in called


class Broken:
    """Whatever is asked of it fails, as a service does whose network is gone."""

    def __getattr__(self, name):
        def fails(*args, **kwargs):
            raise ConnectionError(f"{name}: injected")

        return fails


def broken(logger):
    if isinstance(logger, FileLogger):
        logger.file.close()
    elif isinstance(logger, ConsoleLogger | ProgressBarLogger):
        logger.stream.close()
    elif isinstance(logger, InMemoryLogger):
        logger.state = None
    else:
        names = {
            "CometMLLogger": "_experiment",
            "MLFlowLogger": "_mlflow_client",
            "SlackLogger": "client",
            "TensorboardLogger": "writer",
            "TrackioLogger": "_run",
            "WandBLogger": "_run",
        }
        setattr(logger, names[type(logger).__name__], Broken())


@pytest.mark.parametrize("made", ALL, indirect=True)
def test_what_a_logger_stands_on_breaks(made, tmp_path, caplog):
    told = run_with(made, tmp_path, broken)
    if type(made).__name__ == "SlackLogger":  # posts from a thread, and says it in the log
        assert "Posting to Slack failed" in caplog.text and not told
    else:
        assert [text.split(" ")[0] for text in told] == [type(made).__name__]


def test_a_log_that_cannot_be_written_keeps_no_checkpoint_from_being_saved(tmp_path):
    logger = make("FileLogger", tmp_path)
    run = HandRun(logger, max_duration="1ba").loaded()
    logger.file.close()
    assert logger.state_dict() == {}
    run.state.state_dict()
    run.close()
    assert os.path.exists(logger.filename)
