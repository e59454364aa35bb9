"""What the fine-tuning tests share: the tokenizer of the recordings, and a cache of their own."""

from pathlib import Path
from typing import Any

import datasets
import pytest

GOLDEN = Path(__file__).parents[3] / "golden" / "finetuning"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "datasets_cache"))


@pytest.fixture
def gpt2() -> Any:
    """GPT-2's tokenizer, with the pieces that the recorded texts need."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(GOLDEN / "tokenizer"))
