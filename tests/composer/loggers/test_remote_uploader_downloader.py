import os
import subprocess
import sys
import textwrap
import threading

import pytest

from composer.callbacks.checkpoint_saver import CheckpointSaver
from composer.loggers import FileLogger, RemoteUploaderDownloader
from composer.utils import maybe_create_remote_uploader_downloader_from_uri
from composer.utils.object_store.local_object_store import LocalObjectStore
from composer.utils.object_store.object_store import ObjectStoreTransientError
from tests.composer.plugins import HandRun
from tests.composer.utils.object_store.faults import SECRET, Proxy


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("first")
    return path


def make(tmp_path, **kwargs):
    return RemoteUploaderDownloader(f"file://{tmp_path}/store", **kwargs)


def started(*plugins, **kwargs):
    return HandRun(*plugins, **kwargs).loaded()


def test_a_file_arrives_and_comes_back(tmp_path, file):
    store = make(tmp_path)
    run = started(store)
    run.logger.upload_file("{run_name}/name-{rank}.txt", file)
    file.write_text("changed afterwards")
    run.fit()
    assert (tmp_path / "store/run/name-0.txt").read_text() == "first"
    assert store.get_uri_for_file("run/name-0.txt") == f"file://{tmp_path}/store/run/name-0.txt"
    store.download_file("run/name-0.txt", str(tmp_path / "back"))
    assert (tmp_path / "back").read_text() == "first"
    with pytest.raises(FileNotFoundError):
        store.download_file("missing", str(tmp_path / "other"))
    run.close()
    assert (tmp_path / "store/.credentials_validated_successfully").exists()
    assert store.can_upload_files() and store.can_download_file()
    assert (store.remote_backend_name, store.remote_bucket_name) == ("file", "")


def test_names_are_formatted(tmp_path, file):
    store = make(tmp_path, file_path_format_string="{run_name}/{rank}/{remote_file_name}")
    run = started(store)
    run.logger.upload_file("name", file)
    run.close()
    assert (tmp_path / "store/run/0/name").exists()


class Gate(LocalObjectStore):
    """Lets uploads through when it is opened; can fail them first."""

    def __init__(self, root):
        super().__init__(root)
        self.opened, self.errors, self.order = threading.Event(), [], []

    def upload_object(self, object_name, filename, callback=None):
        assert self.opened.wait(20)
        if self.errors:
            raise self.errors.pop(0)
        self.order.append(object_name)
        super().upload_object(object_name, filename, callback)


def gated(tmp_path, **kwargs):
    store = make(tmp_path, **kwargs)
    run = started(store)
    store._uploader.remote_backend = Gate(tmp_path / "store")
    return run, store, store.remote_backend


def test_training_does_not_wait(tmp_path, file):
    run, store, gate = gated(tmp_path)
    run.logger.upload_file("name", file)
    run.train_batch(run.loader[0])
    with pytest.raises(FileExistsError, match="was already enqueued to be uploaded"):
        run.logger.upload_file("name", file)
    assert not (tmp_path / "store/name").exists()
    gate.opened.set()
    run.close()
    assert (tmp_path / "store/name").exists()


def test_the_newest_of_one_name_arrives_last(tmp_path, file):
    run, store, gate = gated(tmp_path, num_concurrent_uploads=4)
    for number in range(8):
        file.write_text(str(number))
        run.logger.upload_file("name", file, overwrite=True)
    gate.opened.set()
    run.close()
    assert (tmp_path / "store/name").read_text() == "7"


def test_an_object_that_exists_is_not_replaced(tmp_path, file):
    (tmp_path / "store").mkdir()
    (tmp_path / "store/name").write_text("old")
    run = started(store := make(tmp_path))
    run.logger.upload_file("name", file)
    with pytest.raises(FileExistsError, match="already exists, but overwrite was set to False"):
        run.fit()
    assert (tmp_path / "store/name").read_text() == "old"
    run.logger.upload_file("name", file, overwrite=True)
    store.wait_for_workers()
    assert (tmp_path / "store/name").read_text() == "first"
    run.close()


