"""Value embeddings: the formula, where tables stand, how they begin, and what goes with them."""

import copy
from typing import Any

import pytest
import torch

from composer.algorithms.mup.mup import _rules
from composer.optim.muon import hidden_matrices
from llmfoundry.models.layers.attention import AttentionContext, GroupedQueryAttention
from llmfoundry.models.layers.masking import AttentionMasks
from llmfoundry.models.layers.value_embedding import ValueEmbedding
from llmfoundry.models.mpt.causal_lm import MPTForCausalLM
from llmfoundry.models.mpt.composer_mpt import ComposerMPTCausalLM
from llmfoundry.models.mpt.config import MPTConfig
from llmfoundry.models.mpt.transformers_mpt import why_not_transformers

VOCABULARY, LAYERS, K, D = 64, 4, 2, 12
ROPE: dict[str, Any] = {"rope": True, "rope_impl": "hf"}
GROUPS: dict[str, Any] = {**ROPE, "attn_type": "grouped_query_attention", "kv_n_heads": K}
ON: dict[str, Any] = {**GROUPS, "value_embeddings": "every_other"}


def _settings(attn_config: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
    sizes = {"d_model": 4 * D, "n_heads": 4, "n_layers": LAYERS, "max_seq_len": 24}
    settings = {**sizes, "vocab_size": VOCABULARY, "attn_config": copy.deepcopy(attn_config)}
    return {**settings, **kwargs}


def _new(attn_config: dict[str, Any], **kwargs: Any) -> MPTForCausalLM:
    torch.manual_seed(4)
    return MPTForCausalLM(MPTConfig(**_settings(attn_config, **kwargs))).eval()


def _trained(attn_config: dict[str, Any], **kwargs: Any) -> MPTForCausalLM:
    """A model whose gates are open by different widths, and whose rows are as large as values."""
    model = _new(attn_config, **kwargs)
    for module in _tables(model):
        torch.nn.init.normal_(module.gate.weight, std=0.5)
        torch.nn.init.normal_(module.table.weight)
    return model


def _tables(model: torch.nn.Module) -> list[ValueEmbedding]:
    return [module for module in model.modules() if isinstance(module, ValueEmbedding)]


def _tokens(rows: int = 2, length: int = 9) -> torch.Tensor:
    return torch.randint(1, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(3))


def _context(tokens: torch.Tensor | None, length: int) -> AttentionContext:
    masks = AttentionMasks(length, length, torch.device("cpu"))
    return AttentionContext(masks, ids_BS=tokens)


@pytest.mark.parametrize("width", [24, 40])
def test_values_are_those_of_the_formula(width: int) -> None:
    torch.manual_seed(0)
    plain = GroupedQueryAttention(width, 4, K, head_dim=6).double()
    layer = GroupedQueryAttention(width, 4, K, head_dim=6, value_vocab_size=VOCABULARY).double()
    layer.load_state_dict(plain.state_dict(), strict=False)
    assert layer.value_embedding is not None
    gate, table = layer.value_embedding.gate.weight, layer.value_embedding.table.weight
    torch.nn.init.normal_(gate)
    assert gate.shape == (K, min(32, width)) and table.shape == (VOCABULARY, K * 6)
    tokens, x = _tokens(2, 5), torch.randn(2, 5, width, dtype=torch.float64)
    expected = plain(x, _context(None, 5))[2].values.clone()
    for row in range(2):
        for place in range(5):
            for head in range(K):
                opening = sum(gate[head, c] * x[row, place, c] for c in range(gate.size(1)))
                added = table[tokens[row, place], 6 * head : 6 * head + 6]
                expected[row, head, place] += 2 / (1 + torch.exp(-opening)) * added
    out, _, found = layer(x, _context(tokens, 5))
    torch.testing.assert_close(found.values, expected)
    # The last query of one head, by hand: it sees the values that were returned, not others.
    q = layer.Wqkv(x)[1, -1, 6:12]
    weights = (found.keys[1, 0] @ q / 6**0.5).softmax(0)
    heads: list[torch.Tensor] = []
    layer.out_proj.register_forward_pre_hook(lambda _, inputs: heads.append(inputs[0]))
    torch.testing.assert_close(layer(x, _context(tokens, 5))[0], out)
    torch.testing.assert_close(heads[0][1, -1, 6:12], weights @ expected[1, 0])


@pytest.mark.parametrize(
    ("chosen", "n_layers", "expected"),
    [
        ("every_other", 4, [1, 3]),
        ("every_other", 3, [0, 2]),
        ("every_other", 1, [0]),
        ([0, 1, 3], 4, [0, 1, 3]),
        ((3, 0), 4, [0, 3]),
    ],
)
def test_the_chosen_layers_have_tables(chosen: Any, n_layers: int, expected: list[int]) -> None:
    for fused in (False, True):
        attn_config = {**GROUPS, "value_embeddings": chosen}
        model = _new(attn_config, n_layers=n_layers, fuse_norm_attn_norm=fused)
        blocks: Any = model.transformer.blocks
        assert [index for index, block in enumerate(blocks) if _tables(block)] == expected


@pytest.mark.parametrize("tied", [True, False])
def test_parameters_are_counted_but_tables_cost_no_products(tied: bool) -> None:
    sizes = {"tie_word_embeddings": tied, "use_train_metrics": False}
    plain = ComposerMPTCausalLM(**_settings(GROUPS, **sizes))
    model = ComposerMPTCausalLM(**_settings(ON, **sizes))
    gates = 2 * K * 32
    assert model.n_total_params - plain.n_total_params == 2 * VOCABULARY * K * D + gates
    batch = {"input_ids": _tokens(3, 8)}
    # A tied embedding multiplies as the head; value tables never do.
    assert model.n_active_params - plain.n_active_params == gates
    extra = model.flops_per_batch(batch) - plain.flops_per_batch(batch)
    assert extra == 3 * 2 * gates * 3 * 8


def test_off_is_nothing() -> None:
    plain, off = _new(GROUPS), _new({**GROUPS, "value_embeddings": None})
    assert off.state_dict().keys() == plain.state_dict().keys()
    assert not any("value" in name for name in plain.state_dict())
    assert torch.equal(off(_tokens()).logits, plain(_tokens()).logits)
    assert "attn_config.value_embeddings is on" in why_not_transformers(_new(ON).config)
    assert not any("value_embeddings" in why for why in why_not_transformers(off.config))


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("name", ["baseline_", "kaiming_normal_"])
def test_gates_begin_open_and_tables_as_embeddings(device: str, name: str) -> None:
    init_config = {"name": name, "init_std": 0.5, "emb_init_std": 0.25}
    model = _new(ON, init_device=device, init_config=init_config)
    if device == "meta":
        assert all(parameter.is_meta for parameter in model.parameters())
        model.to_empty(device="cpu")
        for parameter in model.parameters():
            torch.nn.init.constant_(parameter, 7.0)
        model.apply(model.param_init_fn)
    for module in _tables(model):
        assert not module.gate.weight.any()
        assert module.table.weight.std().item() == pytest.approx(0.25, rel=0.1)
        v_BKSD, tokens = torch.zeros(2, K, 9, D), _tokens()
        added = module(v_BKSD, torch.randn(2, 9, 4 * D), tokens)
        rows = module.table(tokens).unflatten(-1, (K, D)).transpose(1, 2)
        torch.testing.assert_close(added, rows)  # a gate of one


KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "groups": (ON, {}),
    "one head of keys": (
        {"alibi": True, "attn_type": "multiquery_attention", "value_embeddings": [0, 3]},
        {},
    ),
    "norms as one module": (ON, {"fuse_norm_attn_norm": True}),
    "and the first layer's values": ({**ON, "value_residual": 0.5, "value_embeddings": [0, 2]}, {}),
    "overrides": (
        {**ON, "fused_qkv": False, "value_embeddings": [1, 3]},
        {
            "block_overrides": {
                "order": [{"name": name} for name in ("default", "near", "again", "input")],
                "overrides": {
                    "near": {"attn_config": {"sliding_window_size": 3}},
                    "again": {"attn_config": {"reuse_kv_layer_idx": -1}},
                    "input": {"attn_config": {"reuse_kv_x_layer_idx": -1}},
                },
            }
        },
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:block_overrides")
def test_a_cache_holds_mixed_values(kind: str) -> None:
    attn_config, kwargs = KINDS[kind]
    model, tokens = _trained(attn_config, **kwargs), _tokens()
    logits = model(tokens).logits
    for module in _tables(model):
        module.table.weight.data[tokens[0, 0]] += 1
        assert not torch.allclose(model(tokens).logits[:1], logits[:1], atol=1e-3)
        module.table.weight.data[tokens[0, 0]] -= 1
    cache = None
    for start, end in ((0, 4), (4, 5), (5, 9)):
        out = model(tokens[:, start:end], past_key_values=cache, use_cache=True)
        cache = out.cache if "cache" in out else out.past_key_values
        torch.testing.assert_close(out.logits, logits[:, start:end], rtol=1e-4, atol=1e-5)
    mask = torch.ones_like(tokens)
    mask[1, :3] = 0
    settings = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0, "attention_mask": mask}
    continued = [model.generate(tokens, use_cache=use, **settings) for use in (True, False)]
    assert torch.equal(*continued)
    alone = model.generate(tokens[1:, 3:], max_new_tokens=5, do_sample=False, pad_token_id=0)
    assert torch.equal(continued[0][1:, 3:], alone)


def test_documents_of_a_row_do_not_see_each_other() -> None:
    model, tokens = _trained({**ON, "attn_uses_sequence_id": True}), _tokens()
    documents = torch.tensor([[0] * 4 + [1] * 5] * 2)
    packed = model(tokens, sequence_id=documents).logits
    for start, end in ((0, 4), (4, 9)):
        torch.testing.assert_close(packed[:, start:end], model(tokens[:, start:end]).logits)


def test_gradients_reach_gates_and_the_rows_of_tokens() -> None:
    model, tokens = _new(ON).train(), _tokens()
    model(tokens, labels=tokens).loss.backward()
    for module in _tables(model):
        assert module.gate.weight.grad is not None and module.gate.weight.grad.all()
        assert module.table.weight.grad is not None
        rows = module.table.weight.grad.any(dim=1).nonzero().flatten().tolist()
        # The last token's row is added too, but only to what nobody reads after it.
        assert set(tokens[:, :-1].flatten().tolist()) <= {*rows} <= set(tokens.flatten().tolist())


def test_values_keep_their_dtype_under_autocast() -> None:
    model = _trained(ON)
    with torch.autocast("cpu", torch.bfloat16):
        out = model(_tokens(), use_cache=True)
    cache: Any = out.cache if "cache" in out else out.past_key_values
    assert {layer.values.dtype for layer in cache.layers} == {torch.bfloat16}


def test_each_table_is_a_unit_of_sharding() -> None:
    for tied in (True, False):
        model = _new(ON, tie_word_embeddings=tied)
        assert all(model.fsdp_wrap_fn(module) for module in _tables(model))


def test_optimizers_and_mup_take_tables_for_embeddings() -> None:
    model = ComposerMPTCausalLM(
        **_settings(ON, tie_word_embeddings=False, use_train_metrics=False, d_model=96, n_heads=8)
    )
    matrices = {id(parameter) for parameter in hidden_matrices(model)}
    for module in _tables(model):
        assert id(module.table.weight) not in matrices
        assert id(module.gate.weight) in matrices  # as nanochat steps them
    rules = {id(rule.parameter): rule for rule in _rules(model, model.at_width(48))}
    for module in _tables(model):
        for parameter in (module.table.weight, module.gate.weight):
            rule = rules[id(parameter)]
            assert rule.width == 1 and not rule.is_output


def test_tables_grow_and_shrink_with_the_vocabulary() -> None:
    model, tokens = _trained(ON), _tokens()
    logits = model(tokens).logits
    frozen = _tables(model)[0].table.weight.requires_grad_(False)
    resized = model.resize_token_embeddings(VOCABULARY + 6)
    assert resized is model.get_input_embeddings() and model.config.vocab_size == VOCABULARY + 6
    torch.testing.assert_close(model(tokens).logits[..., :VOCABULARY], logits)
    for module in _tables(model):
        assert module.table.num_embeddings == module.table.weight.size(0) == VOCABULARY + 6
        assert not module.table.weight[VOCABULARY:].any() and module.table.weight[0].any()
    assert [module.table.weight.requires_grad for module in _tables(model)] == [False, True]
    assert frozen.size(0) == VOCABULARY
    model.resize_token_embeddings(VOCABULARY)
    torch.testing.assert_close(model(tokens).logits, logits)


def test_what_is_saved_is_loaded(tmp_path: Any) -> None:
    model = _trained(ON)
    model.save_pretrained(tmp_path)
    loaded = MPTForCausalLM.from_pretrained(tmp_path).eval()
    assert loaded.config.attn_config["value_embeddings"] == "every_other"
    assert torch.equal(loaded(_tokens()).logits, model(_tokens()).logits)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("every", "neither every_other nor a list"),
        (True, "neither every_other nor a list"),
        (2, "neither every_other nor a list"),
        ([], "leave it out for no tables"),
        ([0, True], "neither every_other nor a list"),
        ([1, 1], "each named once"),
        ([0, 4], "names layer 4; with n_layers=4, layers are 0 to 3"),
        ([-1], "names layer -1"),
    ],
)
def test_layers_that_are_none_are_refused(value: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words) as error:
        MPTConfig(**_settings({**GROUPS, "value_embeddings": value}))
    assert f"attn_config.value_embeddings={value!r}" in str(error.value)


def test_unknown_keys_are_refused() -> None:
    for key in ("value_embedding", "value_vocab_size"):
        with pytest.raises(TypeError, match=f"unexpected key '{key}'.*value_embeddings"):
            MPTConfig(**_settings({**GROUPS, key: "every_other"}))


@pytest.mark.filterwarnings("ignore:block_overrides")
def test_layers_without_values_of_their_own_are_refused() -> None:
    attn_config, kwargs = KINDS["overrides"]
    for value in ([1, 2], [0, 2]):
        with pytest.raises(ValueError, match="reuses those of layer 1 .reuse_kv_layer_idx."):
            _new({**attn_config, "value_embeddings": value}, **kwargs)


def test_forwards_without_tokens_are_refused() -> None:
    model = _new(ON)
    with pytest.raises(ValueError, match="value_embeddings looks up rows by token"):
        model(inputs_embeds=torch.randn(1, 3, 4 * D))
    layer = GroupedQueryAttention(24, 4, 2, fused_qkv=False, value_vocab_size=VOCABULARY)
    x = torch.randn(2, 9, 24)
    with pytest.raises(ValueError, match="key_value_states in place of input_ids"):
        layer(x, _context(_tokens(), 9), key_value_states=x)
