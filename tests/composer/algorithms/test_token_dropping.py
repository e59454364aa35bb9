"""Middle layers compute some tokens, at their own positions and under their own masks."""

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from composer.algorithms import TokenDropping
from composer.algorithms.token_dropping.token_dropping import TokenDropper
from composer.core.event import Event
from composer.functional import apply_token_dropping
from composer.loggers import InMemoryLogger
from composer.models.huggingface import HuggingFaceModel
from llmfoundry.models.mpt.causal_lm import MPTForCausalLM
from llmfoundry.models.mpt.config import MPTConfig
from tests.composer.algorithms.test_seq_length_curriculum import mpt, train
from tests.composer.models.conftest import KINDS

pytestmark = pytest.mark.filterwarnings("ignore:.*okenizer was not provided")
ROWS, LENGTH = 3, 12


def _mpt(attn_config: dict[str, Any], **kwargs: Any) -> MPTForCausalLM:
    torch.manual_seed(0)
    config = MPTConfig(
        **{"d_model": 24, "n_heads": 3, "n_layers": 3, "max_seq_len": 16, "vocab_size": 64},
        attn_config=attn_config,
        **kwargs,
    )
    return MPTForCausalLM(config).train()


def _hf(kind: str, **kwargs: Any) -> Any:
    import transformers

    torch.manual_seed(0)
    layers = "n_layer" if kind == "gpt2" else "num_hidden_layers"
    return KINDS[kind](transformers, **{layers: 3}, **kwargs).train()


MODELS: dict[str, Any] = {
    "mpt alibi": lambda: _mpt({"alibi": True}),
    "mpt learned": lambda: _mpt({}),
    "mpt rope dail": lambda: _mpt({"rope": True}),
    "mpt rope hf, groups": lambda: _mpt(
        {
            "rope": True,
            "rope_impl": "hf",
            "attn_type": "grouped_query_attention",
            "kv_n_heads": 1,
        }
    ),
    "mpt window": lambda: _mpt({"alibi": True, "sliding_window_size": 3}),
    "mpt softcap": lambda: _mpt({"alibi": True, "attn_logit_softcapping": 1.0}),
    "mpt values of the first": lambda: _mpt({"rope": True, "value_residual": 0.5}),
    "mpt value embeddings": lambda: _mpt({"rope": True, "value_embeddings": [1]}),
    "mpt fused norms": lambda: _mpt({"rope": True}, fuse_norm_attn_norm=True),
    "mpt temperature": lambda: _mpt(
        {"rope": True, "attn_temperature_tuning": {"floor_scale": 2, "attn_scale": 0.5}}
    ),
    "gpt2": lambda: _hf("gpt2"),
    "gpt2 eager": lambda: _hf("gpt2", attn_implementation="eager"),
    "llama": lambda: _hf("llama"),
    "llama eager": lambda: _hf("llama", attn_implementation="eager"),
    "bert": lambda: _hf("bert"),
}
TOKENS = torch.randint(1, 60, (ROWS, LENGTH), generator=torch.Generator().manual_seed(1))
# Not only on the right, so that no model can leave the mask out.
MASK = torch.ones(ROWS, LENGTH, dtype=torch.long)
MASK[1, 5:7] = 0
MASK[2, 9:] = 0


def stack_of(model: Any) -> torch.nn.ModuleList:
    names = ("transformer.blocks", "transformer.h", "model.layers", "bert.encoder.layer")
    parents = (name for name in names if name.split(".")[0] in dict(model.named_children()))
    for name in parents:
        try:
            return model.get_submodule(name)
        except AttributeError:
            continue
    raise AssertionError(type(model))


@pytest.mark.parametrize("name", MODELS)
def test_nothing_changes_where_all_tokens_are_kept_or_in_evaluation(name: str) -> None:
    plain, model = MODELS[name](), MODELS[name]()
    dropper = apply_token_dropping(model)
    assert model.state_dict().keys() == plain.state_dict().keys()
    assert torch.equal(model(TOKENS).logits, plain(TOKENS).logits)
    dropper.kept = 0.5
    assert not torch.equal(model(TOKENS).logits, plain(TOKENS).logits)
    assert torch.equal(model.eval()(TOKENS).logits, plain.eval()(TOKENS).logits)