@pytest.mark.parametrize("event", ["batch_end", "epoch_end", "fit_end"])
def test_an_error_ends_the_run(tmp_path, file, event):
    run, store, gate = gated(tmp_path)
    gate.errors.append(OSError("disk gone"))
    gate.opened.set()
    run.logger.upload_file("name", file)
    while store._exception_queue.empty():
        pass
    with pytest.raises(OSError, match="disk gone"):
        getattr(store, event)(run.state, run.logger)
    run.close()


def test_trouble_that_passes_is_tried_again(tmp_path, file, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    run, store, gate = gated(tmp_path)
    gate.errors += [ObjectStoreTransientError("busy")] * 2
    gate.opened.set()
    run.logger.upload_file("name", file)
    run.close()
    assert (tmp_path / "store/name").exists()


def test_what_may_be_missing_is_told_at_the_end(tmp_path, file):
    run, store, gate = gated(tmp_path)
    gate.errors.append(OSError("disk gone"))
    gate.opened.set()
    run.logger.upload_file("lost", file)
    run.logger.upload_file("kept", file)
    with pytest.warns(RuntimeWarning, match="may not have been uploaded.*: lost .*disk gone"):
        run.close()
    assert (tmp_path / "store/kept").exists()


def test_a_log_and_checkpoints_of_a_run(tmp_path):
    store = make(tmp_path, upload_staging_folder=str(tmp_path))
    log = FileLogger(
        str(tmp_path / "log.txt"), "{run_name}/log.txt", capture_stdout=False, capture_stderr=False
    )
    saver = CheckpointSaver(
        tmp_path / "saved",
        remote_file_name="ba{batch}.pt",
        latest_remote_file_name="latest.pt",
        save_interval="2ba",
        num_checkpoints_to_keep=0,
    )
    started(store, log, saver, max_duration="4ba").fit().close()
    names = {path.name for path in (tmp_path / "store").iterdir() if path.is_file()}
    assert {"ba2.pt", "ba4.pt", "latest.pt.symlink"} <= names
    assert "batch=3" in (tmp_path / "store/run/log.txt").read_text()
    store = make(tmp_path)
    store.download_file("latest.pt", str(tmp_path / "back.pt"))
    store.post_close()
    assert (tmp_path / "back.pt").read_bytes() == (tmp_path / "store/ba4.pt").read_bytes()
    assert not list(tmp_path.glob("uploads_*"))


@pytest.mark.slow
def test_a_run_that_nobody_closes_is_uploaded_whole(tmp_path):
    program = textwrap.dedent("""
        from composer.loggers import FileLogger, RemoteUploaderDownloader
        from tests.composer.plugins import HandRun

        store = RemoteUploaderDownloader("file://{0}/store")
        log = FileLogger("{0}/log.txt", "log.txt", capture_stdout=False, capture_stderr=False)
        run = HandRun(store, log, max_duration="2ba").loaded().fit()
        run.logger.log_metrics({{"afterwards": 1}})
    """).format(tmp_path)
    env = dict(os.environ, PYTHONPATH=os.getcwd())
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env)
    assert done.returncode == 0 and "rror" not in done.stderr, done.stderr
    assert "afterwards" in (tmp_path / "store/log.txt").read_text()


def test_it_serves_one_trainer(tmp_path):
    run = started(store := make(tmp_path))
    with pytest.raises(RuntimeError, match="give each Trainer its own"):
        store.init(run.state, run.logger)
    run.close()


def test_settings_are_checked(tmp_path):
    with pytest.raises(ValueError, match="num_concurrent_uploads=0"):
        make(tmp_path, num_concurrent_uploads=0)
    for kind in (ValueError, NotImplementedError):
        with pytest.raises(kind, match="no object store for .*ftp"):
            RemoteUploaderDownloader("ftp://bucket")
    with pytest.raises(ValueError, match="is a local path"):
        RemoteUploaderDownloader("/folder")
    make(tmp_path, use_procs=True).post_close()  # says what it always was, and warns of nothing


