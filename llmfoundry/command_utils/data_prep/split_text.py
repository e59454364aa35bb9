"""Splits a folder of text files into a training and a validation folder, whole works at a time."""

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path

__all__ = ["split_text"]


def split_text(input_folder: str, output_folder: str, held_out: float = 0.05) -> tuple[int, int]:
    """Copies `*.txt` to `output_folder/train` and `output_folder/val`; returns both sizes in bytes.

    The choice depends on the files' relative names alone, so that it is the same on every machine.
    Works are held out whole. A folder in which no file is small enough to be held out has the end
    of its largest file cut off instead, at an empty line.

    Args:
        input_folder: Searched for `*.txt`, sub-folders included.
        output_folder: Gets the folders `train` and `val`; text files of an older split are removed.
        held_out: Share of the bytes to hold out, above 0 and below 0.5.

    Raises:
        ValueError: If `held_out` is out of range or the folder has no text.
    """
    if not 0 < held_out < 0.5:
        raise ValueError(f"held_out is {held_out}, but must lie between 0 and 0.5.")
    source, target = Path(input_folder), Path(output_folder)
    files = sorted(path for path in source.rglob("*.txt") if path.stat().st_size > 0)
    if not files:
        raise ValueError(f"{input_folder} holds no text: put at least one non-empty .txt file in.")
    val = choose_held_out(source, files, held_out)
    for name in ("train", "val"):
        shutil.rmtree(target / name, ignore_errors=True)
    for path in files:
        copy = target / ("val" if path in val else "train") / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    if not val:
        largest = max(files, key=lambda path: (path.stat().st_size, path.as_posix()))
        cut_tail(target, largest.relative_to(source), held_out)
    sizes = [sum(p.stat().st_size for p in (target / n).rglob("*.txt")) for n in ("train", "val")]
    held = ", ".join(sorted(path.stem for path in val)) or "the end of the largest file"
    print(f"{target}: train {sizes[0]:,} bytes, val {sizes[1]:,} bytes (held out: {held})")
    return sizes[0], sizes[1]


def choose_held_out(root: Path, files: Sequence[Path], held_out: float) -> set[Path]:
    """Takes works in an order that only their names decide, until their share is reached."""
    wanted = held_out * sum(path.stat().st_size for path in files)
    chosen: set[Path] = set()
    taken = 0
    for path in sorted(files, key=lambda path: name_digest(path.relative_to(root))):
        size = path.stat().st_size
        if taken < 0.75 * wanted and taken + size <= 1.25 * wanted:
            chosen.add(path)
            taken += size
    return chosen


def name_digest(relative: Path) -> str:
    """A fixed shuffle of names: the digest of the relative path."""
    return hashlib.sha256(relative.with_suffix("").as_posix().encode("utf-8")).hexdigest()


def cut_tail(target: Path, relative: Path, held_out: float) -> None:
    """Moves the end of one training file to the validation folder, from an empty line on."""
    whole = (target / "train" / relative).read_text(encoding="utf-8")
    wanted = int(len(whole) * (1 - held_out))
    cut = whole.rfind("\n\n", 0, wanted)
    cut = wanted if cut <= 0 else cut + 2
    (target / "train" / relative).write_text(whole[:cut], encoding="utf-8")
    tail = target / "val" / relative
    tail.parent.mkdir(parents=True, exist_ok=True)
    tail.write_text(whole[cut:], encoding="utf-8")
