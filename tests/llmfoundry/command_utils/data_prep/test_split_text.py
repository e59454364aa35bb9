from pathlib import Path

import pytest

from llmfoundry.command_utils.data_prep.split_text import split_text


def write(folder: Path, **works: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in works.items():
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*.txt"))


def test_every_work_lands_on_one_side(tmp_path: Path) -> None:
    works = {f"work{i}": f"text {i}\n" * 100 for i in range(40)}
    source = write(tmp_path / "in", **works)
    train, val = split_text(str(source), str(tmp_path / "out"), held_out=0.1)
    both = names(tmp_path / "out" / "train") + names(tmp_path / "out" / "val")
    assert sorted(both) == names(source)
    assert 0.05 < val / (train + val) < 0.15


def test_the_choice_depends_on_names_alone(tmp_path: Path) -> None:
    first = write(tmp_path / "a", **{f"work{i}": "x" * 100 for i in range(20)})
    second = write(tmp_path / "b" / "c", **{f"work{i}": "y" * 100 for i in range(20)})
    split_text(str(first), str(tmp_path / "one"))
    split_text(str(second), str(tmp_path / "two"))
    assert names(tmp_path / "one" / "val") == names(tmp_path / "two" / "val") != []


def test_a_single_work_is_cut_at_an_empty_line(tmp_path: Path) -> None:
    text = "".join(f"paragraph {i}\nof two lines\n\n" for i in range(100))
    source = write(tmp_path / "in", only=text)
    split_text(str(source), str(tmp_path / "out"))
    train = (tmp_path / "out" / "train" / "only.txt").read_text("utf-8")
    val = (tmp_path / "out" / "val" / "only.txt").read_text("utf-8")
    assert train + val == text
    assert train.endswith("\n\n")
    assert 0.03 < len(val) / len(text) < 0.08


def test_an_older_split_does_not_linger(tmp_path: Path) -> None:
    source = write(tmp_path / "in", **{f"work{i}": "x" * 100 for i in range(20)})
    split_text(str(source), str(tmp_path / "out"), held_out=0.1)
    for path in source.glob("work1*.txt"):
        path.unlink()
    split_text(str(source), str(tmp_path / "out"), held_out=0.1)
    both = names(tmp_path / "out" / "train") + names(tmp_path / "out" / "val")
    assert sorted(both) == names(source)


def test_a_sub_folder_keeps_its_place(tmp_path: Path) -> None:
    source = write(tmp_path / "in", top="x" * 5000)
    write(source / "deep", inner="y" * 100)
    split_text(str(source), str(tmp_path / "out"), held_out=0.02)
    assert (tmp_path / "out" / "val" / "deep" / "inner.txt").is_file()


@pytest.mark.parametrize("held_out", [0.0, 0.5, -1.0])
def test_a_share_out_of_range_is_refused(tmp_path: Path, held_out: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 0.5"):
        split_text(str(write(tmp_path / "in", one="x")), str(tmp_path / "out"), held_out)


def test_a_folder_without_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no text"):
        split_text(str(write(tmp_path / "in", empty="")), str(tmp_path / "out"))
