"""What ranks draw, and which batches they get, when they share layers or sequences."""

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from composer import Trainer
from composer.loggers import InMemoryLogger
from composer.utils import dist
from llmfoundry.registry import tp_strategies
from tests.launch import run_ranks
from tests.llmfoundry.side_by_side import mpt

DROPOUT = {"resid_pdrop": 0.3, "emb_pdrop": 0.2}


def _rows(seed: int = 0, rows: int = 16, length: int = 8) -> list[dict[str, torch.Tensor]]:
    tokens = torch.randint(64, (rows, length), generator=torch.Generator().manual_seed(seed))
    return [{"input_ids": row, "labels": row} for row in tokens]


def _loader(seed: int = 0, **sizes: int) -> DataLoader[Any]:
    rows: Any = _rows(seed, **sizes)
    return DataLoader(rows, batch_size=4, sampler=dist.get_sampler(rows, shuffle=True))


def _trainer(axes: dict[str, Any], **settings: Any) -> Trainer:
    model = mpt(**DROPOUT)
    parallelism: Any = {"fsdp2": {}, **axes} if axes else None
    if "tp" in axes:
        parallelism["tp"] = {**axes["tp"], "layer_plan": tp_strategies.get("mpt")(model)}
    settings = {
        "train_dataloader": _loader(),
        "optimizers": torch.optim.SGD(model.parameters(), lr=0.1),
        "max_duration": "8ba",
        "seed": 3,
        "device": "cpu",
        "progress_bar": False,
        **settings,
    }
    return Trainer(model=model, parallelism_config=parallelism, **settings)


TENSOR = {"tp": {"tensor_parallel_degree": 2}}
CONTEXT = {"cp": {"context_parallel_degree": 2}}


def _losses(axes: dict[str, Any]) -> list[float]:
    logger = InMemoryLogger()
    _trainer(axes, loggers=logger).fit()
    return [float(value) for _, value in logger.data["loss/train/total"]]


def _evaluated(axes: dict[str, Any]) -> tuple[float, int]:
    """Evaluates batches, the last of them smaller, of sequences that cannot be cut evenly."""
    trainer = _trainer(axes)
    trainer.eval(_loader(rows=10, length=7))
    entropy = trainer.state.eval_metrics["eval"]["LanguageCrossEntropy"].compute()
    return float(entropy), int(trainer.state.eval_timestamp.sample)


def _every_evaluation() -> list[tuple[float, int]]:
    return [_evaluated(TENSOR), _evaluated(CONTEXT)]


def test_evaluation_need_not_divide() -> None:
    expected = _evaluated({})
    assert expected[1] == 10
    for found in run_ranks(_every_evaluation, 2):
        for entropy, samples in found:
            assert (entropy, samples) == (pytest.approx(expected[0], abs=1e-5), 10)


def _trained() -> tuple[list[float], float, str]:
    split = _losses(TENSOR)
    # Sequences are shared by ranks whose tokens differ, and so do their draws.
    trainer = _trainer(CONTEXT, max_duration="1ba")
    draw = torch.rand(()).item()
    trainer.fit()
    with pytest.raises(ValueError, match="share one batch") as error:
        trainer.eval(_loader(seed=dist.get_global_rank()))
    return split, draw, str(error.value)


def test_ranks_that_split_layers_drop_the_same() -> None:
    (split, first, _), (same, second, message) = run_ranks(_trained, 2)
    assert split == same
    assert split == pytest.approx(_losses({}), abs=1e-5)
    assert first != second
    assert "ranks 0 to 1" in message


def _draws() -> list[float]:
    found = []
    for axes in (TENSOR, CONTEXT):
        trainer = _trainer(axes, max_duration="1ba")
        found.append(torch.rand(()).item())
        trainer.fit()
    return found


def test_groups_with_other_samples_draw_other_numbers() -> None:
    by_layers, by_tokens = zip(*run_ranks(_draws, 4), strict=True)
    assert by_layers[0] == by_layers[1] != by_layers[2] == by_layers[3]
    assert len(set(by_tokens)) == 4
