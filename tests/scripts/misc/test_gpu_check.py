"""The GPU check's own logic, on a CPU at a tiny size."""

from typing import Any

import pytest
import torch

from tests.scripts.loading import load_script

script = load_script("scripts/misc/gpu_check.py")


@pytest.mark.parametrize("case", script.CASES)
def test_every_way_to_attend_is_right(case: str) -> None:
    errors = script.errors_of(script.CASES[case], 24, "cpu")
    assert errors.keys() == {"sdpa", "flex", "flash_attn_fn"}
    assert max(errors.values()) < 0.03, errors


def test_experts_are_right() -> None:
    assert script.error_of_experts("cpu") < 0.03


def test_a_wrong_mask_is_seen(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def blind(qkv: Any, inputs: dict[str, Any]) -> torch.Tensor:
        return script.by_attend(qkv, {**inputs, "window": -1}, flex=False)

    assert script.errors_of(script.CASES["window"], 24, "cpu")["sdpa"] < 0.03
    monkeypatch.setitem(script.WAYS, "sdpa", blind)
    monkeypatch.setattr(script, "CASES", {"window": script.CASES["window"]})
    assert not script.check_attention(24, "cpu", 0.03)
    assert "OVER THE BAR" in capsys.readouterr().out


def test_a_step_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "compile_model", lambda model, config: None)
    recipe = script.recipe_of("125m", "torch")
    assert recipe["d_model"] == 768
    recipe |= {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 16, "vocab_size": 64}
    assert script.flops_per_second(recipe, 2, "cpu", 2) > 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_without_a_gpu_nothing_is_checked(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr("sys.argv", ["gpu_check.py"])
    assert script.main() == 2
    assert "nothing was checked" in capsys.readouterr().err
