"""Hugging Face datasets as sources of the text loader: by number, and streamed."""

import json
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from torch.utils.data import DataLoader

from composer.models.base import ComposerModel
from composer.trainer.trainer import Trainer
from llmfoundry.data.text_data import build_text_dataloader
from streaming.base.dataloader import StreamingDataLoader
from tests.llmfoundry.tiny_tokenizer import train_tokenizer
from tests.streaming.shards import world

LENGTH = 4
ROWS = 40


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Four files of token rows that begin with their number."""
    names = []
    for part in range(4):
        rows = range(part * ROWS // 4, (part + 1) * ROWS // 4)
        path = tmp_path / f"part{part}.jsonl"
        path.write_text("".join(json.dumps({"tokens": [n, 1, 2, 3], "n": n}) + "\n" for n in rows))
        names.append(str(path))
    return names


def loader(size: int = 4, workers: int = 0, **dataset: Any) -> DataLoader[Any]:
    spec = build_text_dataloader(
        train_tokenizer(pad=True),
        size,
        {"max_seq_len": LENGTH, **dataset},
        drop_last=False,
        num_workers=workers,
        persistent_workers=False,
    )
    assert isinstance(spec.dataloader, DataLoader)
    return spec.dataloader


def take(loader: DataLoader[Any]) -> list[list[int]]:
    return [batch["input_ids"][:, 0].tolist() for batch in loader]


def test_rows_by_number_have_the_exact_order(files: list[str]) -> None:
    source = {"hf_name": "json", "split": "train", "hf_kwargs": {"data_files": files}}
    whole = take(loader(8, shuffle=True, **source))
    assert sorted(n for batch in whole for n in batch) == list(range(ROWS))
    first = loader(8, shuffle=True, **source)
    assert isinstance(first, StreamingDataLoader)
    head = []
    for batch in first:
        head.append(batch["input_ids"][:, 0].tolist())
        if len(head) == 2:
            break
    state = first.state_dict()
    assert state is not None
    parts = []
    for rank in range(2):
        with world(rank, 2):
            resumed = loader(4, workers=2 * rank, shuffle=True, **source)
        assert isinstance(resumed, StreamingDataLoader)
        resumed.load_state_dict(state)
        parts.append(take(resumed))
    assert head + [a + b for a, b in zip(*parts, strict=True)] == whole


def test_mixed_with_files_and_packed(files: list[str], tmp_path: Path) -> None:
    made = datasets.Dataset.from_dict({"body": ["some text", "and more"] * 4})
    made.save_to_disk(str(tmp_path / "saved"))
    mixed = loader(
        16,
        streams={
            "lines": {"local": files[0], "choose": 8},
            "hub": {"hf_name": "json", "split": "train", "hf_kwargs": {"data_files": files[1:2]}},
        },
    )
    assert sorted(n for batch in take(mixed) for n in batch)[-10:] == list(range(10, 20))
    columns = {"text": "body"}
    (batch,) = list(loader(8, hf_name=str(tmp_path / "saved"), columns=columns))
    assert batch["input_ids"].shape == (8, LENGTH)
    settings = {"columns": columns, "packing": "best_fit", "eos_text": "</s>"}
    packed = loader(4, hf_name=str(tmp_path / "saved"), **settings)
    tokenizer = train_tokenizer(pad=True)
    count = sum(len(tokenizer(text)["input_ids"]) + 1 for text in made["body"])
    assert sum(int(batch["attention_mask"].sum()) for batch in packed) == count


STREAMED: dict[str, Any] = {"hf_name": "json", "split": "train"}


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_streamed_rows_come_once_and_repeatably(
    shuffle: bool, workers: int, files: list[str]
) -> None:
    kwargs = {"data_files": files, "streaming": True}
    seen: list[list[list[int]]] = []
    for rank in range(2):
        with world(rank, 2):
            made = loader(
                4, workers, hf_kwargs=kwargs, shuffle=shuffle, shuffle_block_size=7, **STREAMED
            )
        seen.append(take(made))
        assert take(made) == seen[-1]  # So a resumed run can read what came before, and go on.
    rows = [n for batches in seen for batch in batches for n in batch]
    assert sorted(rows) == list(range(ROWS))


class Recorder(ComposerModel):
    """Remembers the rows of every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(1, 1)
        self.seen: list[list[int]] = []

    def forward(self, batch: Any) -> torch.Tensor:
        self.seen.append(batch["input_ids"][:, 0].tolist())
        return self.linear(batch["input_ids"][:, :1].float())

    def loss(self, outputs: Any, batch: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        return outputs.square().mean() * 1e-9


def run(files: list[str], duration: str, folder: Path) -> list[list[int]]:
    model, data = Recorder(), {"data_files": files, "streaming": True}
    trainer = Trainer(
        model=model,
        train_dataloader=loader(hf_kwargs=data, shuffle=True, shuffle_block_size=9, **STREAMED),
        optimizers=torch.optim.SGD(model.parameters(), 0.01),
        max_duration=duration,
        device="cpu",
        progress_bar=False,
        save_folder=str(folder),
        save_interval="1ba",
        run_name="run",
        autoresume=True,
    )
    trainer.fit()
    trainer.close()
    return model.seen


def test_a_streamed_run_goes_on_where_it_stopped(files: list[str], tmp_path: Path) -> None:
    whole = run(files, "14ba", tmp_path / "whole")
    assert len(whole) == 14 and whole[10:] == whole[:4]  # Every epoch has the same order.
    for stop, count in (("3ba", 3), ("9ba", 6), ("12ba", 3), ("14ba", 2)):
        batches = run(files, stop, tmp_path / "parts")
        assert len(batches) == count and batches == whole[int(stop[:-2]) - count :][:count]


def test_streamed_columns(files: list[str]) -> None:
    kwargs = {"data_files": files, "streaming": True}
    with pytest.raises(ValueError, match="has no column 'x', only"):
        take(loader(hf_kwargs=kwargs, columns={"tokens": "x"}, **STREAMED))
    with pytest.raises(ValueError, match=r"row 0 of json .*column 'tokens' must be a row"):
        take(loader(hf_kwargs=kwargs, columns={"tokens": "n"}, **STREAMED))
    assert take(loader(hf_kwargs=kwargs, columns=["tokens"], **STREAMED))[0] == [0, 1, 2, 3]


def test_what_is_refused(files: list[str], tmp_path: Path) -> None:
    data = {"data_files": files}
    with pytest.raises(ValueError, match=r"json has the splits \['train'\]: set `split`"):
        loader(hf_name="json", hf_kwargs=data)
    assert take(loader(hf_kwargs=data, local=None, remote=None, **STREAMED))[0] == [0, 1, 2, 3]
    with pytest.raises(ValueError, match=r"\['local'\] has no effect beside hf_name"):
        loader(local="x", hf_kwargs=data, **STREAMED)
    with pytest.raises(ValueError, match=r"\['keep_zip'\] has no effect with hf_kwargs.streaming"):
        loader(hf_kwargs={**data, "streaming": True}, keep_zip=True, **STREAMED)
    with pytest.raises(ValueError, match="cannot be mixed with other streams"):
        loader(streams={"a": {**STREAMED, "hf_kwargs": {**data, "streaming": True}}})
    with pytest.raises(ValueError, match="split='train' and hf_kwargs.split='test': give one"):
        loader(hf_kwargs={**data, "split": "test"}, **STREAMED)
    with pytest.raises(ValueError, match="json has no column text or tokens"):
        loader(hf_kwargs=data, columns=["n"], **STREAMED)
    datasets.Dataset.from_dict({"text": ["a"]}).save_to_disk(str(tmp_path / "saved"))
    with pytest.raises(ValueError, match=r"save_to_disk, where \['split'\] has no effect"):
        loader(hf_name=str(tmp_path / "saved"), split="train")