class Hidden(torch.nn.Module):
    """A block that computes every token, and hides from each those that were not drawn.

    It is what dropping must equal: the drawn tokens see each other alone, at the positions and
    under the masks that they have; the others pass by.
    """

    def __init__(self, block: torch.nn.Module, drawn: torch.Tensor) -> None:
        super().__init__()
        self.block = block
        self.drawn = drawn

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        args = tuple(self._hidden(each) for each in args)
        kwargs = {key: self._hidden(each) for key, each in kwargs.items()}
        if args and args[0] is None and "Bert" in type(self.block).__name__:
            args = (self.drawn[:, None, None, :].expand(-1, 1, LENGTH, -1), *args[1:])
        output = self.block(x, *args, **kwargs)
        y = output if isinstance(output, torch.Tensor) else output[0]
        y = torch.where(self.drawn[..., None], y, x)
        return y if isinstance(output, torch.Tensor) else (y, *output[1:])

    def _hidden(self, value: Any) -> Any:
        if hasattr(value, "masks"):
            context = copy.copy(value)
            context.masks = copy.copy(value.masks)
            known = value.masks.key_mask_BT
            context.masks.key_mask_BT = self.drawn if known is None else self.drawn & known
            context.masks._masks, context.masks._biases = {}, {}
            return context
        if isinstance(value, torch.Tensor) and value.ndim == 4:
            drawn = self.drawn[:, None, None, :]
            if value.dtype == torch.bool:
                return value & drawn
            return value.masked_fill(~drawn, torch.finfo(value.dtype).min)
        return value


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_kept_tokens_are_computed_as_if_the_others_were_hidden(
    name: str, masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = {"attention_mask": MASK} if masked else {}
    if masked and name.startswith("mpt"):
        inputs = {"attention_mask": MASK[:, [0] * 5 + [*range(5, LENGTH)]].bool()}
    # Eager decoders are given a mask in any case, so that there is one to hide tokens in.
    model, reference = MODELS[name](), MODELS.get(f"{name} eager", MODELS[name])()
    dropper = apply_token_dropping(model)
    dropper.kept = 0.5
    draw = torch.rand(ROWS, LENGTH, generator=torch.Generator().manual_seed(2))
    drawn = torch.zeros(ROWS, LENGTH, dtype=torch.bool).scatter(1, draw.topk(6).indices, True)
    monkeypatch.setattr(torch, "rand", lambda *_, **__: draw)
    found = model(TOKENS, **inputs).logits
    stack = stack_of(reference)
    stack[1] = Hidden(stack[1], drawn)
    expected = reference(TOKENS, **inputs).logits
    is_token = inputs.get("attention_mask", torch.ones_like(TOKENS)).bool()
    torch.testing.assert_close(found[is_token], expected[is_token], rtol=1e-4, atol=1e-5)
    first, second = (
        torch.autograd.grad(each[is_token].square().sum(), list(one.parameters()))
        for each, one in ((found, model), (expected, reference))
    )
    for one, other in zip(first, second):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_documents_keep_apart() -> None:
    model = _mpt({"alibi": True, "attn_uses_sequence_id": True})
    dropper = apply_token_dropping(model)
    dropper.kept = 0.5
    ids = torch.tensor([[0] * 5 + [1] * 7] * ROWS)
    torch.manual_seed(0)
    one = model(TOKENS, sequence_id=ids).logits
    other = TOKENS.clone()
    other[:, :5] = 3
    torch.manual_seed(0)
    assert torch.equal(model(other, sequence_id=ids).logits[:, 5:], one[:, 5:])


def test_each_row_layer_and_forward_draws_its_own() -> None:
    model = _mpt(
        {"rope": True},
    )
    dropper = apply_token_dropping(model, num_whole=0)
    dropper.kept = 0.5
    drawn: list[list[float]] = []
    for block in model.transformer.blocks:
        block.norm_1.register_forward_pre_hook(
            lambda _, args: drawn.extend(args[0].detach()[..., 0].tolist())
        )
    model(TOKENS[:1].expand(2, -1))
    assert {len(row) for row in drawn} == {6}
    assert len({tuple(row) for row in drawn}) == len(drawn)


def test_recomputed_activations_are_of_the_same_tokens() -> None:
    gradients = []
    for recomputes in (False, True):
        model = _hf("gpt2", use_cache=False)
        if recomputes:
            model.activation_checkpointing_enable({"use_reentrant": False})
        apply_token_dropping(model).kept = 0.5
        torch.manual_seed(6)
        model(TOKENS, labels=TOKENS).loss.backward()
        gradients.append([p.grad for p in model.parameters()])
    for one, other in zip(*gradients):
        torch.testing.assert_close(one, other)


def test_the_kept_share_grows_evenly_in_multiples() -> None:
    memory, model = InMemoryLogger(), mpt(n_layers=3)
    train(
        model,
        algorithms=TokenDropping(initial_kept=0.25, duration=0.5, multiple_of=4),
        loggers=memory,
    )
    algorithm = model.model.transformer.blocks[1].forward.func.__self__
    assert algorithm.kept == 1.0
    shares = [value for _, value in memory.data["token_dropping/kept"]]
    assert shares == [0.25, 0.4375, 0.625, 0.8125, 1.0, 1.0, 1.0, 1.0]
    dropper = TokenDropper()
    dropper.multiple_of = 16
    kept = {}
    for share in (0.001, 0.25, 0.3, 0.99, 1.0):
        dropper.kept = share
        kept[share] = dropper.num_kept(100)
    assert kept == {0.001: 1, 0.25: 32, 0.3: 32, 0.99: 96, 1.0: 100}


def test_a_resumed_run_equals_the_unbroken_one(tmp_path: Path) -> None:
    def run(**kwargs: Any) -> dict[str, torch.Tensor]:
        trainer = train(
            mpt(n_layers=3),
            algorithms=TokenDropping(0.5, duration=1.0, multiple_of=1),
            save_folder=str(tmp_path),
            save_filename="ba{batch}.pt",
            save_interval="1ba",
            run_name="run",
            save_overwrite=True,
            **kwargs,
        )
        return trainer.state.model.state_dict()

    whole = run()
    resumed = run(load_path=str(tmp_path / "ba3.pt"))
    for name, value in whole.items():
        assert torch.equal(resumed[name], value), name


def test_a_second_run_and_a_copy_drop_once() -> None:
    model = _mpt({"alibi": True})
    apply_token_dropping(model).kept = 0.5
    dropper = apply_token_dropping(model)
    assert dropper.kept == 1.0
    assert torch.equal(model(TOKENS).logits, _mpt({"alibi": True})(TOKENS).logits)
    dropper.kept = 0.5
    copied = copy.deepcopy(model)
    torch.manual_seed(1)
    expected = model(TOKENS).logits
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    torch.manual_seed(1)
    assert torch.equal(copied(TOKENS).logits, expected)


def test_refusals() -> None:
    with pytest.raises(ValueError, match="no list of more than 2 layers"):
        apply_token_dropping(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match="model.layers of more than 4 layers"):
        apply_token_dropping(HuggingFaceModel(_hf("llama"), None).model, "model.layers", 2)
    with pytest.raises(ValueError, match="initial_kept=1"):
        TokenDropping(initial_kept=1)
    reused = {"order": [{"name": "default", "repeat": 2}, {"name": "x"}]}
    reused["overrides"] = {"x": {"attn_config": {"reuse_kv_layer_idx": -1}}}
    with pytest.warns(match="block_overrides"):
        model = _mpt({"rope": True}, block_overrides=reused)
    apply_token_dropping(model, num_whole=0).kept = 0.5
    with pytest.raises(NotImplementedError, match="one that left out tokens"):
        model(TOKENS)


def test_ranks_that_share_sequences_are_refused() -> None:
    for shared in ({"tp_config": {}, "cp_config": None}, {"tp_config": None, "cp_config": {}}):
        state: Any = SimpleNamespace(model=_mpt({}), **shared)
        with pytest.raises(ValueError, match="tensor or context parallelism"):
            TokenDropping().apply(Event.INIT, state, None)  # type: ignore[arg-type]


def test_unknown_arguments_are_refused() -> None:
    class Block(torch.nn.Module):
        def forward(self, x: torch.Tensor, other: Any) -> torch.Tensor:
            return x

    model = torch.nn.Module()
    model.blocks = torch.nn.ModuleList(Block() for _ in range(3))
    apply_token_dropping(model).kept = 0.5
    with pytest.raises(ValueError, match="of type object"):
        model.blocks[1](torch.zeros(2, 4, 3), object())
    with pytest.raises(ValueError, match=r"of shape \(2, 5\)"):
        model.blocks[1](torch.zeros(2, 4, 3), torch.zeros(2, 5))
