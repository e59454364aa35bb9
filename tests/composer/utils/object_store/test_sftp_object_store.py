"""SFTP against a server of paramiko's on loopback."""

import contextlib
import os
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from composer.utils.file_helpers import maybe_create_object_store_from_uri
from composer.utils.object_store.object_store import ObjectStoreTransientError
from composer.utils.object_store.sftp_object_store import SFTPObjectStore
from composer.utils.object_store.utils import build_remote_backend
from composer.utils.remote_uploader import RemoteUploader

paramiko = pytest.importorskip("paramiko")

PASSWORD = "c0rrectHorse"


class _SignIn(paramiko.ServerInterface):
    def check_auth_password(self, username: str, password: str) -> int:
        right = (username, password) == ("me", PASSWORD)
        return paramiko.AUTH_SUCCESSFUL if right else paramiko.AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:
        del kind, chanid
        return paramiko.OPEN_SUCCEEDED


class _Files(paramiko.SFTPServerInterface):
    root: str

    def _at(self, path: str) -> str:
        return self.root + self.canonicalize(path)

    def _answer(self, call: Any, *paths: str) -> Any:
        try:
            return call(*(self._at(path) for path in paths))
        except OSError as error:
            return paramiko.SFTPServer.convert_errno(error.errno)

    def stat(self, path: str) -> Any:
        return self._answer(lambda at: paramiko.SFTPAttributes.from_stat(os.stat(at)), path)

    def list_folder(self, path: str) -> Any:
        def rows(at: str) -> list[Any]:
            return [
                paramiko.SFTPAttributes.from_stat(os.stat(os.path.join(at, name)), name)
                for name in os.listdir(at)
            ]

        return self._answer(rows, path)

    def open(self, path: str, flags: int, attr: Any) -> Any:
        del attr

        def opened(at: str) -> Any:
            handle = paramiko.SFTPHandle(flags)
            writes = bool(flags & os.O_WRONLY)
            file = os.fdopen(os.open(at, flags, 0o600), "wb" if writes else "rb")
            handle.readfile = handle.writefile = file
            return handle

        return self._answer(opened, path)

    def remove(self, path: str) -> Any:
        return self._answer(os.remove, path) or paramiko.SFTP_OK

    def posix_rename(self, oldpath: str, newpath: str) -> Any:
        return self._answer(os.replace, oldpath, newpath) or paramiko.SFTP_OK

    def mkdir(self, path: str, attr: Any) -> Any:
        del attr
        return self._answer(os.mkdir, path) or paramiko.SFTP_OK


@pytest.fixture
def server(tmp_path: Path) -> Iterator[dict[str, Any]]:
    root = tmp_path / "root"
    root.mkdir()
    key = paramiko.RSAKey.generate(2048)
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    transports: list[Any] = []

    class Files(_Files):
        pass

    Files.root = str(root)

    def serve() -> None:
        with contextlib.suppress(OSError):  # closed at the end
            while True:
                transport = paramiko.Transport(listening.accept()[0])
                transports.append(transport)
                transport.add_server_key(key)
                transport.set_subsystem_handler("sftp", paramiko.SFTPServer, Files)
                with contextlib.suppress(paramiko.SSHException, EOFError):
                    transport.start_server(server=_SignIn())

    thread = threading.Thread(target=serve)
    thread.start()
    known = tmp_path / "known_hosts"
    known.write_text(f"[127.0.0.1]:{port} ssh-rsa {key.get_base64()}\n")
    yield {"port": port, "known": str(known), "root": root, "transports": transports}
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    for transport in transports:
        transport.close()
    thread.join()


@pytest.fixture
def store(server: dict[str, Any], quick: None) -> Iterator[SFTPObjectStore]:
    with SFTPObjectStore(
        "127.0.0.1",
        server["port"],
        username="me",
        password=PASSWORD,
        known_hosts_filename=server["known"],
        cwd="/data",
        connect_kwargs={"look_for_keys": False, "allow_agent": False},
    ) as store:
        yield store


def test_round_trip(store: SFTPObjectStore, server: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "x").write_text("content")
    seen: list[tuple[int, int]] = []
    store.upload_object("a/b.pt", tmp_path / "x", callback=lambda *counts: seen.append(counts))
    store.download_object("a/b.pt", tmp_path / "y", callback=lambda *counts: seen.append(counts))
    assert (tmp_path / "y").read_text() == "content"
    assert seen[-1] == (7, 7)
    assert store.get_object_size("a/b.pt") == 7
    assert store.get_uri("a/b.pt") == f"sftp://me@127.0.0.1:{server['port']}/data/a/b.pt"
    assert os.listdir(server["root"] / "data/a") == ["b.pt"]
    assert stat.S_ISREG((server["root"] / "data/a/b.pt").stat().st_mode)
    assert store.list_objects("a/") == store.list_objects(None) == ["a/b.pt"]
    assert store.list_objects("nothing/") == []
    for name in ("nothing", "a"):
        with pytest.raises(FileNotFoundError, match=f"data/{name} not found"):
            store.get_object_size(name)


def test_a_lost_connection_is_opened_again(
    store: SFTPObjectStore, server: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "x").write_text("content")
    store.upload_object("x", tmp_path / "x")
    for transport in server["transports"]:
        transport.close()
    assert store.get_object_size("x") == 7
    assert len(server["transports"]) == 2


def test_refusals(server: dict[str, Any], quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"sftp://me:{PASSWORD}@127.0.0.1:{server['port']}/"
    alone = {"look_for_keys": False, "allow_agent": False}
    unknown = build_remote_backend("sftp", {"host": address, "connect_kwargs": alone})
    with pytest.raises(PermissionError, match="not found in known_hosts") as error:
        unknown.get_object_size("x")
    assert PASSWORD not in str(error.value)
    monkeypatch.setenv("COMPOSER_SFTP_KNOWN_HOSTS_FILE", server["known"])
    wrong = SFTPObjectStore(address, password="wr0ngHorse", connect_kwargs=alone)
    with pytest.raises(PermissionError, match="No access to sftp://me@127.0.0.1"):
        wrong.get_object_size("x")
    found = maybe_create_object_store_from_uri(address + "folder/x")
    assert isinstance(found, SFTPObjectStore)
    assert found.known_hosts_filename == server["known"]
    with pytest.raises(FileNotFoundError, match="/folder/x not found"):
        found.get_object_size("folder/x")
    found.close()
    with pytest.raises(ValueError, match="RejectPolicy"):
        SFTPObjectStore("host", missing_host_key_policy="Whoever")
    with pytest.raises(ValueError, match="not the address of a host"):
        SFTPObjectStore("http://host")


@pytest.mark.parametrize("given", [None, {"connect_kwargs": {"look_for_keys": False}}])
def test_an_uploader_signs_in_as_its_address_says(
    given: Any, server: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COMPOSER_SFTP_KNOWN_HOSTS_FILE", server["known"])
    (tmp_path / "x").write_text("content")
    address = f"sftp://me:{PASSWORD}@127.0.0.1:{server['port']}/folder"
    uploader = RemoteUploader(address, given)
    uploader.upload_file_async(f"{uploader.path}/x", tmp_path / "x", overwrite=False)
    uploader.wait_and_close()
    assert (server["root"] / "folder" / "x").read_text() == "content"


def test_nobody_listens(quick: None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(ObjectStoreTransientError, match=f"sftp://127.0.0.1:{port}/x could not"):
        SFTPObjectStore("127.0.0.1", port).get_object_size("x")
