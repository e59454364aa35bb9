"""The text loader over flat token files, JSONL and Parquet."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch

from llmfoundry.data.text_data import StreamingTextDataset, build_text_dataloader
from streaming.base.format.tokens import TokensWriter
from streaming.base.stream import Stream
from tests.llmfoundry.tiny_tokenizer import train_tokenizer

LENGTH = 8
TEXTS = ["a first text", "another one", "the third", "and the last of all"]


def loader(path: Path | None = None, size: int = 4, **dataset: Any) -> Any:
    source = {} if path is None else {"local": str(path)}
    spec = build_text_dataloader(
        train_tokenizer(pad=True),
        size,
        {**source, "max_seq_len": LENGTH, **dataset},
        drop_last=False,
        num_workers=0,
    )
    return spec


def batches(path: Path, **dataset: Any) -> list[dict[str, Any]]:
    return list(loader(path, **dataset).dataloader)


def test_rows_of_a_flat_file_are_inputs_and_labels(tmp_path: Path) -> None:
    tokens = np.arange(70, dtype=np.uint16) % 60 + 3
    tokens.tofile(tmp_path / "train.bin")
    found = batches(tmp_path / "train.bin", token_encoding_type="uint16")
    rows = torch.cat([batch["input_ids"] for batch in found])
    assert rows.dtype == torch.int64
    assert torch.equal(rows, torch.from_numpy(tokens[:64].astype(np.int64)).view(8, LENGTH))
    assert all(torch.equal(batch["labels"], batch["input_ids"]) for batch in found)
    assert found[0]["total_tokens"] == [LENGTH] * 4
    assert found[0]["loss_generating_tokens"] == [LENGTH - 1] * 4


def test_documents_of_a_flat_file_are_told_apart(tmp_path: Path) -> None:
    eos = train_tokenizer(pad=True).eos_token_id
    with TokensWriter(out=str(tmp_path / "data")) as writer:
        for length in (3, 6, 7):
            writer.write({"tokens": [*range(5, 4 + length), eos]})
    (batch,) = batches(tmp_path / "data", eos_token_id=eos)
    assert batch["sequence_id"].tolist() == [[0] * 3 + [1] * 5, [0] + [1] * 7]


def write(path: Path, column: str, values: list[Any]) -> Path:
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps({"id": 1, column: each}) + "\n" for each in values))
    else:
        pyarrow.parquet.write_table(
            pyarrow.table({"id": [1] * len(values), column: values}), path, row_group_size=3
        )
    return path


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_texts_and_tokens(kind: str, tmp_path: Path) -> None:
    tokenizer = train_tokenizer(pad=True)
    expected = tokenizer(TEXTS, truncation=True, padding="max_length", max_length=LENGTH)
    path = write(tmp_path / f"text.{kind}", "text", TEXTS)
    (batch,) = batches(path)
    assert batch["input_ids"].tolist() == expected["input_ids"]
    assert batch["attention_mask"].tolist() == expected["attention_mask"]
    path = write(tmp_path / f"content.{kind}", "content", TEXTS)
    (renamed,) = batches(path, columns={"text": "content"})
    assert torch.equal(renamed["input_ids"], batch["input_ids"])
    with pytest.raises(ValueError, match=r"no column text or tokens.*it has \['content', 'id'\]"):
        loader(path)
    rows = [list(range(n, n + LENGTH + 2)) for n in range(4)]
    (batch,) = batches(write(tmp_path / f"tokens.{kind}", "tokens", rows))
    assert batch["input_ids"].tolist() == [row[:LENGTH] for row in rows]


def test_a_mixture_of_kinds(tmp_path: Path) -> None:
    np.arange(10, 50, dtype=np.uint16).tofile(tmp_path / "a.bin")
    np.save(tmp_path / "b.npy", np.arange(0, 40, dtype=np.int32))
    rows = [list(range(n, n + LENGTH)) for n in range(4)]
    streams = {
        "flat": {"local": str(tmp_path / "a.bin"), "token_encoding_type": "uint16"},
        "numpy": {"local": str(tmp_path / "b.npy")},
        "lines": {"local": str(write(tmp_path / "c.jsonl", "tokens", rows))},
    }
    spec = loader(streams=streams, size=14, shuffle=True)
    (batch,) = list(spec.dataloader)
    assert sorted(batch["input_ids"][:, 0].tolist()) == sorted(
        [*range(10, 50, 8), *range(0, 40, 8), 0, 1, 2, 3]
    )


def test_tokens_of_another_tokenizer_or_type(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    np.full(64, 40000, np.uint16).tofile(path)
    with pytest.raises(ValueError, match=r"a\.bin: token 0 is 40000.*vocabulary has"):
        batches(path, token_encoding_type="uint16")
    (np.arange(64, dtype=np.uint16) % 60).tofile(path)
    with pytest.raises(ValueError, match=r"a\.bin: token 0 is .*not of int64.*token_encoding_type"):
        batches(path)  # int64 is the default.


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_what_is_no_text_is_named(kind: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"text.{kind}", "text", ["a", None])
    place = {"jsonl": r"text\.jsonl, line 2", "parquet": r"row 1 of .*text\.parquet"}[kind]
    with pytest.raises(ValueError, match=f"{place}: column 'text' must be text, and is None"):
        batches(path)
    with pytest.raises(ValueError, match="Column 'text' of .* and must be str"):
        loader(write(tmp_path / f"number.{kind}", "text", [1, 2]))
    with pytest.raises(
        ValueError, match="`token_encoding_type` has no effect|has no effect: it is"
    ):
        loader(path, token_encoding_type="uint16")


def test_packing_takes_them(tmp_path: Path) -> None:
    rows = [[7] * 3, [8] * 5, [9] * 8, [10] * 2]
    path = write(tmp_path / "a.jsonl", "tokens", rows)
    (batch,) = batches(path, packing="best_fit")
    tokens = batch["input_ids"][batch["attention_mask"] == 1]
    assert sorted(tokens.tolist()) == sorted(each for row in rows for each in row)


def test_columns_are_those_of_the_class(tmp_path: Path) -> None:
    np.arange(64, dtype=np.uint16).tofile(tmp_path / "a.bin")
    dataset = StreamingTextDataset(
        train_tokenizer(pad=True),
        LENGTH,
        streams=[Stream(local=str(tmp_path), token_encoding_type="uint16")],
        batch_size=2,
    )
    assert len(dataset) == 8 and dataset[1].tolist() == list(range(8, 16))
