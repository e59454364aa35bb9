"""A restarted run whose folder is gone goes on from the copy in a store."""

import shutil
from collections import Counter
from functools import partialmethod
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from composer import Trainer
from composer.callbacks.checkpoint_saver import CheckpointSaver
from composer.loggers.remote_uploader_downloader import RemoteUploaderDownloader
from composer.models.base import ComposerModel
from composer.utils.object_store import LocalObjectStore, ObjectStoreTransientError

NAME = "ba{batch}.pt"


class Line(ComposerModel):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.layer(batch)

    def loss(self, outputs: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        return outputs.square().mean()


def start(max_duration: str, **kwargs: Any) -> Trainer:
    torch.manual_seed(0)
    model = Line()
    return Trainer(
        model=model,
        optimizers=torch.optim.Adam(model.parameters(), lr=0.1),
        train_dataloader=torch.utils.data.DataLoader(torch.ones(8, 2), 2),
        max_duration=max_duration,
        run_name="r",
        progress_bar=False,
        autoresume=True,
        load_path=kwargs.pop("load_path", None),
        **kwargs,
    )


def run(max_duration: str, **kwargs: Any) -> tuple[int, torch.Tensor, str | None]:
    """Returns the batch at which the run began, its last weights and where it came from."""
    trainer = start(max_duration, **kwargs)
    begin = int(trainer.state.timestamp.batch)
    trainer.fit()
    trainer.close()
    return begin, trainer.state.model.layer.weight.detach().clone(), trainer.state.load_path


def in_folder(tmp_path: Path) -> dict[str, Any]:
    address = f"file://{tmp_path}/store/{{run_name}}"
    return {"save_folder": address, "save_filename": NAME, "save_interval": "1ba"}


def in_callback(tmp_path: Path) -> dict[str, Any]:
    folder = f"file://{tmp_path}/store/{{run_name}}"
    return {"callbacks": CheckpointSaver(folder, NAME, save_interval="1ba")}


def in_memory(tmp_path: Path) -> dict[str, Any]:
    return {"callbacks": CheckpointSaver(f"memory://b51{tmp_path}/r", NAME, save_interval="1ba")}


def by_logger(tmp_path: Path) -> dict[str, Any]:
    return {
        "save_folder": str(tmp_path / "local"),
        "save_filename": NAME,
        "save_interval": "1ba",
        "save_num_checkpoints_to_keep": 1,
        "loggers": RemoteUploaderDownloader(f"file://{tmp_path}/store"),
    }


@pytest.mark.parametrize("how", [in_folder, in_callback, in_memory, by_logger])
def test_b51_the_run_goes_on(tmp_path: Path, how: Any) -> None:
    _, expected, _ = run("6ba", save_folder=str(tmp_path / "whole"))
    assert run("3ba", **how(tmp_path))[0] == 0
    shutil.rmtree(tmp_path / "local", ignore_errors=True)
    begin, weights, source = run("6ba", load_path="user's own.pt", **how(tmp_path))
    assert begin == 3 and source is not None and "r/" in source
    assert torch.equal(weights, expected)


class Flaky(LocalObjectStore):
    """A store of which each kind of call fails twice."""

    calls: ClassVar[Counter[str]] = Counter()

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        self.calls[name] += 1
        if self.calls[name] < 3:
            raise ObjectStoreTransientError(f"{name} failed")
        return getattr(super(), name)(*args, **kwargs)

    upload_object = partialmethod(_call, "upload_object")
    download_object = partialmethod(_call, "download_object")
    get_object_size = partialmethod(_call, "get_object_size")
    list_objects = partialmethod(_call, "list_objects")


def test_b50_a_run_saves_and_goes_on_through_passing_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("composer.utils.object_store.utils.LocalObjectStore", Flaky)
    monkeypatch.setattr("composer.utils.retrying.time.sleep", lambda seconds: None)
    for begin, end in ((0, "2ba"), (2, "4ba")):
        Flaky.calls.clear()
        assert run(end, **in_folder(tmp_path))[0] == begin
        assert Flaky.calls["upload_object"] > 2
    Flaky.calls.clear()
    load = {"load_path": f"file://{tmp_path}/store/r/ba2.pt"}
    assert run("3ba", save_folder=str(tmp_path / "new"), **load)[0] == 2
    Flaky.calls.clear()
    with pytest.raises(FileNotFoundError, match="nothing.pt"):
        run("3ba", save_folder=str(tmp_path / "new2"), load_path=f"file://{tmp_path}/nothing.pt")
    assert Flaky.calls["get_object_size"] < 10


def test_the_folder_is_asked_before_stores(tmp_path: Path) -> None:
    run("2ba", **by_logger(tmp_path))
    pointer = tmp_path / "store" / "r" / "checkpoints" / "latest-rank0.pt.symlink"
    pointer.write_text("nothing.pt")
    begin, _, source = run("3ba", **by_logger(tmp_path))
    assert begin == 2 and source == str(tmp_path / "local" / "ba2.pt")


def test_a_run_that_is_new_takes_what_the_user_names(tmp_path: Path) -> None:
    logger = RemoteUploaderDownloader(f"file://{tmp_path}/another")
    run("2ba", save_folder=str(tmp_path / "other"), save_filename=NAME, loggers=logger)
    path = str(tmp_path / "other" / "ba2.pt")
    begin, _, source = run("3ba", load_path=path, **by_logger(tmp_path))
    assert (begin, source) == (2, path)


def test_a_pointer_to_nothing_is_an_error(tmp_path: Path) -> None:
    run("2ba", **in_folder(tmp_path))
    (tmp_path / "store" / "r" / "ba2.pt").unlink()
    with pytest.raises(FileNotFoundError, match="ba2.pt"):
        start("3ba", **in_folder(tmp_path))
