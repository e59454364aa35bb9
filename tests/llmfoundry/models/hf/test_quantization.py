"""A frozen base in few bits under adapters: settings, training, checkpoints, merging."""

import importlib.util
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from llmfoundry.config.loading import load_recipe
from llmfoundry.config.parse import parse_train_config
from llmfoundry.config.validate import validate_config
from llmfoundry.models.hf.adapters import merge_adapters
from llmfoundry.models.hf.quantization import quantization_config
from tests.launch import run_ranks
from tests.llmfoundry.models.hf.test_adapters import LORA, _hf, _logits, _train
from tests.llmfoundry.models.hf.tiny import build, save

pytestmark = [
    # peft asks transformers for a name that is being replaced.
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:callbacks. _Losses:UserWarning"),
]

KINDS = [("bitsandbytes", "int8"), ("bitsandbytes", "nf4"), ("torchao", "int8")]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"backend": "gptq", "weights": "int4"}, "bitsandbytes: int8, nf4, fp4; torchao: int8"),
        ({"backend": "torchao", "weights": "nf4"}, "not 'torchao' and 'nf4'"),
        ({"backend": "bitsandbytes", "weights": "int8", "double_quant": True}, "double_quant"),
        ({"backend": "bitsandbytes", "weights": "nf4", "bits": 4}, r"has \['bits'\]"),
        ({"backend": "bitsandbytes", "weights": "nf4", "compute_dtype": "int8"}, "compute_dtype"),
    ],
)
def test_what_is_unknown_is_refused(settings: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        quantization_config(settings)


def test_one_question_has_one_answer() -> None:
    assert quantization_config() is None
    with pytest.raises(ValueError, match="two answers"):
        quantization_config({"backend": "torchao", "weights": "int8"}, load_in_8bit=True)


@pytest.mark.parametrize("backend", ["bitsandbytes", "torchao"])
def test_a_missing_package_is_named_with_its_command(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=f'pip install "{backend}'):
        quantization_config({"backend": backend, "weights": "int8"})


@pytest.mark.parametrize(("backend", "weights"), KINDS)
def test_adapters_learn_on_a_base_of_few_bits(backend: str, weights: str, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    pytest.importorskip(backend)
    wide = {"hidden_size": 64, "intermediate_size": 128}
    folder = save("llama", tmp_path / "base", **wide)
    few = {"backend": backend, "weights": weights}
    with pytest.raises(ValueError, match="use init_device: cpu and pretrained: true"):
        _hf(folder, peft_config=LORA, quantization=few, pretrained=False)
    plain = build("llama", **wide)
    of_base = _logits(_hf(folder, peft_config=LORA, quantization=few).eval().model)
    difference = (of_base - _logits(plain)).norm() / of_base.norm()
    assert 1e-4 < difference < 0.3  # few bits, of the same weights
    model = _hf(folder, peft_config=LORA, quantization=few)
    run = {"save_folder": str(tmp_path / "run"), "save_filename": "ba{batch}.pt"}
    losses = _train(model, save_interval="3ba", run_name="few", **run)
    assert losses[-1] < losses[0]
    again = _hf(folder, peft_config=LORA, quantization=few)
    rest = _train(again, load_path=str(tmp_path / "run" / "ba3.pt"))
    assert rest == losses[3:]
    adapted = _logits(again.eval().model)
    assert (adapted - of_base).abs().max() > 1e-2
    merged = merge_adapters(again.model)
    assert {each.dtype for each in merged.parameters()} == {torch.float32}
    assert {type(each) for each in merged.parameters()} == {torch.nn.Parameter}
    # Products with few bits round their inputs too, with some packages.
    error = (_logits(merged) - adapted).norm() / adapted.norm()
    assert error < (0.02 if weights == "int8" else 1e-5), error


def _sharded(folder: str, few: dict[str, str]) -> None:
    warnings.filterwarnings("ignore", message="callbacks: _Losses")
    model = _hf(folder, peft_config=LORA, quantization=few)
    with pytest.raises(ValueError, match="does not combine with weights in few bits"):
        _train(model, "1ba", parallelism_config={"fsdp2": {}})


def test_few_bits_are_not_sharded(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    pytest.importorskip("bitsandbytes")
    folder = save("llama", tmp_path)
    run_ranks(_sharded, 2, folder, {"backend": "bitsandbytes", "weights": "nf4"})


@pytest.mark.parametrize("few", [{"load_in_8bit": True}, {"quantization": {"backend": "torchao"}}])
def test_few_bits_are_trained_under_adapters_only(few: dict[str, Any]) -> None:
    recipe = Path(__file__).parents[4] / "yamls" / "finetune" / "smollm2-135m-lora.yaml"
    config = parse_train_config(load_recipe(recipe))
    config.model.update(few)
    validate_config(config)
    del config.model["peft_config"]
    with pytest.raises(ValueError, match=f"{next(iter(few))}.*only supported for evaluation"):
        validate_config(config)
