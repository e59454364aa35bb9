"""The rules over clients other than S3's: memory, the Hub's, Google's and Azure's, on loopback."""

import http.server
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import fsspec
import pytest

from composer.utils.file_helpers import (
    get_file,
    list_remote_objects,
    maybe_create_object_store_from_uri,
)
from composer.utils.object_store.azure_object_store import AzureObjectStore
from composer.utils.object_store.gcs_object_store import GCSObjectStore
from composer.utils.object_store.object_store import ObjectStore, ObjectStoreTransientError
from composer.utils.object_store.remote_object_store import FsspecObjectStore
from composer.utils.object_store.s3_object_store import S3ObjectStore
from composer.utils.object_store.utils import build_remote_backend
from composer.utils.remote_uploader import RemoteUploader
from tests.composer.utils.object_store.faults import serving

ACCOUNT_KEY = "YW4gYWNjb3VudCdzIHNlY3JldA=="


class _Blobs(http.server.BaseHTTPRequestHandler):
    """As much of the stores of Google and Azure as reading, writing and listing need."""

    protocol_version = "HTTP/1.1"
    blobs: dict[str, bytes]
    faults: list[int]
    seen: list[tuple[str, str]]

    def log_message(self, format: str, *args: object) -> None:
        del format, args

    def answer(
        self, status: int, data: bytes = b"", size: int | None = None, span: str | None = None
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data) if size is None else size))
        self.send_header("ETag", '"1"')
        self.send_header("Last-Modified", "Wed, 21 Oct 2015 07:28:00 GMT")
        if span is not None:
            self.send_header("Content-Range", span)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def any_method(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        address = urlsplit(self.path)
        self.seen.append((self.command, str(self.headers)))
        bucket, _slash, key = unquote(address.path).lstrip("/").partition("/")
        query = parse_qs(address.query)
        if self.faults:
            self.answer(self.faults.pop(), str(self.headers).encode())
        elif self.command == "PUT":
            self.blobs[key] = body
            self.answer(201)
        elif not key:
            self.answer(200, self.listing(query.get("prefix", [""])[0]))
        elif key not in self.blobs:
            self.answer(404)
        else:
            data = self.blobs[key]
            ranges = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            if ranges is None:
                self.answer(200, data)
            else:
                start, end = int(ranges[1]), min(int(ranges[2]), len(data) - 1)
                span = f"bytes {start}-{end}/{len(data)}"
                self.answer(206, data[start : end + 1], span=span)

    def do_HEAD(self) -> None:
        key = unquote(urlsplit(self.path).path).lstrip("/").partition("/")[2]
        self.seen.append((self.command, str(self.headers)))
        if key in self.blobs:
            self.answer(200, size=len(self.blobs[key]))
        else:
            self.answer(404)

    def listing(self, prefix: str) -> bytes:
        names = [name for name in self.blobs if name.startswith(prefix)]
        date = "2015-10-21T07:28:00.000Z"
        google = "".join(
            f"<Contents><Key>{name}</Key><Size>{len(self.blobs[name])}</Size>"
            f'<LastModified>{date}</LastModified><ETag>"1"</ETag></Contents>'
            for name in names
        )
        azure = "".join(
            f"<Blob><Name>{name}</Name><Properties><Last-Modified>Wed, 21 Oct 2015 07:28:00 GMT"
            f"</Last-Modified><Content-Length>{len(self.blobs[name])}</Content-Length>"
            "<Content-Type>x</Content-Type><Etag>1</Etag></Properties></Blob>"
            for name in names
        )
        if "comp=list" in self.path:
            text = f"<EnumerationResults><Blobs>{azure}</Blobs><NextMarker/></EnumerationResults>"
        else:
            text = f"<ListBucketResult>{google}</ListBucketResult>"
        return text.encode()

    do_GET = do_PUT = any_method


@pytest.fixture
def blobs(quick: None, no_credentials: None) -> Iterator[tuple[str, type[_Blobs]]]:
    class Handler(_Blobs):
        blobs: dict[str, bytes] = {}
        faults: list[int] = []
        seen: list[tuple[str, str]] = []

    with serving(Handler) as url:
        yield url, Handler


@pytest.fixture(params=["gs", "az", "memory"])
def store(
    request: pytest.FixtureRequest,
    blobs: tuple[str, type[_Blobs]],
    monkeypatch: pytest.MonkeyPatch,
) -> ObjectStore:
    url, _handler = blobs
    if request.param == "gs":
        key = {"gcs_base_url": url, "disable_oauth": True, "private_key_id": ""}
        key |= {"client_email": "", "private_key": ""}
        return GCSObjectStore("bucket", "pre", base_url=url, service_account_key=json.dumps(key))
    if request.param == "az":
        monkeypatch.setenv("AZURE_ACCOUNT_NAME", "account")
        monkeypatch.setenv("AZURE_ACCOUNT_ACCESS_KEY", ACCOUNT_KEY)
        return AzureObjectStore("bucket", "pre", endpoint=url)
    fsspec.filesystem("memory").store.clear()
    return FsspecObjectStore("memory", "bucket", "pre")


def test_what_holds_for_every_store(store: ObjectStore, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("content")
    seen: list[tuple[int, int]] = []
    store.upload_object("a/b.pt", tmp_path / "x", callback=lambda *counts: seen.append(counts))
    store.upload_object("ab", tmp_path / "x")
    with store:
        store.download_object(
            "a/b.pt", tmp_path / "new/y", callback=lambda *counts: seen.append(counts)
        )
    assert (tmp_path / "new/y").read_text() == "content"
    assert os.listdir(tmp_path / "new") == ["y"]
    assert seen and set(seen) == {(7, 7)}
    assert store.get_object_size("a/b.pt") == 7
    assert store.get_uri("a/b.pt").endswith("://bucket/pre/a/b.pt")
    assert store.list_objects("a") == store.list_objects(None) == ["a/b.pt", "ab"]
    assert store.list_objects("a/") == store.list_objects("a/b") == ["a/b.pt"]
    assert store.list_objects("nothing/") == []
    for missing in (
        store.get_object_size,
        lambda name: store.download_object(name, tmp_path / "z"),
    ):
        with pytest.raises(FileNotFoundError, match="://bucket/pre/nothing not found"):
            missing("nothing")
    with pytest.raises(FileExistsError, match="overwrite is set to False"):
        store.download_object("ab", tmp_path / "x")
    with pytest.raises(ValueError, match="takes no"):
        store.upload_object("y", tmp_path / "x", ExtraArgs={})
    assert sorted(os.listdir(tmp_path)) == ["new", "x"]


def test_azure_under_fire(
    blobs: tuple[str, type[_Blobs]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url, handler = blobs
    with pytest.raises(ValueError, match="set AZURE_ACCOUNT_NAME"):
        AzureObjectStore("bucket")
    monkeypatch.setenv("AZURE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_ACCOUNT_ACCESS_KEY", ACCOUNT_KEY)
    (tmp_path / "x").write_text("content")
    store = AzureObjectStore("bucket", endpoint=url)
    handler.faults[:] = [503, 500]
    store.upload_object("x", tmp_path / "x")
    assert [method for method, _headers in handler.seen] == ["PUT", "PUT", "PUT", "HEAD"]
    assert "SharedKey account:" in handler.seen[0][1]
    handler.faults[:] = [403]
    with pytest.raises(PermissionError, match="az://bucket/x. Check AZURE_ACCOUNT_NAME") as error:
        store.upload_object("x", tmp_path / "x")
    assert ACCOUNT_KEY not in str(error.value)
    signed = AzureObjectStore("bucket", endpoint=url, sas_token="sv=1&sig=abcdefgh")
    handler.faults[:] = [400]
    with pytest.raises(RuntimeError) as error:
        signed.upload_object("x", tmp_path / "x")
    assert "abcdefgh" not in str(error.value)
    with pytest.raises(ValueError, match="Invalid Access Key"):
        AzureObjectStore("bucket", account_key="not base64!")
    for uri in ("az://bucket/x", "azure://bucket/x", "AZURE_BLOBS://bucket/x"):
        found = maybe_create_object_store_from_uri(uri)
        assert isinstance(found, AzureObjectStore) and found.get_uri("x") == "az://bucket/x"


def test_google_with_a_key_of_its_imitation_of_s3(
    no_credentials: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert GCSObjectStore("bucket").use_gcs_sdk
    monkeypatch.setenv("GCS_KEY", "GOOGKEY")
    monkeypatch.setenv("GCS_SECRET", "googlesecret")
    store = maybe_create_object_store_from_uri("gs://bucket/x")
    assert isinstance(store, GCSObjectStore) and not store.use_gcs_sdk
    assert store.client.config["endpoint"] == "https://storage.googleapis.com"
    assert store.get_uri("x") == "gs://bucket/x"
    assert "googlesecret" not in repr(store) + repr(store.client)
    monkeypatch.delenv("GCS_KEY")
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", "{not json")
    with pytest.raises(ValueError, match="credential"):
        GCSObjectStore("bucket")


def test_memory_addresses(tmp_path: Path) -> None:
    fsspec.filesystem("memory").store.clear()
    (tmp_path / "x").write_text("content")
    (tmp_path / "link").write_text("run/x")
    uploader = RemoteUploader("memory://place/run")
    uploader.upload_file_async("run/x", tmp_path / "x", overwrite=False)
    uploader.upload_file_async("run/latest.symlink", tmp_path / "link", overwrite=False)
    uploader.wait_and_close()
    assert list_remote_objects("memory://place/run") == ["run/latest.symlink", "run/x"]
    get_file("memory://place/run/latest", str(tmp_path / "copy"))
    assert (tmp_path / "copy").read_text() == "content"
    with pytest.raises(FileNotFoundError, match="memory://place/run not found"):
        FsspecObjectStore("memory", "place").get_object_size("run")


class _Hub(http.server.BaseHTTPRequestHandler):
    """A Hub with one repository of one file."""

    status: list[int] = []

    def log_message(self, format: str, *args: object) -> None:
        del format, args

    def do_GET(self) -> None:
        if "/tree/" in self.path:
            row = {"type": "file", "path": "config.json", "size": 7, "oid": "a" * 40}
            self.answer(json.dumps([row]).encode())
        elif "/api/models/" in self.path:
            self.answer(json.dumps({"id": "user/repo", "sha": "b" * 40, "siblings": []}).encode())
        else:
            self.answer(b"content")

    def do_HEAD(self) -> None:
        self.answer(b"content")

    def answer(self, data: bytes) -> None:
        status = self.status.pop() if self.status else 200
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", '"a"')
        self.send_header("X-Repo-Commit", "b" * 40)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def test_hub(
    quick: None, no_credentials: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offline = FsspecObjectStore("hf", "user")
    with pytest.raises(ConnectionError, match="HF_HUB_OFFLINE"):
        offline.get_object_size("repo/config.json")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with serving(_Hub) as url:
        store = build_remote_backend(
            "hf", {"bucket": "user", "endpoint": url, "token": "hf_secret"}
        )
        assert store.get_object_size("repo/config.json") == 7
        store.download_object("repo/config.json", tmp_path / "x")
        assert (tmp_path / "x").read_text() == "content"
        assert store.get_uri("repo/config.json") == "hf://user/repo/config.json"
        with pytest.raises(FileNotFoundError, match="hf://user/repo/nothing"):
            store.get_object_size("repo/nothing")
        _Hub.status[:] = [403]
        with pytest.raises(PermissionError, match="Check HF_TOKEN"):
            store.get_object_size("repo/config.json")
    with pytest.raises(ObjectStoreTransientError, match="hf://user/repo/config.json"):
        store.get_object_size("repo/config.json")


def test_left_behind() -> None:
    from composer.utils import OCIObjectStore

    with pytest.raises(ValueError, match="S3_ENDPOINT_URL"):
        OCIObjectStore("bucket")
    for uri, advice in (
        ("oci://bucket/x", "S3_ENDPOINT_URL"),
        ("dbfs:/Volumes/a/b/c/x", "bucket under the volume"),
        ("dbfs:/databricks/mlflow-tracking/1/2/artifacts/x", "MLFlowLogger"),
        ("libcloud://x", "s3://, gs:// or az://"),
        ("wandb://x/y", "There is no object store for wandb://"),
    ):
        for kind in (NotImplementedError, ValueError):
            with pytest.raises(kind, match=advice):
                maybe_create_object_store_from_uri(uri)


def test_a_program_may_put_a_class_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mine(ObjectStore):
        pass

    monkeypatch.setattr("composer.utils.object_store.utils.LibcloudObjectStore", Mine)
    assert isinstance(build_remote_backend("libcloud", {}), Mine)
    monkeypatch.setattr("composer.utils.object_store.utils.S3ObjectStore", Mine)
    assert not isinstance(build_remote_backend("s3", {}), S3ObjectStore)
