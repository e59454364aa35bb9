"""The text loader against upstream's batches, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from llmfoundry.command_utils import convert_dataset_json
from llmfoundry.data.text_collator import ConcatenatedSequenceCollatorWrapper, TextCollator
from llmfoundry.data.text_data import StreamingTextDataset, build_text_dataloader
from llmfoundry.data.token_counts import get_tokens_per_batch_func
from llmfoundry.models import ComposerMPTCausalLM
from llmfoundry.utils.exceptions import NotEnoughDatasetSamplesError
from streaming.base.format.mds.writer import MDSWriter
from streaming.base.local import LocalDataset
from tests.llmfoundry.tiny_tokenizer import TEXT, train_tokenizer

GOLDEN = Path(__file__).parents[2] / "golden" / "finetuning"
EOS = 50256


def gpt2_pieces() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(GOLDEN / "tokenizer"))


def cases() -> list[dict[str, Any]]:
    return json.loads((GOLDEN / "text_batches.json").read_text())


def loader_of(case: dict[str, Any], tokenizer: Any) -> Any:
    settings = dict(case["dataset_cfg"])
    settings["local"] = str(GOLDEN / settings.pop("remote").removeprefix("golden/finetuning/"))
    return build_text_dataloader(
        tokenizer, case["device_batch_size"], settings, drop_last=False, num_workers=0
    )


@pytest.mark.parametrize("case", cases(), ids=lambda case: case["name"])
def test_batches_are_those_of_upstream(case: dict[str, Any]) -> None:
    """Everything is, but for end tokens (B63): upstream trains none where they also pad."""
    tokenizer = gpt2_pieces()
    if "error" in case:
        kind, _, text = case["error"].partition(": ")
        assert kind == "ValueError"
        with pytest.raises(ValueError) as caught:
            loader_of(case, tokenizer)
        assert str(caught.value) == text
        return
    spec = loader_of(case, tokenizer)
    batches = list(spec.dataloader)
    assert len(batches) == len(case["batches"])
    for batch, recorded in zip(batches, case["batches"], strict=True):
        expected = {k: v for k, v in recorded["batch"].items() if not k.endswith("python_types")}
        assert set(batch) == set(expected)
        for key in set(expected) - {"labels", "loss_generating_tokens"}:
            value = batch[key]
            assert (value if isinstance(value, list) else value.tolist()) == expected[key], key
        mask = batch.get("attention_mask", torch.ones_like(batch["input_ids"]))
        labels = torch.tensor(expected["labels"])
        end_tokens = (batch["input_ids"] == EOS) & (mask == 1)
        assert torch.equal(batch["labels"][~end_tokens], labels[~end_tokens])
        assert torch.equal(batch["labels"][end_tokens], batch["input_ids"][end_tokens])
        missed = int((end_tokens[:, 1:]).sum())
        counts = recorded["num_tokens"]
        assert spec.get_num_tokens_in_batch(batch) == counts["total"]
        found = spec.get_num_tokens_in_batch(batch, token_type="loss_generating")
        assert found == counts["loss_generating"] + missed
        assert spec.get_num_samples_in_batch(batch) == recorded["num_samples"]


def test_bytes_of_every_type_are_the_same_tokens() -> None:
    """As upstream wrote them; int32 and int64 are held against its batches above."""
    found = []
    for dtype in ("uint16", "int32", "int64"):
        case = {
            "dataset_cfg": {
                "remote": f"golden/finetuning/bytes_{dtype}",
                "split": "train",
                "max_seq_len": 16,
                "token_encoding_type": dtype,
            },
            "device_batch_size": 2,
        }
        batches = loader_of(case, gpt2_pieces()).dataloader
        found.append(torch.cat([batch["input_ids"] for batch in batches]))
    assert len(found[0]) and all(torch.equal(found[0], other) for other in found[1:])


def test_b63_end_tokens_are_targets_and_padding_is_not() -> None:
    tokenizer = train_tokenizer()
    tokenizer.pad_token = tokenizer.eos_token
    eos = tokenizer.eos_token_id
    rows = [{"input_ids": [5, eos, eos], "attention_mask": [1, 1, 0]}]
    assert TextCollator(tokenizer)(rows)["labels"].tolist() == [[5, eos, -100]]
    assert TextCollator(tokenizer)([np.array([5, eos, 6])])["labels"].tolist() == [[5, eos, 6]]
    padded = train_tokenizer(pad=True)
    row = torch.tensor([5, padded.eos_token_id, padded.pad_token_id])
    labels = TextCollator(padded)([row])["labels"]
    assert labels.tolist() == [[5, padded.eos_token_id, -100]]


def test_b15_labels_do_not_share_memory_with_inputs() -> None:
    row = {"input_ids": torch.tensor([5, 6, 7]), "attention_mask": torch.tensor([1, 1, 0])}
    batch = TextCollator(train_tokenizer())([row, row])
    batch["labels"][:, :2] = -100
    assert batch["input_ids"].tolist() == [[5, 6, 7]] * 2 and row["input_ids"].tolist() == [5, 6, 7]


def test_rows_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match=r"different lengths \[2, 3\]"):
        TextCollator(train_tokenizer())([torch.arange(2), torch.arange(3)])


def test_sequence_ids_at_the_edges() -> None:
    def ids(row: list[int], **which: int) -> list[int]:
        wrapper = ConcatenatedSequenceCollatorWrapper(lambda rows: {"input_ids": rows}, **which)
        return wrapper(torch.tensor([row]))["sequence_id"][0].tolist()  # type: ignore[arg-type]

    assert ids([1, 9, 2, 9], eos_token_id=9) == [0, 0, 1, 1]
    assert ids([9, 9, 1], eos_token_id=9) == [0, 1, 2]
    assert ids([9, 1, 9, 2], bos_token_id=9) == [1, 1, 2, 2]
    assert ids([1, 2], eos_token_id=9) == [0, 0]
    with pytest.raises(ValueError, match="Must supply"):
        ids([1])


def write_tokens(folder: Path, rows: int, length: int = 8) -> None:
    with MDSWriter(columns={"tokens": "ndarray:int32"}, out=str(folder)) as out:
        for row in range(rows):
            out.write({"tokens": np.arange(row, row + length, dtype=np.int32)})


def test_b62_less_than_a_batch(tmp_path: Path) -> None:
    write_tokens(tmp_path / "train", 3)
    settings = {"local": str(tmp_path), "split": "train", "max_seq_len": 8}
    tokenizer = train_tokenizer()
    with pytest.raises(NotEnoughDatasetSamplesError, match="3 samples.*minimum batch size is 8"):
        build_text_dataloader(tokenizer, 8, settings, drop_last=True, num_workers=0)
    batches = list(
        build_text_dataloader(tokenizer, 8, settings, drop_last=False, num_workers=0).dataloader
    )
    assert len(batches) == 1
    rows = sorted(batches[0]["input_ids"][:, 0].tolist())
    assert rows == [0, 1, 2]


def test_shuffled_epochs_hold_every_row_once(tmp_path: Path) -> None:
    write_tokens(tmp_path, 40)
    settings = {"local": str(tmp_path), "max_seq_len": 8, "shuffle": True, "shuffle_seed": 3}
    spec = build_text_dataloader(train_tokenizer(), 4, settings, drop_last=False, num_workers=0)
    epochs = [
        [row[0].item() for batch in spec.dataloader for row in batch["input_ids"]] for _ in range(2)
    ]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(40))
    assert epochs[0] != epochs[1] != sorted(epochs[1])


def test_workers_give_the_same_rows(tmp_path: Path) -> None:
    write_tokens(tmp_path, 32)
    settings = {"local": str(tmp_path), "max_seq_len": 8, "shuffle": True}
    tokenizer = train_tokenizer()
    alone, helped = (
        [
            batch["input_ids"]
            for batch in build_text_dataloader(
                tokenizer, 4, settings, drop_last=True, num_workers=workers
            ).dataloader
        ]
        for workers in (0, 2)
    )
    assert torch.equal(torch.cat(alone), torch.cat(helped))


def test_streams_by_name(tmp_path: Path) -> None:
    write_tokens(tmp_path / "a", 4)
    write_tokens(tmp_path / "b", 8)
    streams = {
        "one": {"local": str(tmp_path / "a"), "repeat": 2},
        "two": {"local": str(tmp_path / "b")},
    }
    spec = build_text_dataloader(
        train_tokenizer(), 4, {"streams": streams, "max_seq_len": 8}, drop_last=False, num_workers=0
    )
    assert sum(len(batch["input_ids"]) for batch in spec.dataloader) == 16


def test_what_is_refused(tmp_path: Path) -> None:
    write_tokens(tmp_path / "train", 8)
    tokenizer = train_tokenizer()
    good = {"local": str(tmp_path), "split": "train", "max_seq_len": 8}

    def build(tokenizer: Any = tokenizer, **settings: Any) -> Any:
        return build_text_dataloader(tokenizer, 2, good | settings, drop_last=False, num_workers=0)

    with pytest.raises(ValueError, match="Tokenizer is required"):
        build(tokenizer=None)
    with pytest.raises(ValueError, match="does not contain split val; it holds"):
        build(split="val")
    with pytest.raises(TypeError, match="got an unexpected keyword argument.*shufle"):
        build(shufle=True)
    with pytest.raises(ValueError, match="whole number of tokens"):
        build(max_seq_len=8.5)
    with pytest.raises(NotImplementedError, match="Sequence parallelism"):
        build(seq_parallel_replication=2)
    spec = build(max_seq_len=8.0, eos_token_id=7, override_eos_token_id_mismatch_error=True)
    assert "sequence_id" in next(iter(spec.dataloader))


def test_samples_of_another_kind(tmp_path: Path) -> None:
    with MDSWriter(columns={"x": "int"}, out=str(tmp_path)) as out:
        out.write({"x": 1})
    dataset = StreamingTextDataset(train_tokenizer(), 8, local=str(tmp_path), batch_size=1)
    with pytest.raises(RuntimeError, match=r"these have \['x'\]"):
        dataset[0]


def test_counting_tokens() -> None:
    count = get_tokens_per_batch_func()
    ids = torch.ones(2, 4, dtype=torch.long)
    labels = torch.tensor([[1, -100, 1, 1], [-100, -100, -100, 1]])
    assert count({"input_ids": ids}) == 8
    assert count({"input_ids": ids, "labels": labels}) == {"total": 8, "loss_generating": 3}
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])
    assert count({"input_ids": ids, "attention_mask": mask}) == 5
    with pytest.raises(ValueError, match="input_ids or attention_mask"):
        count({"labels": labels})
    both = get_tokens_per_batch_func(decoder_only=False)
    batch = {"input_ids": ids, "attention_mask": mask, "decoder_attention_mask": mask}
    assert both(batch | {"labels": labels}) == {"total": 10, "loss_generating": 4}
    with pytest.raises(ValueError, match="decoder_attention_mask"):
        both({"input_ids": ids})


def test_masked_language_modelling(tmp_path: Path) -> None:
    write_tokens(tmp_path, 4)
    tokenizer = train_tokenizer(pad=True)
    tokenizer.add_special_tokens({"mask_token": "<mask>"})
    settings = {"local": str(tmp_path), "max_seq_len": 8, "mlm_probability": 0.5}
    spec = build_text_dataloader(tokenizer, 4, settings, drop_last=False, num_workers=0)
    batch = next(iter(spec.dataloader))
    assert 0 < (batch["labels"] == -100).sum() < batch["labels"].numel()


def pack(folder: Path, tokenizer: Any) -> list[list[list[int]]]:
    """Prepares documents in rows of 32, packed by best fit; returns the documents of each row."""
    texts = [" ".join(TEXT[0].split()[: 3 + 2 * number]) for number in range(6)] + [" ".join(TEXT)]
    (folder / "a.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    tokenizer.save_pretrained(folder / "tokenizer")
    convert_dataset_json(
        path=str(folder / "a.jsonl"),
        out_root=str(folder / "train"),
        compression=None,
        concat_tokens=32,
        split="train",
        tokenizer=str(folder / "tokenizer"),
        eos_text=tokenizer.eos_token,
        packing="best_fit",
    )
    rows = []
    for sample in LocalDataset(str(folder / "train")):
        ends = np.cumsum(sample["document_lengths"])
        rows.append([part.tolist() for part in np.split(sample["tokens"], ends)[:-1]])
    assert max(map(len, rows)) > 1 and any(sum(map(len, row)) < 32 for row in rows)
    return rows


def packed_batch(folder: Path, tokenizer: Any, **settings: Any) -> dict[str, Any]:
    settings = {"local": str(folder), "split": "train", "max_seq_len": 32, **settings}
    spec = build_text_dataloader(tokenizer, 64, settings, drop_last=False, num_workers=0)
    (batch,) = spec.dataloader
    assert spec.get_num_tokens_in_batch(batch) == int(batch["attention_mask"].sum())
    return batch


@pytest.mark.parametrize("pad", [False, True])
def test_packed_rows_know_their_documents_and_padding(pad: bool, tmp_path: Path) -> None:
    """Also where padding is the end token, as for a tokenizer without one."""
    tokenizer = train_tokenizer(pad=pad)
    rows = pack(tmp_path, tokenizer)
    batch = packed_batch(tmp_path, tokenizer)
    assert len(batch["input_ids"]) == len(rows)
    for number, documents in enumerate(rows):
        left = 32 - sum(map(len, documents))
        ids = [number for number, each in enumerate(documents) for _ in each] + [-1] * left
        labels = [
            label
            for place, each in enumerate(documents)
            for label in ([each[0]] if place == 0 else [-100]) + each[1:]
        ]
        assert batch["sequence_id"][number].tolist() == ids
        assert batch["attention_mask"][number].tolist() == [int(each >= 0) for each in ids]
        assert batch["labels"][number].tolist() == labels + [-100] * left
        padding = tokenizer.pad_token_id if pad else tokenizer.eos_token_id
        assert batch["input_ids"][number].tolist()[32 - left :] == [padding] * left
    known = packed_batch(tmp_path, tokenizer, eos_token_id=tokenizer.eos_token_id)
    assert torch.equal(known["sequence_id"], batch["sequence_id"])
    short = packed_batch(tmp_path, tokenizer, max_seq_len=9)
    assert torch.equal(short["sequence_id"], batch["sequence_id"][:, :9])


@pytest.mark.parametrize("alibi", [False, True])
def test_b75_a_packed_document_is_as_it_is_alone(alibi: bool, tmp_path: Path) -> None:
    tokenizer = train_tokenizer()
    rows = pack(tmp_path, tokenizer)
    batch = packed_batch(tmp_path, tokenizer)
    model = ComposerMPTCausalLM(
        d_model=16,
        n_heads=2,
        n_layers=2,
        max_seq_len=32,
        vocab_size=300,
        attn_config={"attn_impl": "torch", "attn_uses_sequence_id": True, "alibi": alibi},
        learned_pos_emb=not alibi,
        init_config={"name": "baseline_", "init_std": 0.3},
        use_train_metrics=False,
    ).eval()
    with torch.no_grad():
        packed = model(batch).logits
        losses = []
        for row, documents in enumerate(rows):
            start = 0
            for document in documents:
                ids, end = torch.tensor([document]), start + len(document)
                alone = model({"input_ids": ids}).logits
                torch.testing.assert_close(packed[row, start:end], alone[0], rtol=0, atol=1e-5)
                losses.append(
                    torch.nn.functional.cross_entropy(alone[0, :-1], ids[0, 1:], reduction="sum")
                )
                start = end
        targets = (batch["labels"][:, 1:] != -100).sum()
        loss = model.train()(batch).loss
    torch.testing.assert_close(loss, sum(losses) / targets, rtol=0, atol=1e-5)


def test_packed_rows_and_others_are_not_mixed(tmp_path: Path) -> None:
    tokenizer = train_tokenizer()
    pack(tmp_path, tokenizer)
    write_tokens(tmp_path / "other", 4, 32)
    streams = {"a": {"local": str(tmp_path / "train")}, "b": {"local": str(tmp_path / "other")}}
    settings = {"streams": streams, "max_seq_len": 32}
    spec = build_text_dataloader(tokenizer, 64, settings, drop_last=False, num_workers=0)
    with pytest.raises(ValueError, match="of different kinds.*with one kind of packing"):
        next(iter(spec.dataloader))


def test_packed_rows_for_masked_language_modelling(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(pad=True)
    tokenizer.add_special_tokens({"mask_token": "<mask>"})
    pack(tmp_path, tokenizer)
    batch = packed_batch(tmp_path, tokenizer, mlm_probability=0.9)
    assert (batch["labels"][batch["attention_mask"] == 0] == -100).all()
    assert (batch["labels"] != -100).any()
