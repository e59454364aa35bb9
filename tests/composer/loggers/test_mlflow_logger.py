import http.server
import json
import shutil
import threading
import time

import numpy as np
import pytest
import torch

pytest.importorskip("mlflow")
pytest.importorskip("sqlalchemy")

import mlflow

from composer.loggers import InMemoryLogger, MLFlowLogger
from tests.composer.loggers.resuming import killed_and_resumed
from tests.composer.plugins import Evaluation, HandRun

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning:mlflow.*"
)


@pytest.fixture(scope="module")
def empty_store(tmp_path_factory):
    """A store whose tables have been made, which takes seconds."""
    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    mlflow.MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def uri(empty_store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # artifacts go to ./mlruns
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    before = mlflow.get_tracking_uri()
    yield f"sqlite:///{tmp_path}/mlflow.db"
    mlflow.end_run()
    mlflow.set_tracking_uri(before)


def make(uri, **kwargs):
    return MLFlowLogger(**({"tracking_uri": uri, "log_system_metrics": False} | kwargs))


def runs(uri):
    client = mlflow.MlflowClient(uri)
    ids = [experiment.experiment_id for experiment in client.search_experiments()]
    return client.search_runs(ids, order_by=["attributes.start_time ASC"])


def history(uri, run, name):
    found = mlflow.MlflowClient(uri).get_metric_history(run.info.run_id, name)
    return [(metric.step, metric.value) for metric in found]


def test_everything_can_be_read_back(uri, tmp_path):
    logger = make(uri, experiment_name="experiment", tags={"a": "b"}, run_group="group")
    memory = InMemoryLogger()
    run = HandRun(logger, memory, max_duration="2ep", evaluation=Evaluation("eval", [0.5, 0.25]))
    run.logger.log_hyperparameters({"seed": 17, "model": {"layers": 2}, "odd(key)": 1})
    run.logger.log_hyperparameters({"seed": 18})
    run.loaded()
    run.logger.log_metrics({"odd(name)": torch.tensor(0.5), "text": "left out"})
    run.logger.log_table(["a", "b"], [[1, torch.tensor(2)], ["x", None]], "rows")
    run.logger.log_images(torch.randn(2, 3, 4, 5), "images")
    run.logger.log_images(np.zeros((4, 5), dtype=np.uint8), "grey", step=3)
    with pytest.warns(UserWarning, match="draws no masks"):
        logger.log_images(torch.rand(4, 5), "masked", masks={"truth": torch.ones(4, 5)})
    run.fit()
    assert mlflow.active_run().info.run_id == logger._run_id
    run.close()
    assert mlflow.active_run() is None
    (found,) = runs(uri)
    assert found.info.status == "FINISHED" and found.info.run_name == "run"
    assert {"a": "b", "run_name": "run", "run_group": "group"}.items() <= found.data.tags.items()
    assert {
        "seed": "17",
        "odd.key.": "1",
        "model": "{'layers': 2}",
    }.items() <= found.data.params.items()
    assert [step for step, _ in history(uri, found, "loss/train/total")] == [0, 1, 2, 3, 4, 5]
    assert history(uri, found, "metrics/eval/m") == [(3, 0.5), (6, 0.25)]
    assert history(uri, found, "odd.name.") == [(0, 0.5)]
    ids = {"mlflow_experiment_id": logger._experiment_id, "mlflow_run_id": found.info.run_id}
    assert ids.items() <= memory.hyperparameters.items()
    assert logger.path_placeholders() == ids
    (folder,) = (tmp_path / "mlruns").glob("*/*/artifacts")
    names = {"rows.json", "images_0_0.png", "images_0_1.png", "grey_3_0.png", "masked_None_0.png"}
    assert {path.name for path in folder.iterdir()} == names
    assert json.loads((folder / "rows.json").read_text())["data"] == [[1, 2], ["x", None]]


def test_names_are_changed_and_left_out(uri):
    logger = make(
        uri,
        rename_metrics={"loss/train/total": "loss"},
        ignore_metrics=["time/*", "skip?"],
        ignore_hyperparameters=["se*"],
        run_name="named",
    )
    run = HandRun(logger, max_duration="1ba").loaded()
    run.logger.log_hyperparameters({"seed": 1, "kept": 2})
    run.logger.log_metrics({"skip1": 1, "kept": 1})
    run.fit().close()
    (found,) = runs(uri)
    assert set(found.data.metrics) == {"loss", "kept"}
    assert set(found.data.params) == {"kept", "mlflow_experiment_id", "mlflow_run_id"}
    assert found.info.run_name == "named"


def test_what_does_not_change_is_logged_once_in_a_while(uri):
    logger = make(uri, log_duplicated_metric_every_n_steps=3)
    run = HandRun(logger).loaded()
    for step, value in enumerate([1, 1, 1, 1, 1, 2, 2, 1]):
        run.logger.log_metrics({"m": value}, step)
    run.close()
    assert history(uri, runs(uri)[0], "m") == [(0, 1), (3, 1), (5, 2), (7, 1)]


@pytest.mark.parametrize(
    "settings", [{"synchronous": True}, {"flush_interval": 2}, {"logging_buffer_seconds": 0}]
)
def test_metrics_are_sent_while_training_goes_on(uri, settings, monkeypatch):
    monkeypatch.setattr("composer.loggers.mlflow_logger._MIN_PAUSE_SECONDS", 0)
    logger = make(uri, **settings)
    run = HandRun(logger).loaded()
    run.logger.log_metrics({"m": 1}, 0)
    run.logger.log_metrics({"m": 2}, 2)
    end = time.monotonic() + 20
    while history(uri, runs(uri)[0], "m") != [(0, 1), (2, 2)]:
        assert time.monotonic() < end
        time.sleep(0.01)
    run.close()


def test_metrics_wait_for_the_buffer(uri):
    logger = make(uri)
    run = HandRun(logger).loaded()
    run.logger.log_metrics({"m": 1}, 0)
    assert history(uri, runs(uri)[0], "m") == []
    run.close()
    assert history(uri, runs(uri)[0], "m") == [(0, 1)]


def test_a_run_is_resumed_by_its_name(uri):
    first, second = killed_and_resumed(lambda: make(uri, resume=True))
    assert first._run_id == second._run_id
    (found,) = runs(uri)
    assert found.info.status == "FINISHED"
    assert [step for step, _ in history(uri, found, "loss/train/total")] == [0, 1, 2, 3, 4, 5]
    assert [step for step, _ in history(uri, found, "lr")] == [1, 4]  # it does not change
    assert {"seed": "17", "num_nodes": "2"}.items() <= found.data.params.items()


def test_without_resume_there_is_a_new_run(uri):
    killed_and_resumed(lambda: make(uri))
    first, second = runs(uri)
    assert (first.info.status, second.info.status) == ("FAILED", "FINISHED")
    assert [step for step, _ in history(uri, second, "loss/train/total")] == [3, 4, 5]


def test_the_environment_names_experiment_and_run(uri, monkeypatch):
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "of-environment")
    monkeypatch.setenv("RUN_NAME", "launched")
    first = make(uri)
    HandRun(first, max_duration="1ba").loaded().fit().close()
    assert first.experiment_name == "of-environment"
    assert runs(uri)[0].data.tags["run_name"] == "launched"
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", first._experiment_id)
    monkeypatch.setenv("MLFLOW_RUN_ID", first._run_id)
    second = make(uri)
    HandRun(second, max_duration="2ba").loaded().fit().close()
    assert (first._experiment_id, first._run_id) == (second._experiment_id, second._run_id)
    assert len(runs(uri)) == 1


