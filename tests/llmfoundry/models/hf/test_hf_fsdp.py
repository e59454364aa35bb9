"""A Llama and a T5 of transformers say what is sharded; two ranks do what one does."""

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, T5Config, T5ForConditionalGeneration

from composer.loggers.in_memory_logger import InMemoryLogger
from composer.models.huggingface import HuggingFaceModel
from composer.trainer.trainer import Trainer
from composer.utils import dist
from llmfoundry.models.hf.hf_fsdp import prepare_hf_model_for_fsdp
from llmfoundry.utils.meta_init_context import init_empty_weights
from tests.launch import run_ranks


def llama(tied: bool = False, init_device: str = "cpu") -> Any:
    torch.manual_seed(2)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=tied,
        use_cache=False,
    )
    if init_device == "meta":
        with init_empty_weights():
            model = LlamaForCausalLM(config)
        model.tie_weights()
    else:
        model = LlamaForCausalLM(config)
    prepare_hf_model_for_fsdp(model, init_device)
    return model


def test_blocks_are_units() -> None:
    model: Any = llama()
    units = [name for name, module in model.named_modules() if model.fsdp_wrap_fn(module)]
    assert units == ["model.layers.0", "model.layers.1"]
    assert model.activation_checkpointing_fn(model.model.layers[0])
    sizes: dict[str, Any] = {"d_model": 8, "d_ff": 8, "num_heads": 2, "d_kv": 4, "num_layers": 1}
    t5: Any = T5ForConditionalGeneration(T5Config(vocab_size=32, **sizes))
    prepare_hf_model_for_fsdp(t5, "cpu")
    units = [name for name, module in t5.named_modules() if t5.fsdp_wrap_fn(module)]
    assert units == ["encoder.block.0", "decoder.block.0"]


def test_a_model_without_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="Unable to FSDP-wrap"):
        prepare_hf_model_for_fsdp(torch.nn.Linear(2, 2), "cpu")


def _losses(parallelism: Any, tied: bool, init_device: str = "cpu") -> list[float]:
    model = HuggingFaceModel(llama(tied, init_device), use_logits=True)
    generator = torch.Generator().manual_seed(4)
    tokens = torch.randint(0, 64, (16, 12), generator=generator)
    size = 4 // dist.get_world_size()
    first = dist.get_global_rank() * size
    rows = [tokens[start + first : start + first + size] for start in range(0, 16, 4)]
    logger = InMemoryLogger()
    trainer = Trainer(
        model=model,
        parallelism_config=parallelism,
        train_dataloader=[{"input_ids": each, "labels": each} for each in rows],
        optimizers=torch.optim.AdamW(model.parameters(), lr=1e-3),
        max_duration="4ba",
        device="cpu",
        seed=5,
        progress_bar=False,
        device_train_microbatch_size=1,
        loggers=logger,
    )
    trainer.fit()
    return [float(value) for _, value in logger.data["loss/train/total"]]


def _sharded() -> list[list[float]]:
    settings = {"fsdp2": {"activation_checkpointing": True}}
    return [
        _losses(settings, tied=True),
        _losses(settings, tied=False),
        _losses(settings, tied=True, init_device="meta"),
    ]


def test_two_ranks_equal_one() -> None:
    tied, untied, from_meta = run_ranks(_sharded, 2)[0]
    for losses, is_tied in ((tied, True), (untied, False)):
        expected = _losses(None, is_tied)
        assert max(abs(a - b) for a, b in zip(losses, expected, strict=True)) < 1e-5
    assert from_meta[0] == pytest.approx(tied[0], rel=0.05)
