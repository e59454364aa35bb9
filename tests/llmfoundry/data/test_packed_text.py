"""Documents packed by the text loader, through real models: none sees or moves another (B75)."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from composer.trainer.trainer import Trainer
from llmfoundry.data.best_fit_packing import BestFitPacker
from llmfoundry.data.concatenation import Separators
from llmfoundry.data.text_data import build_text_dataloader
from llmfoundry.models import ComposerHFCausalLM, ComposerMPTCausalLM
from streaming import MDSWriter
from tests.llmfoundry.models.hf.tiny import save
from tests.llmfoundry.models.mpt.variants import IMPLEMENTATIONS, VARIANTS, build
from tests.llmfoundry.tiny_tokenizer import TEXT, train_tokenizer

pytestmark = pytest.mark.filterwarnings("ignore::llmfoundry.utils.warnings.ExperimentalWarning")
S = 24
LENGTHS = [5, 17, 9, 24, 3, 8, 40, 6, 11, 2]


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[list[int]]]:
    folder = tmp_path_factory.mktemp("documents")
    generator = np.random.default_rng(2)
    rows = [generator.integers(3, 96, length, dtype=np.int32) for length in LENGTHS]
    with MDSWriter(columns={"tokens": "ndarray:int32"}, out=str(folder)) as out:
        for row in rows:
            out.write({"tokens": row})
    return str(folder), [row.tolist() for row in rows]


@pytest.fixture(scope="module")
def prepared(documents: tuple[str, list[list[int]]], tmp_path_factory: Any) -> str:
    """The same, packed when they were prepared."""
    folder = tmp_path_factory.mktemp("prepared")
    packer = BestFitPacker(S, Separators(), 0)
    with MDSWriter(columns=packer.columns, out=str(folder)) as out:
        for row in packer.samples([each] for each in documents[1]):
            out.write(row)
    return str(folder)


def packed_batch(folder: str, tokenizer: Any = None, **changes: Any) -> dict[str, torch.Tensor]:
    settings = {"local": folder, "max_seq_len": S, "packing": "best_fit", **changes}
    tokenizer = tokenizer or train_tokenizer()
    spec = build_text_dataloader(tokenizer, 64, settings, drop_last=False, num_workers=0)
    (batch,) = spec.dataloader
    targets = int((batch["labels"][:, 1:] != -100).sum())
    assert spec.get_num_tokens_in_batch(batch) == int(batch["attention_mask"].sum())
    assert spec.get_num_tokens_in_batch(batch, token_type="loss_generating") == targets
    return batch


def parts_of(batch: dict[str, torch.Tensor]) -> list[tuple[int, torch.Tensor]]:
    """Row and places of each document."""
    return [
        (row, torch.nonzero(ids == document)[:, 0])
        for row, ids in enumerate(batch["sequence_id"])
        for document in range(int(ids.max()) + 1)
    ]


def check(batch: dict[str, torch.Tensor], forward: Any) -> None:
    """Each document gives what it gives alone, and what it gave before others changed."""
    parts = parts_of(batch)
    assert len(parts) > len(batch["input_ids"])
    changed = {**batch, "input_ids": batch["input_ids"].clone()}
    first = batch["sequence_id"] == 0
    changed["input_ids"][first] = (batch["input_ids"][first] + 7) % 90 + 3
    with torch.no_grad():
        logits, others = forward(batch), forward(changed)
        limit = 1e-6 * max(1.0, float(logits.abs().max()))
        torch.testing.assert_close(logits[~first & (batch["attention_mask"] == 1)],
                                   others[~first & (batch["attention_mask"] == 1)],
                                   rtol=0, atol=limit)  # fmt: skip
        assert not torch.allclose(logits[first], others[first], atol=1e-3)
        for row, places in parts:
            ids = batch["input_ids"][row, places][None]
            alone = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
            found = forward({**alone, "sequence_id": torch.zeros_like(ids)})[0]
            torch.testing.assert_close(logits[row, places], found, rtol=0, atol=limit)


def test_every_document_is_packed_and_every_target_counted(
    documents: tuple[str, list[list[int]]],
) -> None:
    folder, rows = documents
    batch = packed_batch(folder)
    found = sorted(batch["input_ids"][row, places].tolist() for row, places in parts_of(batch))
    pieces = [row[start : start + S] for row in rows for start in range(0, len(row), S)]
    assert found == sorted(pieces)
    assert int((batch["labels"][:, 1:] != -100).sum()) == sum(len(each) - 1 for each in pieces)


@pytest.mark.parametrize("attn_impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", VARIANTS)
def test_b75_mpt(
    name: str, attn_impl: str, documents: tuple[str, list[list[int]]], prepared: str
) -> None:
    model = build(name, attn_impl, n_layers=2, attn_uses_sequence_id=True)
    keys = ("input_ids", "attention_mask", "sequence_id", "position_ids")
    for batch in (packed_batch(documents[0]), packed_batch(prepared, packing=None)):
        check(
            batch, lambda batch: model(**{key: batch[key] for key in keys if key in batch}).logits
        )


@pytest.mark.parametrize(
    ("kind", "attention"),
    [("mpt", "eager")]  # which transformers has no other for
    + [(kind, way) for kind in ("gpt2", "llama", "qwen3") for way in ("eager", "sdpa")],
)
def test_b75_transformers(
    kind: str,
    attention: str,
    documents: tuple[str, list[list[int]]],
    prepared: str,
    tmp_path: Path,
) -> None:
    model = ComposerHFCausalLM(
        None, save(kind, tmp_path), attn_implementation=attention, use_train_metrics=False
    ).eval()

    def forward(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        inputs = {key: value for key, value in batch.items() if key != "labels"}
        return model(inputs)["logits"]

    check(packed_batch(documents[0]), forward)
    check(packed_batch(prepared, packing=None), forward)


def write_texts(folder: Path, texts: list[str]) -> str:
    with MDSWriter(columns={"text": "str"}, out=str(folder)) as out:
        for text in texts:
            out.write({"text": text})
    return str(folder)


def test_b67_texts_have_a_separator_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llmfoundry.data.text_data.BATCH_TEXTS", 4)
    texts = [text[: 3 + number] for number, text in enumerate(TEXT * 3)]
    folder = write_texts(tmp_path, [*texts, TEXT[0] + "</s>"])
    plain, adding = train_tokenizer(pad=True), train_tokenizer(eos=True, pad=True)
    with pytest.raises(ValueError, match="does not insert an EOS nor BOS token.*give eos_text"):
        packed_batch(folder, plain)
    expected = [plain(text)["input_ids"] + [plain.eos_token_id] for text in [*texts, TEXT[0]]]
    pieces = sorted(ids[start : start + S] for ids in expected for start in range(0, len(ids), S))
    for tokenizer, settings in ((plain, {"eos_text": "</s>"}), (adding, {})):
        batch = packed_batch(folder, tokenizer, **settings)
        found = [batch["input_ids"][row, places].tolist() for row, places in parts_of(batch)]
        assert sorted(found) == pieces
    batch = packed_batch(folder, plain, eos_text="</s>", bos_text="<s>")
    assert int((batch["input_ids"] == plain.bos_token_id).sum()) == 10
    assert len(list(tmp_path.glob(".packing-*"))) == 3
    assert "times" not in caplog.text
    packed_batch(write_texts(tmp_path / "long", [TEXT[0] * 20]), adding)
    assert "an epoch tokenises them up to" in caplog.text


def test_texts_are_packed_as_the_tokenizer_makes_them(tmp_path: Path) -> None:
    texts = [" ".join(text.split()[: 2 + 3 * number]) for number, text in enumerate(TEXT * 3)]
    write_texts(tmp_path, texts)
    tokenizer = train_tokenizer(eos=True, pad=True)
    batch = packed_batch(str(tmp_path), tokenizer)
    found = [batch["input_ids"][row, places].tolist() for row, places in parts_of(batch)]
    wholes = [tokenizer(text)["input_ids"] for text in texts]
    pieces = [ids[start : start + S] for ids in wholes for start in range(0, len(ids), S)]
    assert sorted(found) == sorted(pieces)
    padding = batch["attention_mask"] == 0
    assert (batch["input_ids"][padding] == tokenizer.pad_token_id).all()
    plans = set(tmp_path.glob(".packing-*"))
    packed_batch(str(tmp_path), train_tokenizer(eos=True, pad=True, size=280))
    assert len(set(tmp_path.glob(".packing-*")) - plans) == 1  # Other texts, other lengths.


def test_a_hugging_face_dataset_is_packed(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = [{"words": " ".join(TEXT[n % 3].split()[: 1 + n % 9])} for n in range(40)]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    datasets.disable_progress_bars()
    tokenizer = train_tokenizer(eos=True, pad=True)
    settings = {
        "hf_name": "json",
        "hf_kwargs": {"data_files": str(tmp_path / "train.jsonl"), "cache_dir": str(tmp_path)},
        "split": "train",
        "columns": {"text": "words"},
        "max_seq_len": S,
        "packing": "best_fit",
    }
    spec = build_text_dataloader(tokenizer, 64, settings, drop_last=False, num_workers=0)
    (batch,) = spec.dataloader
    found = [batch["input_ids"][row, places].tolist() for row, places in parts_of(batch)]
    assert sorted(found) == sorted(tokenizer(row["words"])["input_ids"] for row in rows)


def train(folder: str, duration: str, workers: int = 0, **kwargs: Any) -> dict[str, torch.Tensor]:
    """Trains on packed rows, and returns the weights."""
    torch.manual_seed(3)
    model = ComposerMPTCausalLM(
        d_model=16,
        n_heads=2,
        n_layers=1,
        max_seq_len=S,
        vocab_size=97,
        attn_config={"attn_impl": "torch", "attn_uses_sequence_id": True},
        use_train_metrics=False,
    )
    settings = {"local": folder, "max_seq_len": S, "packing": "best_fit", "shuffle": True}
    trainer = Trainer(
        model=model,
        train_dataloader=build_text_dataloader(
            train_tokenizer(), 2, settings, drop_last=False, num_workers=workers
        ),
        optimizers=torch.optim.Adam(model.parameters(), 0.01),
        max_duration=duration,
        device="cpu",
        progress_bar=False,
        seed=1,
        **kwargs,
    )
    trainer.fit()
    trainer.close()
    return model.state_dict()


def test_b33_training_on_packed_rows_goes_on_bit_by_bit(
    documents: tuple[str, list[list[int]]], tmp_path: Path
) -> None:
    whole = train(documents[0], "7ba")
    train(documents[0], "2ba", workers=1, save_folder=str(tmp_path), save_interval="1ba")
    path = str(tmp_path / "latest-rank0.pt")
    rest = train(documents[0], "7ba", load_path=path)
    assert all(torch.equal(rest[name], weight) for name, weight in whole.items())


def test_what_is_refused(documents: tuple[str, list[list[int]]], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="packing='greedy' must be best_fit"):
        packed_batch(documents[0], packing="greedy")
    columns = {"tokens": "ndarray:int32", "document_lengths": "ndarray:int32"}
    with MDSWriter(columns=columns, out=str(tmp_path / "packed")) as out:
        out.write({name: np.arange(1, 3, dtype=np.int32) for name in columns})
    with pytest.raises(ValueError, match="row 0 of .* is a packed row already"):
        packed_batch(str(tmp_path / "packed"))
    with MDSWriter(columns={"x": "int"}, out=str(tmp_path / "x")) as out:
        out.write({"x": 1})
    with pytest.raises(RuntimeError, match=r"have the columns \['x'\]; the text loader needs"):
        packed_batch(str(tmp_path / "x"))
    eos = train_tokenizer().eos_token_id
    with pytest.raises(ValueError, match="eos_token_id has no effect: packing='best_fit' knows"):
        packed_batch(documents[0], eos_token_id=eos)
    with pytest.raises(ValueError, match="eos_text has no effect: it is for packing: best_fit"):
        packed_batch(documents[0], packing=None, eos_text="</s>")
    with pytest.raises(ValueError, match="bos_text and eos_text have no effect on samples of tok"):
        packed_batch(documents[0], eos_text="</s>")
    np.arange(3 * S, dtype=np.uint16).tofile(tmp_path / "a.bin")
    with pytest.raises(ValueError, match="packing has no effect on the flat tokens.*eos_token_id"):
        packed_batch(str(tmp_path / "a.bin"), token_encoding_type="uint16")
    assert not list(tmp_path.glob(".packing*")), "A plan was made first."
