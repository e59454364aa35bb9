"""MLPerfCallback writes the lines of a submission."""

import json
import sys

import pytest

from composer.callbacks.mlperf import MLPerfCallback, get_system_description
from tests.composer.callbacks.test_memory_files import Store
from tests.composer.plugins import Evaluation, HandRun

pytestmark = [
    pytest.mark.filterwarnings("ignore:The system description is incomplete"),
    pytest.mark.filterwarnings("ignore:cache_clear_cmd is not given"),
]


class Sized(list):
    batch_size = 4
    dataset = range(12)


class Labelled(Evaluation):
    class Loader:
        dataloader = Sized()

    def __init__(self, values):
        super().__init__("eval", values)
        self.dataloader = Sized([0, 1])
        self.dataloader.dataloader = Sized()


def run_with(tmp_path, values, *plugins, **kwargs):
    callback = MLPerfCallback(str(tmp_path), 3, metric_name="m", system_name="tiny", **kwargs)
    run = HandRun(callback, *plugins, evaluation=Labelled(values), max_duration="3ep")
    run.loader = Sized(run.loader)
    run.state.set_dataloader(run.loader, "train")
    run.loaded().fit().close()
    return run


def lines(tmp_path):
    text = (tmp_path / "results/tiny/resnet/result_3.txt").read_text()
    return [json.loads(line.removeprefix(":::MLLOG ")) for line in text.splitlines()]


def test_a_run_that_reaches_its_target(tmp_path):
    store = Store()
    touch = f"{sys.executable} -c \"open('{tmp_path}/cleared', 'w')\""
    run = run_with(tmp_path, [0.5, 0.8, 0.9], store, exit_at_target=True, cache_clear_cmd=touch)
    found = lines(tmp_path)
    assert [line["key"] for line in found] == (
        ["cache_clear", "init_start", "submission_benchmark", "submission_division"]
        + ["submission_org", "submission_platform", "submission_status", "seed"]
        + ["global_batch_size", "train_samples", "eval_samples", "init_stop", "run_start"]
        + ["epoch_start", "epoch_stop", "eval_start", "eval_stop", "eval_accuracy"]
        + ["epoch_start", "epoch_stop", "eval_start", "eval_stop", "eval_accuracy", "run_stop"]
    )
    by_key = {line["key"]: line for line in found}
    assert by_key["global_batch_size"]["value"] == 4
    assert by_key["train_samples"]["value"] == by_key["eval_samples"]["value"] == 12
    assert by_key["eval_accuracy"]["value"] == pytest.approx(0.8)
    assert by_key["eval_accuracy"]["metadata"]["epoch_num"] == 2
    assert by_key["run_stop"]["metadata"]["status"] == "success"
    assert run.state.timestamp.epoch == 2
    assert (tmp_path / "cleared").exists()
    system = json.loads((tmp_path / "systems/tiny.json").read_text())
    assert (system["submitter"], system["system_name"]) == ("MosaicML", "tiny")
    assert set(store.files) == {
        "run/results/tiny/resnet/result_3.txt",
        "run/systems/tiny.json",
    }


def test_a_run_that_does_not(tmp_path):
    run_with(tmp_path, [0.1, 0.2, 0.3])
    assert lines(tmp_path)[-1]["metadata"]["status"] == "aborted"
    with pytest.raises(FileExistsError):
        run_with(tmp_path, [0.1])


def test_the_batch_size_must_be_known(tmp_path):
    run = HandRun(MLPerfCallback(str(tmp_path), 0, metric_name="m")).loaded()
    with pytest.raises(ValueError, match="no batch_size"):
        run.fit()
    run.close()


def test_what_is_missing_is_said(tmp_path):
    with pytest.warns(UserWarning, match="fill in by hand host_storage_type"):
        description = get_system_description("Us", "open", "cloud")
    assert description["system_name"] == "1xCPU_composer"
    for wrong in ("benchmark", "division", "status"):
        with pytest.raises(ValueError, match=wrong):
            MLPerfCallback(str(tmp_path), 0, **{wrong: "other"})
