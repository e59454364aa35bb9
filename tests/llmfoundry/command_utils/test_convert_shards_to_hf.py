"""Folders of shards, many kinds of models, weights in several files, and little memory."""

import json
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from composer import Trainer
from composer.checkpoint.convert import convert_checkpoint
from composer.models import HuggingFaceModel
from composer.utils import dist
from llmfoundry.command_utils.convert_composer_to_hf import (
    _test_upload,
    convert_composer_to_hf,
)
from llmfoundry.command_utils.convert_composer_to_hf import (
    write_huggingface_pretrained_from_composer_checkpoint as write_hf,
)
from llmfoundry.command_utils.convert_hf_to_composer import (
    write_composer_checkpoint_from_huggingface as write_composer,
)
from llmfoundry.models.hf.hf_causal_lm import ComposerHFCausalLM
from llmfoundry.models.mpt.causal_lm import MPTForCausalLM
from llmfoundry.models.mpt.config import MPTConfig
from tests.launch import run_ranks
from tests.llmfoundry.models.hf import tiny
from tests.llmfoundry.tiny_tokenizer import train_tokenizer
from tests.llmfoundry.utils.fake_hub import fake_hub

# Of huggingface_hub itself, when it uploads without its own protocol.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content:DeprecationWarning")


def _save(model: HuggingFaceModel, path: Path) -> Path:
    state = {"model": model.state_dict(), "integrations": {"huggingface": model.get_metadata()}}
    torch.save({"state": state}, path)
    return path


def _read(folder: Path) -> dict[str, torch.Tensor]:
    return {k: v for p in folder.glob("*.safetensors") for k, v in load_file(p).items()}


@pytest.mark.parametrize("kind", ["sharded_2rank", "sharded_2rank_fsdp1"])
def test_shards_of_upstream(kind: str, golden: Path, tmp_path: Path) -> None:
    shards = str(golden / "checkpoints" / kind / "ep1-ba5")
    convert_checkpoint(shards, str(tmp_path / "c.pt"))
    kept = str(tmp_path / "kept")
    write_hf(shards, tmp_path / "a", local_checkpoint_save_location=kept, max_shard_size="40KB")
    write_hf(str(tmp_path / "c.pt"), tmp_path / "b", max_shard_size="40KB")
    names = sorted(path.name for path in (tmp_path / "b").iterdir())
    assert sum(name.endswith(".safetensors") for name in names) > 2
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert (tmp_path / "kept" / ".metadata").exists()


