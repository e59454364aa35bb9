"""SeqLengthWarmup equals upstream's: lengths, batches and when they change."""

import json

import pytest
import torch
from torch.utils.data import DataLoader

from composer.algorithms.seq_length_warmup import SeqLengthWarmup, set_batch_sequence_length
from composer.core.callback import Callback
from composer.loggers import InMemoryLogger
from composer.models.huggingface import HuggingFaceModel
from tests.composer.algorithms.training import train
from tests.composer.plugins import HandRun
from tests.composer.trainer.models import Classifier, rows_loader
from tests.composer.trainer.test_golden_runs import GOLDEN, RECORDS

FUNCTIONAL = json.loads((GOLDEN / "functional.json").read_text())


def recorded_batch():
    recorded = FUNCTIONAL["set_batch_sequence_length_input"]
    return {key: torch.tensor(rows) for key, rows in recorded.items()}


@pytest.mark.parametrize(
    "record",
    FUNCTIONAL["set_batch_sequence_length"],
    ids=lambda r: "-".join(str(r[k]) for k in ("truncate", "preserve_end_of_sequence", "len")),
)
def test_golden(record):
    batch = recorded_batch()
    made = set_batch_sequence_length(
        batch, record["len"], record["truncate"], record["preserve_end_of_sequence"]
    )
    assert {key: rows.tolist() for key, rows in made.items()} == record["out"]
    assert all(torch.equal(rows, recorded_batch()[key]) for key, rows in batch.items())


def test_what_is_no_tensor_stays():
    batch = {**recorded_batch(), "mode": "train"}
    for truncate in (True, False):
        assert set_batch_sequence_length(batch, 4, truncate)["mode"] == "train"


def test_numbers_of_rows_that_are_no_more_go():
    batch = {**recorded_batch(), "total_tokens": [3, 4]}
    assert "total_tokens" in set_batch_sequence_length(batch, 4, truncate=True)
    assert "total_tokens" not in set_batch_sequence_length(batch, 4, truncate=False)


@pytest.mark.parametrize(
    ("changes", "args", "message"),
    [
        ({"labels": torch.arange(3)}, (4,), r"'labels' of shape \(3,\) has no axis of time"),
        ({"attention_mask": None}, (4, True, True), "needs 'attention_mask'"),
        ({"input_ids": None}, (4, False), "needs 'input_ids'"),
        ({"labels": torch.zeros(3, 2)}, (4, False), r"'labels' of shape \(3, 2\) cannot be cut"),
    ],
)
def test_wrong_batches(changes, args, message):
    batch = {key: v for key, v in {**recorded_batch(), **changes}.items() if v is not None}
    with pytest.raises(ValueError, match=message):
        set_batch_sequence_length(batch, *args)


def language_model(positions=32):
    import transformers

    config = transformers.GPT2Config(
        vocab_size=50, n_positions=positions, n_embd=8, n_layer=1, n_head=2
    )
    torch.manual_seed(1)
    return HuggingFaceModel(transformers.GPT2LMHeadModel(config), shift_labels=True)


def sequences(rows=32, length=32, batch_size=4):
    ids = torch.randint(0, 50, (rows, length), generator=torch.Generator().manual_seed(2))
    samples = [{"input_ids": row, "labels": row} for row in ids]
    return DataLoader(samples, batch_size=batch_size)


class Shapes(Callback):
    def __init__(self):
        self.seen = []

    def before_forward(self, state, logger):
        assert state.batch["labels"].shape == state.batch["input_ids"].shape
        self.seen.append(list(state.batch["input_ids"].shape))


@pytest.mark.parametrize("truncate", [True, False])
def test_golden_run(truncate):
    record, shapes, logger = (
        RECORDS[f"seqlen_warmup_truncate{truncate}"],
        Shapes(),
        InMemoryLogger(),
    )
    train(
        language_model(),
        sequences(),
        SeqLengthWarmup(0.6, 4, 32, 4, truncate),
        shapes,
        duration=record["max_duration"],
        device_train_microbatch_size=record["microbatch"],
        loggers=logger,
    )
    assert shapes.seen == record["input_shapes_per_forward"]
    lengths = [value for _, value in logger.data["seq_length_warmup/curr_seq_len"]]
    assert lengths == [min(4 + 4 * step, 32) for step in range(16)]
    rows = [value for _, value in logger.data["seq_length_warmup/curr_bs"]]
    assert rows == ([4] * 16 if truncate else [128 // length for length in lengths])


def lengths_of(algorithm, duration):
    shapes = Shapes()
    train(language_model(), sequences(), algorithm, shapes, duration=duration)
    return [length for _, length in shapes.seen]


def test_lengths_grow_evenly():
    # 6 of 10 batches, two steps: 3 batches each
    assert lengths_of(SeqLengthWarmup(0.6, 8, 24, 8), "10ba") == [8] * 3 + [16] * 3 + [24] * 4
    # less than a step apart: the shortest, then the longest
    assert lengths_of(SeqLengthWarmup(0.5, 20, 24, 8), "4ba") == [20, 20, 24, 24]


def test_a_warmup_that_does_not_fit_is_refused():
    with pytest.raises(
        ValueError, match="0.3 is 1 batches of this run, and the length is to grow 3"
    ):
        lengths_of(SeqLengthWarmup(0.3, 8, 32, 8), "4ba")
    with pytest.raises(NotImplementedError, match="max_duration=100 tokens|max_duration=100tok"):
        lengths_of(SeqLengthWarmup(0.3, 8, 32, 8), "100tok")


def test_memory_is_reserved_without_a_trace():
    """As on a GPU, a pass at full length leaves weights, gradients and draws as they were."""
    lengths = []

    class Reserving(SeqLengthWarmup):
        def apply(self, event, state, logger):
            if state.batch is not None and not self._has_reserved_memory:
                hook = state.model.register_forward_pre_hook(
                    lambda _, args: lengths.append(tuple(args[0]["input_ids"].shape))
                )
                self._reserve_memory(state)
                hook.remove()
                assert all(parameter.grad is None for parameter in state.model.parameters())
            return super().apply(event, state, logger)

    weights = []
    for kind in (SeqLengthWarmup, Reserving):
        trainer = train(
            language_model(40),
            sequences(),
            kind(0.6, 8, 40, 8),
            duration="10ba",
            device_train_microbatch_size=2,
        )
        weights.append(torch.nn.utils.parameters_to_vector(trainer.state.model.parameters()))
    assert torch.equal(*weights)  # with dropout, whose draws would have moved
    assert lengths == [(2, 40)]


@pytest.mark.parametrize(
    "kwargs",
    [{"duration": 1.5}, {"max_seq_length": 4}, {"step_size": 0}, {"min_seq_length": 0}],
)
def test_wrong_settings(kwargs):
    with pytest.raises(ValueError, match=next(iter(kwargs))):
        SeqLengthWarmup(**kwargs)


def test_other_models_are_refused():
    with pytest.raises(RuntimeError, match="needs a HuggingFaceModel.*Regression"):
        HandRun(algorithms=[SeqLengthWarmup()])
    with pytest.raises(RuntimeError, match="needs a HuggingFaceModel.*Classifier"):
        train(Classifier(), rows_loader(), SeqLengthWarmup())
