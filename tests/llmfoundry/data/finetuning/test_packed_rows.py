"""Fine-tuning rows packed by best fit: those of the unpacked loader, each once (B75 to B79)."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from llmfoundry.data.finetuning.dataloader import build_finetuning_dataloader
from streaming import MDSWriter, StreamingDataLoader
from tests.llmfoundry.data.finetuning.conftest import GOLDEN

S = 64
ROWS = {"max_seq_len": S, "decoder_only_format": True, "shuffle": False}
SOURCES: dict[str, dict[str, Any]] = {
    "table": {"hf_name": str(GOLDEN / "pr"), "split": "train"},
    "texts": {"local": str(GOLDEN / "pr_mds"), "split": "train"},
    "tokens": {"local": str(GOLDEN / "pr_mds_tok"), "split": "train"},
}


def build(tokenizer: Any, size: int = 4, workers: int = 0, **dataset: Any) -> Any:
    return build_finetuning_dataloader(tokenizer, size, ROWS | dataset, workers)


def documents_of(batches: list[dict[str, torch.Tensor]]) -> list[tuple[list[int], list[int]]]:
    """Token ids of each document, and its labels without the first, which is no target."""
    found = []
    for batch in batches:
        for ids, labels, numbers in zip(
            batch["input_ids"], batch["labels"], batch["sequence_id"], strict=True
        ):
            for number in range(int(numbers.max()) + 1):
                places = numbers == number
                found.append((ids[places].tolist(), labels[places][1:].tolist()))
    return sorted(found)


@pytest.mark.parametrize("source", ["table", "tokens"])
@pytest.mark.parametrize("targets", [{}, {"target_prompts": "all"}])
def test_packed_rows_are_the_rows(
    source: str, targets: dict[str, str], gpt2: Any, tmp_path: Path
) -> None:
    settings = {**SOURCES[source], **targets, "max_seq_len": 128}
    if "local" in settings:  # The plan is kept beside the shards.
        settings |= {"remote": settings["local"], "local": str(tmp_path)}
    plain = list(build(gpt2, **settings).dataloader)
    spec = build(gpt2, 2, packing="best_fit", **settings)
    packed = list(spec.dataloader)
    assert documents_of(packed) == documents_of(plain)
    assert sum(len(batch["input_ids"]) for batch in packed) < len(documents_of(plain))
    targets_of = lambda batch: int((batch["labels"][:, 1:] != -100).sum())
    assert sum(map(targets_of, packed)) == sum(map(targets_of, plain))
    for batch in packed:
        assert spec.get_num_tokens_in_batch(batch) == int(batch["attention_mask"].sum())
        counted = spec.get_num_tokens_in_batch(batch, token_type="loss_generating")
        assert counted == targets_of(batch)


def test_texts_are_packed_and_what_cannot_be_learnt_is_counted(
    gpt2: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    settings = {**SOURCES["texts"], "remote": str(GOLDEN / "pr_mds"), "local": str(tmp_path)}
    packed = documents_of(list(build(gpt2, 2, packing="best_fit", **settings).dataloader))
    plain = documents_of(list(build(gpt2, **SOURCES["table"]).dataloader))
    (other,) = [each for each in packed if each not in plain]
    assert gpt2.decode(other[0]) == "An empty prompt has a response.<|endoftext|>"
    assert sorted([*plain, other]) == packed
    # One has no answer, and the prompt of the other is longer than a row.
    assert "12 samples packed into 4 rows" in caplog.text
    assert "2 samples are empty and left out" in caplog.text


@pytest.mark.parametrize("source", ["table", "tokens"])
def test_packed_rows_resume_exactly(source: str, gpt2: Any, tmp_path: Path) -> None:
    settings = SOURCES[source] | {"packing": "best_fit", "shuffle": True}
    if "local" in settings:
        settings |= {"remote": settings["local"], "local": str(tmp_path)}
    rows = [row for batch in build(gpt2, 1, **settings).dataloader for row in batch["input_ids"]]
    first = build(gpt2, 2, 2, **settings).dataloader
    assert isinstance(first, StreamingDataLoader)
    head = next(iter(first))["input_ids"]
    second = build(gpt2, 1, **settings).dataloader
    second.load_state_dict(first.state_dict())
    rest = [row for batch in second for row in batch["input_ids"]]
    assert len(rows) > 2 and torch.equal(torch.stack([*head, *rest]), torch.stack(rows))


def test_what_is_refused(gpt2: Any, tmp_path: Path) -> None:
    table = SOURCES["table"]
    with pytest.raises(ValueError, match="packing='greedy' must be best_fit"):
        build(gpt2, **table, packing="greedy")
    with pytest.raises(ValueError, match="packing_ratio and pad_to_longest has no effect"):
        build(gpt2, **table, packing="best_fit", packing_ratio=2.0, pad_to_longest=True)
    with pytest.raises(NotImplementedError, match="Remove packing"):
        build(gpt2, **table, packing="best_fit", decoder_only_format=False)
    with MDSWriter(columns={"prompt": "str", "response": "int"}, out=str(tmp_path / "b")) as out:
        out.write({"prompt": "a", "response": 1})
    with pytest.raises(Exception, match="row 0 of"):
        build(gpt2, local=str(tmp_path / "b"), packing="best_fit")
