import pytest

from composer.utils import RemoteFilesExistingCheckStatus, RemoteUploader
from composer.utils import remote_uploader as module


@pytest.fixture
def uploader(tmp_path):
    made = RemoteUploader(f"file://{tmp_path}/store")
    made.init()
    yield made
    made.wait_and_close()


def named(tmp_path, name):
    return f"{tmp_path}/store/{name}".lstrip("/")


def test_a_file_arrives(tmp_path, uploader):
    (tmp_path / "file").write_text("text")
    future = uploader.upload_file_async(named(tmp_path, "name"), tmp_path / "file", False)
    uploader.wait()
    assert future.result() is None and not uploader.futures
    assert (tmp_path / "store/name").read_text() == "text"
    assert uploader.path == named(tmp_path, "").rstrip("/")


def test_large_files_are_linked_not_copied(tmp_path, uploader, monkeypatch):
    monkeypatch.setattr(module, "_COPY_UP_TO_BYTES", 3)
    (tmp_path / "file").write_text("text")
    monkeypatch.setattr(module.shutil, "copyfile", lambda *args: pytest.fail("copied"))
    uploader.upload_file_async(named(tmp_path, "name"), tmp_path / "file", False)
    (tmp_path / "file").unlink()
    uploader.wait()
    assert (tmp_path / "store/name").read_text() == "text"


def test_an_error_is_raised_once(tmp_path, uploader):
    (tmp_path / "file").write_text("text")
    uploader.upload_file_async(named(tmp_path, "name"), tmp_path / "file", False)
    future = uploader.upload_file_async(named(tmp_path, "name"), tmp_path / "file", False)
    assert isinstance(future.exception(), FileExistsError)
    with pytest.raises(FileExistsError, match="already exists, but overwrite was set to False"):
        uploader.wait()
    uploader.check_workers()


def test_files_are_watched_for(tmp_path, uploader, monkeypatch):
    names = [named(tmp_path, name) for name in ("a", "b")]
    check = uploader.check_remote_files_exist_async(names, 20, 0.01)
    (tmp_path / "file").write_text("text")
    for name in names:
        assert not check.done()
        uploader.upload_file_async(name, tmp_path / "file", False)
        uploader.wait()
    assert check.result() is RemoteFilesExistingCheckStatus.EXIST
    late = uploader.check_remote_files_exist_async([named(tmp_path, "c")], 0.02, 0.01)
    assert late.result() is RemoteFilesExistingCheckStatus.TIMEOUT
    monkeypatch.setattr(uploader.remote_backend, "get_object_size", lambda name: 1 / 0)
    wrong = uploader.check_remote_files_exist_async(names)
    assert wrong.result() is RemoteFilesExistingCheckStatus.ERROR


def test_an_upload_that_fails_ends_the_watch(tmp_path, uploader, monkeypatch):
    monkeypatch.setattr(uploader.remote_backend, "upload_object", lambda *args: 1 / 0)
    check = uploader.check_remote_files_exist_async([named(tmp_path, "a")], 20, 0.01)
    (tmp_path / "file").write_text("text")
    uploader.upload_file_async(named(tmp_path, "a"), tmp_path / "file", True)
    assert check.result() is RemoteFilesExistingCheckStatus.ERROR
    with pytest.raises(ZeroDivisionError):
        uploader.wait()


def test_ranks_can_be_staggered(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPOSER_LOCAL_RANK_STAGGER_SECONDS", "0.5")
    monkeypatch.setattr("composer.utils.dist.get_local_rank", lambda: 3)
    made = RemoteUploader(f"file://{tmp_path}/store")
    assert made._delay_seconds == 1.5
    made.wait_and_close()


def test_settings_are_checked():
    with pytest.raises(ValueError, match="num_attempts=0"):
        RemoteUploader("file:///folder", num_attempts=0)
    with pytest.raises(ValueError, match="is a local path"):
        RemoteUploader("folder")
