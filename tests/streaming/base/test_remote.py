"""Data in stores: S3 against a real server, the others against imitations, all on loopback."""

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from torch.utils.data import DataLoader

from composer.utils.object_store.s3_object_store import S3ObjectStore
from streaming import MDSWriter, Stream, StreamingDataset
from streaming.base import remote as remote_module
from streaming.base.remote import RemoteStore
from streaming.base.store import open_store
from streaming.base.util import merge_index
from tests.composer.utils.object_store.faults import SECRET, TOKEN, Proxy, serving
from tests.composer.utils.object_store.test_remote_object_store import (  # noqa: F401
    ACCOUNT_KEY,
    _Hub,
    blobs,
)
from tests.composer.utils.object_store.test_sftp_object_store import (  # noqa: F401
    PASSWORD,
    server,
)
from tests.launch import run_ranks
from tests.streaming.shards import ids_of

ROWS = 60


def write(out: Any, first: int = 0, **kwargs: Any) -> None:
    with MDSWriter(columns={"id": "int"}, out=out, size_limit=400, **kwargs) as writer:
        for number in range(first, first + ROWS):
            writer.write({"id": number})


def read(store: RemoteStore, name: str, timeout: float = 60) -> bytes:
    out = BytesIO()
    store.fetch(name, out, timeout)
    return out.getvalue()


def files_asked_for(s3: Proxy) -> list[str]:
    return [path for method, path, _headers in s3.seen if method == "GET" and "?" not in path]


