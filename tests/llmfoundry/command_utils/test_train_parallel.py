"""A recipe on two ranks, with every way to bring weights to life, is what it is on one."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from composer.trainer.trainer import Trainer
from composer.utils import dist
from llmfoundry.command_utils.train import train_from_yaml
from tests.launch import run_ranks
from tests.llmfoundry.command_utils.test_train import RECIPE, data, overrides

__all__ = ["data"]

WAYS: dict[str, dict[str, Any]] = {
    "replicas": {"model.init_device": "cpu"},
    "cpu": {"model.init_device": "cpu", "fsdp_config": "{sharding_strategy: FULL_SHARD}"},
    "meta": {"model.init_device": "meta", "fsdp_config": "{mixed_precision: PURE}"},
    "meta, recomputing": {
        "model.init_device": "meta",
        "fsdp_config": "{activation_checkpointing: true, reshard_after_forward: false}",
    },
    "mixed": {
        "model.init_device": "mixed",
        "fsdp_config": "{sync_module_states: true, state_dict_type: full}",
    },
    "split layers, meta": {
        "model.init_device": "meta",
        "fsdp_config": "{}",
        "tp_config": "{strategy: mpt, tensor_parallel_degree: 2}",
    },
    "split sequences, meta": {
        "model.init_device": "meta",
        "fsdp_config": "{}",
        "cp_config": "{context_parallel_degree: 2}",
    },
}


def _weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    whole = {}
    for name, each in trainer.state.model.named_parameters():
        name = name.replace("_checkpoint_wrapped_module.", "").removeprefix("module.")
        tensor: Any = each.detach()
        whole[name] = (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).clone()
    return whole


def started_and_trained(
    folder: Path, save: Path, settings: dict[str, Any], recipe: Path = RECIPE
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], list[float]]:
    """Returns the weights at the start, those after training, and the losses, evaluation's last."""
    arguments = overrides(folder, save, **settings)
    started = train_from_yaml(str(recipe), [*arguments, "only_composer_checkpoint=true"])
    first = _weights(started)
    started.close()
    trainer = train_from_yaml(str(recipe), [*arguments, "run_name=trained", "autoresume=false"])
    logger: Any = next(each for each in trainer.logger.destinations if hasattr(each, "data"))
    losses = [float(value) for _, value in logger.data["loss/train/total"]]
    last = _weights(trainer)
    assert int(trainer.state.timestamp.sample) == 6 * 8, "a shared batch is counted once"
    losses.append(float(trainer.state.eval_metric_values["LanguageCrossEntropy"]))
    trainer.close()
    return first, last, losses


OF_FOUR: dict[str, dict[str, Any]] = {
    "hybrid": {
        "model.init_device": "meta",
        "fsdp_config": "{data_parallel_replicate_degree: 2}",
    },
    "split layers and shared": {
        "model.init_device": "meta",
        "fsdp_config": "{activation_checkpointing: true}",
        "tp_config": "{strategy: mpt, tensor_parallel_degree: 2}",
    },
    "split sequences and shared": {
        "model.init_device": "mixed",
        "fsdp_config": "{data_parallel_shard_degree: 2, sync_module_states: true}",
        "cp_config": "{context_parallel_degree: 2}",
    },
    "split twice": {
        "model.init_device": "meta",
        "fsdp_config": "{}",
        "tp_config": "{strategy: mpt, tensor_parallel_degree: 2}",
        "cp_config": "{context_parallel_degree: 2}",
    },
}


MIXTURE = RECIPE.with_name("mpt-tiny-moe-cpu.yaml")
WITH_EXPERTS: dict[str, dict[str, Any]] = {
    "shared experts": {
        "model.init_device": "meta",
        "model.ffn_config.moe_world_size": 2,
        "fsdp_config": "{activation_checkpointing: true}",
    },
}
WITH_SEQUENCES: dict[str, dict[str, Any]] = {
    "split sequences and shared experts": {
        "model.init_device": "meta",
        "model.ffn_config.moe_world_size": 2,
        "fsdp_config": "{}",
        "cp_config": "{context_parallel_degree: 2}",
    },
}


def _every_way(
    folder: Path, save: Path, tied: bool, ways: dict[str, Any], recipe: Path
) -> dict[str, Any]:
    return {
        name: started_and_trained(
            folder, save / name, {**settings, "model.tie_word_embeddings": tied}, recipe
        )
        for name, settings in ways.items()
    }


@pytest.mark.parametrize(
    "recipe, tied, ranks, ways",
    [
        (RECIPE, True, 2, WAYS),
        (MIXTURE, True, 2, WITH_EXPERTS),
        pytest.param(RECIPE, False, 2, WAYS, marks=pytest.mark.slow),
        pytest.param(RECIPE, True, 4, OF_FOUR, marks=pytest.mark.slow),
        pytest.param(MIXTURE, False, 4, WITH_EXPERTS, marks=pytest.mark.slow),
        pytest.param(MIXTURE, True, 2, WITH_SEQUENCES, marks=pytest.mark.slow),
    ],
)
def test_all_ways_to_start_are_one(
    data: Path, tmp_path: Path, recipe: Path, tied: bool, ranks: int, ways: dict[str, Any]
) -> None:
    settings = {"model.init_device": "cpu", "model.tie_word_embeddings": tied}
    expected = started_and_trained(data, tmp_path / "one", settings, recipe)
    found = run_ranks(_every_way, ranks, data, tmp_path, tied, ways, recipe)
    for rank, name in itertools.product(range(ranks), ways):
        first, last, losses = found[rank][name]
        assert first.keys() == expected[0].keys(), name
        for key, value in expected[0].items():
            assert torch.equal(first[key], value), f"{name}: {key} starts otherwise"
            assert torch.allclose(last[key], expected[1][key], atol=1e-4), f"{name}: {key}"
        worst = max(abs(a - b) for a, b in zip(losses, expected[2], strict=True))
        assert worst < 1e-5, name
    assert dist.get_world_size() == 1
