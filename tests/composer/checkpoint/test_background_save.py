"""Training goes on while a checkpoint is written, and what goes wrong with that is not lost."""

import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from composer import Trainer
from composer.checkpoint import whole_run
from composer.checkpoint.monolithic import write_checkpoint_file
from tests.composer.checkpoint.sharded_runs import make, names


class Gate:
    """Stands for the disk: holds writes until it is opened, and may then refuse them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_open = threading.Event()
        self.arrived: list[str] = []
        self.refuses: set[str] = set()
        monkeypatch.setattr(whole_run, "write_checkpoint_file", self.write)

    def write(self, content: Any, path: str) -> str:
        self.arrived.append(os.path.basename(path))
        assert self.is_open.wait(30)
        if os.path.basename(path) in self.refuses:
            raise OSError("No space left on device")
        return write_checkpoint_file(content, path)


def _trainer(folder: Path, end: str = "4ba", **kwargs: Any) -> Trainer:
    how: dict[str, Any] = {"save_folder": str(folder), "save_async": True, **kwargs}
    return make(end, None, **how)[0]


def test_training_goes_on_and_the_file_is_of_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    trainer = _trainer(
        tmp_path, "3ba", save_interval=lambda state, event: state.timestamp.batch == 2
    )
    weights: list[torch.Tensor] = []
    seen: list[tuple[int, list[str]]] = []

    def look(state: Any, logger: Any) -> None:
        weights.append(state.model.module.first.weight.detach().clone())
        seen.append((int(state.timestamp.batch), names(tmp_path)))
        if state.timestamp.batch == 3:
            gate.is_open.set()

    trainer.state.callbacks[0].batch_end = look  # type: ignore[attr-defined]
    trainer.fit()
    assert seen[-1] == (3, [])  # the third batch is trained and nothing is written
    assert gate.arrived == ["ep0-ba2-rank0.pt"]
    assert names(tmp_path) == ["ep0-ba2-rank0.pt", "latest-rank0.pt"]
    saved = torch.load(tmp_path / "ep0-ba2-rank0.pt", weights_only=False)["state"]
    assert torch.equal(saved["model"]["module.first.weight"], weights[1])
    assert not torch.equal(saved["model"]["module.first.weight"], weights[2])
    assert saved["timestamp"]["Timestamp"]["batch"] == 2
    trainer.close()


def test_the_next_save_waits_and_old_ones_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    threading.Timer(0.5, gate.is_open.set).start()
    trainer = _trainer(tmp_path, "6ba", save_num_checkpoints_to_keep=1)
    trainer.fit()
    assert gate.arrived == [f"ep0-ba{n}-rank0.pt" for n in (2, 4, 6)]
    assert names(tmp_path) == ["ep0-ba6-rank0.pt", "latest-rank0.pt"]
    assert trainer.saved_checkpoints == [str(tmp_path / "ep0-ba6-rank0.pt")]
    trainer.close()


@pytest.mark.parametrize("failing", ["ep0-ba2-rank0.pt", "ep0-ba4-rank0.pt"])
def test_a_failed_write_is_raised_and_is_never_the_latest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    gate = Gate(monkeypatch)
    gate.is_open.set()
    gate.refuses.add(failing)
    trainer = _trainer(tmp_path)
    with pytest.raises(RuntimeError, match="rank 0 met OSError: No space left"):
        trainer.fit()
    trainer.close()
    good = ["ep0-ba2-rank0.pt", "latest-rank0.pt"]
    assert names(tmp_path) == ([] if failing == "ep0-ba2-rank0.pt" else good)
    assert [os.path.basename(path) for path in trainer.saved_checkpoints] == good[:-1][
        : len(names(tmp_path))
    ]
    if names(tmp_path):
        assert os.readlink(tmp_path / "latest-rank0.pt") == "ep0-ba2-rank0.pt"


def test_closing_waits_and_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for number, refuses in enumerate((False, True)):
        gate = Gate(monkeypatch)
        trainer = _trainer(tmp_path / str(number))
        if refuses:
            gate.refuses.add("ep0-ba0-rank0.pt")
        trainer.save_checkpoint_to_save_folder()
        threading.Timer(0.3, gate.is_open.set).start()
        trainer.close()
        assert ("ep0-ba0-rank0.pt" in names(tmp_path / str(number))) != refuses
    assert "could not be written" in caplog.text


def test_b33_a_run_resumes_exactly_from_what_a_thread_wrote(tmp_path: Path) -> None:
    whole, diary = make("8ba", None, save_folder=str(tmp_path / "a"))
    whole.fit()
    whole.close()
    _first = _trainer(tmp_path / "b", "4ba")
    _first.fit()
    _first.close()
    rest, rest_diary = make(
        "8ba", None, save_folder=str(tmp_path / "b"), save_async=True, autoresume=True
    )
    rest.fit()
    rest.close()
    assert rest_diary.losses == diary.losses[4:] and rest_diary.samples == diary.samples[4:]
    assert names(tmp_path / "a") == names(tmp_path / "b")


def test_no_save_takes_memory(tmp_path: Path) -> None:
    sizes: list[tuple[str, int]] = []

    def note(when: str) -> Any:
        return lambda state, logger: sizes.append((when, memory()))

    def memory() -> int:
        saver = trainer._checkpoint_saver
        assert saver is not None and saver._background is not None
        return saver._background.staging.size_bytes

    trainer = _trainer(tmp_path, "3ba", save_interval="2ba")
    trainer.state.callbacks[0].before_dataloader = note("before")  # type: ignore[attr-defined]
    trainer.state.callbacks[0].batch_end = note("after")  # type: ignore[attr-defined]
    trainer.fit()
    weights = sum(p.nbytes for p in trainer.state.model.parameters())
    assert sizes[0] == ("before", weights)  # from the beginning on
    generator = torch.get_rng_state().nbytes  # is made for each save
    assert memory() - generator == sizes[2][1] >= 3 * weights  # with the moments, after a batch
    trainer.close()
