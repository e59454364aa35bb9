"""The two ends of a language model: token embedding and output layer, which may be one module.

Either computes the loss itself where only the loss is wanted. It happens inside the module's call,
where sharding has gathered its weight.

Legend: B batch, S sequence, E model width, V vocabulary.
"""

from typing import Any

import torch
import torch.nn.functional as F

from llmfoundry.models.utils.chunked_cross_entropy import chunked_cross_entropy

__all__ = ["LanguageModelHead", "SharedEmbedding"]


def _unembed(
    hidden_BSE: torch.Tensor, weight_VE: torch.Tensor, targets: torch.Tensor | None, **scaling: Any
) -> torch.Tensor:
    """Returns logits, or with ``targets`` their summed cross-entropy."""
    if targets is None:
        return _logits_of(hidden_BSE, weight_VE)
    return chunked_cross_entropy(hidden_BSE.flatten(0, -2), weight_VE, targets.flatten(), **scaling)


def _logits_of(hidden_BSE: torch.Tensor, weight_VE: torch.Tensor) -> torch.Tensor:
    """Returns ``hidden @ weight.T``, on CPUs fast for a few tokens too, as in generation.

    MKL reads the weight up to three times as fast where it is the left factor, and has two columns
    at least: measured on AMD EPYC for 50,368 x 768 in fp32, 6.8 ms against 9.4 for one token, 7.4
    against 20.5 for two, 15.7 against 18.9 for eight; from twelve on it is slower.
    """
    width = hidden_BSE.size(-1)
    n_rows = hidden_BSE.numel() // width
    is_plain = type(weight_VE) in (torch.Tensor, torch.nn.Parameter) and weight_VE.is_cpu
    if (
        not is_plain
        or not 0 < n_rows <= 8
        or hidden_BSE.dtype != torch.float32
        or weight_VE.dtype != torch.float32
        or torch.is_grad_enabled()
        or torch.compiler.is_compiling()
    ):
        return F.linear(hidden_BSE, weight_VE)
    rows_NE = hidden_BSE.reshape(n_rows, width)
    if n_rows == 1:
        rows_NE = rows_NE.repeat(2, 1)
    logits_VN = weight_VE @ rows_NE.t()
    return logits_VN.t()[:n_rows].reshape(*hidden_BSE.shape[:-1], -1)


class SharedEmbedding(torch.nn.Embedding):
    """Embeds tokens; with ``unembed=True`` it is the output layer of a model with tied weights."""

    @classmethod
    def around(cls, embedding: torch.nn.Embedding) -> "SharedEmbedding":
        """Returns a shared embedding with the very weight of another."""
        if isinstance(embedding, cls):
            return embedding
        shared = cls(*embedding.weight.shape, padding_idx=embedding.padding_idx, device="meta")
        shared.weight = embedding.weight
        return shared

    def forward(
        self,
        input: torch.Tensor,
        unembed: bool = False,
        targets: torch.Tensor | None = None,
        **scaling: Any,
    ) -> torch.Tensor:
        """Returns embeddings of tokens; or logits of hidden states, or with targets their loss.

        Args:
            input: Tokens ``[B, S]``, or hidden states ``[B, S, E]``.
            unembed: Whether the input is hidden states.
            targets: The right tokens ``[B, S]``, -100 where there are none.
            **scaling: ``logit_scale``, ``softcap`` and ``z_loss`` of ``chunked_cross_entropy``.
        """
        if unembed:
            return _unembed(input, self.weight, targets, **scaling)
        return super().forward(input)


class LanguageModelHead(torch.nn.Linear):
    """The output layer of a model whose weights are not tied."""

    @classmethod
    def around(cls, linear: torch.nn.Linear) -> "LanguageModelHead":
        """Returns a head with the very weight of a linear layer."""
        if isinstance(linear, cls):
            return linear
        head = cls(linear.in_features, linear.out_features, bias=False, device="meta")
        head.weight = linear.weight
        return head

    def forward(
        self,
        input: torch.Tensor,
        targets: torch.Tensor | None = None,
        **scaling: Any,
    ) -> torch.Tensor:
        """Returns logits ``[B, S, V]``, or with targets their summed cross-entropy."""
        return _unembed(input, self.weight, targets, **scaling)
