"""When checkpoints are saved, which stay, and where ``latest`` points, come what may."""

import os
from pathlib import Path

import pytest
import torch

from composer.callbacks import checkpoint_saver as module
from composer.callbacks.checkpoint_saver import CheckpointSaver
from composer.checkpoint.whole_run import Save, path_of_save
from composer.core.event import Event
from composer.loggers.in_memory_logger import InMemoryLogger
from composer.utils.compression import CompressorNotFound
from tests.composer.plugins import HandRun

NAME = "ba{batch}-rank{rank}.pt"


def saver(folder: Path | str, **kwargs) -> CheckpointSaver:
    kwargs.setdefault("save_interval", "1ba")
    return CheckpointSaver(folder, kwargs.pop("filename", NAME), **kwargs)


def prepares(write):
    """Stands for `prepare_save`: what is saved is up to ``write``."""

    def prepare(state, filename, **kwargs):
        path = path_of_save(state, filename)
        return Save(path, lambda: write(path))

    return prepare


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def pointed_at(folder: Path) -> str:
    return os.readlink(folder / "latest-rank0.pt")


def load(path: Path) -> dict:
    return torch.load(path, weights_only=False)["state"]


def test_one_file_a_save_and_a_relative_link_to_the_newest(tmp_path):
    callback = CheckpointSaver(tmp_path / "{run_name}", save_interval="1ep")
    HandRun(callback, run_name="r").loaded().fit().close()
    folder = tmp_path / "r"
    assert names(folder) == ["ep1-ba3-rank0.pt", "ep2-ba6-rank0.pt", "latest-rank0.pt"]
    assert pointed_at(folder) == "ep2-ba6-rank0.pt"
    assert callback.saved_checkpoints == [
        str(folder / "ep1-ba3-rank0.pt"),
        str(folder / "ep2-ba6-rank0.pt"),
    ]


def test_a_checkpoint_names_itself_in_its_list(tmp_path):
    HandRun(saver(tmp_path), max_duration="2ba").loaded().fit().close()
    entries = load(tmp_path / "ba2-rank0.pt")["callbacks"]["CheckpointSaver"][
        "all_saved_checkpoints_to_timestamp"
    ]
    assert [(Path(path).name, stamp["batch"]) for path, stamp in entries] == [
        ("ba1-rank0.pt", 1),
        ("ba2-rank0.pt", 2),
    ]


@pytest.mark.parametrize(
    ("interval", "max_duration", "saves"),
    [
        ("1ep", "5ep", 5),
        ("2ep", "8ep", 4),
        ("10ba", "8ep", 4),
        ("0.25dur", "4ep", 4),
        ("5ba", "4ep", 4),
        ("5ba", "10ba", 2),
        ("0.35dur", "4ep", 3),
        ("0.10dur", "70sp", 10),
        (lambda state, event: event == Event.EPOCH_CHECKPOINT, "2ep", 2),
    ],
)
def test_number_of_saves(tmp_path, monkeypatch, interval, max_duration, saves):
    monkeypatch.setattr(module, "prepare_save", prepares(touch))
    callback = saver(tmp_path, save_interval=interval)
    run = HandRun(callback, max_duration=max_duration, batches_per_epoch=5, batch_size=2)
    run.loaded().fit().close()
    assert len(callback.saved_checkpoints) == saves
    assert len(names(tmp_path)) == saves + 1


def touch(path: str) -> str:
    Path(path).write_text("a checkpoint")
    return path


def test_b26_interval_in_samples_that_is_no_multiple_of_the_batch(tmp_path):
    callback = saver(tmp_path, save_interval="10sp", filename="sp{sample}.pt")
    run = HandRun(callback, max_duration="30sp", batches_per_epoch=5, batch_size=6)
    run.loaded().fit().close()
    assert names(tmp_path) == ["latest-rank0.pt", "sp12.pt", "sp24.pt", "sp30.pt"]


