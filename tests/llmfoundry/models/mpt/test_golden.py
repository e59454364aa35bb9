"""MPT against records of the last LLM Foundry: shapes, logits, losses, gradients, generation."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from llmfoundry.models.mpt.causal_lm import MPTForCausalLM
from llmfoundry.models.mpt.config import MPTConfig

GOLDEN = Path(__file__).parents[3] / "golden" / "mpt"
ERRORS = json.loads((GOLDEN / "errors.json").read_text())
CACHE = json.loads((GOLDEN / "cache_vs_nocache.json").read_text())
NAMES = sorted(path.stem for path in GOLDEN.glob("*.npz"))
CACHE_WAS_WRONG = {
    "overrides_kv_reuse": "the cached keys were cut along heads, and decoding raised",
    "temp_tuning": "while decoding every position was 0",
}
DIFFERS_ON_PURPOSE = {
    "bad_attn_impl": "triton, which old hub configurations name, is read as torch",
    "alibi_flash_without_flash_attn": "every mask runs without flash-attn",
    "seqid_flash": "every mask runs without flash-attn",
    "rope_dail_without_flash": "rotary embeddings run without flash-attn",
    "prefix_lm_false_model": "a legacy key without effect is read",
    "seqpar1_model": "a legacy key without effect is read",
}

pytestmark = pytest.mark.filterwarnings(
    "ignore::llmfoundry.utils.warnings.ExperimentalWarning",
    "ignore::llmfoundry.utils.warnings.VersionedDeprecationWarning",
)


def _record(name: str) -> dict[str, Any]:
    return json.loads((GOLDEN / f"{name}.json").read_text())


def _model(record: dict[str, Any]) -> MPTForCausalLM:
    model = MPTForCausalLM(MPTConfig(**record["kwargs"]))
    model.load_state_dict(load_file(GOLDEN / record["weights_file"]), strict=True)
    return model


def _inputs(record: dict[str, Any], arrays: Any, case: str) -> dict[str, torch.Tensor]:
    """Builds a case's inputs as its README says."""
    wanted = record["cases"][case]["inputs"]
    tokens = arrays["input_ids"]
    if case == "len24_eval":
        tokens = np.concatenate([tokens, tokens[:, :8]], axis=1)
    inputs = {"input_ids": torch.tensor(tokens)}
    labels = inputs["input_ids"].clone()
    padded = "attention_mask" in wanted
    if padded:
        side = "left_mask" if "leftpad" in case else "right_mask"
        inputs["attention_mask"] = torch.tensor(arrays[side]).bool()
        labels[~inputs["attention_mask"]] = -100
    if "sequence_id" in wanted:
        inputs["sequence_id"] = torch.tensor(
            arrays["sequence_id_padded" if padded else "sequence_id"]
        )
    if "position_ids" in wanted:
        inputs["position_ids"] = torch.tensor(arrays["position_ids"])
    return {**inputs, "labels": labels}


@pytest.mark.parametrize("name", NAMES)
def test_tree(name: str) -> None:
    record = _record(name)
    model = MPTForCausalLM(MPTConfig(**record["kwargs"]))
    shapes = {f"model.{key}": list(value.shape) for key, value in model.state_dict().items()}
    assert shapes == record["state_dict_keys_shapes"]
    order = [f"model.{key}" for key, _ in model.named_parameters()]
    assert order == record["named_parameters_order"]
    config = model.config.to_dict()
    for key in record["config_to_dict"].keys() & config.keys() - {"id2label"}:
        assert config[key] == record["config_to_dict"][key], key
    for key, value in model.state_dict().items():
        mean, std = record["init_mean_std_before_perturbation"][f"model.{key}"]
        assert value.std().item() == pytest.approx(std, rel=0.2, abs=1e-9), key
        assert value.mean().item() == pytest.approx(mean, abs=0.03), key


@pytest.mark.parametrize("name", NAMES)
def test_forward_and_backward(name: str) -> None:
    record, arrays = _record(name), np.load(GOLDEN / f"{name}.npz")
    model = _model(record)
    for case, expected in record["cases"].items():
        inputs = _inputs(record, arrays, case)
        model.train(expected["train_mode"])
        outputs = model(**inputs)
        mask = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"])).bool()
        torch.testing.assert_close(
            outputs.logits[mask],
            torch.tensor(arrays[f"{case}.logits"])[mask],
            atol=2e-5,
            rtol=1e-4,
            msg=lambda text, case=case: f"{case}: {text}",
        )
        assert outputs.loss.item() == pytest.approx(expected["loss"], rel=1e-5), case
        if "grad_norms" not in expected:
            continue
        for return_logits in (True, False):
            model.zero_grad()
            model(**inputs, return_logits=return_logits).loss.backward()
            for key, param in model.named_parameters():
                norm = expected["grad_norms"][f"model.{key}"]
                assert param.grad.norm().item() == pytest.approx(norm, rel=1e-3, abs=1e-7), key


@pytest.mark.parametrize("name", NAMES)
def test_generation(name: str) -> None:
    record = _record(name)
    model = _model(record).eval()
    for case in record["generation"].values():
        prompt, mask = torch.tensor(case["prompt"]), torch.tensor(case["attention_mask"])
        expected = case["greedy_nocache_manual"]
        for use_cache in (True, False):
            tokens = model.generate(
                prompt,
                attention_mask=mask,
                max_new_tokens=8,
                do_sample=False,
                use_cache=use_cache,
                eos_token_id=None,
                pad_token_id=0,
            )
            assert tokens.tolist() == expected, use_cache
        others = {key: value for key, value in case.items() if "cache" in key}
        if name not in CACHE_WAS_WRONG:
            assert all(tokens == expected for tokens in others.values())


@pytest.mark.parametrize("name", NAMES)
def test_one_token_at_a_time_equals_all_at_once(name: str) -> None:
    record, arrays = _record(name), np.load(GOLDEN / f"{name}.npz")
    model = _model(record).eval()
    tokens, mask = torch.tensor(arrays["input_ids"]), torch.tensor(arrays["left_mask"]).bool()
    with torch.no_grad():
        whole = model(tokens, attention_mask=mask).logits
        cache, steps = None, []
        for end in range(1, tokens.size(1) + 1):
            out = model(
                tokens[:, end - 1 : end],
                attention_mask=mask[:, :end],
                past_key_values=cache,
                use_cache=True,
            )
            cache = out.get("past_key_values") if "past_key_values" in out else out["cache"]
            steps.append(out.logits)
    difference = (torch.cat(steps, dim=1) - whole)[mask].abs().max().item()
    if name in CACHE and name not in CACHE_WAS_WRONG:
        assert max(CACHE[name].values()) < 5e-6
    assert difference < 5e-6


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in ERRORS for name in ERRORS[kind]]
)
def test_errors(kind: str, name: str) -> None:
    record = ERRORS[kind][name]

    def build() -> Any:
        config = MPTConfig(**record["kwargs"])
        return config if kind == "config" else MPTForCausalLM(config)

    if record.get("error_type") is None or name in DIFFERS_ON_PURPOSE:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            build()
        return
    with pytest.raises(Exception) as caught:
        build()
    assert record["error_type"] in {cls.__name__ for cls in type(caught.value).__mro__}