def test_system_metrics(uri, monkeypatch):
    mlflow.set_system_metrics_sampling_interval(0.05)
    mlflow.set_system_metrics_samples_before_logging(1)
    run = HandRun(make(uri, log_system_metrics=True), max_duration="1ba").loaded()
    time.sleep(0.3)
    run.fit().close()
    mlflow.set_system_metrics_sampling_interval(None)
    assert "system/system_memory_usage_percentage" in runs(uri)[0].data.metrics


def test_a_store_that_fails_is_told_and_stops_nothing(uri, monkeypatch):
    logger = make(uri, synchronous=True)
    run = HandRun(logger, max_duration="3ba").loaded()
    monkeypatch.setattr(logger, "_run_id", "gone")
    with pytest.warns(UserWarning, match="MLFlowLogger failed"):
        run.fit()
    run.close()
    assert run.state.timestamp.batch == 3


def test_ranks(uri, monkeypatch):
    monkeypatch.setattr("composer.utils.dist.get_global_rank", lambda: 1)
    silent, own = make(uri), make(uri, rank_zero_only=False)
    HandRun(silent, own, max_duration="1ba").loaded().fit().close()
    (found,) = runs(uri)
    assert found.info.run_name == found.data.tags["run_name"] == "run-rank1"


def test_models_are_registered(uri, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model/MLmodel").write_text("flavors: {}\n")
    logger = make(uri, model_registry_prefix="catalog.schema", model_registry_uri="databricks-uc")
    # The rules are Unity Catalog's, the registry is this store.
    logger.model_registry_uri, logger._mlflow_client = None, mlflow.MlflowClient(uri)
    run = HandRun(logger).loaded()
    version = logger.register_model_with_run_id(str(tmp_path / "model"), "name")
    assert (version.name, version.run_id) == ("catalog.schema.name", logger._run_id)
    assert int(logger.register_model_with_run_id(str(tmp_path / "model"), "name").version) == 2
    again = logger.register_model(str(tmp_path / "model"), "name", tags={"a": "b"})
    assert int(again.version) == 3
    with pytest.raises(NotImplementedError, match="flavor='sklearn'"):
        logger.log_model("sklearn")
    run.close()


def test_unity_catalog_wants_a_prefix(uri):
    with pytest.raises(ValueError, match="When registering to Unity Catalog"):
        make(uri, model_registry_uri="databricks-uc", model_registry_prefix="name")


def test_the_page_of_a_run(uri, monkeypatch):
    logger = make(uri)
    run = HandRun(logger)
    logger.tracking_uri = "https://host/"
    run.loaded()
    ids = logger._experiment_id, logger._run_id
    assert logger.run_url == "https://host/#/experiments/{}/runs/{}".format(*ids)
    logger.tracking_uri = "databricks"
    monkeypatch.setenv("DATABRICKS_HOST", "https://host")
    logger.after_load(run.state, run.logger)
    assert logger.run_url == "https://host/ml/experiments/{}/runs/{}".format(*ids)
    run.close()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_transformers_model_is_logged_and_saved(uri, tmp_path):
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    words = Tokenizer(WordLevel({"a": 0, "?": 1}, unk_token="?"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="a", eos_token="a")
    net = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=1, n_embd=8, vocab_size=2))
    both = {"transformers_model": {"model": net, "tokenizer": tokenizer}, "task": "text-generation"}
    logger = make(uri)
    run = HandRun(logger).loaded()
    info = logger.log_model("transformers", name="x", registered_model_name="r", **both)
    assert (info.run_id, info.registered_model_version) == (logger._run_id, 1)
    logger.save_model("transformers", path=str(tmp_path / "saved"), **both)
    run.close()
    assert "torch==" in (tmp_path / "saved/requirements.txt").read_text()


def test_on_databricks_an_experiment_is_a_path_of_the_user(uri, monkeypatch):
    class Databricks(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            is_me = self.path.startswith("/api/2.0/preview/scim/v2/Me")
            self.send_response(200 if is_me else 404)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(b'{"userName": "me@x.org"}' if is_me else b"{}")

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Databricks)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    monkeypatch.setenv("DATABRICKS_HOST", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("DATABRICKS_TOKEN", "token")
    assert MLFlowLogger().tracking_uri == "databricks"
    logger = make(uri, experiment_name="mine")
    logger._mlflow_client = mlflow.MlflowClient(uri)
    logger.tracking_uri = "databricks"
    logger._find_experiment()
    server.shutdown()
    thread.join()
    server.server_close()
    assert logger.experiment_name == "/Users/me@x.org/mine"
