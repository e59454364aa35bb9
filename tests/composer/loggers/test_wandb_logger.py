import os
import pickle
import struct
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("wandb")

import wandb
from wandb.proto.wandb_internal_pb2 import Record

from composer.callbacks.checkpoint_saver import CheckpointSaver
from composer.loggers import Logger, WandBLogger
from tests.composer.loggers.resuming import killed_and_resumed
from tests.composer.plugins import Evaluation, HandRun

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    for name, value in {"MODE": "offline", "SILENT": "true", "DIR": str(tmp_path)}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "data"))
    yield tmp_path / "wandb"
    wandb.teardown()


def read(path):
    """The records of an offline file: a LevelDB log with a header of its own."""
    data, position, records, whole = path.read_bytes(), 7, [], b""
    assert data[:4] == b":W&B"
    while position < len(data):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        _checksum, length, kind = struct.unpack_from("<IHB", data, position)
        whole += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            records.append(Record.FromString(whole))
            whole = b""
    return records


def runs(folder):
    wandb.teardown()  # offline, finish() does not wait for the file
    return [read(path) for path in sorted(folder.glob("offline-run-*/run-*.wandb"))]


def history(records, name):
    rows = [
        {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
        for record in records
        if record.WhichOneof("record_type") == "history"
    ]
    return [(int(row["_step"]), row[name]) for row in rows if name in row]


def of_kind(records, kind):
    return [getattr(record, kind) for record in records if record.WhichOneof("record_type") == kind]


def config_of(records):
    updates = [each.config for each in of_kind(records, "run")] + of_kind(records, "config")
    return {
        item.key or "/".join(item.nested_key): item.value_json
        for update in updates
        for item in update.update
    }


def test_everything_can_be_read_back(folder):
    logger = WandBLogger(
        "project", tags=["a"], entity="team", init_kwargs={"notes": "why", "name": "hidden"}
    )
    logger_of_name = WandBLogger(name="name", init_kwargs={"name": "hidden"})
    assert logger_of_name._settings["name"] == "name"
    run = HandRun(logger, max_duration="2ep", evaluation=Evaluation("eval", [0.5, 0.25]))
    run.logger.log_hyperparameters({"seed": 17, "model": {"layers": 2}})
    run.logger.log_metrics({"early": torch.tensor(0.5)})
    run.loaded()
    assert logger.run_dir is not None and logger.project == "project"
    run.logger.log_table(["a", "b"], [[1, torch.tensor(2)], ["x", None]], "rows")
    images, masks = torch.rand(2, 3, 4, 5), torch.ones(2, 4, 5, dtype=torch.int64)
    run.logger.log_images(np.zeros((4, 5)), "table")
    truth = {"masks": {"truth": masks}, "mask_class_labels": {1: "cat"}}
    run.logger.log_images(images, "list", use_table=False, **truth)
    run.logger.log_distribution("weights", torch.arange(4.0))
    run.fit().close()
    (records,) = runs(folder)
    assert [step for step, _ in history(records, "loss/train/total")] == [0, 1, 2, 3, 4, 5]
    assert history(records, "metrics/eval/m") == [(3, "0.5"), (6, "0.25")]
    assert history(records, "early") == [(0, "0.5")]
    config = config_of(records)
    assert config["seed"] == "17" and '"layers"' in config["model"]
    (made,) = {
        (one.display_name, one.project, one.entity, one.notes) for one in of_kind(records, "run")
    }
    assert made == ("hidden", "project", "team", "why")
    files = {path.name.split("_")[0] for path in folder.glob("*/files/media/*/*") if path.is_file()}
    assert {"rows", "table Table", "list"} <= files
    assert len(list(folder.glob("*/files/media/images/mask/*.mask.png"))) == 2
    assert history(records, "list/count") == [(0, "2")]
    assert history(records, "rows/nrows") == [(0, "2")]
    assert history(records, "weights/_type") == [(0, '"histogram"')]
    assert of_kind(records, "exit")[0].exit_code == 0


def test_a_resumed_run_keeps_its_id(folder):
    killed, resumed = killed_and_resumed(lambda: WandBLogger("project"))
    assert killed._run.id == resumed._run.id
    first, second = runs(folder)
    assert of_kind(first, "exit")[0].exit_code == 1
    assert of_kind(second, "exit")[0].exit_code == 0
    assert of_kind(second, "run")[0].resumed or of_kind(second, "run")[0].run_id == killed._run.id
    # Offline nobody knows what the server has; online `starting_step` says it.
    assert [step for step, _ in history(second, "loss/train/total")] == [3, 4, 5]


def test_steps_that_the_server_has_are_not_sent_again(folder):
    logger = WandBLogger("project")
    run = HandRun(logger, max_duration="4ba").loaded()
    logger._first_step = 2
    run.fit().close()
    assert [step for step, _ in history(runs(folder)[0], "loss/train/total")] == [2, 3]


def test_the_checkpoint_of_another_run_starts_a_new_one(folder):
    killed, resumed = killed_and_resumed(lambda: WandBLogger("project"), next_name="other")
    assert killed._run.id != resumed._run.id
    assert resumed._run.name == "other"


def test_without_a_trainer_the_run_starts_when_asked_for_or_at_the_end(folder):
    state = HandRun(run_name="by-hand").state
    logger = pickle.loads(pickle.dumps(WandBLogger("project")))
    logger.init(state, Logger(state, logger))
    assert logger.state_dict() == {}
    logger.log_images(torch.rand(2, 3, 4, 5))
    logger.post_close()
    asked = WandBLogger("project")
    asked.init(state, Logger(state, asked))
    assert asked.run_dir is not None and asked.state_dict()["name"] == "by-hand"
    asked.post_close()
    counts = [history(records, "Images/count") for records in runs(folder)]
    assert sorted(counts) == [[], [(0, "2")]]
    assert Path(logger.run_dir).is_relative_to(folder)


def test_a_run_that_ends_before_it_is_loaded_leaves_nothing(folder):
    run = HandRun(WandBLogger("project"))
    run.logger.log_hyperparameters({"seed": 17})
    run.close()
    assert not folder.exists()


def test_checkpoints_become_artifacts(folder, tmp_path):
    logger = WandBLogger("project", log_artifacts=True)
    saver = CheckpointSaver(
        tmp_path / "saved", remote_file_name="{run_name}/ba{batch}.pt", save_interval="2ba"
    )
    HandRun(logger, saver, max_duration="2ba").loaded().fit().close()
    assert logger.can_upload_files()
    (records,) = runs(folder)
    artifact, pointer = of_kind(records, "artifact")
    assert (artifact.name, artifact.type) == ("run.ba2.pt", "model")
    assert sorted(artifact.aliases) == ["ep0-ba2", "latest"]
    assert '"timestamp/batch":2' in artifact.metadata.replace(" ", "")
    assert pointer.type == "symlink"


def test_without_artifacts_nothing_is_uploaded(folder, tmp_path):
    logger = WandBLogger("project")
    run = HandRun(logger, max_duration="1ba").loaded()
    (tmp_path / "file").write_text("x")
    run.logger.upload_file("name", tmp_path / "file")
    run.close()
    assert not logger.can_upload_files()
    assert not of_kind(runs(folder)[0], "artifact")


def test_download_does_not_replace_a_file(tmp_path):
    (tmp_path / "there").write_text("x")
    with pytest.raises(FileExistsError, match="overwrite"):
        WandBLogger("project").download_file("name", str(tmp_path / "there"))


def test_ranks(folder, monkeypatch):
    monkeypatch.setattr("composer.utils.dist.get_global_rank", lambda: 1)
    monkeypatch.setattr("composer.utils.dist.get_world_size", lambda: 2)
    with pytest.warns(UserWarning, match="`rank_zero_only` should be set to False"):
        silent = WandBLogger("project", log_artifacts=True)
    own = WandBLogger("project", rank_zero_only=False)
    monkeypatch.setattr("composer.utils.dist.get_world_size", lambda: 1)
    HandRun(silent, own, max_duration="1ba").loaded().fit().close()
    (records,) = runs(folder)
    assert of_kind(records, "run")[0].display_name == "run-rank1"
    assert of_kind(records, "run")[0].run_group == "run"


@pytest.mark.slow
def test_a_run_that_dies_unclosed_is_marked_as_failed(folder, tmp_path):
    program = textwrap.dedent("""
        from composer.core.callback import Callback
        from composer.loggers import WandBLogger
        from tests.composer.plugins import HandRun

        class Dies(Callback):
            def batch_start(self, state, logger):
                if state.timestamp.batch == 2:
                    raise ValueError("dead")

        HandRun(Dies(), WandBLogger("project"), max_duration="4ba").loaded().fit()
    """)
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=dict(os.environ, PYTHONPATH=os.getcwd()),
    )
    assert "dead" in done.stderr
    (records,) = runs(folder)
    assert [step for step, _ in history(records, "loss/train/total")] == [0, 1]
    assert of_kind(records, "exit")[-1].exit_code == 1
