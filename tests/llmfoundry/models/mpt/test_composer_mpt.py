"""The MPT for the trainer: what forward keeps, losses, metrics, counts, vocabularies."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from llmfoundry.models.mpt.composer_mpt import ComposerMPTCausalLM
from tests.llmfoundry.tiny_tokenizer import train_tokenizer

SMALL: dict[str, Any] = {
    "d_model": 32,
    "n_heads": 4,
    "n_layers": 2,
    "max_seq_len": 16,
    "vocab_size": 128,
}


def _model(**kwargs: Any) -> ComposerMPTCausalLM:
    return ComposerMPTCausalLM(**{**SMALL, "attn_config": {"alibi": True}, **kwargs})


def _batch() -> dict[str, torch.Tensor]:
    tokens = torch.randint(0, 100, (3, 12))
    labels = tokens.clone()
    labels[:, :5] = -100
    return {"input_ids": tokens, "labels": labels}


def _logits(outputs: Any) -> torch.Tensor | None:
    return outputs.get("logits")


def test_training_without_metrics_keeps_no_logits() -> None:
    model, batch = _model(use_train_metrics=False).train(), _batch()
    outputs = model(batch)
    assert _logits(outputs) is None
    loss = model.loss(outputs, batch)
    loss.backward()
    gradients = [param.grad.clone() for param in model.parameters()]
    model.zero_grad()
    model.eval()
    outputs = model(batch)
    assert _logits(outputs) is not None and outputs.loss is None
    other = model.loss(outputs, batch)
    other.backward()
    torch.testing.assert_close(loss, other)
    for ours, param in zip(gradients, model.parameters(), strict=True):
        torch.testing.assert_close(ours, param.grad, atol=1e-6, rtol=1e-4)


def test_train_metrics_get_logits_without_gradient() -> None:
    model, batch = _model().train(), _batch()
    outputs = model(batch)
    assert not _logits(outputs).requires_grad
    loss = model.loss(outputs, batch)
    metrics = model.get_metrics(is_train=True)
    assert set(metrics) == {"LanguageCrossEntropy", "LanguagePerplexity", "TokenAccuracy"}
    with torch.no_grad():
        evaluated = model.eval_forward(batch, outputs)
        for metric in metrics.values():
            model.update_metric(batch, evaluated, metric)
    torch.testing.assert_close(metrics["LanguageCrossEntropy"].compute(), loss.detach())


def test_a_loss_of_ones_own_gets_logits_with_gradient() -> None:
    class Own(ComposerMPTCausalLM):
        def loss(self, outputs: Any, batch: Any) -> torch.Tensor:
            return outputs.logits.square().mean()

    model, batch = Own(**SMALL, attn_config={"alibi": True}).train(), _batch()
    model.loss(model(batch), batch).backward()
    assert model.model.transformer.wte.weight.grad is not None


def test_no_targets_give_zero() -> None:
    """Field case B03."""
    model, batch = _model(use_train_metrics=False).train(), _batch()
    batch["labels"] = torch.full_like(batch["labels"], -100)
    loss = model.loss(model(batch), batch)
    loss.backward()
    assert loss.item() == 0 and model.num_loss_tokens(batch) == 0
    assert not any(param.grad.any() for param in model.parameters())
    model.eval()
    assert model.loss(model(batch), batch).item() == 0


def test_targets_are_counted_after_the_shift() -> None:
    model, batch = _model(), _batch()
    assert model.num_loss_tokens(batch) == 3 * 7
    batch["labels"][:] = batch["input_ids"]
    assert model.num_loss_tokens(batch) == 3 * 11
    targets = model.get_targets(batch)
    assert torch.equal(targets[:, :-1], batch["labels"][:, 1:]) and (targets[:, -1] == -100).all()


@pytest.mark.filterwarnings("ignore::llmfoundry.utils.warnings.ExperimentalWarning")
@pytest.mark.filterwarnings("ignore:FLOPs are not counted")
def test_counts_and_operations_are_golden(golden: Path) -> None:
    batch = {"input_ids": torch.zeros(3, 16, dtype=torch.long)}
    for arrays in (golden / "mpt").glob("*.npz"):
        record = json.loads(arrays.with_suffix(".json").read_text())
        model = ComposerMPTCausalLM(**record["kwargs"], loss_fn="torch_crossentropy")
        assert model.n_total_params == record["n_total_params"]
        assert model.n_active_params == record["n_active_params"]
        assert model.flops_per_batch(batch) == record["flops_per_batch_3x16"]


def test_operations_of_attention_follow_its_heads() -> None:
    batch = {"input_ids": torch.zeros(1, 16, dtype=torch.long)}
    wide = _model(head_dim=12)
    attention = wide.flops_per_batch(batch) - 3 * 2 * 16 * wide.n_active_params
    n_layers, n_products, width = 2, 2, 4 * 12
    assert attention == 3 * n_layers * n_products * 2 * width * 16 * 16


@pytest.mark.filterwarnings("ignore::llmfoundry.utils.warnings.ExperimentalWarning")
def test_operations_of_uneven_blocks_are_not_counted() -> None:
    model = _model(block_overrides={"order": [{"name": "default", "repeat": 2}], "overrides": {}})
    with pytest.warns(UserWarning, match="block_overrides"):
        assert model.flops_per_batch(_batch()) == 0


def test_vocabularies() -> None:
    """Field case B89."""
    tokenizer = train_tokenizer()
    larger, smaller = len(tokenizer) + 28, len(tokenizer) - 28
    model = _model(tokenizer=tokenizer, vocab_size=larger)
    assert model.model.transformer.wte.num_embeddings == larger
    model = _model(tokenizer=tokenizer, vocab_size=smaller)
    assert model.model.transformer.wte.weight.shape[0] == len(tokenizer) == model.config.vocab_size
    assert model.model.lm_head is None
    batch = {"input_ids": torch.full((1, 4), len(tokenizer) - 1)}
    batch["labels"] = batch["input_ids"]
    model.train()
    model.loss(model(batch), batch).backward()


def test_loss_names() -> None:
    for name in ("fused_crossentropy", "torch_crossentropy"):
        _model(loss_fn=name)
    with pytest.raises(ValueError, match="fused_crossentropy"):
        _model(loss_fn="hinge")
