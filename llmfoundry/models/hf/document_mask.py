"""Several documents in a row of a transformers model: none may see another."""

from typing import Any

import torch

__all__ = ["has_one_document_a_row", "with_document_mask"]

MASKED_BY_TENSOR = ("eager", "sdpa")
"""Implementations of attention that take a mask of each pair of tokens."""


def with_document_mask(
    inputs: dict[str, Any], sequence_id: torch.Tensor, model: Any
) -> dict[str, Any]:
    """Returns a model's inputs, such that each document is computed as if it were alone.

    Args:
        inputs: Keyword arguments of the model: ``input_ids`` of ``[B, S]``, and its
            ``attention_mask`` if there is padding.
        sequence_id: For each token which document of its row it belongs to, ``[B, S]``; -1 for
            padding.
        model: The model, whose configuration says how it computes attention.

    Raises:
        ValueError: If the model's attention cannot be given such a mask, and a row has several
            documents.
    """
    config = model.config.get_text_config()
    n_tokens = sequence_id.size(1)
    is_stateful = getattr(model, "_is_stateful", False)
    if (reason := _why_not(config, n_tokens, is_stateful)) is not None:
        if has_one_document_a_row(sequence_id):
            return inputs
        raise ValueError(reason)
    same = sequence_id[:, :, None] == sequence_id[:, None, :]
    causal = torch.ones(n_tokens, n_tokens, dtype=torch.bool, device=sequence_id.device).tril()
    allowed = same & causal
    padding = inputs.get("attention_mask")
    if padding is not None:
        allowed &= padding.bool()[:, None, :]
        # A row of nothing has no softmax; what padding computes is not looked at.
        allowed |= torch.eye(n_tokens, dtype=torch.bool, device=allowed.device)
    return {
        **inputs,
        "attention_mask": _as_bias(allowed[:, None], model.dtype, config._attn_implementation),
        "position_ids": inputs.get("position_ids", _positions(sequence_id)),
    }


def has_one_document_a_row(sequence_id: torch.Tensor) -> bool:
    """Says whether no row has several documents; -1 is padding. Waits for the device."""
    last = sequence_id.amax(dim=1, keepdim=True)
    return bool(((sequence_id == last) | (sequence_id < 0)).all())


def _why_not(config: Any, n_tokens: int, is_stateful: bool) -> str | None:
    """Why a model of this configuration cannot keep documents apart, or None if it can."""
    if is_stateful:
        return (
            f"Models of the kind {config.model_type!r} carry a state along a row, from one "
            "document into the next; use rows of one document each."
        )
    if config.model_type == "bloom" or getattr(config, "alibi", False):
        return (
            f"Models of the kind {config.model_type!r} with ALiBi count distances by a mask of "
            "single tokens, so they cannot be given one of pairs; use rows of one document each."
        )
    implementation = config._attn_implementation
    if implementation not in MASKED_BY_TENSOR:
        return (
            f"attn_implementation={implementation!r} cannot keep the documents of a row apart "
            f"here; use one of {MASKED_BY_TENSOR}, or rows of one document each."
        )
    window = getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or ())
    slides = "sliding_attention" in kinds or (window is not None and not kinds)
    if slides and window is not None and window < n_tokens:
        return (
            f"This model's attention slides over {window} tokens, which a mask of documents would "
            f"switch off in rows of {n_tokens}; use rows of at most {window} tokens, or of one "
            "document each."
        )
    if other := kinds - {"full_attention", "sliding_attention"}:
        return (
            f"Layers of the kinds {sorted(other)} carry a state along a row, from one document "
            "into the next; use rows of one document each."
        )
    return None


def _as_bias(allowed: torch.Tensor, dtype: torch.dtype, implementation: str) -> torch.Tensor:
    if implementation == "sdpa":
        return allowed
    least = torch.finfo(dtype).min
    return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill(
        ~allowed, least
    )


def _positions(sequence_id: torch.Tensor) -> torch.Tensor:
    """Positions that begin anew where a document does."""
    index = torch.arange(sequence_id.size(1), device=sequence_id.device).expand_as(sequence_id)
    begins = torch.ones_like(sequence_id, dtype=torch.bool)
    begins[:, 1:] = sequence_id[:, 1:] != sequence_id[:, :-1]
    start = torch.where(begins, index, torch.zeros_like(index)).cummax(dim=1).values
    return index - start
