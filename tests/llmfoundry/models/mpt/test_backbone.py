"""The backbone and head: padding, documents, caches, initialisation, sharding hooks, bf16."""

import copy
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from llmfoundry.models.layers.blocks import FusedNormAttentionNorm, MPTBlock
from llmfoundry.models.layers.ffn import MPTMLP
from llmfoundry.models.mpt.causal_lm import MPTForCausalLM
from llmfoundry.models.mpt.config import MPTConfig

POSITIONS: dict[str, dict[str, Any]] = {
    "alibi of 6 heads": {"alibi": True},
    "learned": {},
    "rope hf": {"rope": True, "rope_impl": "hf"},
    "rope dail": {"rope": True, "rope_impl": "dail"},
    "alibi and window": {"alibi": True, "sliding_window_size": 3},
    "values of the first layer": {"rope": True, "rope_impl": "hf", "value_residual": 0.5},
    "rope, softcap and groups": {
        "rope": True,
        "rope_impl": "hf",
        "attn_logit_softcapping": 2.0,
        "attn_type": "grouped_query_attention",
        "kv_n_heads": 2,
    },
}


def _config(attn_config: dict[str, Any] | None = None, **kwargs: Any) -> MPTConfig:
    settings = {"d_model": 48, "n_heads": 6, "n_layers": 3, "max_seq_len": 40, "vocab_size": 97}
    return MPTConfig(**{**settings, **kwargs}, attn_config=dict(attn_config or {}))


def _model(attn_config: dict[str, Any] | None = None, **kwargs: Any) -> MPTForCausalLM:
    return MPTForCausalLM(_config(attn_config, **kwargs)).eval()


def _first_then(name: str, attn_config: dict[str, Any]) -> dict[str, Any]:
    """Overrides all blocks but the first."""
    order = [{"name": "default"}, {"name": name, "repeat": 2}]
    return {"order": order, "overrides": {name: {"attn_config": attn_config}}}


