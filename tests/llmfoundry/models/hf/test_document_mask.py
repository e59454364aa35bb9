"""Documents that share a row are computed as if each were alone, or their row is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import T5Config, T5ForConditionalGeneration

from llmfoundry.models import ComposerHFCausalLM, ComposerHFT5
from tests.llmfoundry.models.hf.tiny import build, rows, save

LENGTHS = (5, 7)
N_PADDING = 3


def packed() -> tuple[dict[str, torch.Tensor], list[dict[str, torch.Tensor]]]:
    """Two documents and padding in one row, and each document in a row of its own."""
    alone = [rows(1, n_tokens, seed=n_tokens) for n_tokens in LENGTHS]
    for each in alone:
        each["labels"][:, 0] = -100  # the first token of a document follows nothing
    batch = {
        "input_ids": torch.cat([*(each["input_ids"] for each in alone)] + [_full(2)], dim=1),
        "labels": torch.cat([*(each["labels"] for each in alone)] + [_full(-100)], dim=1),
        "attention_mask": torch.tensor([[1] * sum(LENGTHS) + [0] * N_PADDING]),
        "sequence_id": torch.tensor([[0] * LENGTHS[0] + [1] * LENGTHS[1] + [-1] * N_PADDING]),
    }
    return batch, alone


def _full(value: int) -> torch.Tensor:
    return torch.full((1, N_PADDING), value)


def wrapped(folder: str, **settings: Any) -> ComposerHFCausalLM:
    return ComposerHFCausalLM(None, folder, use_train_metrics=False, **settings)


WAYS = [
    (kind, attention)
    for kind in ("gpt2", "llama", "qwen3", "mpt")
    for attention in ("eager", "sdpa")
    if (kind, attention) != ("mpt", "sdpa")  # which transformers does not have
]


@pytest.mark.parametrize(("kind", "attention"), WAYS)
def test_packed_documents_are_as_if_alone(kind: str, attention: str, tmp_path: Path) -> None:
    model, bare = wrapped(save(kind, tmp_path), attn_implementation=attention), build(kind)
    batch, alone = packed()
    n_targets = [int((each["labels"][:, 1:] != -100).sum()) for each in alone]
    assert model.num_loss_tokens is not None
    assert model.num_loss_tokens(batch) == sum(n_targets)
    for module in (model, bare):  # dropouts are off in the configurations
        module.train()
    loss = model.loss(model(batch), batch)
    losses = [bare(**each).loss * n for each, n in zip(alone, n_targets, strict=True)]
    expected = torch.stack(losses).sum() / sum(n_targets)
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-6)
    loss.backward()
    expected.backward()
    theirs = dict(bare.named_parameters())
    for name, parameter in model.model.named_parameters():
        wanted = theirs[name].grad
        torch.testing.assert_close(
            parameter.grad, wanted, rtol=1e-5, atol=1e-6 * float(wanted.abs().max())
        )


@pytest.mark.parametrize(("kind", "attention"), WAYS)
def test_a_document_does_not_see_another(kind: str, attention: str, tmp_path: Path) -> None:
    model = wrapped(save(kind, tmp_path), attn_implementation=attention).eval()
    batch, alone = packed()
    own = slice(LENGTHS[0], sum(LENGTHS))
    for compute in (lambda: model(batch).logits, lambda: model.eval_forward(batch)):
        logits = compute()[:, own]
        expected = build(kind)(input_ids=alone[1]["input_ids"]).logits
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-6)
        batch["input_ids"][:, 0] += 1
        torch.testing.assert_close(compute()[:, own], logits, rtol=0, atol=1e-6)


def one_a_row() -> dict[str, torch.Tensor]:
    """The second document, with padding on both sides of it."""
    batch, _ = packed()
    is_other = batch["sequence_id"] == 0
    batch["attention_mask"] = batch["attention_mask"].masked_fill(is_other, 0)
    batch["sequence_id"] = batch["sequence_id"].masked_fill(is_other, -1)
    return batch


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_attention_that_takes_no_such_mask_is_refused(kind: str, tmp_path: Path) -> None:
    model = wrapped(save(kind, tmp_path), attn_implementation="flex_attention")
    with pytest.raises(ValueError, match="attn_implementation='flex_attention' cannot keep"):
        model(packed()[0])


def test_a_window_that_the_mask_would_switch_off_is_refused(tmp_path: Path) -> None:
    model = wrapped(save("gemma2", tmp_path, sliding_window=8))
    with pytest.raises(ValueError, match="slides over 8 tokens.* rows of 15"):
        model(packed()[0])
    assert model(one_a_row()).loss.isfinite()


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("bloom", "'bloom' with ALiBi"),
        ("falcon", "'falcon' with ALiBi"),
        ("mamba", "carry a state"),
    ],
)
def test_models_that_take_no_mask_of_pairs_take_one_document_a_row(
    kind: str, reason: str, tmp_path: Path
) -> None:
    model, bare = wrapped(save(kind, tmp_path)).eval(), build(kind)
    with pytest.raises(ValueError, match=reason):
        model(packed()[0])
    batch = one_a_row()
    expected = bare(**{key: batch[key] for key in ("input_ids", "attention_mask")}).logits
    torch.testing.assert_close(model(batch).logits, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore::llmfoundry.utils.warnings.ExperimentalWarning")
def test_an_encoder_decoder_refuses_them(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"d_model": 16, "d_ff": 16, "num_heads": 2, "d_kv": 8, "num_layers": 1}
    config = T5Config(vocab_size=96, decoder_start_token_id=0, **sizes)
    T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    model = ComposerHFT5(None, str(tmp_path))
    for compute in (model, model.eval_forward):
        with pytest.raises(ValueError, match="ComposerHFT5 cannot keep the documents"):
            compute(packed()[0])
    assert model(one_a_row()).loss.isfinite()
