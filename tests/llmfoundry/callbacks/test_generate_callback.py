"""The recipe's `generate_callback` lets MPT write while it trains."""

import json

import pytest
import torch

from llmfoundry.builders.components import build_callback
from llmfoundry.models.mpt.composer_mpt import ComposerMPTCausalLM
from tests.composer.callbacks.guarded import make_trainer, memory_of
from tests.llmfoundry.tiny_tokenizer import train_tokenizer

PROMPTS = ["the cat sat on the mat and the dog", "it"]


def rows():
    torch.manual_seed(0)
    ids = torch.randint(3, 259, (4, 12))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}


@pytest.mark.parametrize("attention", [{"alibi": True}, {"rope": True}, {}])
def test_batched_and_left_padded_equals_alone(attention):
    texts = []
    for batch_size in (2, 1):
        tokenizer = train_tokenizer()
        torch.manual_seed(1)
        model = ComposerMPTCausalLM(
            tokenizer=tokenizer,
            d_model=32,
            n_heads=4,
            n_layers=2,
            expansion_ratio=2,
            max_seq_len=64,
            vocab_size=len(tokenizer),
            attn_config={"attn_impl": "torch", **attention},
        )
        settings = {"prompts": PROMPTS, "interval": "1ba", "batch_size": batch_size}
        callback = build_callback(
            "generate_callback", settings | {"max_new_tokens": 6, "do_sample": False}
        )
        trainer = make_trainer(callback, data=[rows()], model=model)
        trainer.fit()
        texts.append(json.loads(memory_of(trainer).tables["generations"])["data"])
        trainer.close()
    assert texts[0] == texts[1]
    assert [prompt for prompt, _ in texts[0]] == PROMPTS


def test_without_an_interval_it_is_refused():
    with pytest.raises(TypeError, match="interval"):
        build_callback("generate_callback", {"prompts": PROMPTS})


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("activation_monitor", {}),
        ("best_checkpoints", {"monitor": "LanguagePerplexity"}),
        ("checkpoint_now", {}),
        ("image_visualizer", {}),
        ("memory_snapshot", {}),
        ("oom_observer", {}),
        ("stability_monitor", {"action": "skip_step"}),
        ("system_metrics_monitor", {}),
        ("threshold_stopper", {"monitor": "m", "dataloader_label": "eval", "threshold": 1.0}),
    ],
)
def test_recipes_can_name(name, settings):
    assert build_callback(name, settings) is not None
