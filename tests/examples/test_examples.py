"""The example programs run, and learn what they are to learn."""

import runpy
import sys
from pathlib import Path

import pytest
import torch

from examples import hugging_face_model, image_classifier, tabular_regression

FOLDER = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.parametrize("program", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_each_program_runs_from_the_command_line(
    program: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(program), "--duration", "1ep"])
    runpy.run_path(str(program), run_name="__main__")
    output, progress = capsys.readouterr()
    assert output
    assert "ba (100%)  epoch 1/1" in progress


def test_drawn_digits_are_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    digits = image_classifier.load_digits()
    images, labels = digits.tensors
    assert images.shape == (1800, 1, 16, 16)
    assert labels.unique().tolist() == list(range(10))
    assert image_classifier.train("6ep") > 0.9


def test_scanned_digits_are_learned() -> None:
    pytest.importorskip("sklearn")
    images, _ = image_classifier.load_digits().tensors
    assert images.shape == (1797, 1, 8, 8)
    assert 0 <= images.min() < images.max() == 1
    assert image_classifier.train("3ep") > 0.9


def test_rents_are_learned(capsys: pytest.CaptureFixture[str]) -> None:
    metrics = tabular_regression.train("10ep")
    assert metrics["R2Score"] > 0.98
    assert metrics["MeanAbsoluteError"] < 35  # 16 is what the noise leaves
    assert capsys.readouterr().out.count("predicted") == 3


def test_praise_is_learned_and_plain_transformers_loads_the_model(tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    assert hugging_face_model.train("10ep", tmp_path) > 0.9
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    texts = ["the soup was good", "the soup was not good", "our bread was not stale"]
    with torch.no_grad():
        logits = model(**tokenizer(texts, padding=True, return_tensors="pt")).logits
    assert logits.argmax(dim=1).tolist() == [1, 0, 1]
