"""Settings of every test: one thread, no network, fresh random generators."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _fresh_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Starts each test as in a new process: random state, environment, no process group."""
    monkeypatch.delenv("RUN_NAME", raising=False)
    monkeypatch.delenv("COMPOSER_RUN_NAME", raising=False)
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    environment = dict(os.environ)
    yield
    torch.use_deterministic_algorithms(False)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    os.environ.clear()
    os.environ.update(environment)


@pytest.fixture
def golden() -> Path:
    """The folder of results recorded with the last upstream releases."""
    return Path(__file__).parent / "golden"
