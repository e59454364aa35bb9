"""Language models as ONNX graphs and torch.export programs, at shapes that were not traced."""

import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from llmfoundry.command_utils.convert_hf_to_onnx import export_to_onnx
from llmfoundry.command_utils.export_model import export_to_torch_program
from llmfoundry.models.hf.hf_export import write_hf_folder
from llmfoundry.models.mpt.causal_lm import MPTForCausalLM
from llmfoundry.models.mpt.config import MPTConfig
from tests.llmfoundry.models.hf.tiny import save

onnxruntime = pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

ROOT = Path(__file__).parents[3]
VOCAB = 96
MPT = {"vocab_size": VOCAB, "d_model": 16, "n_heads": 4, "n_layers": 2, "max_seq_len": 24}
POSITIONS: dict[str, Any] = {
    "mpt-alibi": {"attn_impl": "torch", "alibi": True},
    "mpt-rope": {"attn_impl": "torch", "rope": True, "rope_impl": "hf"},
    "mpt-learned": {"attn_impl": "torch"},
    "mpt-mixture": {"attn_impl": "torch", "alibi": True},
}
MIXTURE = {"ffn_type": "mb_moe", "moe_world_size": 1}
SLOW = ("mpt-rope", "mpt-learned", "mpt", "llama", "gpt2", "qwen3")
KINDS = ("mpt-alibi", *(pytest.param(kind, marks=pytest.mark.slow) for kind in SLOW))
CODE = {"trust_remote_code": True}


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    kind, path = request.param, tmp_path / "hf"
    if kind not in POSITIONS:  # transformers' own classes
        save(kind, path)
        return path
    ffn_config = MIXTURE if kind == "mpt-mixture" else None
    model: Any = MPTForCausalLM(
        MPTConfig(**MPT, attn_config=POSITIONS[kind], ffn_config=ffn_config)
    )
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.2)
    path.mkdir()
    write_hf_folder(model, None, path, torch.float32)
    assert any(path.glob("*.py"))
    return path


def _calls() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Calls of other shapes than any that is traced, padded on either side."""
    calls = []
    for rows, length in ((1, 5), (5, 17), (2, 1)):
        mask = torch.ones(rows, length, dtype=torch.bool)
        if rows == 5:
            mask[0, 9:] = False
            mask[1, :4] = False
        calls.append((torch.randint(VOCAB, (rows, length)), mask))
    return calls


@torch.no_grad()
def _assert_the_models(folder: Path, answers: list[torch.Tensor], calls: Any) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **CODE).eval()
    for answer, (tokens, mask) in zip(answers, calls, strict=True):
        expected = model(input_ids=tokens, attention_mask=mask).logits
        torch.testing.assert_close(answer[mask], expected[mask], atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("folder", KINDS, indirect=True)
def test_onnx(folder: Path, tmp_path: Path) -> None:
    export_to_onnx(str(folder), f"{tmp_path}/out", 3, 12, True, CODE)
    path = tmp_path / "out" / "model.onnx"
    session = onnxruntime.InferenceSession(str(path))
    axes = ["batch", "sequence"]
    assert [(v.name, v.shape, v.type) for v in session.get_inputs()] == [
        ("input_ids", axes, "tensor(int64)"),
        ("attention_mask", axes, "tensor(bool)"),
    ]
    assert [(v.name, v.shape) for v in session.get_outputs()] == [("output", [*axes, VOCAB])]
    assert onnx.load(path).opset_import[0].version >= 18
    calls = _calls()
    answers = [
        session.run(None, {"input_ids": tokens.numpy(), "attention_mask": mask.numpy()})[0]
        for tokens, mask in calls
    ]
    _assert_the_models(folder, [torch.from_numpy(answer) for answer in answers], calls)


@pytest.mark.parametrize("folder", KINDS, indirect=True)
def test_torch_program_in_a_process_without_modelling_code(folder: Path, tmp_path: Path) -> None:
    export_to_torch_program(str(folder), str(tmp_path / "out"), 3, 12, True, CODE)
    calls = _calls()
    torch.save(calls, tmp_path / "calls.pt")
    program = f"""
import sys, torch
for name in ("transformers", "llmfoundry", "composer"):
    sys.modules[name] = None
program = torch.export.load({str(tmp_path / "out" / "model.pt2")!r}).module()
answers = [program(*call) for call in torch.load({str(tmp_path / "calls.pt")!r})]
torch.save(answers, {str(tmp_path / "answers.pt")!r})
"""
    environment = {**os.environ, "PYTHONPATH": ""}
    command = [sys.executable, "-c", program]
    subprocess.run(command, check=True, cwd=tmp_path, env=environment)
    _assert_the_models(folder, torch.load(tmp_path / "answers.pt"), calls)


@pytest.mark.parametrize("folder", ["llama"], indirect=True)
def test_refusals(folder: Path, tmp_path: Path) -> None:
    for arguments, match in (
        ((8, None), "max_seq_len is needed to export a model of type llama.*up to 64"),
        ((8, 65), "max_seq_len=65 must be at least 3 and at most 64"),
        ((0, 8), "export_batch_size=0"),
    ):
        with pytest.raises(ValueError, match=match):
            export_to_onnx(str(folder), str(tmp_path / "out"), *arguments)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("folder", ["mpt-mixture"], indirect=True)
def test_a_mixture_of_experts_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="ffn_type: mb_moe cannot be exported"):
        export_to_onnx(str(folder), str(tmp_path / "out"), from_pretrained_kwargs=CODE)


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["mpt-alibi"], indirect=True)
def test_the_command_writes_to_an_address(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = str(ROOT / "scripts" / "inference" / "convert_hf_to_onnx.py")
    flags = ["--pretrained_model_name_or_path", str(folder), "--export_batch_size", "1"]
    flags += ["--output_folder", f"file://{tmp_path}/out", "--verify_export"]
    monkeypatch.setattr(sys, "argv", [script, *flags])
    with pytest.raises(ValueError, match="trust_remote_code=True"):
        runpy.run_path(script, run_name="__main__")
    monkeypatch.setattr(sys, "argv", [script, *flags, "--trust_remote_code", "true"])
    runpy.run_path(script, run_name="__main__")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model.onnx"]
