"""Each pair of features that the table does not refuse gives the losses of one process."""

import itertools
import warnings
from typing import Any

import pytest
import torch

from composer import Trainer
from composer.algorithms import GradientClipping
from composer.loggers import InMemoryLogger
from composer.utils import dist
from llmfoundry.registry import tp_strategies
from tests.launch import run_ranks
from tests.llmfoundry.side_by_side import make_batch, mpt

STEPS = 3
COMPILED = {"backend": "aot_eager"}
FEATURES: dict[str, dict[str, Any]] = {
    "hybrid": {"fsdp2": {"data_parallel_replicate_degree": 2}},
    "tensor": {"tp": {"tensor_parallel_degree": 2}},
    "context": {"cp": {"context_parallel_degree": 2}},
    "recomputing": {"fsdp2": {"activation_checkpointing": True}},
    "operators": {"fsdp2": {"activation_checkpointing": "operators"}},
    "budget": {
        "fsdp2": {"activation_checkpointing": {"memory_budget": 0.3}},
        "compile_config": COMPILED,
    },
    "compiled": {"compile_config": COMPILED},
    "offload": {"fsdp2": {"cpu_offload": True}},
    "offload of activations": {"fsdp2": {"activation_cpu_offload": True}},
    "kept whole": {"fsdp2": {"reshard_after_forward": False}},
    "prefetching": {"fsdp2": {"num_units_to_prefetch": 2}},
    "meta": {"init_device": "meta"},
    "frozen": {"frozen": True},
    "accumulated": {"device_train_microbatch_size": 1},
    "clipped": {"clipped": True},
}
RECOMPUTING = {"recomputing", "operators", "budget"}
REFUSED = [{"tensor", "offload of activations"}, {"context", "operators"}]


def _pairs() -> list[tuple[str, str]]:
    """Ways to recompute are values of one setting; all else makes pairs."""
    return [pair for pair in itertools.combinations(FEATURES, 2) if not set(pair) <= RECOMPUTING]


def _settings(names: tuple[str, ...]) -> dict[str, Any]:
    """Puts together what features ask for, beside sharding."""
    asked: dict[str, Any] = {"fsdp2": {}}
    for name in names:
        for key, value in FEATURES[name].items():
            asked[key] = {**asked.get(key, {}), **value} if isinstance(value, dict) else value
    return asked


def _losses(*names: str) -> list[float]:
    """Trains with some features; on one process, with those that change what is trained."""
    asked, logger, is_one = _settings(names), InMemoryLogger(), dist.get_world_size() == 1
    torch.compiler.reset()
    model = mpt(init_device=asked.pop("init_device", "cpu"))
    if asked.pop("frozen", False):
        model.model.transformer.blocks[0].requires_grad_(False)
    if asked.pop("clipped", False):
        asked["algorithms"] = GradientClipping("norm", 0.05)
    parallelism = {key: asked.pop(key) for key in ("fsdp2", "tp", "cp") if key in asked}
    if "tp" in parallelism:
        parallelism["tp"]["layer_plan"] = tp_strategies.get("mpt")(model)
    copies = 2 ** len(parallelism.keys() - {"fsdp2"})
    share, shares = dist.get_global_rank() // copies, dist.get_world_size() // copies
    batches = [
        {key: value.chunk(shares)[share] for key, value in make_batch(16, step).items()}
        for step in range(STEPS)
    ]
    Trainer(
        model=model,
        optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
        train_dataloader=batches,
        max_duration=f"{STEPS}ba",
        parallelism_config=None if is_one else parallelism,
        loggers=logger,
        device="cpu",
        seed=1,
        progress_bar=False,
        **{"device_train_microbatch_size": 4, **asked},
    ).fit()
    return [float(value) for _, value in logger.data["loss/train/total"]]


def _every_pair() -> dict[tuple[str, str], Any]:
    warnings.filterwarnings("ignore", message="cpu_offload has no effect")
    found: dict[tuple[str, str], Any] = {}
    for pair in _pairs():
        try:
            found[pair] = _losses(*pair)
        except ValueError as error:
            found[pair] = str(error)
    return found


@pytest.mark.slow
def test_pairs_of_features_give_the_losses_of_one_process() -> None:
    changing = ("frozen", "clipped")
    cases: list[tuple[str, ...]] = [(), ("frozen",), ("clipped",), changing]
    expected = {names: _losses(*names) for names in cases}
    for pair, losses in run_ranks(_every_pair, 4)[0].items():
        if set(pair) in REFUSED:
            assert "does not combine with" in losses, pair
        else:
            one = expected[tuple(name for name in changing if name in pair)]
            assert losses == pytest.approx(one, abs=1e-5), pair
