"""Two ranks save what they train, bit for bit, however it is spread."""

import json
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from composer.core.callback import Callback
from llmfoundry.callbacks.hf_checkpointer import HuggingFaceCheckpointer
from tests.launch import run_ranks
from tests.llmfoundry.callbacks.small_runs import LORA, llama, llama_folder, mpt, run

WAYS: dict[str, dict[str, Any]] = {
    "replicas": {},
    "shards": {"parallelism_config": {"fsdp2": {}}},
    "shards, sharded checkpoints": {
        "parallelism_config": {"fsdp2": {"state_dict_type": "sharded"}}
    },
}
KINDS = ("mpt", "llama", "lora")
EXPERTS = {
    "ffn_type": "mb_dmoe",
    "moe_num_experts": 4,
    "moe_top_k": 2,
    "moe_world_size": 2,
    "ffn_hidden_size": 24,
}


class Whole(Callback):
    """Keeps the whole weights of each batch, gathered parameter by parameter."""

    def __init__(self) -> None:
        self.weights: dict[int, dict[str, torch.Tensor]] = {}

    def batch_end(self, state: Any, logger: Any) -> None:
        found = {}
        for name, each in state.model.named_parameters():
            tensor: Any = each.detach()
            whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
            found[name.removeprefix("module.").removeprefix("model.")] = whole.clone()
        self.weights[int(state.timestamp.batch)] = found


def _train(kind: str, base: str, folder: Path, settings: dict[str, Any]) -> Any:
    changes = {"peft_config": dict(LORA)} if kind == "lora" else {}
    if kind == "experts":
        model: Any = mpt(ffn_config=dict(EXPERTS))
    else:
        model = mpt(no_bias=False) if kind == "mpt" else llama(base, **changes)
    whole = Whole()
    trainer = run(model, whole, HuggingFaceCheckpointer(str(folder), "2ba"), end="3ba", **settings)
    trainer.fit()
    trainer.close()
    return whole.weights


def _refused(folder: Path) -> str:
    checkpointer = HuggingFaceCheckpointer(str(folder), "2ba", overwrite=False)
    trainer = run(mpt(n_layers=1), checkpointer, end="2ba")
    try:
        trainer.fit()
    except (FileExistsError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def _all(base: str, folder: Path) -> tuple[dict[tuple[str, str], Any], str]:
    warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing")
    weights = {
        (kind, way): _train(kind, base, folder / kind / way, settings)
        for kind in KINDS
        for way, settings in WAYS.items()
    }
    settings = {"parallelism_config": {"fsdp": {"state_dict_type": "full"}}}
    weights["experts", "shared"] = _train("experts", base, folder / "experts/shared", settings)
    return weights, _refused(folder / "mpt" / "replicas")


def _of_adapters(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {key.replace(".default", ""): each for key, each in weights.items() if "lora_" in key}


def test_weights_are_those_that_are_trained(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    base = llama_folder(tmp_path / "base")
    (first, told), (second, told_too) = run_ranks(_all, 2, base, tmp_path)
    for (kind, way), weights in first.items():
        before: dict[str, torch.Tensor] = {}
        for batch in (2, 3):
            others, expected = second[kind, way][batch], weights[batch]
            assert all(torch.equal(others[name], expected[name]) for name in expected)
            file = "model.safetensors"
            if kind == "lora":
                file, expected = "adapter_model.safetensors", _of_adapters(expected)
            found = load_file(tmp_path / kind / way / "huggingface" / f"ba{batch}" / file)
            assert found.keys() == expected.keys(), (kind, way)
            assert all(torch.equal(found[name], expected[name]) for name in found), (kind, way)
            assert any(not torch.equal(each, before.get(n, each + 1)) for n, each in found.items())
            before = found
    config = tmp_path / "experts/shared/huggingface/ba3/config.json"
    assert json.loads(config.read_text())["ffn_config"]["moe_world_size"] == 1
    assert told.startswith("FileExistsError"), "what one rank may not do stops all"
    assert told_too.startswith("RuntimeError: Rank 0 failed")
