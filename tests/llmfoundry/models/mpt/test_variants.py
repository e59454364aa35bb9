"""Every kind of attention gives one result, however it is computed, cached, padded or saved."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from llmfoundry.models.mpt.causal_lm import MPTForCausalLM
from llmfoundry.models.mpt.config import MPTConfig
from tests.llmfoundry.models.mpt.variants import IMPLEMENTATIONS, VARIANTS, build

HUB_CONFIG: dict[str, Any] = {
    "architectures": ["MPTForCausalLM"],
    "attn_config": {
        "alibi": True,
        "alibi_bias_max": 8,
        "attn_impl": "torch",
        "attn_pdrop": 0,
        "attn_type": "multihead_attention",
        "attn_uses_sequence_id": False,
        "clip_qkv": None,
        "prefix_lm": False,
        "qk_ln": False,
        "softmax_scale": None,
    },
    "auto_map": {
        "AutoConfig": "configuration_mpt.MPTConfig",
        "AutoModelForCausalLM": "modeling_mpt.MPTForCausalLM",
    },
    "d_model": 4096,
    "emb_pdrop": 0,
    "embedding_fraction": 1.0,
    "expansion_ratio": 4,
    "init_config": {
        "emb_init_std": None,
        "emb_init_uniform_lim": None,
        "fan_mode": "fan_in",
        "init_div_is_residual": True,
        "init_gain": 0,
        "init_nonlinearity": "relu",
        "init_std": 0.02,
        "name": "kaiming_normal_",
        "verbose": 0,
    },
    "init_device": "cpu",
    "learned_pos_emb": True,
    "logit_scale": None,
    "max_seq_len": 2048,
    "model_type": "mpt",
    "n_heads": 32,
    "n_layers": 32,
    "no_bias": True,
    "norm_type": "low_precision_layernorm",
    "resid_pdrop": 0,
    "tokenizer_name": "EleutherAI/gpt-neox-20b",
    "torch_dtype": "bfloat16",
    "transformers_version": "4.28.1",
    "use_cache": False,
    "verbose": 0,
    "vocab_size": 50432,
}
"""What mosaicml/mpt-7b/config.json says."""

pytestmark = pytest.mark.filterwarnings(
    "ignore::llmfoundry.utils.warnings.ExperimentalWarning",
    "ignore::llmfoundry.utils.warnings.VersionedDeprecationWarning",
)


def _prompts() -> tuple[torch.Tensor, torch.Tensor]:
    """Returns a prompt of three tokens and one of seven, padded on the left, and the mask."""
    tokens = torch.randint(1, 97, (2, 7), generator=torch.Generator().manual_seed(6))
    mask = torch.ones(2, 7, dtype=torch.bool)
    mask[0, :4] = False
    return tokens, mask


def _continue(model: MPTForCausalLM, tokens: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    settings = {"max_new_tokens": 9, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    return model.generate(tokens, **{**settings, **kwargs})[:, tokens.size(1) :]


@pytest.mark.parametrize("name", VARIANTS)
def test_implementations_agree(name: str) -> None:
    tokens, mask = _prompts()
    results = []
    for attn_impl in IMPLEMENTATIONS:
        model = build(name, attn_impl)
        logits = model(tokens, attention_mask=mask).logits[mask]
        loss = model(tokens, labels=tokens).loss
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        results.append([x.detach() for x in (logits, loss, *gradients)])
    limit = 1e-5 * max(float(each.abs().max()) for each in results[0][2:])
    for other in results[1:]:
        for found, expected in zip(other, results[0], strict=True):
            torch.testing.assert_close(found, expected, atol=limit, rtol=1e-5)


@pytest.mark.parametrize("attn_impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", VARIANTS)
def test_a_cache_changes_nothing(name: str, attn_impl: str) -> None:
    """Field case B82."""
    model, (tokens, mask) = build(name, attn_impl), _prompts()
    batched = _continue(model, tokens, attention_mask=mask)
    assert torch.equal(batched, _continue(model, tokens, attention_mask=mask, use_cache=False))
    beams = [
        _continue(model, tokens, attention_mask=mask, num_beams=2, use_cache=use_cache)
        for use_cache in (True, False)
    ]
    assert torch.equal(*beams)
    assert torch.equal(batched[:1], _continue(model, tokens[:1, 4:]))
    assert torch.equal(batched[1:], _continue(model, tokens[1:]))


@pytest.mark.parametrize("name", VARIANTS)
def test_saved_and_loaded(name: str, tmp_path: Path) -> None:
    """Field cases B85, B86 and B90: names, shapes and settings are in the folder."""
    model, (tokens, _) = build(name), _prompts()
    model.save_pretrained(tmp_path)
    loaded, info = MPTForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert torch.equal(loaded.eval()(tokens).logits, model(tokens).logits)


@pytest.mark.parametrize("name", ["alibi", "linear", "llama3", "yarn"])
def test_longer_sequences_than_in_training(name: str, tmp_path: Path) -> None:
    model = build(name)
    model.save_pretrained(tmp_path)
    longer = MPTForCausalLM.from_pretrained(tmp_path, max_seq_len=80).eval()
    tokens = torch.randint(1, 97, (1, 70), generator=torch.Generator().manual_seed(7))
    logits = longer(tokens).logits
    torch.testing.assert_close(logits[:, :40], model(tokens[:, :40]).logits, atol=1e-5, rtol=1e-4)
    with pytest.raises(AssertionError, match="seq_len=70"):
        model(tokens)
    pieces, cache = [], None
    for start, end in ((0, 50), (50, 51), (51, 70)):
        out = longer(tokens[:, start:end], past_key_values=cache, use_cache=True)
        cache = out.cache if "cache" in out else out.past_key_values
        pieces.append(out.logits)
    torch.testing.assert_close(torch.cat(pieces, dim=1), logits, atol=1e-5, rtol=1e-4)


def test_dynamic_scaling_turns_all_keys_anew_as_a_sequence_grows() -> None:
    """It is for sequences longer than ``max_seq_len``, where every step has angles of its own."""
    model = build("dynamic", n_layers=1)
    tokens = torch.randint(1, 97, (2, 60), generator=torch.Generator().manual_seed(7))
    mask = torch.ones_like(tokens, dtype=torch.bool)
    mask[0, :5] = False
    cache = None
    for start, end in ((0, 30), (30, 50), (50, 51), (51, 60)):
        out = model(
            tokens[:, start:end],
            attention_mask=mask[:, :end],
            past_key_values=cache,
            use_cache=True,
        )
        cache = out.cache if "cache" in out else out.past_key_values
        whole = model(tokens[:, :end], attention_mask=mask[:, :end]).logits
        real = mask[:, start:end]
        torch.testing.assert_close(out.logits[real], whole[:, start:][real], atol=1e-5, rtol=1e-4)
    assert _continue(model, tokens[:, :38]).shape == (2, 9)
    with pytest.raises(ValueError, match="counts positions itself"):
        model(tokens, position_ids=torch.arange(60)[None], use_cache=True)


def test_linear_scaling_divides_positions() -> None:
    model, tokens = build("linear"), torch.randint(1, 97, (1, 9))
    plain = build("softcap", attn_logit_softcapping=None)
    divided = torch.arange(9)[None] / 4.0
    torch.testing.assert_close(model(tokens).logits, plain(tokens, position_ids=divided).logits)


@pytest.mark.parametrize("attn_impl", ["torch", "triton"])
def test_the_configuration_of_mpt_7b_is_read(attn_impl: str, tmp_path: Path) -> None:
    written = json.loads(json.dumps(HUB_CONFIG))
    written["attn_config"]["attn_impl"] = attn_impl
    (tmp_path / "config.json").write_text(json.dumps(written), encoding="utf-8")
    config = MPTConfig.from_pretrained(tmp_path, init_device="meta")
    assert config.attn_config["attn_impl"] == "torch" and not config.learned_pos_emb
    model = MPTForCausalLM(config)
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    assert len(shapes) == 194 and not any(name.endswith("bias") for name in shapes)
    assert shapes["transformer.blocks.31.attn.Wqkv.weight"] == (12288, 4096)
    assert shapes["transformer.wte.weight"] == (50432, 4096)


def test_a_small_published_folder_is_loaded(tmp_path: Path) -> None:
    """A folder with the hub's configuration, narrower, computes what its weights say."""
    small = {"d_model": 64, "n_heads": 4, "n_layers": 2, "vocab_size": 97, "max_seq_len": 40}
    model = MPTForCausalLM(MPTConfig(**json.loads(json.dumps({**HUB_CONFIG, **small})))).eval()
    model.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**HUB_CONFIG, **small}), encoding="utf-8")
    loaded = MPTForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    tokens, mask = _prompts()
    assert torch.equal(
        loaded(tokens, attention_mask=mask).logits, model(tokens, attention_mask=mask).logits
    )
    assert loaded.generate(tokens, attention_mask=mask, max_new_tokens=3).shape == (2, 10)