def test_b27_fractional_interval_saves_once_at_the_end(tmp_path):
    callback = saver(tmp_path, save_interval="0.3dur")
    HandRun(callback, max_duration="10ba", batches_per_epoch=10).loaded().fit().close()
    batches = [stamp.batch.value for stamp in callback.all_saved_checkpoints_to_timestamp.values()]
    assert batches == [3, 6, 9, 10]


def test_b45_retention_is_in_the_order_of_training(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "prepare_save", prepares(touch))
    due = {9, 10, 99, 100}
    callback = saver(
        tmp_path,
        num_checkpoints_to_keep=2,
        save_interval=lambda state, event: (
            event == Event.BATCH_CHECKPOINT and state.timestamp.batch.value in due
        ),
    )
    run = HandRun(callback, max_duration="100ba", batches_per_epoch=100).loaded()
    fire = run.engine.run_event
    fire(Event.FIT_START)
    for batch in run.loader:
        run.train_batch(batch)
        old = tmp_path / "ba9-rank0.pt"
        if old.exists():
            os.utime(old)  # a fresh time of change makes it no newer
    run.close()
    assert names(tmp_path) == ["ba100-rank0.pt", "ba99-rank0.pt", "latest-rank0.pt"]


def test_b46_keep_one_and_keep_none(tmp_path):
    one, none = tmp_path / "one", tmp_path / "none"
    HandRun(saver(one, num_checkpoints_to_keep=1), max_duration="3ba").loaded().fit().close()
    assert names(one) == ["ba3-rank0.pt", "latest-rank0.pt"]
    HandRun(saver(none, num_checkpoints_to_keep=0), max_duration="3ba").loaded().fit().close()
    assert names(none) == []


def test_b46_no_dangling_link_after_a_resume_that_keeps_none(tmp_path):
    HandRun(saver(tmp_path), max_duration="1ba").loaded().fit().close()
    run = HandRun(saver(tmp_path, num_checkpoints_to_keep=0), max_duration="2ba")
    run.loaded(load(tmp_path / "ba1-rank0.pt")).fit().close()
    assert names(tmp_path) == []


def test_b47_a_folder_of_another_run_is_refused_before_training(tmp_path):
    touch(str(tmp_path / "ba700-rank0.pt"))
    run = HandRun(saver(tmp_path), max_duration="2ba").loaded()
    with pytest.raises(FileExistsError, match="save_overwrite=True"):
        run.fit()
    assert run.state.timestamp.batch == 0


def test_b47_with_overwrite_the_new_run_rotates_only_its_own(tmp_path):
    touch(str(tmp_path / "ba700-rank0.pt"))
    callback = saver(tmp_path, overwrite=True, num_checkpoints_to_keep=1)
    HandRun(callback, max_duration="2ba").loaded().fit().close()
    assert names(tmp_path) == ["ba2-rank0.pt", "ba700-rank0.pt", "latest-rank0.pt"]
    assert pointed_at(tmp_path) == "ba2-rank0.pt"


def test_a_file_in_the_place_of_the_link_is_refused_before_training(tmp_path):
    touch(str(tmp_path / "latest-rank0.pt"))
    run = HandRun(saver(tmp_path, overwrite=True), max_duration="2ba").loaded()
    with pytest.raises(FileExistsError, match="not a link"):
        run.fit()
    assert run.state.timestamp.batch == 0


def test_b45_retention_goes_on_after_a_resume(tmp_path):
    HandRun(saver(tmp_path, num_checkpoints_to_keep=2), max_duration="3ba").loaded().fit().close()
    assert names(tmp_path) == ["ba2-rank0.pt", "ba3-rank0.pt", "latest-rank0.pt"]
    run = HandRun(saver(tmp_path, num_checkpoints_to_keep=2), max_duration="4ba")
    run.loaded(load(tmp_path / "ba3-rank0.pt")).fit().close()
    assert names(tmp_path) == ["ba3-rank0.pt", "ba4-rank0.pt", "latest-rank0.pt"]


