"""A run whose disk takes no more from some moment on says so, and its restart loses nothing."""

import errno
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.composer.checkpoint.test_killed_run import SAVED, finish, in_a_child, train

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def full_from(number: int, folder: Path, save_async: bool) -> Callable[[], None]:
    """Returns a run whose disk is full from the ``number``-th time on that the folder is changed.

    It is not full any more for what deletes, as on a real disk. What the run met stands in a file.
    """

    def body() -> None:
        seen = 0

        def refuse(event: str, args: tuple[Any, ...]) -> None:
            nonlocal seen
            changes = event in ("os.rename", "os.symlink", "os.mkdir")
            changes |= event == "open" and bool(args[2] & _WRITES)
            if changes and str(folder) in " ".join(map(str, args)):
                seen += 1
                if seen >= number:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(args[0]))

        sys.addaudithook(refuse)
        try:
            train(folder, save_async)
        except Exception as error:
            error_of(folder).write_text(f"{error}")

    return body


def error_of(folder: Path) -> Path:
    return folder.parent / "errors" / folder.name.removeprefix("full-")


def check(tmp_path: Path, numbers: range, save_async: bool = False) -> None:
    (tmp_path / "errors").mkdir()
    with warnings.catch_warnings():
        expected = train(tmp_path / "unbroken", save_async)
    for number in numbers:
        folder = tmp_path / f"full-{number}"
        assert in_a_child(full_from(number, folder, save_async)) == 0
        assert "No space left on device" in error_of(folder).read_text(), number
        weights = finish(folder, save_async)
        for name, tensor in expected.items():
            assert torch.equal(weights[name], tensor), f"full from {number} on: {name} differs"
        assert {path.name for path in folder.iterdir()} in SAVED, number


@pytest.mark.parametrize("save_async", [False, True])
def test_full_at_some_moments(tmp_path: Path, save_async: bool) -> None:
    check(tmp_path, range(2, 50, 15), save_async)


@pytest.mark.slow
@pytest.mark.parametrize("save_async", [False, True])
def test_full_at_any_moment(tmp_path: Path, save_async: bool) -> None:
    check(tmp_path, range(1, 50), save_async)
