"""Tables of the loss by context length, held against loops over all tokens."""

import json
import math
from typing import Any

import pytest
import torch

from composer.core.logger_destination import LoggerDestination
from composer.utils import dist
from llmfoundry.builders.components import build_callback
from llmfoundry.models.mpt.composer_mpt import ComposerMPTCausalLM
from tests.composer.callbacks.guarded import make_trainer, memory_of
from tests.launch import run_ranks

pytestmark = pytest.mark.filterwarnings("ignore::llmfoundry.utils.warnings.ExperimentalWarning")

LENGTH = 8
FOLDER = "metrics/train/LossPerpVLenTable"


def _model(**settings: Any) -> ComposerMPTCausalLM:
    torch.manual_seed(3)
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1, "max_seq_len": 12, "vocab_size": 20}
    documents = {"attn_uses_sequence_id": True, "alibi": True}
    model = ComposerMPTCausalLM(**sizes, attn_config=documents, **settings)
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.3)
    return model


def _batches(rank: int = 0, length: int = LENGTH) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(rank)
    made = []
    for _ in range(4):
        tokens = torch.randint(20, (4, length), generator=generator)
        labels = tokens.masked_fill(torch.rand(4, length, generator=generator) < 0.3, -100)
        labels[:, 5] = -100  # nobody predicts from a context of index 4
        starts = torch.rand(4, length, generator=generator) < 0.3
        made.append({"input_ids": tokens, "labels": labels, "sequence_id": starts.cumsum(1)})
    return made


def _run(
    model: Any, data: Any, loggers: Any = None, parallelism: Any = None, **settings: Any
) -> dict[str, list[list[float]]]:
    intervals = {"log_batch_interval": 4, "compute_batch_interval": 2, **settings}
    callback = build_callback("loss_perp_v_len", intervals)
    trainer = make_trainer(
        callback,
        data=data,
        model=model,
        microbatch=2,
        loggers=loggers,
        parallelism_config=parallelism,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0),
    )
    trainer.fit()
    trainer.close()
    return {name: json.loads(text) for name, text in memory_of(trainer).tables.items()}


def _by_hand(model: Any, groups: list[list[dict[str, torch.Tensor]]], length: int) -> Any:
    """For each group of batches the sums that are asked for, token by token."""
    model.eval()
    tables: dict[str, list[list[float]]] = {}
    for number, group in enumerate(groups):
        for by in ("", "_seq_id"):
            found: list[list[float]] = [[] for _ in range(length)]
            for batch in group:
                with torch.no_grad():
                    scores = torch.log_softmax(model(batch).logits, dim=-1)
                for row in range(4):
                    context = -1
                    for place in range(batch["labels"].size(1) - 1):
                        ids = batch["sequence_id"][row]
                        is_new = by and (place == 0 or ids[place] != ids[place - 1])
                        context = 0 if is_new else context + 1
                        target = int(batch["labels"][row, place + 1])
                        if target != -100:
                            found[context].append(-float(scores[row, place, target]))
            mean = [sum(each) / len(each) if each else -1.0 for each in found]
            exp = [sum(map(math.exp, e)) / len(e) if e else -1.0 for e in found]
            for name, values in (
                (f"mean_loss{by}_v_len", mean),
                (f"mean_perplexity{by}_v_len", exp),
                (f"sum_length{by}", [float(len(each)) for each in found]),
            ):
                batch_number = float(2 * (number + 1))
                tables.setdefault(f"{FOLDER}/{name}", []).append([*values, batch_number])
    return tables


def _assert_same(tables: dict[str, Any], expected: dict[str, Any], length: int) -> None:
    assert tables.keys() == expected.keys()
    for name, rows in expected.items():
        columns = [*(f"context_length_{index}" for index in range(length)), "batch_index"]
        assert tables[name]["columns"] == columns
        torch.testing.assert_close(torch.tensor(tables[name]["data"]), torch.tensor(rows))


def test_tables_equal_loops_over_tokens() -> None:
    model, data = _model(), _batches()
    expected = _by_hand(model, [[data[1]], [data[3]]], LENGTH)
    assert expected[f"{FOLDER}/mean_loss_v_len"][0][4] == -1
    assert expected[f"{FOLDER}/sum_length"] != expected[f"{FOLDER}/sum_length_seq_id"]
    _assert_same(_run(model, data), expected, LENGTH)


def _on_ranks() -> dict[str, Any]:
    rank = dist.get_global_rank()
    return _run(_model(), _batches(rank, LENGTH + 2 * rank))


@pytest.mark.filterwarnings("ignore")
def test_ranks_with_batches_of_different_lengths_are_one() -> None:
    first, second = (_batches(rank, LENGTH + 2 * rank) for rank in range(2))
    groups = [[first[1], second[1]], [first[3], second[3]]]
    expected = _by_hand(_model(), groups, LENGTH + 2)
    _assert_same(run_ranks(_on_ranks, 2)[0], expected, LENGTH + 2)


def _on_ranks_of_one_batch() -> dict[str, Any]:
    return _run(
        _model(), _batches(), parallelism={"fsdp2": {}, "cp": {"context_parallel_degree": 2}}
    )


@pytest.mark.filterwarnings("ignore")
def test_ranks_that_share_a_batch_count_its_targets_once() -> None:
    data = _batches()
    expected = _by_hand(_model(), [[data[1]], [data[3]]], LENGTH)
    _assert_same(run_ranks(_on_ranks_of_one_batch, 2)[0], expected, LENGTH)


def test_without_documents_there_are_three_tables() -> None:
    data = [{key: batch[key] for key in ("input_ids", "labels")} for batch in _batches()]
    model = ComposerMPTCausalLM(d_model=16, n_heads=2, n_layers=1, max_seq_len=12, vocab_size=20)
    assert len(_run(model, data)) == 3


class _NoTables(LoggerDestination):
    pass


def test_refusals() -> None:
    with pytest.raises(ValueError, match="compute_batch_interval=5 must be from 1 to"):
        _run(_model(), _batches(), compute_batch_interval=5)
    with pytest.raises(ValueError, match="none of this run's loggers"):
        _run(_model(), _batches(), loggers=_NoTables())
    with pytest.raises(ValueError, match="use_train_metrics: true"):
        _run(_model(use_train_metrics=False), _batches())
