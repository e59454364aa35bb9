"""``llmfoundry convert``: each way does its work, and no option is taken that has no effect."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from llmfoundry.cli.cli import app
from tests.llmfoundry.models.hf import tiny
from tests.llmfoundry.tiny_tokenizer import train_tokenizer


def _run(*arguments: Any) -> str:
    done = CliRunner().invoke(app, ["convert", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def _refused(*arguments: Any) -> str:
    done = CliRunner().invoke(app, ["convert", *map(str, arguments)])
    assert done.exit_code == 2
    return " ".join(done.output.replace("│", " ").split())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny.save("llama", tmp_path / "hf", vocab_size=300)
    train_tokenizer().save_pretrained(tmp_path / "hf")
    return tmp_path / "hf"


def test_in_and_out(folder: Path, tmp_path: Path) -> None:
    assert "LlamaForCausalLM" in _run("--from-hf", folder, tmp_path / "c.pt")
    _run(folder, tmp_path / "again.pt", "--to", "composer")
    assert "tensors equal" in _run(
        tmp_path / "c.pt", tmp_path / "back", "--max-shard-size", "20KB", "--no-compare-logits"
    )
    assert "logits equal" in _run(tmp_path / "again.pt", tmp_path / "half", "--precision", "bf16")
    weights = load_file(tmp_path / "half" / "model.safetensors")
    before = load_file(folder / "model.safetensors")
    assert all(torch.equal(weights[name], before[name].bfloat16()) for name in before)


def test_to_a_torch_program(folder: Path, tmp_path: Path) -> None:
    _run(folder, tmp_path / "out", "--to", "torch-export", "--max-seq-len", 8, "--batch-size", 2)
    program = torch.export.load(tmp_path / "out" / "model.pt2").module()
    tokens = tiny.rows(2, 8)["input_ids"]
    expected = tiny.build("llama", vocab_size=300)(tokens).logits
    found = program(tokens, torch.ones_like(tokens, dtype=torch.bool))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_refusals(folder: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    assert "--precision has no effect on composer" in _refused(
        "--from-hf", folder, new, "--precision", "bf16"
    )
    assert "--max-seq-len has no effect on hf" in _refused(folder, new, "--max-seq-len", 8)
    assert "--to onnx does not" in _refused("--from-hf", folder, new, "--to", "onnx")
    assert "exists. Give a folder that does not" in _refused(tmp_path / "c.pt", folder)
    assert "There is no checkpoint" in _refused(tmp_path / "c.pt", new)
    assert "fp8" in _refused(tmp_path / "c.pt", new, "--precision", "fp8")
    assert "max_seq_len=2 must be" in _refused(
        folder, new, "--to", "torch-export", "--max-seq-len", 2
    )
    torch.save({"state": {"model": {}}}, tmp_path / "c.pt")
    assert "huggingface" in _refused(tmp_path / "c.pt", new)
    assert not new.exists()
