"""In a process of their own: importing comet_ml patches what is imported after it."""

import importlib.util
import json
import os
import subprocess
import sys
import zipfile

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("comet_ml") is None, reason="needs comet_ml"
)

SETTINGS = """
import numpy as np, torch
from composer.loggers import CometMLLogger
from composer.utils import dist
from tests.composer.plugins import HandRun

def make(folder, **kwargs):
    quiet = {"log_env_details": False, "display_summary_level": 0, "auto_output_logging": False}
    return CometMLLogger(exp_kwargs={"offline_directory": folder, **quiet}, **kwargs)
"""

EVERYTHING = """
run = HandRun(make("all", project_name="project", workspace="team"), max_duration="3ba")
run.logger.log_hyperparameters({"seed": 17, "model": {"layers": 2}})
run.loaded()
run.logger.log_metrics({"one": torch.tensor([0.5]), "text": "left out"})
run.logger.log_table(["a", "b"], [[1, torch.tensor(2)], ["x", None]], "rows")
images, masks = torch.rand(2, 3, 4, 5), torch.ones(2, 4, 5, dtype=torch.int64)
run.logger.log_images(images, "images", masks={"truth": masks})
run.logger.log_images(np.zeros((4, 5)), "grey")
run.logger.log_distribution("weights", torch.arange(4.0))
run.fit().close()
"""

RANKS = """
dist.get_global_rank = lambda: 1
silent, own = make("silent"), make("own", rank_zero_only=False, name="named")
HandRun(silent, own, max_duration="1ba").loaded().fit().close()
assert silent.experiment is None
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("comet")
    env = dict(os.environ, PYTHONPATH=os.getcwd(), COMET_ERROR_TRACKING_ENABLE="false")
    program = [sys.executable, "-c", SETTINGS + EVERYTHING + RANKS]
    done = subprocess.run(program, cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def read(folder):
    (path,) = folder.glob("*.zip")
    with zipfile.ZipFile(path) as archive:
        messages = archive.read("messages.json").decode().splitlines()
        return [json.loads(line) for line in messages], json.loads(archive.read("experiment.json"))


def test_everything_can_be_read_back(folder):
    messages, experiment = read(folder / "all")
    assert (experiment["project_name"], experiment["workspace"]) == ("project", "team")
    metrics = [each["payload"]["metric"] for each in messages if each["type"] == "metric_msg"]
    losses = [each["step"] for each in metrics if each["metricName"] == "loss/train/total"]
    assert losses == [0, 1, 2]
    assert [each["metricValue"] for each in metrics if each["metricName"] == "one"] == [0.5]
    text = json.dumps(messages)
    assert "Created from" in text and "left out" not in text
    assert '"run"' in text and "model|layers" in text
    files = {"images_0", "images_1", "images_0_truth", "images_1_truth", "grey_0", "rows.csv"}
    assert all(name in text for name in files)


def test_other_ranks_are_silent(folder):
    assert not (folder / "silent").exists()
    assert "named-rank1" in json.dumps(read(folder / "own")[0])