class Remembers:
    """A store as programs' tests have them, put in the place of a class."""

    def __init__(self, **arguments):
        self.arguments = arguments


@pytest.mark.parametrize(
    ("address", "given", "arguments"),
    [
        ("s3://bucket", None, {"bucket": "bucket"}),
        ("s3://bucket/a/b", None, {"bucket": "bucket", "prefix": "a/b"}),
        ("s3://bucket", {"prefix": "c"}, {"bucket": "bucket", "prefix": "c"}),
        ("s3://bucket/a", {"prefix": "c"}, {"bucket": "bucket", "prefix": "c"}),
        ("libcloud://box", {"provider": "local"}, {"container": "box", "provider": "local"}),
        ("sftp://me@host:22/a", None, {"host": "sftp://me@host:22/", "cwd": "a"}),
        ("sftp://me@host", {"cwd": "b"}, {"host": "sftp://me@host", "cwd": "b"}),
        ("dbfs:/Volumes/a", None, {"path": "Volumes/a"}),
    ],
)
def test_the_arguments_of_a_store(monkeypatch, address, given, arguments):
    for name in ("S3", "Libcloud", "SFTP", "UC"):
        kind = Remembers if name != "UC" else lambda path, **rest: Remembers(path=path, **rest)
        monkeypatch.setattr(f"composer.utils.object_store.utils.{name}ObjectStore", kind)
    assert RemoteUploaderDownloader(address, given).remote_backend.arguments == arguments


def test_one_for_an_address(tmp_path, file):
    assert maybe_create_remote_uploader_downloader_from_uri(str(tmp_path), []) is None
    made = maybe_create_remote_uploader_downloader_from_uri(f"file://{tmp_path}/a", [])
    assert made is not None
    run = HandRun()
    made.upload_file(run.state, f"{tmp_path}/a/name", file, overwrite=False)
    made.post_close()
    assert (tmp_path / "a/name").exists()
    with pytest.warns(UserWarning, match="There already exists a RemoteUploaderDownloader"):
        assert maybe_create_remote_uploader_downloader_from_uri("file:///b", [made]) is None


def test_a_log_and_checkpoints_in_s3(s3: Proxy, tmp_path):
    store = RemoteUploaderDownloader("s3://bucket/logs", num_concurrent_uploads=2)
    log = FileLogger(
        str(tmp_path / "log.txt"),
        "{run_name}/log.txt",
        flush_interval="1ba",
        capture_stdout=False,
        capture_stderr=False,
    )
    saver = CheckpointSaver(
        tmp_path / "saved",
        "ba{batch}.pt",
        remote_file_name="ba{batch}.pt",
        latest_remote_file_name="latest.pt",
        save_interval="2ba",
    )
    run = started(store, log, saver, max_duration="4ba")
    s3.faults += [("PUT", "503"), ("PUT", "reset"), ("HEAD", "500"), ("PUT", "500")]
    run.fit().close()
    assert s3.faults == []
    text = (tmp_path / "log.txt").read_text()
    assert "batch=3" in text
    back = RemoteUploaderDownloader("s3://bucket/logs")
    for name, local in (("run/log.txt", "log.txt"), ("latest.pt", "saved/ba4.pt")):
        back.download_file(name, str(tmp_path / "back"), overwrite=True)
        assert (tmp_path / "back").read_bytes() == (tmp_path / local).read_bytes()
    assert back.get_uri_for_file("run/log.txt") == "s3://bucket/logs/run/log.txt"
    back.post_close()
    s3.faults += [("*", "403")] * 20
    with pytest.raises(
        PermissionError, match="No access to s3://bucket/logs/.*Check AWS_"
    ) as error:
        started(RemoteUploaderDownloader("s3://bucket/logs"))
    assert SECRET not in str(error.value)
