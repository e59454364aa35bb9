"""Files from a path, a server on loopback and a store; and links that are text."""

import http.server
import os
import socket
import struct
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from composer.checkpoint.download import download_object_or_file
from composer.utils import file_helpers as module
from composer.utils.file_helpers import (
    create_symlink_file,
    extract_path_from_symlink,
    get_file,
    is_uri,
    list_remote_objects,
    maybe_create_object_store_from_uri,
    parse_uri,
    validate_credentials,
    validate_remote_path,
)
from composer.utils.object_store import LocalObjectStore, ObjectStoreTransientError


class _Quiet(http.server.SimpleHTTPRequestHandler):
    """Answers ``/<trouble>`` with that trouble, as often as ``left`` says, and then with a file."""

    left: ClassVar[int]
    asked: ClassVar[list[str]]

    def log_message(self, format: str, *args: object) -> None:
        del format, args

    def do_GET(self) -> None:
        self.asked.append(self.path)
        trouble = self.path.strip("/").partition("?")[0].removesuffix(".symlink")
        if len(self.asked) > self.left or trouble.endswith("x.pt"):
            self.path = "/x.pt"
            super().do_GET()
        elif trouble.isdigit():
            self.send_error(int(trouble))
        elif trouble == "short":
            self.send_response(200)
            self.send_header("Content-Length", "100")
            self.end_headers()
            self.wfile.write(b"half")
        else:  # a reset connection, not an orderly end
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    folder = tmp_path / "web"
    folder.mkdir()
    (folder / "x.pt").write_text("content")
    monkeypatch.setattr(module, "_WEB_BACKOFF_SECONDS", 0.0)
    _Quiet.left, _Quiet.asked = 99, []
    handler = partial(_Quiet, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    monkeypatch.setattr(server, "handle_error", lambda *args: None)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_what_was_there_stays_until_the_new_file_has_arrived(web: str, tmp_path: Path) -> None:
    destination = tmp_path / "kept.pt"
    destination.write_text("old")
    with pytest.raises(FileNotFoundError):
        get_file(f"{web}/404", str(destination), overwrite=True)
    assert destination.read_text() == "old"
    get_file(f"{web}/x.pt", str(destination), overwrite=True)
    assert destination.read_text() == "content"


@pytest.mark.parametrize(
    ("uri", "parts"),
    [
        ("s3://bucket/a/b.pt", ("s3", "bucket", "a/b.pt")),
        ("gs://bucket", ("gs", "bucket", "")),
        ("oci://bucket@namespace/a", ("oci", "bucket", "a")),
        ("AZURE_BLOBS://container/a", ("azure", "container", "a")),
        ("file:///a/b", ("file", "", "a/b")),
        ("file:/a/b", ("file", "", "a/b")),
        ("dbfs:/Volumes/a/b", ("dbfs", "", "Volumes/a/b")),
        ("C:/a/b", ("", "", "C:/a/b")),
        ("/a/b.pt", ("", "", "/a/b.pt")),
        ("a/b.pt", ("", "", "a/b.pt")),
    ],
)
def test_parse_uri(uri: str, parts: tuple[str, str, str]) -> None:
    assert parse_uri(uri) == parts
    assert is_uri(uri) is bool(parts[0])


def test_store_from_uri() -> None:
    assert maybe_create_object_store_from_uri("/a/b") is None
    assert isinstance(maybe_create_object_store_from_uri("file:///a/b"), LocalObjectStore)
    with pytest.raises(NotImplementedError, match="no object store for wandb://"):
        maybe_create_object_store_from_uri("wandb://a/b")


def test_local_file_is_linked(tmp_path: Path) -> None:
    (tmp_path / "x.pt").write_text("content")
    destination = tmp_path / "copy.pt"
    get_file(str(tmp_path / "x.pt"), str(destination))
    assert destination.is_symlink() and destination.read_text() == "content"
    with pytest.raises(FileExistsError, match="overwrite is set to False"):
        get_file(str(tmp_path / "x.pt"), str(destination))
    (tmp_path / "y.pt").write_text("other")
    get_file(str(tmp_path / "y.pt"), str(destination), overwrite=True)
    assert destination.read_text() == "other"
    with pytest.raises(FileNotFoundError, match=r"nowhere\.pt does not exist"):
        get_file(str(tmp_path / "nowhere.pt"), str(tmp_path / "z"))


def test_text_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "x.pt").write_text("content")
    link = tmp_path / "latest.pt.symlink"
    create_symlink_file(str(tmp_path / "x.pt"), link)
    assert extract_path_from_symlink(str(link)) == str(tmp_path / "x.pt")
    get_file(str(link), str(tmp_path / "one"))
    get_file(str(tmp_path / "latest.pt"), str(tmp_path / "two"))
    assert (tmp_path / "one").read_text() == (tmp_path / "two").read_text() == "content"
    with pytest.raises(FileExistsError):
        create_symlink_file("elsewhere", link)
    with pytest.raises(ValueError, match="must end with '.symlink'"):
        create_symlink_file("elsewhere", tmp_path / "latest")


