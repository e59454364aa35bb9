"""Text data sets of earlier versions."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import default_collate
from transformers import PreTrainedTokenizerFast

from streaming import MDSWriter, StreamingDataLoader
from streaming.text import StreamingC4, StreamingEnWiki, StreamingPile


@pytest.fixture
def tokenizer(tmp_path: Path) -> str:
    words = {"[UNK]": 0, "<eos>": 1, "one": 2, "two": 3, "three": 4}
    plain = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    folder = str(tmp_path / "tokenizer")
    PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="<eos>").save_pretrained(folder)
    return folder


def write(out: Path, columns: dict[str, str], rows: list[dict[str, Any]]) -> str:
    with MDSWriter(columns=columns, out=str(out)) as writer:
        for row in rows:
            writer.write(row)
    return str(out)


@pytest.mark.parametrize("kind", [StreamingC4, StreamingPile])
def test_text_is_tokenised(kind: Any, tokenizer: str, tmp_path: Path) -> None:
    local = write(tmp_path / "c4", {"text": "str"}, [{"text": "one two"}, {"text": "two " * 9}])
    named = {"tokenizer_name": tokenizer, "max_seq_len": 4}
    dataset = kind(local=local, group_method="truncate", batch_size=2, **named)
    assert dataset[0]["input_ids"] == [2, 3, 1, 1]
    assert dataset[0]["attention_mask"] == [1, 1, 0, 0]
    assert dataset[1]["input_ids"] == [3, 3, 3, 3]
    assert [row["input_ids"] for row in dataset] == [[2, 3, 1, 1], [3, 3, 3, 3]]
    with pytest.raises(ValueError, match="group_method='concat' is unknown; use 'truncate'"):
        kind(local=local, group_method="concat", **named)
    with pytest.raises(TypeError, match="unexpected keyword argument 'sed'"):
        kind(local=local, group_method="truncate", sed=1, **named)


def test_masked_words_become_labels(tmp_path: Path) -> None:
    def raw(*ids: int) -> bytes:
        return np.array(ids, np.int32).tobytes()

    row = {
        "input_ids": raw(101, 7, 103, 103, 102, 0),
        "input_mask": raw(1, 1, 1, 1, 1, 0),
        "segment_ids": raw(0, 0, 0, 1, 1, 0),
        "masked_lm_positions": raw(2, 3, 0),
        "masked_lm_ids": raw(55, 66, 0),
    }
    local = write(tmp_path / "wiki", dict.fromkeys(row, "bytes"), [row])
    found = StreamingEnWiki(local=local)[0]
    assert {name: value.tolist() for name, value in found.items()} == {
        "input_ids": [101, 7, 103, 103, 102, 0],
        "token_type_ids": [0, 0, 0, 1, 1, 0],
        "attention_mask": [1, 1, 1, 1, 1, 0],
        "labels": [-100, -100, 55, 66, -100, -100],
    }
    batch = default_collate([found, found])
    logits = torch.randn(2, 6, 110, generator=torch.Generator().manual_seed(0))
    loss = torch.nn.functional.cross_entropy(logits.mT, batch["labels"])
    picked = logits.log_softmax(-1)[:, [2, 3], [55, 66]]
    torch.testing.assert_close(loss, -picked.mean())
    torch.from_numpy(found["input_ids"])[0] = 5
    assert StreamingEnWiki(local=local)[0]["input_ids"][0] == 101
    other = write(tmp_path / "text", {"text": "str"}, [{"text": json.dumps("a")}])
    with pytest.raises(KeyError, match=r"no column masked_lm_positions|no column input_ids"):
        StreamingEnWiki(local=other)[0]


def test_a_loader_of_tokens(tokenizer: str, tmp_path: Path) -> None:
    rows = [{"text": "one two three " * n} for n in range(1, 9)]
    local = write(tmp_path / "c4", {"text": "str"}, rows)
    dataset = StreamingC4(
        local=local, tokenizer_name=tokenizer, max_seq_len=3, group_method="truncate", batch_size=4
    )
    batches = list(StreamingDataLoader(dataset, batch_size=4, collate_fn=list))
    assert [len(batch) for batch in batches] == [4, 4]
    assert all(row["input_ids"] == [2, 3, 4] for batch in batches for row in batch)
