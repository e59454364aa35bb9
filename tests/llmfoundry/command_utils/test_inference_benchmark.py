"""The inference benchmark: its figures add up, and it reads recipes, folders and old files."""

import csv
import io
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from llmfoundry.command_utils.convert_composer_to_hf import (
    write_huggingface_pretrained_from_composer_checkpoint,
)
from llmfoundry.command_utils.inference_benchmark import inference_benchmark
from llmfoundry.config.problems import ConfigError

FOLDER = Path(__file__).parents[3] / "scripts" / "inference" / "benchmarking"
TINY = str(FOLDER / "yamls" / "tiny-cpu.yaml")
SMALL = ["device=cpu", "num_batches=3", "num_warmup_batches=0", "model.vocab_size=64"]


def test_figures(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmark.py", TINY, *SMALL, "output_lengths=[1,6]"])
    runpy.run_path(str(FOLDER / "benchmark.py"), run_name="__main__")
    captured = capsys.readouterr()
    rows = list(csv.DictReader(io.StringIO(captured.out)))
    assert [row["name"] for row in rows] == [
        "mpt-tiny-cpu_1_16_1",
        "mpt-tiny-cpu_1_16_6",
        "mpt-tiny-cpu_4_16_1",
        "mpt-tiny-cpu_4_16_6",
    ]
    assert all(row["name"] in captured.err for row in rows)
    one, row = rows[0], {key: float(value) for key, value in rows[3].items() if key != "name"}
    assert one["decode p50 (ms/token)"] == one["decode (tokens/s)"] == ""
    latency = row["latency (s)"]
    assert row["throughput (tokens/s)"] == pytest.approx(4 * 6 / latency, rel=1e-3)
    assert row["latency_per_sequence_output_token (ms)"] == pytest.approx(
        1000 * latency / 6, rel=1e-3
    )
    for kind, unit in (("latency", "s"), ("prefill", "s"), ("decode", "ms/token")):
        assert row[f"{kind} p50 ({unit})"] <= row[f"{kind} p90 ({unit})"]
        assert row[f"{kind} p90 ({unit})"] <= row[f"{kind} p99 ({unit})"]
    assert row["prefill p50 (s)"] < row["latency p50 (s)"]


def test_prefill_and_decoding_are_what_they_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that ticks by the tokens that the model reads."""
    clock = {"now": 0.0}

    def read(module: Any, args: Any, kwargs: Any) -> None:
        clock["now"] += kwargs["input_ids"].size(1)

    from llmfoundry.models.mpt.causal_lm import MPTForCausalLM

    original = MPTForCausalLM.__init__

    def hooked(self: Any, config: Any) -> None:
        original(self, config)
        self.register_forward_pre_hook(read, with_kwargs=True)

    monkeypatch.setattr(MPTForCausalLM, "__init__", hooked)
    monkeypatch.setattr(
        "llmfoundry.command_utils.inference_benchmark.time.perf_counter", lambda: clock["now"]
    )
    settings = [*SMALL, "batch_sizes=[2]", "input_lengths=[16]", "output_lengths=[5]"]
    (row,) = inference_benchmark(TINY, settings)
    assert row["latency (s)"] == 16 + 4
    assert row["prefill p99 (s)"] == 16 and row["prefill (tokens/s)"] == 2
    assert row["decode p50 (ms/token)"] == 1000 and row["decode (tokens/s)"] == 2
    (row,) = inference_benchmark(TINY, [*settings, "use_cache=false"])
    assert row["latency (s)"] == np.arange(16, 21).sum()


def test_an_exported_folder_and_dtypes(golden: Path, tmp_path: Path) -> None:
    checkpoint = golden / "checkpoints" / "mpt-mid-run-ep1-ba5-rank0.pt"
    write_huggingface_pretrained_from_composer_checkpoint(str(checkpoint), tmp_path / "hf")
    recipe = {
        "model": {
            "name": "hf_causal_lm",
            "pretrained_model_name_or_path": str(tmp_path / "hf"),
            "trust_remote_code": True,
        },
        "tokenizer": {"name": str(tmp_path / "hf")},
        "batch_sizes": [1],
        "input_lengths": [4],
        "output_lengths": [2],
        "num_batches": 1,
        "num_warmup_batches": 0,
        "device": "cpu",
        "model_dtype": "bf16",
        "autocast_dtype": "bf16",
    }
    (tmp_path / "b.yaml").write_text(yaml.safe_dump(recipe))
    (row,) = inference_benchmark(str(tmp_path / "b.yaml"), [])
    assert row["name"] == "benchmark_1_4_2" and row["latency (s)"] > 0


def test_keys_of_old_files(caplog: pytest.LogCaptureFixture) -> None:
    old = ["model.init_std=0.02", "model.attn_pdrop=0", "model.init_device=meta", "batch_sizes=[1]"]
    rows = inference_benchmark(TINY, [*SMALL, *old, "output_lengths=[1]", "model_dtype=float32"])
    assert len(rows) == 1 and "model.init_std has no effect" in caplog.text


def test_faults_are_listed_before_the_model_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.nn.Linear, "__init__", lambda *args, **kwargs: 1 / 0)
    faults = ["use_deepspeed=true", "model_dtype=fp8", "batch_size=[1]", "output_lengths=[0]"]
    with pytest.raises(ConfigError) as caught:
        inference_benchmark(TINY, faults[1:2] + ["use_deepspeed=true", "output_lengths=[0]"])
    for part in ("DeepSpeed", "model_dtype", "output_lengths"):
        assert part in str(caught.value)
    with pytest.raises(ConfigError, match="batch_sizes"):
        inference_benchmark(TINY, faults[2:3])
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="300 tokens"):
        inference_benchmark(TINY, [*SMALL, "input_lengths=[300]"])