def test_web_file_is_downloaded_whole(web: str, tmp_path: Path) -> None:
    destination = tmp_path / "copy.pt"
    get_file(f"{web}/x.pt", str(destination))
    assert destination.read_text() == "content" and not destination.is_symlink()


@pytest.mark.parametrize("trouble", ["500", "503", "429", "408", "short", "reset"])
def test_b50_a_web_file_is_asked_for_again(web: str, tmp_path: Path, trouble: str) -> None:
    _Quiet.left = 2
    get_file(f"{web}/{trouble}", str(tmp_path / "y"))
    assert (tmp_path / "y").read_text() == "content" and len(_Quiet.asked) == 3
    _Quiet.left = 99
    with pytest.raises(ObjectStoreTransientError, match=f"{web}/{trouble} could not be read"):
        get_file(f"{web}/{trouble}", str(tmp_path / "z"))
    assert len(_Quiet.asked) == 6
    assert sorted(os.listdir(tmp_path)) == ["web", "y"]


@pytest.mark.parametrize(
    ("code", "error", "cure"),
    [
        ("404", FileNotFoundError, "check the address"),
        ("403", PermissionError, "public, or that the signature"),
        ("401", PermissionError, "public, or that the signature"),
        ("400", OSError, "Bad Request; check the address"),
    ],
)
def test_b50_a_web_server_that_says_no_is_believed(
    web: str, tmp_path: Path, code: str, error: type[Exception], cure: str
) -> None:
    with pytest.raises(error, match=rf"{web}/{code}.*\(HTTP {code}\).*{cure}"):
        get_file(f"{web}/{code}?Signature=hidden", str(tmp_path / "y"))
    # A missing file may be named by a text link beside it.
    assert len(_Quiet.asked) == (2 if code == "404" else 1)
    assert os.listdir(tmp_path) == ["web"]


def test_b50_a_checkpoint_is_loaded_through_passing_trouble(web: str, tmp_path: Path) -> None:
    torch.save({"weight": torch.ones(3)}, tmp_path / "web" / "x.pt")
    _Quiet.left = 1
    download_object_or_file(f"{web}/503", str(tmp_path / "y"), None)
    assert torch.load(tmp_path / "y")["weight"].tolist() == [1, 1, 1]


def test_store_file_is_downloaded(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path / "store")
    (tmp_path / "x.pt").write_text("content")
    store.upload_object("run/ep1.pt", tmp_path / "x.pt")
    (tmp_path / "link").write_text("run/ep1.pt")
    store.upload_object("run/latest.pt.symlink", tmp_path / "link")
    get_file("run/latest.pt", str(tmp_path / "one"), store)
    get_file((tmp_path / "store" / "run" / "ep1.pt").as_uri(), str(tmp_path / "two"))
    assert (tmp_path / "one").read_text() == (tmp_path / "two").read_text() == "content"
    with pytest.raises(FileNotFoundError, match=r"nowhere\.pt not found"):
        get_file("run/nowhere.pt", str(tmp_path / "three"), store)


def test_destination_that_downloads(tmp_path: Path) -> None:
    asked = []

    class Destination:
        def download_file(
            self,
            remote_file_name: str,
            destination: str,
            overwrite: bool = False,
            progress_bar: bool = True,
        ) -> None:
            asked.append((remote_file_name, destination, overwrite, progress_bar))

    get_file("a.pt", str(tmp_path / "x"), Destination(), progress_bar=False)
    assert asked == [("a.pt", str(tmp_path / "x"), False, False)]


def test_remote_path_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    validate_credentials(LocalObjectStore(tmp_path), "folder/probe")
    uri = (tmp_path / "folder").as_uri()
    assert [os.path.basename(name) for name in list_remote_objects(uri)] == ["probe"]
    monkeypatch.setattr("sys.argv", ["composer_validate_remote_path", uri])
    validate_remote_path()
    assert capsys.readouterr().out == f"Found 1 objects at {uri}\n"
    monkeypatch.setattr("sys.argv", ["composer_validate_remote_path", uri + "/nothing"])
    with pytest.raises(ValueError, match="Found no objects"):
        validate_remote_path()
    monkeypatch.setattr("sys.argv", ["composer_validate_remote_path"])
    with pytest.raises(ValueError, match="Usage"):
        validate_remote_path()
    with pytest.raises(ValueError, match="is a local path"):
        list_remote_objects(str(tmp_path))
