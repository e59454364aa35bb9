from pathlib import Path

import pytest

from tests.scripts.loading import load_script

script = load_script("scripts/misc/quickstart.py")
Step, Diary = script.Step, script.Diary


def test_finished_steps_are_remembered_in_order(tmp_path: Path) -> None:
    steps = [Step("a", "", ("run", "a")), Step("b", "", ("run", "b"))]
    diary = Diary(tmp_path / "finished.json")
    assert not diary.has(steps[0])
    diary.add(steps[0], 1.0)
    again = Diary(tmp_path / "finished.json")
    assert again.has(steps[0]) and not again.has(steps[1])
    again.add(steps[1], 2.0)
    assert again.seconds() == 3.0


def test_a_step_of_another_command_is_not_taken_for_done(tmp_path: Path) -> None:
    diary = Diary(tmp_path / "finished.json")
    diary.add(Step("a", "", ("run", "--text", "one")), 1.0)
    with pytest.raises(SystemExit, match="made by another command"):
        Diary(tmp_path / "finished.json").has(Step("a", "", ("run", "--text", "two")))


def test_metrics_are_read_from_the_console(tmp_path: Path) -> None:
    first, second = tmp_path / "train.log", tmp_path / "resume.log"
    first.write_text(
        "[batch=1/40]:\n\t Train loss/train/total: 8.5000\n"
        "[batch=10/40]:\n\t Train loss/train/total: 7.0000\n\t Train unit: hours\n"
        "[Eval batch=1/2] Eval on eval data:\n\t Eval metrics/eval/LanguageCrossEntropy: 6.5000\n",
        encoding="utf-8",
    )
    second.write_text("[batch=10/40]:\n\t Train loss/train/total: 6.9000\n", encoding="utf-8")
    metrics = script.read_metrics([first, second])
    assert metrics["loss/train/total"] == [(1, 8.5), (10, 6.9)]
    assert metrics["metrics/eval/LanguageCrossEntropy"] == [(10, 6.5)]


def test_the_middle_of_a_training() -> None:
    assert not script.past_the_middle("[batch=20/40]:")
    assert script.past_the_middle("[batch=21/40]:")
    assert not script.past_the_middle("[Eval batch=30/40] Eval on eval data:")


def test_every_step_that_a_text_of_ones_own_takes() -> None:
    free = script.list_steps(Path("quickstart"), None, [])
    own = script.list_steps(Path("out"), "my text", ["max_duration=2ba"])
    assert [step.name for step in own] == [step.name for step in free][1:]
    assert "my text" in own[0].command
    assert "max_duration=2ba" in next(step for step in own if step.name == "resume").command
    assert [step.name for step in free if step.stop_halfway] == ["train"]
