"""Sequences are cut into shorter ones: every token stays, every target counts once."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from composer import Callback, Trainer
from composer.algorithms import SeqLengthCurriculum
from composer.functional import cut_sequences
from composer.loggers import InMemoryLogger
from composer.optim import DecoupledAdamW
from llmfoundry.models.mpt.composer_mpt import ComposerMPTCausalLM

pytestmark = pytest.mark.filterwarnings("ignore:.*okenizer was not provided")
LENGTH = 16


class Texts(Dataset):
    """Rows of random tokens, the second of every two with 6 tokens of padding."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        ids = torch.randint(1, 50, (LENGTH,), generator=generator)
        mask = torch.arange(LENGTH) < (LENGTH if index % 2 == 0 else 6)
        labels = torch.where(mask, ids, -100)
        return {"input_ids": ids * mask, "attention_mask": mask, "labels": labels}


def mpt(**kwargs: Any) -> ComposerMPTCausalLM:
    torch.manual_seed(1)
    settings = {"d_model": 16, "n_heads": 2, "n_layers": 2, "max_seq_len": LENGTH, "vocab_size": 64}
    return ComposerMPTCausalLM(**{**settings, **kwargs})


class Shapes(Callback):
    """Notes what the model sees, and the batch's own shape at its end."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, ...]] = []
        self.whole: set[tuple[int, ...]] = set()

    def before_forward(self, state: Any, logger: Any) -> None:
        self.seen.append(tuple(state.batch["input_ids"].shape))

    def batch_end(self, state: Any, logger: Any) -> None:
        self.whole.add(tuple(state.batch["input_ids"].shape))


def train(model: Any, *callbacks: Any, **kwargs: Any) -> Trainer:
    settings: dict[str, Any] = {
        "algorithms": SeqLengthCurriculum(min_seq_length=4, duration=0.75),
        "train_dataloader": DataLoader(Texts(), batch_size=2),
        "device_train_microbatch_size": 2,
        "max_duration": "1ep",
        **kwargs,
    }
    trainer = Trainer(
        model=model,
        optimizers=settings.pop("optimizer", None) or DecoupledAdamW(model.parameters(), lr=0.01),
        callbacks=list(callbacks),
        progress_bar=False,
        seed=5,
        **settings,
    )
    trainer.fit()
    trainer.close()
    return trainer


def test_lengths_grow_with_as_many_tokens_in_a_microbatch() -> None:
    shapes, memory = Shapes(), InMemoryLogger()
    train(mpt(), shapes, loggers=memory, device_train_microbatch_size=1)
    # 8 batches, 6 of them cut: 2 of each of the lengths 4, 8 and 16, in 2 micro-batches each
    assert shapes.seen == [(4, 4)] * 4 + [(2, 8)] * 4 + [(1, 16)] * 8
    assert shapes.whole == {(2, 16)}
    logged = [value for _, value in memory.data["seq_length_curriculum/seq_length"]]
    assert logged == [4, 4, 8, 8, 16, 16]


def test_cycles_begin_again() -> None:
    shapes = Shapes()
    train(mpt(), shapes, algorithms=SeqLengthCurriculum(8, duration=1.0, num_cycles=2))
    assert [length for _, length in shapes.seen] == [8, 8, 16, 16, 8, 8, 16, 16]


@pytest.mark.parametrize("microbatch", [1, 2])
def test_loss_and_gradient_are_those_of_the_pieces_as_sequences(microbatch: int) -> None:
    """With 15 and 5 targets, of which 12 and 4 are left; they weigh as in one mean."""
    rows = [Texts()[0], Texts()[1]]
    batch = torch.utils.data.default_collate(rows)
    model, memory = mpt(), InMemoryLogger()
    trainer = train(
        model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
        train_dataloader=[batch],
        max_duration="1ba",
        device_train_microbatch_size=microbatch,
        algorithms=SeqLengthCurriculum(min_seq_length=4, duration=1.0),
        loggers=memory,
    )
    reference = mpt()
    pieces = [
        {key: row[key][start : start + 4] for key in row}
        for row in rows
        for start in range(0, LENGTH, 4)
    ]
    losses, targets = [], 0
    for piece in pieces:
        length = int(piece["attention_mask"].sum())
        if length > 1:
            ids = piece["input_ids"][None, :length]
            losses.append(reference.model(ids, labels=ids).loss * (length - 1))
            targets += length - 1
    assert targets == 16
    expected = torch.stack(losses).sum() / targets
    expected.backward()
    total = trainer.state.total_loss_dict["loss/train/total"]
    assert total == pytest.approx(expected.item(), rel=1e-5)
    start = dict(mpt().named_parameters())
    for name, parameter in reference.named_parameters():
        moved = start[name].detach() - dict(model.named_parameters())[name].detach()
        torch.testing.assert_close(moved, parameter.grad, rtol=1e-3, atol=1e-6)
    metric = trainer.state.train_metric_values["LanguageCrossEntropy"]
    assert float(metric) == pytest.approx(expected.item(), rel=1e-5)
    assert torch.equal(batch["labels"], torch.stack([row["labels"] for row in rows])), "B15"


def test_a_run_resumed_between_two_lengths_equals_the_unbroken_one(tmp_path: Path) -> None:
    saving: dict[str, Any] = {
        "save_folder": str(tmp_path),
        "save_filename": "ba{batch}.pt",
        "save_interval": "1ba",
        "run_name": "run",
        "save_overwrite": True,
    }
    whole = train(mpt(), **saving).state.model.state_dict()
    for batch in (2, 3):
        resumed = train(mpt(), load_path=str(tmp_path / f"ba{batch}.pt"), **saving).state.model
        for name, value in whole.items():
            assert torch.equal(resumed.state_dict()[name], value), (batch, name)


def test_cutting_keeps_order_and_gives_pieces_of_padding_a_token() -> None:
    ids = torch.arange(16).reshape(2, 8)
    mask = torch.tensor([[1] * 8, [1, 1, 1, 0, 0, 0, 0, 0]])
    cut = cut_sequences({"input_ids": ids, "attention_mask": mask, "name": "x"}, 2)
    assert cut["input_ids"].tolist() == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 10, 11],
        [12, 13, 14, 15],
    ]
    assert cut["attention_mask"].tolist() == [[1] * 4, [1] * 4, [1, 1, 1, 0], [1, 0, 0, 0]]
    assert cut["name"] == "x" and mask[1].tolist() == [1, 1, 1, 0, 0, 0, 0, 0]


def test_refusals() -> None:
    ids = torch.zeros(2, 6, dtype=torch.long)
    with pytest.raises(ValueError, match="6 tokens cannot be cut into 4"):
        cut_sequences({"input_ids": ids}, 4)
    with pytest.raises(ValueError, match="'weight' has shape"):
        cut_sequences({"input_ids": ids, "weight": torch.ones(2)}, 2)
    with pytest.raises(ValueError, match="duration=0"):
        SeqLengthCurriculum(duration=0)
    with pytest.raises(ValueError, match="halve sequences of 16 tokens down to min_seq_length=12"):
        train(mpt(), algorithms=SeqLengthCurriculum(12))
    odd = [{**{key: value[None, :12] for key, value in Texts()[0].items()}}]
    with pytest.raises(ValueError, match="halve sequences of 12 tokens"):
        train(mpt(), algorithms=SeqLengthCurriculum(1, 1.0), train_dataloader=odd)