@pytest.mark.parametrize(("first", "then"), [("real", "link"), ("link", "real")])
def test_b45_retention_goes_on_through_a_link(tmp_path, first, then):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    run = HandRun(saver(tmp_path / first, num_checkpoints_to_keep=1), max_duration="3ba")
    run.loaded().fit().close()
    run = HandRun(saver(tmp_path / then, num_checkpoints_to_keep=1), max_duration="4ba")
    run.loaded(load(tmp_path / "real" / "ba3-rank0.pt")).fit().close()
    assert names(tmp_path / "real") == ["ba4-rank0.pt", "latest-rank0.pt"]


def test_retention_leaves_the_folder_alone_from_which_a_run_was_loaded(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    HandRun(saver(old), max_duration="2ba").loaded().fit().close()
    run = HandRun(saver(new, num_checkpoints_to_keep=1), max_duration="4ba")
    run.loaded(load(old / "ba2-rank0.pt")).fit().close()
    assert names(old) == ["ba1-rank0.pt", "ba2-rank0.pt", "latest-rank0.pt"]
    assert names(new) == ["ba4-rank0.pt", "latest-rank0.pt"]


def test_b43_leftovers_of_a_killed_save_go_and_strangers_stay(tmp_path):
    (tmp_path / "other").mkdir()
    for name in (".ba3-rank0.pt.partial", ".download.partial", "other/.ba3-rank0.pt.partial"):
        touch(str(tmp_path / name))
    HandRun(saver(tmp_path), max_duration="1ba").loaded().fit().close()
    assert names(tmp_path) == [".download.partial", "ba1-rank0.pt", "latest-rank0.pt", "other"]
    assert names(tmp_path / "other") == [".ba3-rank0.pt.partial"]


def test_saving_twice_at_one_batch_is_one_checkpoint(tmp_path):
    callback = saver(tmp_path, num_checkpoints_to_keep=2)
    run = HandRun(callback, max_duration="2ba").loaded().fit()
    callback._save_checkpoint(run.state, run.logger)
    run.close()
    assert [Path(path).name for path in callback.saved_checkpoints] == [
        "ba1-rank0.pt",
        "ba2-rank0.pt",
    ]


def test_b42_a_failed_save_leaves_link_and_list_as_they_were(tmp_path, monkeypatch):
    callback = saver(tmp_path, num_checkpoints_to_keep=1)
    run = HandRun(callback, max_duration="2ba").loaded()
    run.engine.run_event(Event.FIT_START)
    run.train_batch(run.loader[0])

    def fail(path):
        raise OSError("No space left on device")

    monkeypatch.setattr(module, "prepare_save", prepares(fail))
    with pytest.raises(OSError, match="No space"):
        run.train_batch(run.loader[1])
    run.close()
    assert names(tmp_path) == ["ba1-rank0.pt", "latest-rank0.pt"]
    assert [Path(path).name for path in callback.saved_checkpoints] == ["ba1-rank0.pt"]


def test_the_link_moves_after_the_payload_and_old_ones_go_last(tmp_path, monkeypatch):
    order = []
    write = prepares(lambda path: order.append("payload") or touch(path))
    monkeypatch.setattr(module, "prepare_save", write)
    move = module.update_latest
    monkeypatch.setattr(module, "update_latest", lambda *args: order.append("link") or move(*args))
    unlink = Path.unlink
    monkeypatch.setattr(
        Path, "unlink", lambda self, **kwargs: order.append("delete") or unlink(self, **kwargs)
    )
    callback = saver(tmp_path, num_checkpoints_to_keep=1)
    run = HandRun(callback, max_duration="2ba").loaded()
    run.engine.run_event(Event.FIT_START)
    for batch in run.loader[:2]:
        order.clear()
        run.train_batch(batch)
    run.close()
    order = [step for step, before in zip(order, [None, *order]) if step != before]
    assert [step for step in order if step != "delete"] == ["payload", "link"]
    assert order[-1] == "delete"


def test_weights_only(tmp_path):
    HandRun(saver(tmp_path, weights_only=True), max_duration="1ba").loaded().fit().close()
    assert "optimizers" not in load(tmp_path / "ba1-rank0.pt")


class KnowsARunId(InMemoryLogger):
    def path_placeholders(self):
        return {"mlflow_run_id": "abc"}


def test_loggers_fill_in_their_placeholders(tmp_path):
    callback = saver(f"{tmp_path}/{{mlflow_run_id}}")
    HandRun(KnowsARunId(), callback, max_duration="1ba").loaded().fit().close()
    assert names(tmp_path / "abc") == ["ba1-rank0.pt", "latest-rank0.pt"]


class Keeps(InMemoryLogger):
    may_stop_training = True

    def __init__(self):
        super().__init__()
        self.files = {}

    def can_upload_files(self):
        return True

    def upload_file(self, state, remote_file_name, file_path, *, overwrite):
        if remote_file_name in self.files and not overwrite:
            raise FileExistsError(f"{remote_file_name} exists.")
        self.files[remote_file_name] = Path(file_path).read_bytes()


def test_a_logger_that_keeps_files_gets_payload_and_then_pointer(tmp_path):
    keeps = Keeps()
    HandRun(
        keeps, saver(tmp_path, num_checkpoints_to_keep=0), max_duration="1ba"
    ).loaded().fit().close()
    assert list(keeps.files) == [
        "run/checkpoints/ep0-ba1-rank0.pt",
        "run/checkpoints/latest-rank0.pt.symlink",
    ]
    assert (
        keeps.files["run/checkpoints/latest-rank0.pt.symlink"]
        == b"run/checkpoints/ep0-ba1-rank0.pt"
    )
    with pytest.raises(FileExistsError, match="save_overwrite"):
        HandRun(keeps, saver(tmp_path), max_duration="1ba").loaded().fit()


def test_a_store_gets_every_checkpoint_and_the_newest_pointer(tmp_path):
    callback = saver(f"file://{tmp_path}/{{run_name}}", num_checkpoints_to_keep=0)
    HandRun(callback, max_duration="3ba").loaded().fit().close()
    folder = tmp_path / "run"
    assert names(folder) == [
        "ba1-rank0.pt",
        "ba2-rank0.pt",
        "ba3-rank0.pt",
        "latest-rank0.pt.symlink",
    ]
    assert (folder / "latest-rank0.pt.symlink").read_text().endswith("run/ba3-rank0.pt")
    assert load(folder / "ba3-rank0.pt")["timestamp"]["Timestamp"]["batch"] == 3


def test_a_store_that_does_not_exist_is_refused_at_once():
    with pytest.raises(NotImplementedError, match="carrier://"):
        CheckpointSaver("carrier://pigeon/folder")


@pytest.mark.parametrize("kwargs", [{"num_checkpoints_to_keep": -2}])
def test_wrong_settings(tmp_path, kwargs):
    with pytest.raises(ValueError, match="num_checkpoints_to_keep"):
        saver(tmp_path, **kwargs)


def test_a_store_object_is_not_replaced_without_overwrite(tmp_path):
    for overwrite in (False, True):
        HandRun(
            saver(f"file://{tmp_path}", overwrite=overwrite), max_duration="1ba"
        ).loaded().fit().close()
    run = HandRun(saver(f"file://{tmp_path}"), max_duration="1ba").loaded()
    with pytest.raises(FileExistsError, match="save_overwrite=True"):
        run.fit()
    run.close()


def test_a_compressor_that_is_not_there_is_refused_at_once(tmp_path, monkeypatch):
    with pytest.raises(CompressorNotFound, match='Could not find compressor for "a.pt.foo"'):
        saver(tmp_path, filename="a.pt.foo")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(CompressorNotFound, match='Could not find command "zstd" in the PATH'):
        saver(tmp_path, filename="a.pt.zst")