@pytest.fixture(params=["s3", "gs", "az", "azure", "memory"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> RemoteStore:
    if request.param == "s3":
        request.getfixturevalue("s3")
    elif request.param == "memory":
        fsspec.filesystem("memory").store.clear()
    else:
        url, _handler = request.getfixturevalue("blobs")
        key = {"gcs_base_url": url, "disable_oauth": True, "private_key_id": ""}
        key |= {"client_email": "", "private_key": ""}
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps(key))
        monkeypatch.setenv("GOOGLE_BASE_URL", url)
        monkeypatch.setenv("AZURE_ACCOUNT_NAME", "account")
        monkeypatch.setenv("AZURE_ACCOUNT_ACCESS_KEY", ACCOUNT_KEY)
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", url)
    found = open_store(f"{request.param}://bucket/data")
    assert isinstance(found, RemoteStore)
    return found


def test_what_holds_for_every_store(store: RemoteStore, tmp_path: Path) -> None:
    assert store.list() == []
    write(store.url, hashes=["sha1"], compression="zstd")
    names = store.list()
    assert names[0] == "index.json" and len(names) > 3
    assert json.loads(read(store, "index.json"))["version"] == 2
    with pytest.raises(FileNotFoundError, match=f"{store.url}/nothing not found"):
        read(store, "nothing")
    whole = read(store, "index.json")
    assert store.fetch_range("index.json", 3, 20, 60) == whole[3:20]
    with pytest.raises(ConnectionError, match=r"bytes came of \d+ to \d+"):
        store.fetch_range("index.json", len(whole) - 5, len(whole) + 5, 60)
    with pytest.raises(FileNotFoundError, match=f"{store.url}/nothing not found"):
        store.fetch_range("nothing", 0, 5, 60)
    dataset = StreamingDataset(
        remote=store.url, local=str(tmp_path / "cache"), batch_size=4, validate_hash="sha1"
    )
    assert [sample["id"] for sample in dataset] == list(range(ROWS))
    write((str(tmp_path / "kept"), f"{store.url}/split"), keep_local=True)
    assert (tmp_path / "kept/index.json").exists() and "split/index.json" in store.list()


def test_parts_are_merged_in_the_store(s3: Proxy, tmp_path: Path) -> None:
    for part in range(2):
        write(f"s3://bucket/data/part{part}", first=part * ROWS)
    assert merge_index("s3://bucket/data/") is None
    dataset = StreamingDataset(remote="s3://bucket/data", local=str(tmp_path / "one"), batch_size=1)
    assert [sample["id"] for sample in dataset] == list(range(2 * ROWS))
    urls = [f"s3://bucket/data/part{part}/index.json" for part in (1, 0)]
    kept = merge_index(urls, (str(tmp_path / "two"), "s3://bucket/data"))
    dataset = StreamingDataset(remote="s3://bucket/data", local=str(tmp_path / "two"), batch_size=1)
    assert kept == str(tmp_path / "two/index.json")
    assert [sample["id"] for sample in dataset][:2] == [ROWS, ROWS + 1]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_epoch_fetches_each_file_once(s3: Proxy, num_workers: int, tmp_path: Path) -> None:
    write("s3://bucket/data")
    s3.faults += [("GET", "503"), ("GET", "reset"), ("GET", "truncated"), ("GET", "500")]
    dataset = StreamingDataset(
        remote="s3://bucket/data", local=str(tmp_path), batch_size=4, shuffle=True
    )
    s3.seen.clear()
    for _ in range(2):
        batches = list(DataLoader(dataset, batch_size=4, num_workers=num_workers))
        assert sorted(n for batch in batches for n in ids_of(batch)) == list(range(ROWS))
    assert s3.faults == []
    asked = files_asked_for(s3)
    # The faults met the index, or one shard.
    assert len(asked) <= dataset.num_shards + 4 and len(set(asked)) == dataset.num_shards


def test_workers_of_a_process_whose_checkpoints_are_in_s3(s3: Proxy, tmp_path: Path) -> None:
    write(str(tmp_path / "local"))
    for path in (tmp_path / "local").iterdir():
        S3ObjectStore("bucket").upload_object(f"data/{path.name}", path)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache/index.json").write_bytes((tmp_path / "local/index.json").read_bytes())
    s3.faults += [("GET", "403")]  # with the local index, only workers ask for anything
    cache = str(tmp_path / "cache")
    dataset = StreamingDataset(remote="s3://bucket/data", local=cache, batch_size=4)
    batches = list(DataLoader(dataset, batch_size=4, num_workers=1))
    assert sorted(n for batch in batches for n in ids_of(batch)) == list(range(ROWS))


def _epoch_of_rank(cache: str, num_workers: int) -> list[int]:
    dataset = StreamingDataset(remote="s3://bucket/data", local=cache, batch_size=4, shuffle=True)
    loader = DataLoader(dataset, batch_size=4, num_workers=num_workers)
    return [number for batch in loader for number in ids_of(batch)]


@pytest.mark.parametrize(("ranks", "workers"), [(2, 1), pytest.param(4, 2, marks=pytest.mark.slow)])
def test_ranks_share_what_was_fetched(ranks: int, workers: int, s3: Proxy, tmp_path: Path) -> None:
    write("s3://bucket/data")
    s3.seen.clear()
    got = run_ranks(_epoch_of_rank, ranks, str(tmp_path / "cache"), workers)
    assert sorted(number for of_rank in got for number in of_rank) == list(range(ROWS))
    asked = files_asked_for(s3)
    assert len(asked) == len(set(asked)) == len(list((tmp_path / "cache").glob("*")))


_LEAVES_IN_MID_EPOCH = """
import sys
from torch.utils.data import DataLoader
from streaming import StreamingDataset
from streaming.base import remote
if sys.argv[2] == "elsewhere":
    remote._may_use_obstore = lambda: False
dataset = StreamingDataset(
    remote="s3://bucket/data", local=sys.argv[1], batch_size=2, predownload=60
)
next(iter(DataLoader(dataset, batch_size=2, num_workers=int(sys.argv[3]))))
print("done", flush=True)
"""


@pytest.mark.parametrize(
    ("where", "workers"),
    [
        ("elsewhere", 0),
        pytest.param("here", 0, marks=pytest.mark.slow),
        pytest.param("here", 1, marks=pytest.mark.slow),
    ],
)
def test_a_process_may_end_in_mid_epoch(
    where: str, workers: int, s3: Proxy, tmp_path: Path
) -> None:
    write("s3://bucket/data")
    s3.mood = lambda method: "slow" if len(s3.seen) > 3 else None
    args = [sys.executable, "-c", _LEAVES_IN_MID_EPOCH, str(tmp_path / "cache"), where]
    with subprocess.Popen([*args, str(workers)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stdout.readline() == "done\n"
        begun = time.monotonic()
        assert child.wait(30) == 0
        assert time.monotonic() - begun < 5


@pytest.mark.parametrize("fault", ["500", "503", "429", "reset", "truncated"])
def test_passing_trouble_is_tried_again(s3: Proxy, fault: str, tmp_path: Path) -> None:
    write("s3://bucket/data")
    s3.faults += [("GET", fault)]
    stream = Stream(remote="s3://bucket/data", local=str(tmp_path))
    stream.apply_default({})
    assert sum(map(len, stream.get_shards())) == ROWS
    s3.faults += [("PUT", fault)]
    if fault != "truncated":
        write("s3://bucket/more", retry=2)
        assert "index.json" in open_store("s3://bucket/more").list()
        assert s3.faults == []


def test_a_server_that_does_not_answer(s3: Proxy, tmp_path: Path) -> None:
    write("s3://bucket/data")
    stream = Stream(
        remote="s3://bucket/data", local=str(tmp_path), download_timeout=0.5, download_retry=1
    )
    stream.apply_default({})
    s3.faults += [("GET", "slow")]
    assert sum(map(len, stream.get_shards())) == ROWS
    s3.faults += [("GET", "slow")] * 20
    os.unlink(tmp_path / "index.json")
    start = time.monotonic()
    with pytest.raises(ConnectionError, match="s3://bucket/data/index.json could not be reached"):
        stream.get_shards()
    assert time.monotonic() - start < 10


@pytest.mark.parametrize("elsewhere", [False, True])
def test_missing_and_forbidden_fail_at_once(
    s3: Proxy, elsewhere: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if elsewhere:
        monkeypatch.setattr(remote_module, "_may_use_obstore", lambda: False)
    for status, kind, text in (
        ("403", PermissionError, "No access to s3://bucket/data/index.json. Check AWS_ACCESS_KEY"),
        ("401", PermissionError, "No access to s3://bucket/data/index.json. Check AWS_ACCESS_KEY"),
        ("404", FileNotFoundError, "s3://bucket/data has no file index.json"),
        ("400", RuntimeError, "s3://bucket/data/index.json could not be used: .*400"),
    ):
        s3.seen.clear()
        s3.faults += [("GET", status)]
        with pytest.raises(kind, match=text) as error:
            StreamingDataset(remote="s3://bucket/data", local=str(tmp_path / "cache"))
        # Where there is no index, the files may be of a kind that needs none.
        assert s3.methods() == ["GET"] * (2 if status == "404" else 1)
        shown = "".join(traceback.format_exception(error.value))
        assert SECRET not in shown and TOKEN not in shown
    s3.seen.clear()
    s3.faults += [("PUT", "403")] * 20
    with pytest.raises(PermissionError, match="No access to s3://bucket/data/shard.00000"):
        write("s3://bucket/data")
    assert len([path for path in {path for _, path, _ in s3.seen} if "index" in path]) == 0
    assert s3.methods().count("PUT") == len({path for _, path, _ in s3.seen})
    s3.faults.clear()


def test_a_session_token_that_the_server_repeats_is_hidden(s3: Proxy) -> None:
    s3.faults += [("GET", "400")]
    with pytest.raises(RuntimeError) as error:
        read(RemoteStore("s3://bucket/data"), "x")
    assert "x-amz-security-token: ***" in str(error.value).lower()
    assert error.value.__context__ is None


def test_settings_of_s3(s3: Proxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("S3_CANNED_ACL", "bucket-owner-full-control")
    monkeypatch.setenv("MOSAICML_STREAMING_AWS_REQUESTER_PAYS", "other,bucket")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    (tmp_path / "x").write_text("content")
    store = RemoteStore("s3://bucket/data")
    store.put(str(tmp_path / "x"), "x")
    assert read(store, "x") == b"content"
    sent = {method: headers for method, _path, headers in s3.seen}
    assert sent["PUT"]["x-amz-acl"] == "bucket-owner-full-control"
    assert "x-amz-acl" not in sent["GET"] and sent["GET"]["x-amz-request-payer"] == "requester"
    assert "/eu-west-1/" in sent["GET"]["authorization"]


def test_profiles_and_public_data(
    s3: Proxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("S3_CANNED_ACL", "public-read")
    write("s3://bucket/data")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    s3.seen.clear()
    read(RemoteStore("s3://bucket/data"), "index.json")
    assert "authorization" not in s3.seen[0][2]
    (tmp_path / "credentials").write_text(
        "[work]\naws_access_key_id = AKIAWORK\naws_secret_access_key = filedSecret\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_PROFILE", "work")
    s3.seen.clear()
    read(RemoteStore("s3://bucket/data"), "index.json")
    assert "Credential=AKIAWORK/" in s3.seen[0][2]["authorization"]


def test_azure_addresses_name_the_account(
    blobs: tuple[str, Any],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url, handler = blobs
    monkeypatch.setenv("AZURE_ACCOUNT_ACCESS_KEY", ACCOUNT_KEY)
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", url)
    handler.blobs["data/x"] = b"content"
    for address in ("azure://mine.blob.core.windows.net/bucket/data", "azure-dl://bucket/data"):
        assert read(RemoteStore(address), "x") == b"content"
        monkeypatch.setenv("AZURE_ACCOUNT_NAME", "mine")
    assert all("SharedKey mine:" in headers for _method, headers in handler.seen)
    handler.faults[:] = [403]
    with pytest.raises(PermissionError, match="Check AZURE_ACCOUNT_NAME") as error:
        read(RemoteStore("azure://bucket/data"), "x")
    assert ACCOUNT_KEY not in str(error.value)


def test_data_behind_ssh(
    server: dict[str, Any],  # noqa: F811
    no_credentials: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    address = f"sftp://me:{PASSWORD}@127.0.0.1:{server['port']}/data"
    write(str(server["root"] / "data"))
    with pytest.raises(PermissionError, match="COMPOSER_SFTP_KNOWN_HOSTS_FILE") as error:
        StreamingDataset(remote=address, local=str(tmp_path / "cache"))
    assert PASSWORD not in "".join(traceback.format_exception(error.value))
    monkeypatch.setenv("COMPOSER_SFTP_KNOWN_HOSTS_FILE", server["known"])
    dataset = StreamingDataset(
        remote=address, local=str(tmp_path / "cache"), batch_size=4, predownload=ROWS
    )
    ids = iter(dataset)
    got = [next(ids)["id"] for _ in range(10)]
    for transport in server["transports"]:
        transport.close()
    assert got + [sample["id"] for sample in ids] == list(range(ROWS))
    assert open_store(address).list()[0] == "index.json"
    with pytest.raises(ValueError, match="can be read from sftp://, but not written") as written:
        write(address)
    assert PASSWORD not in str(written.value)
    wrong = open_store(address.replace(PASSWORD, "wrong"))
    with pytest.raises(PermissionError, match="Check the user"):
        wrong.list()


def test_data_on_the_hub(no_credentials: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefgh")
    with pytest.raises(RuntimeError, match="hf://user/repo/config.json could not be used"):
        read(RemoteStore("hf://user/repo"), "config.json")  # offline, which does not pass
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with serving(_Hub) as url:
        make = partial(fsspec.filesystem, endpoint=url)  # as HF_ENDPOINT does, read at import
        monkeypatch.setattr(fsspec, "filesystem", make)
        store = RemoteStore("hf://user/repo")
        assert read(store, "config.json") == b"content"
        with pytest.raises(FileNotFoundError, match="hf://user/repo/nothing not found"):
            read(store, "nothing")
        _Hub.status[:] = [403]
        with pytest.raises(PermissionError, match="Check HF_TOKEN") as error:
            read(store, "config.json")
        assert "hf_abcdefgh" not in str(error.value)
    with pytest.raises(ConnectionError, match="hf://user/repo/config.json could not be reached"):
        read(store, "config.json")


def _ask_slowly(address: str, number_of_helper: Any) -> None:
    remote_module._may_use_obstore = lambda: False
    run = subprocess.Popen

    def noted(*args: Any, **kwargs: Any) -> Any:
        child = run(*args, **kwargs)
        number_of_helper.value = child.pid
        return child

    subprocess.Popen = noted  # type: ignore[misc, assignment]
    read(RemoteStore(address), "x", 30)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux ends the helper")
def test_no_helper_outlives_who_asked(s3: Proxy) -> None:
    s3.faults += [("GET", "slow")] * 20
    context = multiprocessing.get_context("spawn")
    number = context.Value("i", 0)
    child = context.Process(target=_ask_slowly, args=("s3://bucket/data", number))
    child.start()
    while not s3.seen:
        time.sleep(0.01)
    assert child.pid is not None and number.value > 0
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    deadline = time.monotonic() + 5
    while _is_alive(number.value) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _is_alive(number.value)


@pytest.fixture
def helpers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The programs that are started to ask for this process."""
    monkeypatch.setattr(remote_module, "_may_use_obstore", lambda: False)
    started: list[Any] = []
    run = subprocess.Popen

    def noted(*args: Any, **kwargs: Any) -> Any:
        started.append(run(*args, **kwargs))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", noted)
    yield started
    remote_module._end_helpers()
    assert all(child.returncode is not None for child in started)


def test_one_helper_answers_many_requests(
    s3: Proxy, helpers: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RemoteStore("s3://bucket/data")
    write(store.url)
    with ThreadPoolExecutor(1) as executor:  # Its helper may end with the thread.
        wanted = executor.submit(read, store, "index.json").result()
    begun = len(helpers)
    for name in store.list():
        assert len(read(store, name)) > 0
    assert read(store, "index.json") == wanted
    assert store.fetch_range("index.json", 2, 9, 60) == wanted[2:9]
    assert len(helpers) - begun <= 1
    with pytest.raises(FileNotFoundError, match="s3://bucket/data/nothing not found"):
        read(store, "nothing")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIARENEWED")
    read(store, "index.json")
    assert "Credential=AKIARENEWED/" in s3.seen[-1][2]["authorization"]
    assert len(helpers) - begun <= 1
    with ThreadPoolExecutor(3) as executor:
        assert set(executor.map(lambda _: read(store, "index.json"), range(12))) == {wanted}
    assert len(helpers) - begun <= 4


def test_a_helper_that_is_killed_or_stuck_is_replaced(s3: Proxy, helpers: list[Any]) -> None:
    store = RemoteStore("s3://bucket/data")
    write(store.url)
    wanted = read(store, "index.json")
    helpers[-1].kill()
    assert read(store, "index.json") == wanted
    os.kill(helpers[-1].pid, signal.SIGSTOP)
    begun = time.monotonic()
    with pytest.raises(ConnectionError, match="no answer after 3 seconds"):
        read(store, "index.json", 0.5)
    assert time.monotonic() - begun < 20
    assert read(store, "index.json") == wanted


def _is_alive(pid: int) -> bool:
    try:
        return re.search(r"\) Z ", Path(f"/proc/{pid}/stat").read_text()) is None
    except FileNotFoundError:
        return False


@pytest.fixture(autouse=True)
def _one_user(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lets no test depend on which was the first to use obstore."""
    monkeypatch.setattr(remote_module, "_first_user", None)
    torch.manual_seed(0)
    yield
