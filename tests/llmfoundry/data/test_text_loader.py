"""The text loader with the Trainer and over ranks, and what it refuses before the first batch."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from composer.core.callback import Callback
from composer.trainer.trainer import Trainer
from llmfoundry.data.text_data import build_text_dataloader
from llmfoundry.utils.exceptions import NotEnoughDatasetSamplesError
from streaming.base.format.mds.writer import MDSWriter
from tests.launch import run_ranks
from tests.llmfoundry.callbacks.small_runs import mpt
from tests.llmfoundry.tiny_tokenizer import TEXT, train_tokenizer

TEXTS = [" ".join(TEXT[0].split()[: 2 + n % 9]) for n in range(14)]


def write(folder: Path, encoding: str, samples: list[Any], column: str = "tokens") -> str:
    with MDSWriter(columns={column: encoding}, out=str(folder)) as out:
        for sample in samples:
            out.write({column: sample})
    return str(folder)


def rows(count: int, dtype: Any = np.int32) -> list[Any]:
    return [np.arange(row, row + 8, dtype=dtype) for row in range(count)]


def build(size: int = 2, tokenizer: Any = None, **settings: Any) -> Any:
    loader = {"drop_last": settings.pop("drop_last", False)}
    loader["num_workers"] = settings.pop("num_workers", 0)
    for name in ("prefetch_factor", "timeout"):
        if name in settings:
            loader[name] = settings.pop(name)
    settings = {"max_seq_len": 8, **settings}
    return build_text_dataloader(tokenizer or train_tokenizer(), size, settings, **loader)


class Counted(Callback):
    """Keeps the counters behind each batch, and counts what the model is given."""

    def __init__(self) -> None:
        self.tokens, self.given = [], 0

    def batch_start(self, state: Any, logger: Any) -> None:
        self.given += int(state.batch["attention_mask"].sum())

    def batch_end(self, state: Any, logger: Any) -> None:
        self.tokens.append(int(state.timestamp.token))


def tokens_of_a_run(
    folder: str, size: int, micro: int, save: str | None = None, **more: Any
) -> Any:
    tokenizer = train_tokenizer(pad=True)
    model, counted = mpt(), Counted()
    trainer = Trainer(
        model=model,
        train_dataloader=build(size, tokenizer, local=folder, max_seq_len=16, shuffle=True),
        optimizers=torch.optim.AdamW(model.parameters()),
        max_duration="2ep",
        device_train_microbatch_size=micro,
        callbacks=[counted],
        run_name="run",
        save_folder=save,
        save_interval="3ba",
        progress_bar=False,
        **more,
    )
    trainer.fit()
    trainer.close()
    return counted.tokens, counted.given


def test_time_in_tokens_is_that_of_real_tokens(tmp_path: Path) -> None:
    """Of texts that are padded, whatever micro-batches, ranks and a resumption do."""
    folder = write(tmp_path / "data", "str", TEXTS, "text")
    real = sum(len(train_tokenizer()(text)["input_ids"]) for text in TEXTS)
    tokens, given = tokens_of_a_run(folder, 4, 2, str(tmp_path / "save"))
    assert tokens[-1] == given == 2 * real and tokens[3] == real
    saved = str(tmp_path / "save" / "ep0-ba3-rank0.pt")
    resumed, _ = tokens_of_a_run(folder, 4, 1, load_path=saved)
    assert resumed == tokens[3:]
    first, second = run_ranks(tokens_of_a_run, 2, folder, 2, 2)
    assert first[0] == second[0] == tokens and first[1] + second[1] == given


def rows_of_a_rank(cases: list[tuple[int, dict[str, Any]]]) -> list[Any]:
    found: list[Any] = []
    for size, settings in cases:
        try:
            loader = build(size, **settings).dataloader
        except NotEnoughDatasetSamplesError as error:
            found.append(str(error))
        else:
            batches = [batch["input_ids"][:, 0].tolist() for batch in loader]
            assert len(batches) == len(loader)
            found.append(batches)
    return found


def test_loaders_over_ranks(tmp_path: Path) -> None:
    """B62: 15 rows fill a batch of 8 on one rank of two, which is less than a global batch too."""
    folder = {n: write(tmp_path / str(n), "ndarray:int32", rows(n)) for n in (3, 12, 15, 31)}
    copies = {"replication": 2, "shuffle": True, "drop_last": True}
    cases: list[tuple[int, dict[str, Any]]] = [
        (8, {"local": folder[3], "drop_last": True}),
        (8, {"local": folder[15], "drop_last": True}),
        (8, {"local": folder[3]}),
        (8, {"local": folder[15]}),
        (8, {"local": folder[31], "drop_last": True}),
        (4, {"local": folder[12], **copies}),
        (8, {"local": folder[3], **copies}),
    ]
    first, second = run_ranks(rows_of_a_rank, 2, cases)
    for found in first, second:
        assert "has 3 samples, but your minimum batch size is 16" in found[0]
        assert "has 15 samples, but your minimum batch size is 16" in found[1]
        assert "has 3 samples, but your minimum batch size is 8" in found[6]
        assert [len(batch) for batch in found[4]] == [8]
    for case, count in ((2, 3), (3, 15)):
        assert len(first[case]) == len(second[case]) == 1
        assert {*first[case][0], *second[case][0]} == set(range(count))
    assert first[5] == second[5] and sorted(sum(first[5], [])) == list(range(12))


@pytest.mark.parametrize(
    ("encoding", "sample", "column", "text"),
    [
        ("int", 1, "x", r"have the columns \['x'\]; the text loader needs a text or a tokens"),
        ("ndarray:float32", np.ones(8, np.float32), "tokens", "'tokens' of .* is written as 'nd"),
        ("str", "a b", "tokens", "'tokens' of .* is written as 'str', and must be ndarray:int32"),
        ("int", 1, "text", "'text' of .* is written as 'int', and must be str"),
    ],
)
def test_columns_of_another_kind(
    encoding: str, sample: Any, column: str, text: str, tmp_path: Path
) -> None:
    folder = write(tmp_path, encoding, [sample], column)
    with pytest.raises((RuntimeError, ValueError), match=text):
        build(local=folder)


@pytest.mark.parametrize(
    ("encoding", "sample", "settings", "text"),
    [
        ("ndarray", np.ones(8, np.float32), {}, "must be a row of integers, and is 'float32 of"),
        ("ndarray", np.ones((2, 4), np.int32), {}, r"and is 'int32 of shape \(2, 4\)'"),
        ("bytes", b"12345", {}, "has 5 bytes, which are no whole number of int64"),
        ("bytes", bytes(range(8)), {}, "holds 506097522914230528, and the tokenizer's last token"),
        ("bytes", bytes(range(8)), {"token_encoding_type": "uint16"}, "holds 1798, and the token"),
    ],
)
def test_a_row_that_is_none_is_named(
    encoding: str, sample: Any, settings: dict[str, Any], text: str, tmp_path: Path
) -> None:
    folder = write(tmp_path, encoding, [sample] * 2)
    with pytest.raises(
        ValueError,
        match=f"row 0 of .*shard.00000.mds: column 'tokens' .*{text}|"
        f"row 0 of .*shard.00000.mds: column 'tokens' {text}",
    ):
        next(iter(build(local=folder, **settings).dataloader))


def test_texts_that_are_none_are_named(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", "bytes", [b"a b", b"\xff"], "text")
    with pytest.raises(ValueError, match="row 1 of .*mds: 'utf-8' codec can't decode"):
        list(build(1, train_tokenizer(pad=True), local=folder).dataloader)


def test_settings_that_are_wrong_or_without_effect(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", "ndarray:int32", rows(4))
    cases: list[tuple[dict[str, Any], str]] = [
        ({"token_encoding_type": "int32"}, "token_encoding_type='int32' has no effect"),
        ({"token_encoding_type": "int4"}, "must be one of .*int8.* but got int4"),
        ({"prefetch_factor": 4}, "prefetch_factor=4 has no effect with num_workers=0"),
        ({"timeout": 4}, "timeout=4 has no effect with num_workers=0"),
        ({"mlm_probability": 0}, "mlm_probability=0 must be above 0"),
        ({"mlm_probability": 1.5}, "mlm_probability=1.5 must be above 0 and at most 1"),
        ({"mlm_probability": 0.1}, "mask token"),
        ({"max_seq_len": 0}, "max_seq_len=0 must be at least 1"),
        ({"max_seq_len": "8"}, "whole number of tokens, got '8'"),
        ({"eos_token_id": 5}, "eos_token_id=5 does not match the eos_token_id of the tokenizer=1"),
        ({"bos_token_id": 5}, "bos_token_id=5 does not match the bos_token_id of the tokenizer=0"),
        ({"eos_token_id": 1, "bos_token_id": 0}, r"Cannot use \*both\* EOS and BOS"),
        ({"streams": {"a": {"local": folder}}}, "either `streams` or `remote`/`local`"),
        ({"local": f"{folder}/nowhere"}, "index.json does not exist"),
    ]
    for settings, text in cases:
        with pytest.raises((ValueError, RuntimeError), match=text):
            build(**{"local": folder, **settings})
    with pytest.raises(TypeError, match="shufle: Did you mean 'shuffle'"):
        build(local=folder, shufle=True)


def test_an_empty_split_is_named(tmp_path: Path) -> None:
    with MDSWriter(columns={"tokens": "ndarray:int32"}, out=str(tmp_path / "train")):
        pass
    with pytest.raises(RuntimeError, match="contains no samples: .*train/index.json"):
        build(local=str(tmp_path), split="train")


def test_streams_by_proportion_repeat_and_choose(tmp_path: Path) -> None:
    folders = [write(tmp_path / name, "ndarray:int32", rows(8)) for name in "abc"]

    def taken(epoch_size: int | None = None, **weights: list[float]) -> int:
        ((name, values),) = weights.items()
        pairs = zip(folders, values, strict=False)
        streams = {f: {"local": f, name: value} for f, value in pairs}
        spec = build(streams=streams, epoch_size=epoch_size)
        return sum(len(batch["input_ids"]) for batch in spec.dataloader)

    assert taken(repeat=[0.5, 2, 1]) == 28
    assert taken(choose=[3, 5, 0]) == 8
    assert taken(12, proportion=[1, 2, 3]) == 12


def test_targets_of_a_masked_language_model_may_come_first(tmp_path: Path) -> None:
    folder = write(tmp_path, "ndarray:int32", rows(8))
    tokenizer = train_tokenizer(pad=True)
    tokenizer.add_special_tokens({"mask_token": "<mask>"})
    spec = build(8, tokenizer, local=folder, mlm_probability=0.9)
    (batch,) = spec.dataloader
    targets = batch["labels"] != -100
    assert targets[:, 0].any()
    assert spec.get_num_tokens_in_batch(batch, "loss_generating") == int(targets.sum())
    assert spec.get_num_tokens_in_batch(batch) == 64
