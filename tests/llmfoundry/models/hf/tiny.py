"""Tiny transformers models of many kinds, saved to folders."""

from pathlib import Path
from typing import Any

import torch
import transformers

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", {"vocab_size": 96, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64}
             | {"bos_token_id": 0, "eos_token_id": 1, "attn_pdrop": 0, "embd_pdrop": 0}
             | {"resid_pdrop": 0}),
    "llama": ("Llama", SIZES),
    "llama_tied": ("Llama", SIZES | {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", SIZES | {"head_dim": 8}),
    "mpt": ("Mpt", {"vocab_size": 96, "d_model": 16, "n_heads": 2, "n_layers": 2}
            | {"max_seq_len": 64, "bos_token_id": 0, "eos_token_id": 1}),
    "bloom": ("Bloom", {"vocab_size": 96, "hidden_size": 16, "n_layer": 2, "n_head": 2}
              | {"bos_token_id": 0, "eos_token_id": 1}),
    "falcon": ("Falcon", SIZES | {"alibi": True, "new_decoder_architecture": False}),
    "mamba": ("Mamba", {"vocab_size": 96, "hidden_size": 16, "num_hidden_layers": 2}
              | {"bos_token_id": 0, "eos_token_id": 1}),
    "gemma2": ("Gemma2", SIZES | {"head_dim": 8, "final_logit_softcapping": 0.05}),
    "cohere": ("Cohere", SIZES | {"logit_scale": 0.25}),
    "granite": ("Granite", SIZES | {"logits_scaling": 4.0}),
}  # fmt: skip
"""Kind of model and its configuration; the caps are small, so that fresh weights meet them."""


def build(kind: str, seed: int = 3, **changes: Any) -> Any:
    """A model with fresh weights, large enough for differences to show."""
    name, settings = KINDS[kind]
    torch.manual_seed(seed)
    config = getattr(transformers, f"{name}Config")(**{**settings, **changes})
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(5)
    return model.eval()


def save(kind: str, folder: Path, **changes: Any) -> str:
    """Saves one to a folder and returns its path."""
    build(kind, **changes).save_pretrained(folder)
    return str(folder)


def rows(n_rows: int = 3, n_tokens: int = 12, seed: int = 5) -> dict[str, torch.Tensor]:
    """Tokens and labels, some of which are no targets."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(3, 96, (n_rows, n_tokens), generator=generator)
    labels = tokens.masked_fill(torch.rand(tokens.shape, generator=generator) < 0.3, -100)
    mask = torch.ones_like(tokens)
    return {"input_ids": tokens, "attention_mask": mask, "labels": labels}
