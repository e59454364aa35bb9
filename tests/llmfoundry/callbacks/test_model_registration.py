"""The last model becomes a version of a registered one, in a real MLflow store."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("mlflow")
pytest.importorskip("sqlalchemy")

import mlflow
from transformers import AutoModelForCausalLM

from composer.loggers import MLFlowLogger
from llmfoundry.callbacks._model_registration import with_defaults
from llmfoundry.callbacks.hf_checkpointer import HuggingFaceCheckpointer
from tests.llmfoundry.callbacks.small_runs import LORA, llama, llama_folder, mpt, run

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning",
    "ignore::FutureWarning",
    "ignore::UserWarning:mlflow.*",
)
TOKENS = torch.arange(3, 13)[None]


@pytest.fixture(scope="module")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose tables have been made, which takes seconds."""
    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    mlflow.MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def uri(empty_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.chdir(tmp_path)  # artifacts go to ./mlruns
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    before = mlflow.get_tracking_uri()
    yield f"sqlite:///{tmp_path}/mlflow.db"
    mlflow.end_run()
    mlflow.set_tracking_uri(before)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return llama_folder(tmp_path_factory.mktemp("base"))


def make_logger(uri: str, **kwargs: Any) -> MLFlowLogger:
    return MLFlowLogger(tracking_uri=uri, log_system_metrics=False, **kwargs)


def train(model: Any, uri: str, folder: Path, end: str = "4ba", **kwargs: Any) -> MLFlowLogger:
    logger = make_logger(uri, model_registry_prefix="prefix")
    checkpointer = HuggingFaceCheckpointer(
        str(folder), "2ba", mlflow_registered_model_name="name", **kwargs
    )
    trainer = run(model, checkpointer, end=end, loggers=[logger])
    try:
        trainer.fit()
    finally:
        trainer.close()
    return logger


def versions(uri: str) -> list[Any]:
    return list(mlflow.MlflowClient(uri).search_model_versions("name='prefix.name'"))


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    return model.eval()(input_ids=TOKENS).logits


@pytest.mark.parametrize("kind", ["llama", pytest.param("mpt with code", marks=pytest.mark.slow)])
def test_the_last_model_is_registered(kind: str, uri: str, base: str, tmp_path: Path) -> None:
    model = llama(base) if kind == "llama" else mpt(no_bias=False)
    seen: list[str] = []

    class Edited(HuggingFaceCheckpointer):
        def pre_register_edit(self, local_save_path: str) -> None:
            Path(local_save_path, "edited.txt").write_text("by the test")
            seen.append(local_save_path)

    logger = make_logger(uri, model_registry_prefix="prefix")
    checkpointer = Edited(
        str(tmp_path / "saved"),
        "2ba",
        mlflow_registered_model_name="name",
        mlflow_logging_config={"metadata": {"origin": "test"}, "tags": {"a": "b"}},
    )
    trainer = run(model, checkpointer, end="4ba", loggers=[logger])
    trainer.fit()
    ids = logger.path_placeholders()
    trainer.close()
    assert not (Path(__file__).parents[3] / "mlruns").exists()
    (version,) = versions(uri)
    assert version.run_id == ids["mlflow_run_id"] and len(seen) == 1
    (logged,) = mlflow.MlflowClient(uri).search_logged_models([ids["mlflow_experiment_id"]])
    assert (logged.name, logged.status) == ("final_model_checkpoint", "READY")
    assert logged.source_run_id == version.run_id and logged.tags["a"] == "b"
    folder = Path(mlflow.artifacts.download_artifacts("models:/prefix.name/1"))
    assert (folder / "model" / "edited.txt").exists()
    assert (folder / "model" / "README.md").exists()
    loaded = AutoModelForCausalLM.from_pretrained(folder / "model", trust_remote_code=True)
    assert torch.equal(logits(loaded), logits(model.model))
    described = mlflow.models.Model.load(folder)
    assert described.metadata == {"origin": "test", "task": "llm/v1/completions"}
    if kind == "llama":
        pipeline: Any = mlflow.transformers.load_model("models:/prefix.name/1")
        assert torch.equal(logits(pipeline.model), logits(model.model))
    saved = tmp_path / "saved" / "huggingface"
    assert sorted(path.name for path in saved.iterdir()) == ["ba2", "ba4"]
    assert not list(saved.rglob("edited.txt"))


def test_adapters_are_registered(uri: str, base: str, tmp_path: Path) -> None:
    from peft import PeftModel

    model = llama(base, peft_config=dict(LORA))
    train(model, uri, tmp_path / "saved", end="2ba")
    assert len(versions(uri)) == 1
    folder = Path(mlflow.artifacts.download_artifacts("models:/prefix.name/1"))
    loaded = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), folder / "peft")
    assert torch.equal(logits(loaded), logits(model.model))
    assert (tmp_path / "saved/huggingface/ba2/adapter_model.safetensors").exists()


def test_only_the_registry_gets_the_last(uri: str, base: str, tmp_path: Path) -> None:
    train(llama(base), uri, tmp_path / "saved", final_register_only=True)
    assert len(versions(uri)) == 1
    assert [path.name for path in (tmp_path / "saved/huggingface").iterdir()] == ["ba2"]


def test_a_model_that_cannot_be_registered_is_kept(uri: str, base: str, tmp_path: Path) -> None:
    config = {"signature": "no signature"}
    with pytest.raises(Exception, match="(?i)signature"):
        train(
            llama(base),
            uri,
            tmp_path / "saved",
            final_register_only=True,
            mlflow_logging_config=config,
        )
    assert versions(uri) == []
    names = sorted(path.name for path in (tmp_path / "saved/huggingface").iterdir())
    assert names == ["ba2", "ba4"]


@pytest.mark.slow
def test_the_end_does_not_wait_for_ever(uri: str, base: str, tmp_path: Path) -> None:
    import threading

    go_on = threading.Event()

    class Slow(HuggingFaceCheckpointer):
        def transform_model_pre_registration(self, model: Any) -> Any:
            assert go_on.wait(600)
            raise RuntimeError("nobody waits any more")

    checkpointer = Slow(
        str(tmp_path / "saved"),
        "2ba",
        mlflow_registered_model_name="name",
        register_wait_seconds=1,
    )
    trainer = run(llama(base), checkpointer, end="2ba", loggers=[make_logger(uri)])
    with pytest.raises(TimeoutError, match="register_wait_seconds=1"):
        trainer.fit()
    trainer.close()  # does not wait for what was abandoned
    assert not go_on.is_set()
    go_on.set()
    assert (tmp_path / "saved/huggingface/ba2/config.json").exists()


def test_what_a_language_model_is_logged_with() -> None:
    completions = with_defaults({})
    assert completions["task"] == "llm/v1/completions" and completions["metadata"] == {}
    assert completions["input_example"]["prompt"].tolist() == ["What is Machine Learning?"]
    for config in ({"task": "llm/v1/chat"}, {"metadata": {"task": "llm/v1/chat"}}):
        chat = with_defaults(config)
        assert chat["task"] == "llm/v1/chat"
        assert chat["input_example"]["messages"][0]["role"] == "user"
    assert with_defaults({"input_example": 1})["input_example"] == 1


def test_wrong_arguments_are_found_before_training(uri: str, tmp_path: Path) -> None:
    for key, text in {"tsak": "Did you mean 'task'", "run_id": "is set by"}.items():
        with pytest.raises(ValueError, match=text):
            train(mpt(), uri, tmp_path, mlflow_logging_config={key: "x"})
        mlflow.end_run()
