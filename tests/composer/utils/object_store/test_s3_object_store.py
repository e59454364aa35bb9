"""S3 against a real server on loopback: what travels, what is retried, what is refused."""

import logging
import os
import traceback
from pathlib import Path

import pytest

from composer.utils.file_helpers import (
    get_file,
    list_remote_objects,
    maybe_create_object_store_from_uri,
    validate_credentials,
)
from composer.utils.object_store import s3_object_store
from composer.utils.object_store.object_store import ObjectStoreTransientError
from composer.utils.object_store.s3_object_store import S3ObjectStore
from composer.utils.object_store.utils import build_remote_backend
from composer.utils.remote_uploader import RemoteFilesExistingCheckStatus, RemoteUploader
from tests.composer.utils.object_store.faults import SECRET, TOKEN, Proxy

MIB = 1 << 20


@pytest.fixture
def store(s3: Proxy) -> S3ObjectStore:
    return S3ObjectStore("bucket", client_config={"retries": {"max_attempts": 2}})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    return path


def test_round_trip(store: S3ObjectStore, file: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    store.upload_object("run/ep1.pt", file, callback=lambda *counts: seen.append(counts))
    store.download_object(
        "run/ep1.pt", tmp_path / "new/copy", callback=lambda *counts: seen.append(counts)
    )
    assert seen == [(10, 10), (10, 10)]
    assert (tmp_path / "new/copy").read_bytes() == b"0123456789"
    assert os.listdir(tmp_path / "new") == ["copy"]
    assert store.get_object_size("run/ep1.pt") == 10
    assert store.get_uri("run/ep1.pt") == "s3://bucket/run/ep1.pt"
    with pytest.raises(FileExistsError, match="overwrite is set to False"):
        store.download_object("run/ep1.pt", tmp_path / "new/copy")
    file.write_bytes(b"")
    store.upload_object("run/ep1.pt", file)
    store.download_object("run/ep1.pt", tmp_path / "new/copy", overwrite=True)
    assert (tmp_path / "new/copy").read_bytes() == b""


def test_large_objects_travel_in_parts(s3: Proxy, file: Path, tmp_path: Path) -> None:
    store = S3ObjectStore(
        "bucket", transfer_config={"multipart_chunksize": 5 * MIB, "multipart_threshold": 6 * MIB}
    )
    content = os.urandom(12 * MIB + 3)
    file.write_bytes(content)
    seen: list[tuple[int, int]] = []
    store.upload_object("large", file, callback=lambda *counts: seen.append(counts))
    parts = [path for method, path, _headers in s3.seen if "partNumber" in path]
    assert len(parts) == 3
    assert seen[-1] == (len(content), len(content)) and sorted(seen) == seen
    s3.seen.clear()
    seen.clear()
    s3.faults += [("GET", "truncated"), ("GET", "503")]
    store.download_object("large", tmp_path / "copy", callback=lambda *counts: seen.append(counts))
    assert (tmp_path / "copy").read_bytes() == content
    assert seen[-1] == (len(content), len(content))
    assert s3.methods().count("GET") >= 5
    file.write_bytes(content[: 6 * MIB])
    s3.seen.clear()
    store.upload_object("medium", file)
    assert s3.methods() == ["PUT", "HEAD"]


def test_listing(store: S3ObjectStore, s3: Proxy, file: Path) -> None:
    for name in ("run/ep1.pt", "run/ep10.pt", "run/sub/ep1", "runs/x"):
        store.upload_object(name, file)
    assert store.list_objects("run/") == ["run/ep1.pt", "run/ep10.pt", "run/sub/ep1"]
    assert store.list_objects("run/ep1") == ["run/ep1.pt", "run/ep10.pt"]
    assert len(store.list_objects("run")) == len(store.list_objects(None)) == 4
    assert store.list_objects("nothing/") == []
    assert list_remote_objects("s3://bucket/runs/") == ["runs/x"]
    inner = S3ObjectStore("bucket", prefix="/run/")
    assert inner.list_objects("ep") == ["ep1.pt", "ep10.pt"]
    assert inner.get_uri("ep1.pt") == "s3://bucket/run/ep1.pt"
    assert inner.get_object_size("ep1.pt") == 10
    s3.faults += [("GET", "503"), ("GET", "reset")]
    assert len(store.list_objects("")) == 4


@pytest.mark.parametrize("fault", ["500", "503", "429", "reset"])
def test_b50_passing_trouble_is_tried_again(
    store: S3ObjectStore, s3: Proxy, file: Path, tmp_path: Path, fault: str
) -> None:
    s3.faults += [("*", fault)] * 2
    store.upload_object("x", file)
    s3.faults += [("HEAD", fault), ("GET", fault)]
    store.download_object("x", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"0123456789"
    assert s3.faults == []


@pytest.mark.parametrize("fault", ["truncated", "slow"])
def test_a_body_that_does_not_come_is_asked_for_again(
    s3: Proxy, file: Path, tmp_path: Path, fault: str
) -> None:
    store = S3ObjectStore("bucket", client_config={"read_timeout": 0.5})
    store.upload_object("x", file)
    s3.faults += [("GET", fault)]
    store.download_object("x", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"0123456789"
    assert s3.faults == []


def test_trouble_that_stays_is_reported_and_leaves_nothing(
    store: S3ObjectStore, s3: Proxy, file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store.upload_object("x", file)
    s3.seen.clear()
    s3.faults += [("*", "503")] * 100
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "copy").write_text("old")
    with pytest.raises(ObjectStoreTransientError, match=r"s3://bucket/x .*503"):
        store.download_object("x", folder / "copy", overwrite=True)
    assert os.listdir(folder) == ["copy"] and (folder / "copy").read_text() == "old"
    assert len(s3.seen) == 3 * 3  # tries of the operation, times tries of a request
    assert len([r for r in caplog.records if "may pass" in r.message]) == 3
    with pytest.raises(ObjectStoreTransientError):
        store.upload_object("x", file)


def test_b50_missing_and_forbidden_fail_at_once(
    store: S3ObjectStore, s3: Proxy, file: Path, tmp_path: Path
) -> None:
    calls = {
        "GET": lambda: store.list_objects("x"),
        "HEAD": lambda: store.get_object_size("x"),
        "PUT": lambda: store.upload_object("x", file),
    }
    with pytest.raises(FileNotFoundError, match="Object s3://bucket/nothing not found"):
        store.download_object("nothing", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    for method, call in calls.items():
        for status, kind, text in (
            ("403", PermissionError, "No access to s3://bucket/x. Check AWS_ACCESS_KEY_ID"),
            ("401", PermissionError, "No access to s3://bucket/x. Check AWS_ACCESS_KEY_ID"),
            ("404", FileNotFoundError, "s3://bucket/x not found"),
            ("400", RuntimeError, "s3://bucket/x could not be used: .*400"),
        ):
            s3.seen.clear()
            s3.faults.append((method, status))
            with pytest.raises(kind, match=text):
                call()
            assert s3.methods() == [method]
    with pytest.raises(FileNotFoundError, match="or its bucket"):
        S3ObjectStore("no-bucket").upload_object("x", file)
    with pytest.raises(FileNotFoundError, match="No such file or directory: .*nowhere"):
        store.upload_object("x", tmp_path / "nowhere")


def test_no_credential_is_shown(
    store: S3ObjectStore, s3: Proxy, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    explicit = S3ObjectStore(
        "bucket",
        aws_access_key_id="AKIAOTHER",
        aws_secret_access_key="an0therSecret",
        aws_session_token="an0therToken",
        client_config={"retries": {"max_attempts": 0}},
    )
    texts = [repr(store), repr(store.client), repr(explicit), repr(explicit.client)]
    for one in (store, explicit):
        for status in ("400", "403", "404", "503"):
            s3.faults += [("PUT", status)] * 100
            # The server sends back what it got, the session token included.
            with pytest.raises((OSError, RuntimeError)) as error:
                one.upload_object("x", file)
            texts += traceback.format_exception(error.value)
            s3.faults.clear()
    assert "x-amz-security-token: ***" in "".join(texts).lower()
    for text in (*texts, caplog.text):
        for secret in (SECRET, TOKEN, "an0therSecret", "an0therToken"):
            assert secret not in text
    s3.faults.append(("PUT", "400"))
    with pytest.raises(RuntimeError) as chained:
        store.upload_object("x", file)
    assert chained.value.__context__ is None


def test_upload_is_verified(
    store: S3ObjectStore, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store._driver, "stat", lambda key: (9, None))
    with pytest.raises(ObjectStoreTransientError, match="has 9 bytes after the upload of 10"):
        store.upload_object("x", file)


def test_an_object_that_is_replaced_while_it_is_read(
    s3: Proxy, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = S3ObjectStore("bucket")
    store.upload_object("x", file)
    stat, stale = store._driver.stat, [(10, '"another version"')]
    monkeypatch.setattr(store._driver, "stat", lambda key: stale.pop() if stale else stat(key))
    store.download_object("x", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"0123456789"


def test_acl_goes_with_uploads_only(
    s3: Proxy, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("S3_CANNED_ACL", "bucket-owner-full-control")
    store = S3ObjectStore("bucket")
    store.upload_object("x", file, ExtraArgs={"ContentType": "text/x", "Metadata": {"a": "b"}})
    store.download_object("x", tmp_path / "copy")
    sent = {method: headers for method, _path, headers in s3.seen}
    assert sent["PUT"]["x-amz-acl"] == "bucket-owner-full-control"
    assert "x-amz-acl;" in sent["PUT"]["authorization"]
    assert sent["PUT"]["content-type"] == "text/x" and sent["PUT"]["x-amz-meta-a"] == "b"
    assert "x-amz-acl" not in sent["GET"] and "x-amz-acl" not in sent["HEAD"]


def test_arguments(s3: Proxy, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = S3ObjectStore(
        "bucket",
        "folder",
        region_name="eu-west-1",
        aws_access_key_id="AKIAOTHER",
        aws_secret_access_key="an0therSecret",
        client_config={"connect_timeout": 5, "max_pool_connections": 3},
        transfer_config={"use_threads": False},
    )
    store.upload_object("//x", file)
    _method, path, headers = s3.seen[0]
    assert path == "/bucket/folder/x"
    assert "AKIAOTHER/" in headers["authorization"] and "/eu-west-1/" in headers["authorization"]
    assert "x-amz-security-token" not in headers  # it belongs to the environment's key
    assert (store.bucket, store.prefix) == ("bucket", "folder/")
    monkeypatch.delenv("S3_ENDPOINT_URL")
    other = S3ObjectStore("bucket", endpoint_url=s3.url)
    assert other.get_object_size("folder//./x") == 10
    for wrong in (
        {"client_config": {"tcp_keepalive": True}},
        {"client_config": {"s3": {"use_accelerate_endpoint": True}}},
        {"transfer_config": {"io_chunksize": 1}},
    ):
        with pytest.raises(ValueError, match="cannot set"):
            S3ObjectStore("bucket", **wrong)
    with pytest.raises(ValueError, match="ExtraArgs .*'ACL'.* cannot be sent"):
        store.upload_object("x", file, ExtraArgs={"ACL": "public-read"})
    with pytest.raises(ValueError, match="takes ExtraArgs, but not"):
        store.upload_object("x", file, Other=1)
    with pytest.raises(ValueError, match=r"must not contain '\.\.'"):
        store.get_object_size("../x")
    with pytest.raises(ValueError, match="needs aws_access_key_id and"):
        S3ObjectStore("bucket", aws_access_key_id="A")


def test_profile_files(
    s3: Proxy, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name)
    (tmp_path / "credentials").write_text(
        "[default]\naws_access_key_id = AKIADEFAULT\naws_secret_access_key = filed%Secret\n"
        "[work]\naws_access_key_id = AKIAWORK\naws_secret_access_key = filed%Secret\n"
    )
    (tmp_path / "config").write_text(
        f"[profile work]\nregion = eu-north-1\nendpoint_url = {s3.url}\n"
        "[profile process]\ncredential_process = cat " + str(tmp_path / "keys.json")
    )
    (tmp_path / "keys.json").write_text(
        '{"Version": 1, "AccessKeyId": "AKIAPROCESS", "SecretAccessKey": "processed"}'
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    for profile, shown in ((None, "AKIADEFAULT"), ("work", "AKIAWORK"), ("process", "AKIAPROCESS")):
        if profile:
            monkeypatch.setenv("AWS_PROFILE", profile)
        s3.seen.clear()
        S3ObjectStore("bucket").upload_object("x", file)
        assert f"Credential={shown}/" in s3.seen[0][2]["authorization"]
        assert ("/eu-north-1/" in s3.seen[0][2]["authorization"]) is (profile == "work")
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(ValueError, match="AWS_PROFILE=nobody is in neither"):
        S3ObjectStore("bucket")


def test_no_credentials_at_all(quick: None, no_credentials: None) -> None:
    store = S3ObjectStore("bucket", client_config={"retries": {"max_attempts": 0}})
    error = store._driver._exceptions.GenericError(
        "Error performing PUT http://169.254.169.254/latest/api/token - HTTP error: sending"
    )
    assert store._driver.kind(error) == "forbidden"


def test_a_bucket_of_another_region(
    quick: None, no_credentials: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = S3ObjectStore("bucket")
    asked: list[str] = []

    def stat(key: str) -> tuple[int, None]:
        asked.append(store._config["region"])
        if len(asked) == 1:
            raise store._driver._exceptions.GenericError("Received redirect without LOCATION")
        return 7, None

    monkeypatch.setattr(s3_object_store, "_region_of", lambda bucket: "eu-west-1")
    monkeypatch.setattr(s3_object_store.ObstoreDriver, "stat", lambda self, key: stat(key))
    assert store.get_object_size("x") == 7
    assert asked == ["us-east-1", "eu-west-1"]
    asked.clear()
    with pytest.raises(RuntimeError, match="redirect"):
        store.get_object_size("x")


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_is_told_why(s3: Proxy) -> None:
    store = S3ObjectStore("bucket")
    store.list_objects("")
    pid = os.fork()
    if pid == 0:
        refused = 1
        try:
            S3ObjectStore("bucket").list_objects("")
        except RuntimeError as error:
            refused = 0 if "'spawn'" in str(error) else 1
        finally:
            os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_addresses_and_text_links(s3: Proxy, file: Path, tmp_path: Path) -> None:
    store = maybe_create_object_store_from_uri("s3://bucket/run/ep1.pt")
    assert isinstance(store, S3ObjectStore)
    assert isinstance(build_remote_backend("s3", {"bucket": "bucket"}), S3ObjectStore)
    store.upload_object("run/ep1.pt", file)
    (tmp_path / "link").write_text("run/ep1.pt")
    store.upload_object("run/latest.pt.symlink", tmp_path / "link")
    get_file("s3://bucket/run/latest.pt", str(tmp_path / "one"))
    get_file("s3://bucket/run/latest.pt.symlink", str(tmp_path / "two"))
    get_file("run/ep1.pt", str(tmp_path / "three"), store)
    for name in ("one", "two", "three"):
        assert (tmp_path / name).read_bytes() == b"0123456789"
    with pytest.raises(FileNotFoundError, match="nowhere not found"):
        get_file("s3://bucket/nowhere", str(tmp_path / "four"))
    validate_credentials(store, "run/.probe")
    assert store.get_object_size("run/.probe") > 0
    s3.faults += [("*", "403")]
    with pytest.raises(PermissionError, match="Check AWS_ACCESS_KEY_ID"):
        validate_credentials(store, "run/.probe")
    with pytest.raises(ValueError, match="names no bucket"):
        maybe_create_object_store_from_uri("s3:///x")


def test_uploader_over_s3(s3: Proxy, file: Path) -> None:
    uploader = RemoteUploader("s3://bucket/run")
    s3.faults += [("PUT", "500"), ("HEAD", "reset")]
    uploader.upload_file_async("run/x", file, overwrite=False)
    uploader.wait()
    found = uploader.check_remote_files_exist_async(["run/x"], 5, 0.01)
    assert found.result() is RemoteFilesExistingCheckStatus.EXIST
    uploader.upload_file_async("run/x", file, overwrite=False)
    with pytest.raises(FileExistsError, match="s3://bucket/run/x already exists"):
        uploader.wait_and_close()
