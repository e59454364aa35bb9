"""What every model of transformers keeps: its vocabulary, ties and buffers; who downloads it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from composer import Trainer
from composer.utils import dist
from llmfoundry.models import ComposerHFCausalLM
from tests.launch import run_ranks
from tests.llmfoundry.models.hf.fake_hub import serving
from tests.llmfoundry.models.hf.tiny import build, rows, save
from tests.llmfoundry.tiny_tokenizer import train_tokenizer

TIED = ["llama_tied", "gpt2", "mpt"]


@pytest.mark.parametrize("kind", [*TIED, "llama", "qwen3"])
def test_a_larger_vocabulary_than_the_tokenizers_is_left(kind: str, tmp_path: Path) -> None:
    tokenizer = train_tokenizer()
    model = ComposerHFCausalLM(tokenizer, save(kind, tmp_path, vocab_size=len(tokenizer) + 28))
    weights = build(kind, vocab_size=len(tokenizer) + 28).state_dict()
    assert model.model.state_dict().keys() == weights.keys()
    for name, value in model.model.state_dict().items():
        assert torch.equal(value, weights[name])


@pytest.mark.parametrize("kind", [*TIED, "llama", "qwen3"])
def test_a_smaller_one_grows_at_both_ends(kind: str, tmp_path: Path) -> None:
    folder, tokenizer = save(kind, tmp_path), train_tokenizer()
    with pytest.raises(ValueError, match="more than the model's vocabulary of 96"):
        ComposerHFCausalLM(tokenizer, folder)
    model = ComposerHFCausalLM(tokenizer, folder, allow_embedding_resizing=True)
    embedding = model.model.get_input_embeddings().weight
    head = model.model.get_output_embeddings().weight
    assert (head is embedding) == (kind in TIED)
    assert len(embedding) == len(head) == model.config.vocab_size == len(tokenizer)
    bare, batch = build(kind), rows()
    assert torch.equal(embedding[:96], bare.get_input_embeddings().weight)
    assert torch.equal(head[:96], bare.get_output_embeddings().weight)
    batch["input_ids"][:, 0] = len(tokenizer) - 1  # a new token is read and predicted
    assert model.eval()(batch).logits.shape[-1] == len(tokenizer)
    batch["labels"][:, -1] = len(tokenizer) - 1
    assert model.train()(batch).loss.isfinite()


@pytest.mark.parametrize("kind", [*TIED, "llama"])
def test_tied_weights_are_stored_once_and_tied_again(kind: str, tmp_path: Path) -> None:
    model = ComposerHFCausalLM(None, save(kind, tmp_path / "a"))
    model.model.save_pretrained(tmp_path / "b")
    stored = load_file(tmp_path / "b" / "model.safetensors")
    n_rows_of_vocabulary = sum(each.shape[0] == 96 for each in stored.values())
    assert n_rows_of_vocabulary == (1 if kind in TIED else 2)
    loaded: Any = ComposerHFCausalLM(None, str(tmp_path / "b")).model
    tied = loaded.get_input_embeddings().weight is loaded.get_output_embeddings().weight
    assert tied == (kind in TIED)
    ids = rows()["input_ids"]
    assert torch.equal(loaded(ids).logits, build(kind)(ids).logits)


LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
ROTARY: dict[str, Any] = {
    "rope_parameters": LLAMA3 | {"original_max_position_embeddings": 32, "rope_theta": 1e4}
}
BUFFERED = [("llama", ROTARY), ("qwen3", {}), ("gpt2", {}), ("mpt", {}), ("gemma2", {})]


def _buffers(folder: str, init_device: str) -> dict[str, torch.Tensor]:
    model = ComposerHFCausalLM(None, folder, pretrained=False, init_device=init_device)
    Trainer(
        model=model,
        optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
        parallelism_config={"fsdp": {}},
        progress_bar=False,
        device="cpu",
    )
    assert not any(each.is_meta for each in model.parameters())
    return dict(model.model.named_buffers())


def _buffers_of_all(folders: list[str]) -> list[tuple[Any, Any]]:
    return [(_buffers(each, "meta"), _buffers(each, "cpu")) for each in folders]


def test_buffers_after_meta_are_those_of_the_cpu(tmp_path: Path) -> None:
    folders = [save(kind, tmp_path / kind, **changes) for kind, changes in BUFFERED]
    (found,) = run_ranks(_buffers_of_all, 1, folders)
    for (kind, changes), (from_meta, from_cpu) in zip(BUFFERED, found, strict=True):
        expected = dict(build(kind, **changes).named_buffers())
        assert from_meta.keys() == from_cpu.keys() == expected.keys()
        for name, value in expected.items():
            assert torch.equal(from_meta[name], value) and torch.equal(from_cpu[name], value)
    assert found[0][0], "a rotary model has frequencies"


def test_a_setting_below_a_setting_leaves_its_siblings(tmp_path: Path) -> None:
    folder = save("mpt", tmp_path)
    before = build("mpt").config.attn_config.to_dict()
    overrides = {"attn_config": {"clip_qkv": 6.0}}
    config: Any = ComposerHFCausalLM(None, folder, config_overrides=overrides).config
    assert config.attn_config.to_dict() == {**before, "clip_qkv": 6.0, "dtype": "float32"}
    with pytest.raises(ValueError, match="\"clip_kqv\".*Did you mean 'clip_qkv'"):
        ComposerHFCausalLM(None, folder, config_overrides={"attn_config": {"clip_kqv": 6.0}})


def _downloaded(url: str, cache: str, init_device: str) -> float:
    from huggingface_hub import constants

    constants.HF_HUB_OFFLINE = False
    constants.ENDPOINT = url
    constants.HUGGINGFACE_CO_URL_TEMPLATE = url + "/{repo_id}/resolve/{revision}/{filename}"
    constants.HF_HUB_CACHE = cache
    model = ComposerHFCausalLM(None, "tiny/model", init_device=init_device)
    on_meta = next(model.parameters()).is_meta
    assert on_meta == (init_device == "mixed" and dist.get_global_rank() > 0)
    return 0.0 if on_meta else float(model.model.get_input_embeddings().weight.detach().norm())


@pytest.mark.parametrize("init_device", ["mixed", "cpu"])
def test_a_node_downloads_a_model_once(init_device: str, tmp_path: Path) -> None:
    save("llama", tmp_path / "files")
    with serving(tmp_path / "files") as hub:
        norms = run_ranks(_downloaded, 2, hub.url, str(tmp_path / "cache"), init_device)
    weight = build("llama").get_input_embeddings().weight.detach()
    expected = [float(weight.norm())] * 2
    assert norms == pytest.approx(expected if init_device == "cpu" else [expected[0], 0.0])
    assert hub.downloads.count("model.safetensors") == 1
    assert hub.downloads.count("config.json") == 1
    assert max(map(hub.downloads.count, hub.downloads)) == 1
