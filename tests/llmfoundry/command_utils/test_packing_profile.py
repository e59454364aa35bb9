"""The table of packing ratios for a recipe."""

import subprocess
import sys
from pathlib import Path

import pytest

from llmfoundry.command_utils.packing_profile import print_packing_profile

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden" / "finetuning"


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(
        f"""
max_seq_len: 64
global_train_batch_size: 4
tokenizer:
  name: {GOLDEN / "tokenizer"}
train_loader:
  name: finetuning
  dataset:
    hf_name: {GOLDEN / "pr"}
    split: train
    max_seq_len: ${{max_seq_len}}
    decoder_only_format: true
    shuffle: true
    packing_ratio: 2.0
    max_leftover_bins_to_keep: 0
  drop_last: true
  num_workers: 8
"""
    )
    return path


def test_the_table(recipe: Path) -> None:
    command = [sys.executable, str(ROOT / "scripts" / "misc" / "profile_packing.py")]
    command += ["--yaml-path", str(recipe), "--num-devices", "2", "--min", "1", "--max", "4"]
    done = subprocess.run(
        [*command, "--num-packing-ratios", "4"], cwd=ROOT, text=True, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    head, *lines = [line.split(" | ") for line in done.stdout.splitlines() if "|" in line]
    assert head == ["packing_ratio", "% PADDING", "% WASTE"]
    ratios, padding, waste = (
        [float(line[column].strip().rstrip("%")) for line in lines] for column in range(3)
    )
    assert ratios == [1, 2, 3, 4] and padding[0] > max(padding[1:])
    assert waste[0] == 0 < waste[-1]


def test_what_is_refused(recipe: Path) -> None:
    with pytest.raises(FileNotFoundError, match="does not exist"):
        print_packing_profile("nowhere.yaml", 1, 1, 2)
    with pytest.raises(ValueError, match="num_devices=0 must be at least 1"):
        print_packing_profile(recipe, 0, 1, 2)
    with pytest.raises(ValueError, match="1 <= min=3 <= max=2 must hold"):
        print_packing_profile(recipe, 1, 3, 2)
    with pytest.raises(ValueError, match="global_train_batch_size=4 is no multiple of num_devices"):
        print_packing_profile(recipe, 3, 1, 2)
    recipe.write_text("tokenizer: {name: a}")
    with pytest.raises(ValueError, match=r"lacks \['train_loader', 'global_train_batch_size'\]"):
        print_packing_profile(recipe, 1, 1, 2)
