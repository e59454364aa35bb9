"""Rows out of shards: tokenised before, as arrays or bytes, or while they are read."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmfoundry.data.finetuning.dataloader import build_finetuning_dataloader
from llmfoundry.data.finetuning.preprocessing import dataset_constructor
from llmfoundry.data.finetuning.streaming_dataset import StreamingFinetuningDataset
from llmfoundry.utils.exceptions import DatasetTooSmallError, InvalidRoleError
from streaming.base.format.jsonl import JSONLReader
from streaming.base.format.mds.writer import MDSWriter
from tests.llmfoundry.data.finetuning.conftest import GOLDEN
from tests.llmfoundry.data.finetuning.test_tokenization import ROWS


def shards(folder: Path, columns: dict[str, str], *samples: Any) -> str:
    with MDSWriter(columns=columns, out=str(folder)) as out:
        for sample in samples:
            out.write(sample)
    return str(folder)


def build(tokenizer: Any, local: str, **kwargs: Any) -> StreamingFinetuningDataset:
    return dataset_constructor.build_from_streaming(
        tokenizer=tokenizer, local=local, batch_size=1, **kwargs
    )


def test_texts_and_turns_of_upstream_are_the_same_rows(gpt2: Any) -> None:
    expected = [case["turns"] for case in ROWS[:12]]
    texts = build(gpt2, str(GOLDEN / "pr_mds"), split="train")
    assert [row["turns"] for row in texts] == expected
    stay = [turns for case, turns in zip(ROWS, expected) if case["valid"]["none|last|64"]]
    turns = build(gpt2, str(GOLDEN / "pr_mds_tok"), split="train")
    assert [row["turns"] for row in turns] == stay


@pytest.mark.parametrize("encoding", ["ndarray:uint16", "bytes"])
def test_one_turn_as_arrays_or_bytes(encoding: str, tmp_path: Path, gpt2: Any) -> None:
    sample: Any = {"input_ids": np.arange(5, dtype=np.uint16), "labels": np.array([7], np.uint16)}
    if encoding == "bytes":
        sample = {key: value.tobytes() for key, value in sample.items()}
    local = shards(tmp_path / "s", dict.fromkeys(sample, encoding), sample)
    kwargs = {"token_encoding_type": "uint16"} if encoding == "bytes" else {}
    (row,) = build(gpt2, local, max_seq_len=4, **kwargs)
    assert row == {"turns": [{"input_ids": [0, 1, 2, 3], "labels": [7]}]}


def test_a_faulty_row_is_named(tmp_path: Path, gpt2: Any) -> None:
    good = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    bad = [{"role": "bot", "content": "a"}, good[1]]
    local = shards(tmp_path / "s", {"messages": "json"}, {"messages": good}, {"messages": bad})
    dataset = build(gpt2, local)
    assert dataset[0]["turns"]
    with pytest.raises(InvalidRoleError, match=r"row 1 of .*shard\.00000\.mds.*bot"):
        dataset[1]


@pytest.mark.parametrize("packing", [None, "best_fit"])
def test_lines_are_counted_for_a_faulty_row_only(
    packing: str | None, tmp_path: Path, gpt2: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jsonl"
    lines = [json.dumps({"prompt": "a", "response": str(n)}) for n in range(5)]
    path.write_text("\n".join(lines))
    counted: list[int] = []
    monkeypatch.setattr(JSONLReader, "_position", lambda _, idx: (counted.append(idx), ("x", 0))[1])
    settings = {"local": str(path), "max_seq_len": 64, "decoder_only_format": True}
    settings |= {"shuffle": False} | ({"packing": packing} if packing else {})
    assert list(build_finetuning_dataloader(gpt2, 1, settings, 0).dataloader)
    assert not counted


def test_positions_count_packed_rows(gpt2: Any) -> None:
    local = str(GOLDEN / "pr_mds")
    plain = build(gpt2, local, split="train")
    packed = build(gpt2, local, split="train", packing_ratio=2.5)
    assert packed.state_dict(4, True) == plain.state_dict(10, True)


def test_too_few_samples_and_unknown_settings_are_refused(gpt2: Any) -> None:
    local = str(GOLDEN / "pr_mds")
    with pytest.raises(DatasetTooSmallError, match="12 samples"):
        build(gpt2, local, split="train", order="mosaic", num_canonical_nodes=16)
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        build(gpt2, local, split="train", foo=1)
    with pytest.raises(ValueError, match="token_encoding_type"):
        build(gpt2, local, split="train", token_encoding_type="float32")
    with pytest.raises(ValueError, match="does not contain split"):
        build(gpt2, local, split="validation")
