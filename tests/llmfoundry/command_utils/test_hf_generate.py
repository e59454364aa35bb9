"""Generation from a folder: grids, prompt files, left padding, refusals."""

import runpy
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch

from llmfoundry.command_utils.convert_composer_to_hf import (
    write_huggingface_pretrained_from_composer_checkpoint,
)
from llmfoundry.command_utils.hf_generate import hf_generate, str2bool

ROOT = Path(__file__).parents[3]


@pytest.fixture
def folder(golden: Path, tmp_path: Path) -> Path:
    checkpoint = golden / "checkpoints" / "mpt-mid-run-ep1-ba5-rank0.pt"
    write_huggingface_pretrained_from_composer_checkpoint(str(checkpoint), tmp_path / "hf")
    return tmp_path / "hf"


def _args(monkeypatch: pytest.MonkeyPatch, folder: Path, *flags: str) -> Namespace:
    path = ROOT / "scripts" / "inference" / "hf_generate.py"
    monkeypatch.setattr(sys, "argv", [str(path), "-n", str(folder), *flags])
    return runpy.run_path(str(path))["parse_args"]()


def test_batched_equals_alone_with_and_without_cache(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = ["the", "a longer prompt than the other one"]
    greedy = ["--temperature", "0", "--max_new_tokens", "8", "--warmup", "false", "--device", "cpu"]
    batched = hf_generate(_args(monkeypatch, folder, *greedy, "-p", *prompts))
    alone = hf_generate(
        _args(monkeypatch, folder, *greedy, "--max_batch_size", "1", "-p", *prompts)
    )
    uncached = hf_generate(_args(monkeypatch, folder, *greedy, "--use_cache", "no", "-p", *prompts))
    assert batched == alone == uncached
    assert all(batched)


def test_grid_and_report(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    (tmp_path / "prompts.txt").write_text("one|two")
    flags = ["-p", f"file::{tmp_path / 'prompts.txt'}", "--prompt-delimiter", "|"]
    flags += ["--temperature", "0", "1.0", "--seed", "1", "2", "--max_new_tokens", "3"]
    flags += ["--model_dtype", "bf16", "--device", "cpu"]
    texts = hf_generate(_args(monkeypatch, folder, *flags))
    assert len(texts) == 2 * 2 * 2
    assert texts[:2] == texts[2:4]  # greedy: the seed does not matter
    out = capsys.readouterr().out
    for part in ("bs=2", "gen_latency=", "ms/tok", "tok/sec", "\033[92mone\033[0m"):
        assert part in out
    assert hf_generate(_args(monkeypatch, folder, *flags)) == texts


def test_refusals(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="device_map"):
        hf_generate(_args(monkeypatch, folder, "--device", "cpu", "--device_map", "auto"))
    with pytest.raises(RuntimeError, match="Unable to load"):
        hf_generate(_args(monkeypatch, tmp_path / "nothing"))
    assert str2bool("Yes") and not str2bool("f")
    with pytest.raises(ValueError, match="yes or no"):
        str2bool("maybe")
    assert torch.is_grad_enabled()