def _greedy(model: MPTForCausalLM, tokens: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    settings = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    return model.generate(tokens, **settings, **kwargs)[:, tokens.size(1) :]


@pytest.mark.parametrize("name", POSITIONS)
def test_left_padded_batch_continues_as_each_prompt_alone(name: str) -> None:
    """Field case B82."""
    model = _model(POSITIONS[name])
    short, long = torch.randint(1, 97, (1, 3)), torch.randint(1, 97, (1, 7))
    both = torch.cat([torch.cat([torch.zeros(1, 4, dtype=torch.long), short], 1), long])
    mask = torch.tensor([[0] * 4 + [1] * 3, [1] * 7])
    for use_cache in (True, False):
        batched = _greedy(model, both, attention_mask=mask, use_cache=use_cache)
        for row, prompt in enumerate((short, long)):
            alone = _greedy(model, prompt, attention_mask=torch.ones_like(prompt))
            assert torch.equal(batched[row], alone[0]), (use_cache, row)


def test_right_padded_prompts_are_refused() -> None:
    """Field case B83."""
    tokens = torch.randint(1, 97, (2, 5))
    mask = torch.tensor([[1] * 5, [1, 1, 1, 0, 0]])
    with pytest.raises(NotImplementedError, match="right padding"):
        _greedy(_model({"alibi": True}), tokens, attention_mask=mask)


def test_training_refuses_left_padding_and_ignores_right_padding() -> None:
    model, tokens = _model({"alibi": True}).train(), torch.randint(1, 97, (2, 5))
    mask = torch.tensor([[1] * 5, [1, 1, 1, 0, 0]])
    with pytest.raises(NotImplementedError, match="left padding"):
        model(tokens, attention_mask=mask.flip(1))
    padded = model(tokens, attention_mask=mask).logits
    torch.testing.assert_close(padded[1, :3], model(tokens[1:, :3]).logits[0])


@pytest.mark.parametrize("name", POSITIONS)
def test_documents_do_not_see_each_other(name: str) -> None:
    model = _model({**POSITIONS[name], "attn_uses_sequence_id": True}).train()
    tokens = torch.randint(1, 97, (1, 12))
    ids = torch.tensor([[0] * 5 + [1] * 4 + [-1] * 3])
    logits = model(tokens, sequence_id=ids).logits
    other = tokens.clone()
    other[:, :5] = torch.randint(1, 97, (1, 5))
    torch.testing.assert_close(model(other, sequence_id=ids).logits[:, 5:], logits[:, 5:])
    if "learned" not in name and "rope" not in name:
        torch.testing.assert_close(
            logits[:, 5:9], model(tokens[:, 5:9], sequence_id=ids[:, 5:9]).logits
        )
    with pytest.raises(ValueError, match="sequence_id is a required argument"):
        model(tokens)


@pytest.mark.parametrize("name", POSITIONS)
def test_a_prompt_may_be_read_in_pieces(name: str) -> None:
    model, tokens = _model(POSITIONS[name]), torch.randint(1, 97, (2, 12))
    mask = torch.ones(2, 12, dtype=torch.bool)
    mask[1, :3] = False
    whole = model(tokens, attention_mask=mask).logits
    cache, parts = DynamicCache(), []
    for start, end in ((0, 5), (5, 6), (6, 12)):
        out = model(tokens[:, start:end], attention_mask=mask[:, :end], past_key_values=cache)
        parts.append(out.logits)
    torch.testing.assert_close(torch.cat(parts, 1)[mask], whole[mask], atol=1e-5, rtol=1e-4)


def test_tuples_of_older_programs_are_caches_too() -> None:
    model, tokens = _model({"alibi": True}), torch.randint(1, 97, (2, 6))
    whole = model(tokens).logits
    past: Any = [()] * 3
    parts = []
    for step in range(6):
        out = model.transformer(tokens[:, step : step + 1], past_key_values=past, use_cache=True)
        past = out[-1] if isinstance(out[-1], tuple) else out.to_tuple()[1]
        parts.append(model._logits(out.last_hidden_state, 0))
    torch.testing.assert_close(torch.cat(parts, 1), whole, atol=1e-5, rtol=1e-4)
    key, value = past[0]
    assert key.shape == (2, 6, 8, 6) and value.shape == (2, 6, 6, 8)
    reordered = model._reorder_cache(past, torch.tensor([1, 0]))
    assert torch.equal(reordered[0][0][0], key[1])
    with pytest.raises(ValueError, match="n_layers"):
        model(tokens, past_key_values=past[:2])


def test_beams_and_sampling() -> None:
    model, tokens = _model({"alibi": True}), torch.randint(1, 97, (2, 6))
    settings = {"max_new_tokens": 5, "eos_token_id": None, "pad_token_id": 0}
    beams = [model.generate(tokens, num_beams=3, use_cache=c, **settings) for c in (True, False)]
    assert torch.equal(*beams)
    assert model.generate(tokens, do_sample=True, **settings).shape == (2, 11)


def test_weights_and_hidden_states_are_returned() -> None:
    model, tokens = _model({"alibi": True}), torch.randint(1, 97, (2, 6))
    out = model(tokens, output_attentions=True, output_hidden_states=True)
    assert len(out.hidden_states) == 4 and len(out.attentions) == 3
    torch.testing.assert_close(out.attentions[0].sum(-1), torch.ones(2, 6, 6))
    torch.testing.assert_close(out.logits, model(tokens).logits)
    torch.testing.assert_close(model(tokens, logits_to_keep=2).logits, out.logits[:, -2:])
    embedded = model(inputs_embeds=model.get_input_embeddings()(tokens)).logits
    torch.testing.assert_close(embedded, out.logits)


def test_bad_inputs_are_refused() -> None:
    model, tokens = _model(), torch.randint(1, 97, (2, 6))
    with pytest.raises(ValueError, match="exactly one"):
        model(tokens, inputs_embeds=torch.zeros(2, 6, 48))
    with pytest.raises(NotImplementedError, match="return_dict"):
        model(tokens, return_dict=False)
    with pytest.raises(AssertionError, match="seq_len=41"):
        model(torch.ones(1, 41, dtype=torch.long))
    cache = model(torch.ones(1, 40, dtype=torch.long), use_cache=True)["cache"]
    with pytest.raises(ValueError, match="total sequence length"):
        model(torch.ones(1, 1, dtype=torch.long), past_key_values=cache)


def test_meta_model_equals_cpu_model_once_it_has_its_weights() -> None:
    """Field case B95: nothing but parameters is needed."""
    for attn_config in POSITIONS.values():
        for tied in (True, False):
            kwargs = {"tie_word_embeddings": tied, "pad_token_id": 3}
            cpu = _model(attn_config, **kwargs)
            meta = MPTForCausalLM(_config(attn_config, **kwargs, init_device="meta")).eval()
            assert all(param.is_meta for param in meta.parameters())
            assert not list(meta.buffers())
            meta.to_empty(device="cpu")
            for param in meta.parameters():
                torch.nn.init.constant_(param, float("nan"))
            meta.apply(meta.param_init_fn)
            for (name, ours), theirs in zip(meta.named_parameters(), cpu.parameters(), strict=True):
                assert ours.std().item() == pytest.approx(theirs.std().item(), rel=0.3, abs=1e-8), (
                    name
                )
            assert not meta.transformer.wte.weight[3].any()
            meta.load_state_dict(cpu.state_dict())
            tokens = torch.randint(1, 97, (2, 9))
            assert torch.equal(meta(tokens).logits, cpu(tokens).logits)


def test_embeddings_grow_at_both_ends() -> None:
    """Field case B89."""
    for tied in (True, False):
        model = _model({"alibi": True}, tie_word_embeddings=tied)
        tokens = torch.randint(1, 97, (2, 6))
        before = model(tokens).logits.detach()
        model.resize_token_embeddings(120)
        assert model.config.vocab_size == 120
        torch.testing.assert_close(model(tokens).logits[..., :97], before)
        assert (model.get_output_embeddings() is model.get_input_embeddings()) == tied
        loss = model(tokens, labels=tokens, return_logits=False).loss
        torch.testing.assert_close(loss, model(tokens, labels=tokens).loss)
        loss.backward()
        assert ("lm_head.weight" in model.state_dict()) == (not tied)


def test_saved_and_loaded(tmp_path: Any) -> None:
    """Field case B90."""
    for tied in (True, False):
        model = _model({"alibi": True}, tie_word_embeddings=tied, no_bias=True)
        model.save_pretrained(tmp_path / str(tied))
        loaded, info = MPTForCausalLM.from_pretrained(
            tmp_path / str(tied), output_loading_info=True
        )
        assert not info["missing_keys"] and not info["unexpected_keys"]
        assert (loaded.lm_head is None) == tied
        tokens = torch.randint(1, 97, (2, 6))
        assert torch.equal(loaded.eval()(tokens).logits, model(tokens).logits)


def test_missing_weights_are_initialised_and_loaded_ones_are_not(tmp_path: Any) -> None:
    model = _model({"alibi": True})
    model.save_pretrained(tmp_path)
    weights = {k: v + 1 for k, v in model.state_dict().items() if not k.endswith("norm_f.weight")}
    weights = {k: v for k, v in weights.items() if k != "transformer.blocks.0.attn.out_proj.bias"}
    model.save_pretrained(tmp_path, state_dict=dict(weights))
    loaded = MPTForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(loaded.transformer.norm_f.weight, torch.ones(48))
    out_proj = loaded.transformer.blocks[0].attn.out_proj
    assert torch.equal(out_proj.weight, weights["transformer.blocks.0.attn.out_proj.weight"])
    assert not out_proj.bias.any()


def test_bf16_autocast_and_bf16_weights() -> None:
    for attn_config in POSITIONS.values():
        model, tokens = _model(attn_config), torch.randint(1, 97, (2, 30))
        exact = model(tokens, labels=tokens)
        with torch.autocast("cpu", torch.bfloat16):
            mixed = model(tokens, labels=tokens)
        assert mixed.logits.dtype == torch.bfloat16
        torch.testing.assert_close(mixed.loss, exact.loss, atol=0.03, rtol=0.01)
        mixed.loss.backward()
        half = copy.deepcopy(model).to(torch.bfloat16)
        torch.testing.assert_close(half(tokens).logits.float(), exact.logits, atol=0.2, rtol=0.1)


def test_padding_need_not_reach_the_ffn() -> None:
    tokens = torch.randint(1, 97, (2, 6))
    mask = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    model = _model({"alibi": True})
    spared = _model({"alibi": True}, use_pad_tok_in_ffn=False)
    spared.load_state_dict(model.state_dict())
    torch.testing.assert_close(
        spared(tokens, attention_mask=mask).logits[mask],
        model(tokens, attention_mask=mask).logits[mask],
    )


@pytest.mark.filterwarnings("ignore::llmfoundry.utils.warnings.ExperimentalWarning")
def test_layers_may_compute_keys_from_an_earlier_input() -> None:
    model = _model(
        {"rope": True, "rope_impl": "hf", "fused_qkv": False},
        block_overrides=_first_then("x", {"reuse_kv_x_layer_idx": -1}),
    )
    tokens = torch.randint(1, 97, (2, 8))
    assert torch.equal(
        _greedy(model, tokens, use_cache=True), _greedy(model, tokens, use_cache=False)
    )


def test_head_width_may_be_free() -> None:
    model = _model({"rope": True, "rope_impl": "hf"}, head_dim=16)
    assert model.transformer.blocks[0].attn.Wqkv.weight.shape == (3 * 6 * 16, 48)
    tokens = torch.randint(1, 97, (2, 8))
    assert torch.equal(_greedy(model, tokens), _greedy(model, tokens, use_cache=False))


def test_units_of_sharding_and_checkpointing() -> None:
    model = _model({"alibi": True}, activation_checkpointing_target={"mptmlp": "first-1, last-1"})
    units = [name for name, module in model.named_modules() if model.fsdp_wrap_fn(module)]
    assert units == [f"transformer.blocks.{i}" for i in range(3)]
    untied = _model({"alibi": True}, tie_word_embeddings=False)
    units = [name for name, module in untied.named_modules() if untied.fsdp_wrap_fn(module)]
    assert units == ["transformer.wte", *(f"transformer.blocks.{i}" for i in range(3)), "lm_head"]
    chosen = [m for m in model.modules() if model.activation_checkpointing_fn(m)]
    assert [type(m) for m in chosen] == [MPTMLP, MPTMLP]
    assert [m.block_idx for m in chosen] == [0, 2]
    model.config.activation_checkpointing_target = None
    chosen = [m for m in model.modules() if model.activation_checkpointing_fn(m)]
    assert [type(m) for m in chosen] == [MPTBlock] * 3
    fused = _model({"alibi": True}, fuse_norm_attn_norm=True)
    fused.config.activation_checkpointing_target = ["norm_attn_norm"]
    chosen = [m for m in fused.modules() if fused.activation_checkpointing_fn(m)]
    assert [type(m) for m in chosen] == [FusedNormAttentionNorm] * 3


@pytest.mark.filterwarnings("ignore::llmfoundry.utils.warnings.ExperimentalWarning")
def test_checkpointed_blocks_give_the_same_gradients() -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
        apply_activation_checkpointing,
    )

    model = _model(
        {"rope": True, "rope_impl": "hf"},
        block_overrides=_first_then("r", {"reuse_kv_layer_idx": -1}),
    )
    tokens = torch.randint(1, 97, (2, 8))
    model(tokens, labels=tokens).loss.backward()
    expected = [param.grad.clone() for param in model.parameters()]
    model.zero_grad()
    apply_activation_checkpointing(model, check_fn=model.activation_checkpointing_fn)
    model(tokens, labels=tokens).loss.backward()
    for ours, theirs in zip((p.grad for p in model.parameters()), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("tied", [True, False])
def test_logits_are_scaled_then_capped(tied: bool) -> None:
    plain = _model({"alibi": True}, tie_word_embeddings=tied)
    capped = _model(
        {"alibi": True}, tie_word_embeddings=tied, logit_scale=2.0, final_logit_softcapping=1.5
    )
    capped.load_state_dict(plain.state_dict())
    tokens = torch.randint(1, 97, (2, 5))
    logits = plain(tokens).logits
    expected = 1.5 * torch.tanh(2.0 * logits / 1.5)
    assert logits.abs().max() > 0.75, "the cap is felt"
    torch.testing.assert_close(capped(tokens).logits, expected)


def test_logit_scale_zero_and_embedding_fraction() -> None:
    with pytest.warns(UserWarning, match="logit_scale is 0"):
        _model(logit_scale=0)
    model, tokens = _model({"alibi": True}, tie_word_embeddings=False), torch.randint(1, 97, (2, 6))
    model(tokens, labels=tokens).loss.backward()
    whole = model.transformer.wte.weight.grad.clone()
    model.zero_grad()
    model.transformer.embedding_fraction = 0.25
    model(tokens, labels=tokens).loss.backward()
    torch.testing.assert_close(model.transformer.wte.weight.grad, whole / 4)
