import pytest

from tests.scripts.loading import load_script

pytest.importorskip("tomllib")  # from Python 3.11 on, as the lock itself
script = load_script("scripts/misc/lock.py")


def test_names_are_compared_in_one_spelling() -> None:
    assert script.canonical("Python_Snappy >= 0.7 ; extra == 'x'") == "python-snappy"
    with pytest.raises(ValueError, match="must start with a package name"):
        script.canonical("==1.0")


def test_what_a_gpu_machine_adds_is_left_out() -> None:
    found = {
        "torch": ("2.13.0", ["nvidia-cublas", "triton", "numpy"]),
        "numpy": ("2.4.6", []),
        "triton": ("3.7", []),
        "nvidia-cublas": ("13.0", []),
        "pip": ("23.2", []),
    }
    text = script.render(found)
    assert "numpy==2.4.6  # for pyproject.toml, torch\n" in text
    assert "torch==2.13.0  # for pyproject.toml\n" in text
    assert not any(name in text for name in ("triton==", "nvidia", "pip=="))


def test_the_lock_answers_pyproject() -> None:
    assert script.check() == 0
    assert script.pins()["torch"] == script.TORCH
