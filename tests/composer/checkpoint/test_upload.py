"""Uploads of checkpoints: the pointer follows the payload, whatever happens."""

import threading
from pathlib import Path

import pytest

from composer.checkpoint.upload import CheckpointUploadCallback, upload_file
from composer.utils import dist
from composer.utils.object_store.local_object_store import LocalObjectStore
from composer.utils.object_store.object_store import ObjectStoreTransientError
from composer.utils.remote_uploader import RemoteUploader
from tests.composer.checkpoint.runs import make_state
from tests.launch import run_ranks


class Slow(LocalObjectStore):
    """Holds payloads back, or loses them, as told."""

    def __init__(self, root, failures=0, error=ObjectStoreTransientError("busy")):
        super().__init__(root)
        self.failures = failures
        self.error = error
        self.go = threading.Event()
        self.attempts = 0

    def upload_object(self, object_name, filename, callback=None, **kwargs):
        if not object_name.endswith(".symlink"):
            self.go.wait()
            self.attempts += 1
            if self.attempts <= self.failures:
                raise self.error
        super().upload_object(object_name, filename, callback, **kwargs)


@pytest.fixture
def payload(tmp_path):
    path = tmp_path / "ba1.pt"
    path.write_text("payload")
    return path


@pytest.fixture(autouse=True)
def _no_pause_between_attempts(monkeypatch):
    monkeypatch.setattr("composer.utils.retrying.time.sleep", lambda seconds: None)


def watch(store: LocalObjectStore, timeout: float = 60) -> CheckpointUploadCallback:
    uploader = RemoteUploader(f"file://{store.root}", num_concurrent_uploads=1)
    uploader.remote_backend = store
    callback = CheckpointUploadCallback(uploader, timeout)
    callback.wait_before_next_try_in_seconds = 0.01
    return callback


def send(callback, payload, folder, name="ba1.pt"):
    pointer = folder / f"{name}.symlink"
    pointer.write_text(name)
    callback.remote_uploader.upload_file_async(name, payload, False)
    callback.add_symlink_upload_task([name], str(pointer), "latest.symlink")
    pointer.unlink()


def test_b49_the_pointer_waits_for_the_payload(tmp_path, payload):
    store = Slow(tmp_path / "store")
    callback = watch(store)
    send(callback, payload, tmp_path)
    payload.unlink()  # rotation may delete it while the upload is under way
    callback.batch_end(None, None)
    assert not (tmp_path / "store").exists() and len(callback.symlink_upload_tasks) == 1
    store.go.set()
    callback.fit_end(None, None)
    assert (tmp_path / "store" / "ba1.pt").read_text() == "payload"
    assert (tmp_path / "store" / "latest.symlink").read_text() == "ba1.pt"
    callback.post_close()


def test_b49_no_pointer_to_a_payload_that_failed(tmp_path, payload, caplog):
    store = Slow(tmp_path / "store", failures=9)
    store.go.set()
    callback = watch(store)
    send(callback, payload, tmp_path)
    with pytest.raises(ObjectStoreTransientError):
        callback.wait()
    callback.post_close()
    assert "A checkpoint did not arrive" in caplog.text
    assert not (tmp_path / "store" / "latest.symlink").exists()


def test_a_pointer_that_a_logger_hands_over_waits_too(tmp_path, payload):
    store = Slow(tmp_path / "store", failures=1, error=PermissionError())
    uploader = watch(store).remote_uploader
    pointer = tmp_path / "pointer"
    pointer.write_text("ba1.pt")
    uploader.upload_file_async("ba1.pt", payload, False)
    uploader.upload_file_async("latest.symlink", pointer, True)
    store.go.set()
    with pytest.raises(PermissionError):
        uploader.wait_and_close()
    assert not (tmp_path / "store" / "latest.symlink").exists()


@pytest.mark.parametrize(
    ("failures", "error", "attempts"),
    [(2, ObjectStoreTransientError("busy"), 3), (1, PermissionError(), 1)],
)
def test_b50_passing_trouble_is_tried_again(tmp_path, payload, failures, error, attempts):
    store = Slow(tmp_path / "store", failures, error)
    store.go.set()
    callback = watch(store)
    callback.remote_uploader.upload_file_async("ba1.pt", payload, False)
    if attempts == 1:
        with pytest.raises(PermissionError):
            callback.wait()
    callback.post_close()
    assert store.attempts == attempts


def test_only_the_newest_pointer_is_moved(tmp_path, payload):
    store = Slow(tmp_path / "store")
    callback = watch(store)
    for name in ("ba1.pt", "ba2.pt"):
        send(callback, payload, tmp_path, name)
    moved = []
    upload = callback.remote_uploader.upload_file_async
    callback.remote_uploader.upload_file_async = lambda name, *args, **kwargs: (
        moved.append(name) or upload(name, *args, **kwargs)
    )
    store.go.set()
    callback.wait()
    callback.post_close()
    assert moved == ["latest.symlink"]
    assert (tmp_path / "store" / "latest.symlink").read_text() == "ba2.pt"


def test_what_takes_too_long_is_an_error(tmp_path, payload):
    store = Slow(tmp_path / "store")
    callback = watch(store, timeout=0.05)
    send(callback, payload, tmp_path)
    with pytest.raises(RuntimeError, match="upload_timeout_in_seconds"):
        callback.wait()
    store.go.set()
    callback.upload_timeout_in_seconds = 60
    callback.post_close()


@pytest.mark.parametrize(
    ("granularity", "target"), [("file", "ckpts/ba1.pt"), ("dir", "ckpts"), (None, None)]
)
@pytest.mark.parametrize("is_async", [False, True])
def test_upload_file(tmp_path, payload, granularity, target, is_async):
    state = make_state()
    for _ in range(2):
        address = f"file://{tmp_path}/ckpts"
        upload_file(
            address, str(payload), granularity, async_upload=is_async, state=state, overwrite=True
        )
    watchers = [c for c in state.callbacks if isinstance(c, CheckpointUploadCallback)]
    assert len(watchers) == is_async
    for callback in watchers:
        callback.fit_end(state, None)
        callback.post_close()
    assert (tmp_path / "ckpts" / "ba1.pt").read_text() == "payload"
    pointer = tmp_path / "ckpts" / "latest.symlink"
    if target is None:
        assert not pointer.exists()
    else:
        assert pointer.read_text() == f"{tmp_path}/{target}".lstrip("/")


def test_wrong_arguments(tmp_path, payload):
    address = f"file://{tmp_path}/ckpts"
    with pytest.raises(ValueError, match="state"):
        upload_file(address, str(payload))
    with pytest.raises(ValueError, match="'rank'"):
        upload_file(address, str(payload), "rank", async_upload=False)
    with pytest.raises(ValueError, match="not a file"):
        upload_file(address, str(tmp_path / "nothing"), async_upload=False)
    upload_file(address, str(payload), async_upload=False)
    with pytest.raises(FileExistsError):
        upload_file(address, str(payload), async_upload=False)


def _upload_shard(folder: str) -> list[str]:
    path = Path(folder, f"__{dist.get_global_rank()}_0.distcp")
    path.write_text("shard")
    upload_file(
        f"file://{folder}/store/ep1", str(path), "dir", "../latest.symlink", async_upload=False
    )
    return sorted(str(p.relative_to(folder)) for p in Path(folder, "store").rglob("*.*"))


def test_each_rank_sends_its_own(tmp_path):
    expected = ["store/ep1/__0_0.distcp", "store/ep1/__1_0.distcp", "store/latest.symlink"]
    assert run_ranks(_upload_shard, 2, str(tmp_path)) == [expected, expected]
