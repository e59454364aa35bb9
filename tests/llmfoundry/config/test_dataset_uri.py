"""What MLflow is told of the data of a run, in a real store."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmfoundry.config.dataset_uri import log_dataset_uri
from llmfoundry.utils.config_utils import _parse_source_dataset


@pytest.mark.parametrize(
    ("dataset", "source"),
    [
        ({"remote": "s3://b/c", "split": "train"}, ("s3", "s3://b/c/train/")),
        ({"remote": "hf://datasets/a/b"}, ("hf", "hf://datasets/a/b/")),
        ({"remote": "/data/a", "local": "/tmp/a"}, ("local", "/data/a")),
        ({"local": "/tmp/a", "remote": None, "split": "x"}, ("local", "/tmp/a")),
        ({"hf_name": "org/set", "split": "train"}, ("hf", "org/set")),
        ({"hf_name": "gs://b/set", "split": "train"}, ("gs", "gs://b/set/train")),
        ({"hf_name": "."}, ("local", ".")),
        ({"streams": {"a": {"remote": "s3://b", "split": "v"}}, "split": "t"}, ("s3", "s3://b/v/")),
    ],
)
def test_where_data_comes_from(dataset: dict[str, Any], source: tuple[str, str]) -> None:
    assert _parse_source_dataset({"train_loader": {"dataset": dataset}}) == {(*source, "train")}


def test_loaders_and_sources_that_are_stated() -> None:
    cfg = {
        "train_loader": {"dataset": {"local": "/a"}},
        "eval_loader": [{"dataset": {"local": "/a"}}, {"dataset": {"local": "/b"}}],
        "source_dataset_train": "main.schema.table",
    }
    assert _parse_source_dataset(cfg) == {
        ("delta_table", "main.schema.table", "train"),
        ("local", "/a", "eval"),
        ("local", "/b", "eval"),
    }
    stated = {"train_loader": {"a": 1}, "source_dataset_train": "dbfs:/Volumes/a/b"}
    assert _parse_source_dataset(stated) == {("uc_volume", "/Volumes/a/b", "train")}
    with pytest.warns(UserWarning, match="DataSource Not Found. The eval_loader names no data"):
        assert not _parse_source_dataset({"eval_loader": {"dataset": {}}})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Any]:
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    yield mlflow
    mlflow.set_tracking_uri(before)


@pytest.mark.slow  # MLflow builds its data base, table by table.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning:mlflow.*")
def test_the_store_has_it(store: Any, tmp_path: Path) -> None:
    datasets = [{"local": str(tmp_path)}, {"remote": "az://b/c"}, {"hf_name": "org/set"}]
    cfg = {
        "loggers": {"mlflow": {}},
        "train_loader": {"dataset": {"remote": "s3://b/c"}},
        "eval_loader": [{"dataset": each} for each in datasets],
    }
    log_dataset_uri(cfg)  # No run is active.
    with store.start_run() as run:
        log_dataset_uri({**cfg, "loggers": {}})
        assert not store.get_run(run.info.run_id).inputs.dataset_inputs
        log_dataset_uri(cfg)
    kept = [each.dataset for each in store.get_run(run.info.run_id).inputs.dataset_inputs]
    assert {(each.name, each.source_type) for each in kept} == {
        ("train", "s3"),
        ("eval", "local"),
        ("eval", "http"),
        ("eval", "hugging_face"),
    }
    sources = " ".join(each.source for each in kept)
    assert all(text in sources for text in ("s3://b/c/", str(tmp_path), "az://b/c/", "org/set"))
