import numpy as np
import pytest
import torch

pytest.importorskip("tensorboard")

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from composer.core.event import Event
from composer.loggers import RemoteUploaderDownloader, TensorboardLogger
from tests.composer.loggers.resuming import killed_and_resumed
from tests.composer.plugins import Evaluation, HandRun

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def read(folder):
    events = EventAccumulator(str(folder), size_guidance={"images": 0, "scalars": 0})
    events.Reload()
    return events


def steps(events, name):
    return [event.step for event in events.Scalars(name)]


def test_everything_can_be_read_back(tmp_path):
    logger = TensorboardLogger(str(tmp_path))
    run = HandRun(logger, max_duration="2ep", evaluation=Evaluation("eval", [0.5, 0.25]))
    run.logger.log_hyperparameters({"seed": 17, "layers": [1, 2], "nothing": None})
    run.loaded()
    run.logger.log_metrics({"text": "left out", "pair": torch.ones(2), "one": torch.tensor([2.5])})
    run.logger.log_images(torch.rand(2, 3, 4, 5), "many")
    run.logger.log_images(np.zeros((6, 5), dtype=np.uint8), "grey")
    run.logger.log_images([torch.rand(4, 5, 3), torch.rand(2, 2, 3)], "mixed", channels_last=True)
    run.logger.log_distribution("weights", torch.arange(4.0))
    run.logger.log_table(["a", "b"], [[1, "x|y"]], "rows")
    run.fit().close()
    events = read(tmp_path / "run")
    assert steps(events, "loss/train/total") == [0, 1, 2, 3, 4, 5]
    evaluations = [(event.step, event.value) for event in events.Scalars("metrics/eval/m")]
    assert evaluations == [(3, 0.5), (6, 0.25)]
    assert steps(events, "hparams/metrics/eval/m") == [3, 6]
    assert events.Scalars("one")[0].value == 2.5
    assert not {"text", "pair"} & set(events.Tags()["scalars"])
    assert {"many", "grey", "mixed/0", "mixed/1"} == set(events.Tags()["images"])
    assert (events.Images("grey")[0].height, events.Images("grey")[0].width) == (6, 5)
    assert events.Histograms("weights")[0].histogram_value.num == 4
    assert b"x\\|y" in events.Tensors("rows/text_summary")[0].tensor_proto.string_val[0]
    session = events.PluginTagToContent("hparams")
    assert b"seed" in b"".join(session.values())


def test_a_resumed_run_shows_each_step_once(tmp_path):
    killed_and_resumed(lambda: TensorboardLogger(str(tmp_path)))
    events = read(tmp_path / "run")
    assert steps(events, "loss/train/total") == [0, 1, 2, 3, 4, 5]
    assert steps(events, "lr") == [1, 2, 3, 4, 5, 6]


def test_event_files_are_uploaded(tmp_path):
    store = RemoteUploaderDownloader(f"file://{tmp_path}/store")
    logger = TensorboardLogger(str(tmp_path / "logs"), flush_interval=2)
    HandRun(store, logger, max_duration="4ba").loaded().fit().close()
    (uploaded,) = (tmp_path / "store/tensorboard_logs/run").iterdir()
    assert uploaded.name.endswith("-0")
    kept = tmp_path / f"kept/{uploaded.name}.tfevents"
    kept.parent.mkdir()
    kept.write_bytes(uploaded.read_bytes())
    assert steps(read(kept), "loss/train/total") == [0, 1, 2, 3]


def test_ranks(tmp_path, monkeypatch):
    monkeypatch.setattr("composer.utils.dist.get_global_rank", lambda: 1)
    silent = TensorboardLogger(str(tmp_path / "silent"))
    own = TensorboardLogger(str(tmp_path / "own"), rank_zero_only=False)
    HandRun(silent, own, max_duration="2ba").loaded().fit().close()
    assert not (tmp_path / "silent").exists()
    assert steps(read(tmp_path / "own/run/rank1"), "loss/train/total") == [0, 1]


def test_wrong_interval():
    with pytest.raises(ValueError, match="flush_interval=0"):
        TensorboardLogger(flush_interval=0)


def test_close_before_work(tmp_path):
    logger = TensorboardLogger(str(tmp_path))
    run = HandRun(logger)
    run.engine.run_event(Event.BEFORE_LOAD)
    run.close()
    assert logger.writer is None
