"""A run killed in its saves (B42) and restarted (B43) ends where the unbroken run ends."""

import os
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from composer.checkpoint.atomic import is_leftover
from composer.trainer.trainer import Trainer
from tests.composer.trainer.models import Classifier, rows_loader

# A run that was killed after its last save saves once more when it is told that it has ended.
SAVED = (
    {"ep1-ba11-rank0.pt", "ep1-ba12-rank0.pt", "latest-rank0.pt"},
    {"ep1-ba12-rank0.pt", "ep2-ba12-rank0.pt", "latest-rank0.pt"},
)


def train(folder: Path, save_async: bool = False) -> dict[str, torch.Tensor]:
    """Runs 12 batches with dropout and shuffling, saving at each; resumes what it finds."""
    warnings.simplefilter("ignore")
    model = Classifier(dropout=0.3)
    trainer = Trainer(
        model=model,
        train_dataloader=rows_loader(shuffle=True),
        max_duration="2ep",
        optimizers=torch.optim.Adam(model.parameters(), lr=0.01),
        seed=5,
        run_name="killed",
        save_folder=str(folder),
        save_interval="1ba",
        save_num_checkpoints_to_keep=2,
        save_async=save_async,
        autoresume=True,
        progress_bar=False,
        device="cpu",
        deterministic_mode=True,
    )
    trainer.fit()
    trainer.close()
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def in_a_child(body: Callable[[], Any]) -> int:
    """Runs ``body`` in a fork, so that torch need not be imported anew, and returns its status."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            body()
            os._exit(0)
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.__stderr__, flush=True)
            os._exit(1)
    return os.waitpid(pid, 0)[1]


def killed_at(number: int, folder: Path, save_async: bool) -> Callable[[], None]:
    """Returns a run that dies at the ``number``-th event that touches a name in the folder."""

    def body() -> None:
        seen = 0

        def count(event: str, args: tuple[Any, ...]) -> None:
            nonlocal seen
            if event.startswith(("os.", "open")) and any(str(folder) in str(arg) for arg in args):
                seen += 1
                if seen == number:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        train(folder, save_async)

    return body


def finish(folder: Path, save_async: bool) -> dict[str, torch.Tensor]:
    path = folder.parent / f"{folder.name}-end.pt"
    status = in_a_child(lambda: torch.save(train(folder, save_async), path))
    assert status == 0, "the restarted run failed; its error is above"
    return torch.load(path)


def check(tmp_path: Path, numbers: range, save_async: bool = False) -> int:
    """Kills at each of the events, restarts, compares; returns how many kills left half a file."""
    # Before the first fork, so that the children find imported what a run imports lazily.
    with warnings.catch_warnings():
        expected = train(tmp_path / "unbroken", save_async)
    halves = 0
    for number in numbers:
        folder = tmp_path / f"killed-{number}"
        status = in_a_child(killed_at(number, folder, save_async))
        assert os.WIFSIGNALED(status), f"the run has fewer than {number} events"
        halves += any(is_leftover(path) for path in folder.glob("*") if folder.exists())
        weights = finish(folder, save_async)
        for name, tensor in expected.items():
            assert torch.equal(weights[name], tensor), f"kill {number}: {name} differs"
        assert {path.name for path in folder.iterdir()} in SAVED, f"kill {number}"
    return halves


def test_b42_b43_killed_and_restarted(tmp_path: Path) -> None:
    assert check(tmp_path, range(5, 125, 17)) > 0


def test_b42_b43_killed_while_a_thread_writes(tmp_path: Path) -> None:
    check(tmp_path, range(11, 110, 33), save_async=True)


@pytest.mark.slow
def test_b42_b43_killed_anywhere_and_restarted(tmp_path: Path) -> None:
    assert check(tmp_path, range(1, 130)) > 10


@pytest.mark.slow
def test_b42_b43_killed_anywhere_while_a_thread_writes(tmp_path: Path) -> None:
    assert check(tmp_path, range(1, 115), save_async=True) > 10
