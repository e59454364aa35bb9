"""What the README says is so."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])


def test_the_python_example_runs(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len(blocks) == 1
    result = subprocess.run(
        [sys.executable, "-c", blocks[0]],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_paths_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    links = re.findall(r"\]\((?!http)([^)#]+)", text)
    paths = re.findall(
        r"`((?:composer|llmfoundry|streaming|scripts|yamls|tests|docs|benchmarks)/[\w/.-]+)`", text
    )
    for name in links:
        assert (page.parent / name).exists(), name
    for name in paths:
        assert (ROOT / name).exists(), name


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    for page in PAGES:
        used = set(
            re.findall(
                r"\bmake ([a-z-]+)\b",
                " ".join(re.findall(r"`[^`]+`|```.*?```", page.read_text("utf-8"), re.DOTALL)),
            )
        )
        assert used <= targets, (page.name, used - targets)
