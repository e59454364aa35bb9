"""Files that safetensors reads, tied weights once, experts apart, and no bit other than it was."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from llmfoundry.models.hf.hf_export import HFExport
from llmfoundry.models.hf.streamed_weights import check_weights, tied_copies
from tests.llmfoundry.models.hf import tiny

SIZES: dict[str, Any] = tiny.SIZES | {"num_local_experts": 3, "num_experts_per_tok": 2}


def _write(model: Any, folder: Path, size: str = "5GB", dtype: Any = torch.float32) -> HFExport:
    folder.mkdir()
    export = HFExport(model, dtype)
    export.write(folder, size)
    check_weights(export.weights, folder)
    return export


def _read(folder: Path) -> dict[str, torch.Tensor]:
    return {k: v for p in folder.glob("*.safetensors") for k, v in load_file(p).items()}


@pytest.mark.parametrize("kind", ["gpt2", "llama", "llama_tied", "mixtral", "t5"])
@pytest.mark.parametrize("size", ["5GB", "8KB"])
def test_files_are_those_of_transformers(kind: str, size: str, tmp_path: Path) -> None:
    if kind == "mixtral":
        model: Any = transformers.MixtralForCausalLM(transformers.MixtralConfig(**SIZES))
    elif kind == "t5":
        sizes = {"d_model": 16, "d_ff": 32, "d_kv": 8, "num_layers": 2, "num_heads": 2}
        config = transformers.T5Config(vocab_size=96, **sizes)
        model = transformers.T5ForConditionalGeneration(config)
    else:
        model = tiny.build(kind)
    model.save_pretrained(tmp_path / "theirs", max_shard_size=size)
    _write(model, tmp_path / "ours", size)
    ours, theirs = _read(tmp_path / "ours"), _read(tmp_path / "theirs")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    if size == "8KB":
        indices = (tmp_path / f / "model.safetensors.index.json" for f in ("ours", "theirs"))
        index, their_index = (json.loads(path.read_text()) for path in indices)
        assert index["weight_map"].keys() == their_index["weight_map"].keys()
        counts = {each["metadata"]["total_parameters"] for each in (index, their_index)}
        assert len(counts) == 1
        assert index["metadata"]["total_size"] == sum(w.nbytes for w in ours.values())
        assert len(set(index["weight_map"].values())) > 2


def test_a_cast_leaves_the_model_as_it_is(tmp_path: Path) -> None:
    model = tiny.build("llama")
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    export = _write(model, tmp_path / "hf", dtype=torch.bfloat16)
    read = _read(tmp_path / "hf")
    assert all(torch.equal(read[n], before[n].bfloat16()) for n in before)
    assert all(torch.equal(w, before[n]) for n, w in model.state_dict().items())
    assert model.config.dtype != export.config.dtype == torch.bfloat16
    header = (tmp_path / "hf" / "model.safetensors").read_bytes()[:8]
    assert int.from_bytes(header, "little") % 8 == 0


def test_tied_names() -> None:
    assert tied_copies(tiny.build("llama_tied")) == {"lm_head.weight": "model.embed_tokens.weight"}
    assert tied_copies(tiny.build("llama")) == {}


def test_a_damaged_bit_is_found(tmp_path: Path) -> None:
    export = _write(tiny.build("llama"), tmp_path / "hf")
    path = tmp_path / "hf" / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(RuntimeError, match=r"different: \[\'lm_head\.weight\'\]"):
        check_weights(export.weights, tmp_path / "hf")
    path.unlink()
    with pytest.raises(RuntimeError, match=r"Missing: .*lm_head\.weight"):
        check_weights(export.weights, tmp_path / "hf")
