"""Settings of every test: one thread, no network, fresh random generators; an S3 on loopback."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")

import logging
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

torch.set_num_threads(1)

LOGGERS = ("composer", "llmfoundry", "streaming")


@pytest.fixture(autouse=True)
def _fresh_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Starts each test as in a new process: random state, environment, log levels, no group."""
    monkeypatch.delenv("RUN_NAME", raising=False)
    monkeypatch.delenv("COMPOSER_RUN_NAME", raising=False)
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    environment = dict(os.environ)
    levels = {name: logging.getLogger(name).level for name in LOGGERS}
    yield
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)  # Commands set it.
    torch.use_deterministic_algorithms(False)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    os.environ.clear()
    os.environ.update(environment)


@pytest.fixture
def golden() -> Path:
    """The folder of results recorded with the last upstream releases."""
    return Path(__file__).parent / "golden"


@pytest.fixture(scope="session")
def moto() -> Iterator[tuple[str, int]]:
    """A real S3 server, as host and port."""
    from tests.composer.utils.object_store.faults import s3_server

    with s3_server() as address:
        yield address


@pytest.fixture
def s3(
    moto: tuple[str, int], quick: None, no_credentials: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    """An empty bucket named ``bucket`` behind a proxy, which the environment leads to."""
    from tests.composer.utils.object_store.faults import SECRET, TOKEN, faulty_proxy, make_bucket

    make_bucket(*moto, "bucket")
    with faulty_proxy(*moto) as proxy:
        monkeypatch.setenv("S3_ENDPOINT_URL", proxy.url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        monkeypatch.setenv("AWS_SESSION_TOKEN", TOKEN)
        yield proxy


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the pauses between tries short."""
    from composer.utils.object_store.remote_object_store import RemoteObjectStore

    monkeypatch.setattr(RemoteObjectStore, "backoff_seconds", 0.01)
    for package in ("composer.utils.object_store._drivers", "streaming.base.remote"):
        monkeypatch.setattr(f"{package}.FIRST_PAUSE_SECONDS", 0.002)


@pytest.fixture
def no_credentials(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Hides this machine's credentials."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "S3_", "GCS_", "GOOGLE_", "AZURE_", "HF_TOKEN")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct as a transformers folder, fetched once into ``data/``."""
    from llmfoundry.command_utils.data_prep.fetch_smollm2 import fetch_smollm2

    folder = Path(__file__).parents[1] / "data" / "smollm2"
    try:
        return fetch_smollm2(str(folder))
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"SmolLM2 could not be fetched: {error}")
