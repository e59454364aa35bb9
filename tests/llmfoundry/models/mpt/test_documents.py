"""Packed documents give what they give alone, for each way to attend and each kind of position."""

from itertools import pairwise
from typing import Any

import pytest
import torch

from llmfoundry.models.mpt.causal_lm import MPTForCausalLM
from llmfoundry.models.mpt.composer_mpt import ComposerMPTCausalLM
from tests.llmfoundry.models.mpt.variants import IMPLEMENTATIONS, VARIANTS, build

pytestmark = pytest.mark.filterwarnings("ignore::llmfoundry.utils.warnings.ExperimentalWarning")
LENGTHS = ((5, 4, 3), (2, 7))
"""Documents of each row; the second row ends with padding."""
S = 12


def _packed() -> tuple[dict[str, torch.Tensor], list[torch.Tensor]]:
    """Returns rows of documents, and each document on its own."""
    tokens = torch.randint(1, 97, (2, S), generator=torch.Generator().manual_seed(5))
    ids, position_ids = torch.full((2, S), -1), torch.zeros(2, S, dtype=torch.long)
    labels, alone = tokens.clone(), []
    for row, lengths in enumerate(LENGTHS):
        starts = torch.tensor([0, *lengths]).cumsum(0).tolist()
        for number, (start, end) in enumerate(pairwise(starts)):
            ids[row, start:end] = number
            position_ids[row, start:end] = torch.arange(end - start)
            labels[row, start] = -100  # the first token is no target of the document before
            alone.append(tokens[row : row + 1, start:end])
    labels[ids < 0] = -100
    batch = {"input_ids": tokens, "sequence_id": ids, "attention_mask": ids >= 0, "labels": labels}
    return {**batch, "position_ids": position_ids}, alone


def _inputs(batch: dict[str, torch.Tensor], model: MPTForCausalLM) -> dict[str, torch.Tensor]:
    """Learned positions go on through a row, unless the caller counts by document."""
    return {
        key: value
        for key, value in batch.items()
        if key != "position_ids" or model.transformer.learned_pos_emb
    }


@pytest.mark.parametrize("attn_impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", VARIANTS)
def test_packed_is_unpacked(name: str, attn_impl: str) -> None:
    """Field cases B75 and B77."""
    model = build(name, attn_impl, attn_uses_sequence_id=True).train()
    batch, documents = _packed()
    out = model(**_inputs(batch, model))
    n_targets = sum(len(document[0]) - 1 for document in documents)
    parts = [
        model(document, labels=document, sequence_id=torch.zeros_like(document))
        for document in documents
    ]
    logits = torch.cat([part.logits[0] for part in parts])
    limit = 1e-6 * float(logits.detach().abs().max())
    torch.testing.assert_close(out.logits[batch["attention_mask"]], logits, atol=limit, rtol=1e-6)
    losses = [
        part.loss * (len(document[0]) - 1) for part, document in zip(parts, documents, strict=True)
    ]
    loss = torch.stack(losses).sum() / n_targets
    torch.testing.assert_close(out.loss, loss, atol=1e-6, rtol=1e-6)
    weights = list(model.parameters())
    ours, theirs = (torch.autograd.grad(x, weights) for x in (out.loss, loss))
    limit = 1e-6 * max(float(each.abs().max()) for each in theirs)
    for found, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(found, expected, atol=limit, rtol=1e-5)


@pytest.mark.parametrize("attn_impl", IMPLEMENTATIONS)
def test_targets_of_packed_documents_are_theirs_alone(attn_impl: str) -> None:
    """Field case B77."""
    model = ComposerMPTCausalLM(
        d_model=32, n_heads=4, n_layers=1, max_seq_len=S, vocab_size=97, use_train_metrics=False,
        attn_config={"alibi": True, "attn_impl": attn_impl, "attn_uses_sequence_id": True},
    ).train()  # fmt: skip
    batch, documents = _packed()
    del batch["position_ids"]
    n_targets = [len(document[0]) - 1 for document in documents]
    assert model.num_loss_tokens(batch) == sum(n_targets)
    losses = []
    for document in documents:
        alone = {"input_ids": document, "labels": document}
        alone["sequence_id"] = torch.zeros_like(document)
        losses.append(model.loss(model(alone), alone))
    mean = sum(n * loss for n, loss in zip(n_targets, losses, strict=True)) / sum(n_targets)
    torch.testing.assert_close(model.loss(model(batch), batch), mean, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("attn_impl", IMPLEMENTATIONS)
def test_nothing_leaks(attn_impl: str) -> None:
    """Field case B75: a change of one document leaves the others to the bit."""
    for name in VARIANTS:
        model = build(name, attn_impl, attn_uses_sequence_id=True).train()
        batch, _ = _packed()
        logits = model(**_inputs(batch, model)).logits
        batch["input_ids"][0, :5] = torch.randint(1, 97, (5,))
        changed = model(**_inputs(batch, model)).logits
        assert torch.equal(changed[0, 5:], logits[0, 5:]) and torch.equal(changed[1], logits[1])
        assert not torch.equal(changed[0, :5], logits[0, :5])


def test_learned_positions_count_through_a_row_by_default() -> None:
    """As upstream's do, with which published checkpoints were trained."""
    model: Any = build("learned", "torch", attn_uses_sequence_id=True).train()
    batch, _ = _packed()
    by_row = {**batch, "position_ids": torch.arange(S).expand(2, -1)}
    unsaid = {key: value for key, value in batch.items() if key != "position_ids"}
    assert torch.equal(model(**by_row).logits, model(**unsaid).logits)