def _models() -> dict[str, Any]:
    few = {"num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 300}
    bert = transformers.BertConfig(hidden_size=16, intermediate_size=32, **few)
    t5 = transformers.T5Config(
        vocab_size=300, d_model=16, d_ff=32, d_kv=8, num_layers=2, num_heads=2
    )
    gemma = transformers.Gemma3TextConfig(**{**tiny.SIZES, "vocab_size": 300, "head_dim": 8})
    moe = transformers.MixtralConfig(**{**tiny.SIZES, "vocab_size": 300}, num_local_experts=3)
    return {
        "bert": transformers.BertForSequenceClassification(bert),
        "t5": transformers.T5ForConditionalGeneration(t5),
        "gemma3": transformers.Gemma3ForCausalLM(gemma),
        "mixtral": transformers.MixtralForCausalLM(moe),
        "mpt of transformers": tiny.build("mpt", vocab_size=300),
    }


@pytest.mark.parametrize("kind", ["bert", "t5", "gemma3", "mixtral", "mpt of transformers"])
def test_models_of_transformers(kind: str, tmp_path: Path) -> None:
    model = HuggingFaceModel(_models()[kind], train_tokenizer())
    convert_checkpoint(str(_save(model, tmp_path / "c.pt")), str(tmp_path / "shards"))
    write_hf(str(tmp_path / "shards"), tmp_path / "hf", max_shard_size="20KB", compare_logits=True)
    loaded = type(model.model).from_pretrained(tmp_path / "hf")
    wanted = model.model.state_dict()
    assert all(torch.equal(loaded.state_dict()[name], wanted[name]) for name in wanted)
    model.model.save_pretrained(tmp_path / "theirs")
    assert _read(tmp_path / "hf").keys() == _read(tmp_path / "theirs").keys()


def test_B90_tied_weights_that_differ_are_refused(tmp_path: Path) -> None:
    path = _save(HuggingFaceModel(tiny.build("llama_tied")), tmp_path / "c.pt")
    write_hf(str(path), tmp_path / "tied")
    assert "lm_head.weight" not in _read(tmp_path / "tied")
    content = torch.load(path, weights_only=False)
    head = content["state"]["model"]["model.lm_head.weight"]
    content["state"]["model"]["model.lm_head.weight"] = head + 1
    torch.save(content, path)
    with pytest.raises(RuntimeError, match=r"lm_head\.weight is tied to .*they differ"):
        write_hf(str(path), tmp_path / "hf")
    config = content["state"]["integrations"]["huggingface"]["model"]["config"]["content"]
    config["tie_word_embeddings"] = False
    torch.save(content, path)
    write_hf(str(path), tmp_path / "hf")
    assert torch.equal(_read(tmp_path / "hf")["lm_head.weight"], head + 1)


def test_buffers_of_older_releases_are_left_out(tmp_path: Path) -> None:
    path = _save(HuggingFaceModel(tiny.build("gpt2")), tmp_path / "c.pt")
    content = torch.load(path, weights_only=False)
    mask = torch.ones(64, 64, dtype=torch.bool).tril()
    content["state"]["model"]["model.transformer.h.0.attn.bias"] = mask
    torch.save(content, path)
    write_hf(str(path), tmp_path / "hf")
    assert "transformer.h.0.attn.bias" not in _read(tmp_path / "hf")


def test_weights_of_another_shape_are_refused(tmp_path: Path) -> None:
    path = _save(HuggingFaceModel(tiny.build("llama")), tmp_path / "c.pt")
    content = torch.load(path, weights_only=False)
    content["state"]["model"]["model.model.norm.weight"] = torch.ones(3)
    torch.save(content, path)
    with pytest.raises(RuntimeError, match=r"another shape: \['model.norm.weight: \(3,\), not"):
        write_hf(str(path), tmp_path / "hf")
    assert list(tmp_path.iterdir()) == [path]


def test_upload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _save(HuggingFaceModel(tiny.build("llama"), None), tmp_path / "c.pt")
    args = Namespace(
        composer_path=str(path),
        hf_output_path=str(tmp_path / "hf"),
        local_checkpoint_save_location=None,
        output_precision="bf16",
        hf_repo_for_upload="me/llama",
        test_uploaded_model=True,
        trust_remote_code=False,
    )
    with fake_hub(monkeypatch) as hub:
        convert_composer_to_hf(args)
        files = {path.name: path.read_bytes() for path in (tmp_path / "hf").iterdir()}
        assert hub.repos["me/llama"].files() == files
        assert hub.repos["me/llama"].visibility == "private"
        foreign = {**files, "pytorch_model.bin": b"of another model"}
        hub.repos["me/llama"].commit("main", foreign, "by another")
        with pytest.raises(RuntimeError, match=r"pytorch_model\.bin differ"):
            _test_upload(tmp_path / "hf", "me/llama")
    args.hf_repo_for_upload = None
    with pytest.raises(ValueError, match="no effect without hf_repo_for_upload"):
        convert_composer_to_hf(args)


def test_B85_grouped_queries_in_one_matrix(tmp_path: Path) -> None:
    attention = {"attn_type": "grouped_query_attention", "kv_n_heads": 2, "attn_impl": "torch"}
    sizes = {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 64, "vocab_size": 300}
    config = MPTConfig(**sizes, attn_config={**attention, "rope": True})
    model = HuggingFaceModel(MPTForCausalLM(config).eval(), train_tokenizer())
    write_hf(str(_save(model, tmp_path / "c.pt")), tmp_path / "hf")
    write_composer(str(tmp_path / "hf"), str(tmp_path / "again.pt"))
    write_hf(str(tmp_path / "again.pt"), tmp_path / "back")
    before, after = _read(tmp_path / "hf"), _read(tmp_path / "back")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    tokens = tiny.rows()["input_ids"]
    loaded = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "back", trust_remote_code=True
    )
    torch.testing.assert_close(
        loaded.eval()(tokens).logits, model.model(tokens).logits, atol=1e-5, rtol=1e-5
    )


