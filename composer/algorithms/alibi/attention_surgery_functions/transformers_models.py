"""What ALiBi does to models of transformers: BERT, RoBERTa, GPT-2, and Llama and its kin."""

from typing import Any

import torch

from composer.algorithms.alibi.attention_surgery_functions.bias import use_alibi_attention
from composer.algorithms.alibi.attention_surgery_functions.utils import (
    AlibiReplacementFunction,
    PolicyRegistry,
    zero_and_freeze_expand_position_embeddings,
)


def register_classes_of(model: torch.nn.Module, registry: PolicyRegistry) -> None:
    """Registers what is known to do to the classes of a model's modules.

    They are told by name and by what they have, so that no modeling file is imported in vain.
    """
    kinds = {type(module): module for module in model.modules()}
    of_transformers = {
        kind: module
        for kind, module in kinds.items()
        if kind.__module__.startswith("transformers.") and kind not in registry
    }
    for kind, module in of_transformers.items():
        function = _BY_NAME.get(kind.__name__)
        if function is None and _is_like_llama(module):
            function = _bias_attention
        if function is not None:
            registry.register(kind)(function)
    if any(_is_like_llama(module) for module in kinds.values()):
        for kind in of_transformers:
            if kind.__name__.endswith("RotaryEmbedding"):
                registry.register(kind)(_stop_rotation)


def _is_like_llama(module: Any) -> bool:
    parts = ("q_proj", "k_proj", "v_proj", "o_proj", "layer_idx", "config")
    is_attention = type(module).__name__.endswith("Attention")
    # Attention sinks are more than a mask, and the kernel that adds the bias leaves them out.
    return is_attention and all(hasattr(module, p) for p in parts) and not hasattr(module, "sinks")


def _bias_attention(
    module: torch.nn.Module, module_index: int, max_sequence_length: int
) -> torch.nn.Module:
    """Lets attention add the bias."""
    config: Any = module.config
    use_alibi_attention(config)
    config.max_position_embeddings = max_sequence_length
    return module


def _zero_positions(
    module: torch.nn.Module, module_index: int, max_sequence_length: int
) -> torch.nn.Module:
    """Takes learned positions out of BERT's and RoBERTa's embeddings."""
    embeddings: Any = module
    table = embeddings.position_embeddings
    # RoBERTa's first position comes after that of padding.
    first = 0 if table.padding_idx is None else table.padding_idx + 1
    rows = max_sequence_length + first
    zero_and_freeze_expand_position_embeddings(embeddings, rows, "position_embeddings")
    positions = torch.arange(rows, device=table.weight.device)[None]
    embeddings.position_ids = positions
    embeddings.token_type_ids = torch.zeros_like(positions)
    return embeddings


def _zero_gpt2_positions(
    module: torch.nn.Module, module_index: int, max_sequence_length: int
) -> torch.nn.Module:
    """Takes learned positions out of GPT-2."""
    zero_and_freeze_expand_position_embeddings(module, max_sequence_length, "wpe")
    return module


class NoRotation(torch.nn.Module):
    """Stands for a rotary embedding, and rotates nothing.

    Args:
        size: How many elements of a head the embedding rotated.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(
        self, x: torch.Tensor, position_ids: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns cosines that are 1 and sines that are 0, for each position."""
        shape = (*position_ids.shape, self.size)
        return x.new_ones(shape), x.new_zeros(shape)


def _stop_rotation(
    module: torch.nn.Module, module_index: int, max_sequence_length: int
) -> torch.nn.Module:
    """Takes rotary positions out of Llama and its kin."""
    frequencies: Any = getattr(module, "inv_freq", None)
    if frequencies is None:
        raise NotImplementedError(
            f"ALiBi cannot take the place of the positions of {type(module).__name__}, whose "
            "layers rotate by different frequencies."
        )
    return NoRotation(2 * frequencies.shape[-1])


_BY_NAME: dict[str, AlibiReplacementFunction] = {
    "BertEmbeddings": _zero_positions,
    "RobertaEmbeddings": _zero_positions,
    "BertSelfAttention": _bias_attention,
    "RobertaSelfAttention": _bias_attention,
    "GPT2Model": _zero_gpt2_positions,
    "GPT2Attention": _bias_attention,
}
