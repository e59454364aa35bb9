import sys

import pytest
import torch

pytest.importorskip("trackio")

from composer.loggers import TrackioLogger
from tests.composer.loggers.resuming import killed_and_resumed
from tests.composer.plugins import HandRun

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """The package's own store, in a folder of this test."""
    from trackio import sqlite_storage

    for module in [module for name, module in sys.modules.items() if name.startswith("trackio")]:
        for name in ("TRACKIO_DIR", "MEDIA_DIR"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, tmp_path / name)
    return sqlite_storage.SQLiteStorage


def make(**kwargs):
    return TrackioLogger("project", init_kwargs={"auto_log_cpu": False}, **kwargs)


def values(rows, name):
    return [(row["step"], row[name]) for row in rows if name in row]


def test_everything_can_be_read_back(stored):
    run = HandRun(make(), max_duration="3ba")
    run.logger.log_hyperparameters({"seed": 17, "nested": {"a": 1}})
    run.logger.log_metrics({"early": torch.tensor(0.5), "text": "left out"})
    run.loaded()
    run.logger.log_table(["a", "b"], [[1, torch.tensor(2)], ["x", None]], "rows")
    run.logger.log_images(torch.rand(2, 3, 4, 5), "images")
    run.fit().close()
    rows = stored.get_logs("project", "run")
    assert [step for step, _ in values(rows, "loss/train/total")] == [0, 1, 2]
    assert values(rows, "early") == [(0, 0.5)]
    assert not values(rows, "text")
    ((_, table),) = values(rows, "rows")
    assert [list(row.values()) for row in table["_value"]] == [[1, 2], ["x", None]]
    assert len(values(rows, "images/0")) == len(values(rows, "images/1")) == 1
    config = stored.get_run_config("project", "run")
    assert config["seed"] == 17 and config["nested"] == {"a": 1}


def test_a_resumed_run_goes_on(stored):
    killed_and_resumed(make)
    assert stored.get_runs("project") == ["run"]
    rows = stored.get_logs("project", "run")
    assert sorted(step for step, _ in values(rows, "loss/train/total")) == [0, 1, 2, 3, 4, 5]
    assert sorted({step for step, _ in values(rows, "lr")}) == [1, 2, 3, 4, 5, 6]


def test_the_checkpoint_of_another_run_starts_a_new_one(stored):
    killed_and_resumed(make, next_name="other")
    assert sorted(stored.get_runs("project")) == ["other", "run"]
    rows = stored.get_logs("project", "other")
    assert [step for step, _ in values(rows, "loss/train/total")] == [3, 4, 5]


def test_ranks(stored, monkeypatch):
    monkeypatch.setattr("composer.utils.dist.get_global_rank", lambda: 1)
    own = make(rank_zero_only=False, name="mine")
    HandRun(make(), own, max_duration="2ba").loaded().fit().close()
    assert stored.get_runs("project") == ["mine-rank1"]
