"""Generation by an MPT in the ways of transformers' ``generate``, with each kind of cache."""

from typing import Any

import pytest
import torch
from transformers import DynamicCache

from llmfoundry.models.mpt.cache import CACHE_FIELD
from llmfoundry.models.mpt.causal_lm import MPTForCausalLM
from tests.llmfoundry.models.mpt.variants import VARIANTS, build

MODES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampling": {"do_sample": True, "temperature": 2.0, "top_k": 20},
    "beams": {"num_beams": 3},
    "sampled beams": {"num_beams": 3, "do_sample": True},
    "repetition penalty": {"repetition_penalty": 1.5, "no_repeat_ngram_size": 2},
    "several": {"num_return_sequences": 2, "do_sample": True},
    "prompt lookup": {"prompt_lookup_num_tokens": 3},
    "chunked prefill": {"prefill_chunk_size": 3},
}

pytestmark = pytest.mark.filterwarnings(
    "ignore::llmfoundry.utils.warnings.ExperimentalWarning",
    "ignore::llmfoundry.utils.warnings.VersionedDeprecationWarning",
)


def _continue(model: MPTForCausalLM, tokens: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    settings = {"max_new_tokens": 9, "do_sample": False, "use_cache": True, "pad_token_id": 0}
    torch.manual_seed(3)
    return model.generate(tokens, **{**settings, **kwargs})[:, tokens.size(1) :]


def _prompts(rows: int) -> dict[str, torch.Tensor]:
    tokens = torch.randint(1, 97, (rows, 7), generator=torch.Generator().manual_seed(6))
    mask = torch.ones_like(tokens)
    if rows > 1:
        mask[0, :4] = 0
    return {"input_ids": tokens, "attention_mask": mask}


@pytest.mark.parametrize("mode", MODES)
def test_a_cache_changes_no_mode(mode: str) -> None:
    model = build("alibi")
    prompts = _prompts(1 if mode == "prompt lookup" else 2)
    tokens, mask = prompts["input_ids"], {"attention_mask": prompts["attention_mask"]}
    expected = _continue(model, tokens, **mask, **MODES[mode])
    again = _continue(model, tokens, **mask, **MODES[mode])
    assert torch.equal(expected, again)
    if mode in ("prompt lookup", "chunked prefill"):  # which need a cache
        assert torch.equal(expected, _continue(model, tokens, **mask))
        return
    assert torch.equal(expected, _continue(model, tokens, **mask, **MODES[mode], use_cache=False))


@pytest.mark.parametrize("name", VARIANTS)
def test_a_static_cache(name: str) -> None:
    model, prompts = build(name), _prompts(2)
    tokens, mask = prompts["input_ids"], prompts["attention_mask"]
    expected = _continue(model, tokens, attention_mask=mask)
    static = {"cache_implementation": "static"}
    assert torch.equal(expected, _continue(model, tokens, attention_mask=mask, **static))
    beams = [_continue(model, tokens, num_beams=2, **more) for more in ({}, static)]
    assert torch.equal(*beams)


def test_a_cache_is_continued() -> None:
    """As a chat does: the second prompt begins with the first and its answer."""
    model, tokens = build("alibi"), _prompts(1)["input_ids"]
    cache = DynamicCache(config=model.config)
    answer = _continue(model, tokens, **{CACHE_FIELD: cache})
    longer = torch.cat([tokens, answer, tokens], dim=1)
    read: list[int] = []
    handle = model.register_forward_pre_hook(
        lambda module, args, kwargs: read.append(kwargs["input_ids"].size(1)), with_kwargs=True
    )
    continued = _continue(model, longer, **{CACHE_FIELD: cache})
    assert read == [len(tokens[0]) + 1] + [1] * 8
    handle.remove()
    assert torch.equal(continued, _continue(model, longer))


def test_right_padding_is_refused_at_the_first_step_alone() -> None:
    """Field case B83; and no step after it looks at the mask again."""
    model, prompts = build("alibi"), _prompts(2)
    tokens, mask = prompts["input_ids"], prompts["attention_mask"].flip(1)
    for use_cache in (True, False):
        with pytest.raises(NotImplementedError, match="tokenizer.padding_side = 'left'"):
            _continue(model, tokens, attention_mask=mask, use_cache=use_cache)
    inputs = model.prepare_inputs_for_generation(tokens, attention_mask=None)
    assert inputs["attention_mask"] is None


@pytest.mark.parametrize("name", ["learned", "linear"])
def test_padding_between_tokens_is_left_out(name: str) -> None:
    """As in batches of several turns, each padded; only padding at the end is refused."""
    model, tokens = build(name), _prompts(1)["input_ids"]
    mask = torch.ones_like(tokens)
    mask[0, 2:4] = 0
    for use_cache in (True, False):
        holey = _continue(model, tokens, attention_mask=mask, use_cache=use_cache)
        assert torch.equal(holey, _continue(model, tokens[mask.bool()][None]))


def test_few_logits_are_those_of_many() -> None:
    """The head has a way of its own for a few tokens without gradients."""
    model, tokens = build("alibi"), _prompts(2)["input_ids"]
    whole = model(tokens).logits
    with torch.no_grad():
        for kept in (1, 4, 5):
            few = model(tokens, logits_to_keep=kept).logits
            torch.testing.assert_close(few, whole[:, -kept:], atol=1e-5, rtol=1e-5)
        one = model(tokens[:1], logits_to_keep=1).logits
    torch.testing.assert_close(one, whole[:1, -1:], atol=1e-5, rtol=1e-5)