def test_B91_B94_a_llama_without_optional_keys_in_half_precision(tmp_path: Path) -> None:
    model = HuggingFaceModel(tiny.build("llama", vocab_size=300), train_tokenizer())
    path = _save(model, tmp_path / "c.pt")
    content = torch.load(path, weights_only=False)
    described = content["state"]["integrations"]["huggingface"]["model"]
    del described["generation_config"]  # as upstream's checkpoints
    for key in ("rope_parameters", "attention_bias", "mlp_bias", "head_dim", "dtype"):
        del described["config"]["content"][key]
    torch.save(content, path)
    for precision in ("fp32", "bf16"):
        write_hf(str(path), tmp_path / precision, output_precision=precision)
    sizes = [(tmp_path / p / "model.safetensors").stat().st_size for p in ("fp32", "bf16")]
    assert sizes[1] < 0.6 * sizes[0]
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "bf16")
    assert loaded.dtype == loaded.config.dtype == torch.bfloat16
    assert loaded.generation_config.eos_token_id == model.tokenizer.eos_token_id
    tokens = tiny.rows()["input_ids"]
    expected = model.model(tokens).logits
    difference = (loaded.float()(tokens).logits - expected).abs().max()
    assert 0 < difference < 0.02 * expected.abs().max()


def _train_and_save(folder: str) -> None:
    model = ComposerHFCausalLM(train_tokenizer(), f"{folder}/base", use_train_metrics=False)
    rows = {key: value[0] for key, value in tiny.rows().items()}
    data = [rows] * 4
    trainer = Trainer(
        model=model,
        optimizers=torch.optim.AdamW(model.parameters(), lr=1e-2),
        train_dataloader=torch.utils.data.DataLoader(data, 2, sampler=dist.get_sampler(data)),
        max_duration="1ba",
        save_folder=f"{folder}/run",
        save_filename="c",
        parallelism_config={"fsdp2": {"activation_checkpointing": False}},
        progress_bar=False,
    )
    trainer.fit()
    trainer.close()


@pytest.mark.slow
def test_a_sharded_run_of_two_ranks(tmp_path: Path) -> None:
    tiny.save("llama_tied", tmp_path / "base", vocab_size=300)
    run_ranks(_train_and_save, 2, str(tmp_path))
    (shards,) = [path.parent for path in (tmp_path / "run").rglob(".metadata")]
    write_hf(str(shards), tmp_path / "hf")
    trained, base = _read(tmp_path / "hf"), _read(tmp_path / "base")
    assert trained.keys() == base.keys()
    assert not torch.equal(trained["model.norm.weight"], base["model.norm.weight"])
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    assert type(model) is transformers.LlamaForCausalLM


PROGRAM = """
import sys
import peft
from transformers import LlamaForCausalLM
from llmfoundry.command_utils.convert_composer_to_hf import (
    write_huggingface_pretrained_from_composer_checkpoint as write_hf,
)
def peak():
    # ru_maxrss begins with the peak of the process that started this one.
    (line,) = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024
start = peak()
write_hf(sys.argv[1], sys.argv[2], output_precision="bf16", max_shard_size="40MB")
print(peak() - start)
"""


@pytest.mark.slow
@pytest.mark.parametrize("form", ["file", "folder"])
def test_memory_is_that_of_a_shard(form: str, tmp_path: Path) -> None:
    sizes = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 12}
    model = tiny.build("llama", **sizes, num_attention_heads=16, num_key_value_heads=16)
    path = _save(HuggingFaceModel(model), tmp_path / "c.pt")
    size = path.stat().st_size
    assert size > 8e8
    if form == "folder":
        convert_checkpoint(str(path), str(tmp_path / "shards"))
        path = tmp_path / "shards"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path), str(tmp_path / "hf")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(list((tmp_path / "hf").glob("*.safetensors"))) > 8
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["dtype"] == "bfloat16"
    # Of a file 256 MiB are mapped at once, and about 100 MiB are code that is imported late.
    assert int(done.stdout.splitlines()[-1]) < (0.6 if form == "file" else 0.35) * size


@pytest.mark.slow
def test_memory_of_stacked_experts_is_that_of_a_layer(tmp_path: Path) -> None:
    """Loading them would stack them in fresh memory, which the folder's check does without."""
    pytest.importorskip("accelerate")
    sizes: dict[str, Any] = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 12}
    sizes |= {"vocab_size": 96, "num_attention_heads": 8, "num_key_value_heads": 8}
    model = transformers.MixtralForCausalLM(transformers.MixtralConfig(**sizes))
    path = _save(HuggingFaceModel(model), tmp_path / "c.pt")
    size = path.stat().st_size
    convert_checkpoint(str(path), str(tmp_path / "shards"))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "shards"), str(tmp_path / "hf")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert size > 6e8
    assert int(done.stdout.splitlines()[-1]) < 0.5 * size
