"""The small modules: sizes, hashes, codecs, retries, worlds, spans, registries."""

import importlib
import os
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import streaming
import streaming.base
from streaming.base.compression import (
    compress,
    decompress,
    get_compression_extension,
    get_compressions,
    is_compression,
)
from streaming.base.distributed import (
    all_gather,
    all_gather_object,
    barrier,
    broadcast,
    maybe_init_dist,
)
from streaming.base.hashing import get_hash, get_hashes, is_hash
from streaming.base.progress import Progress, Start
from streaming.base.registry_utils import (
    construct_from_registry,
    create_registry,
    import_file,
    save_registry,
)
from streaming.base.spanner import Spanner
from streaming.base.store import FolderStore, open_store
from streaming.base.util import (
    bytes_to_int,
    clean_stale_shared_memory,
    get_import_exception_message,
    get_list_arg,
    number_abbrev_to_int,
    retry,
    wait_for_file_to_exist,
)
from streaming.base.world import World
from tests.streaming.shards import world

MODULES = {
    "streaming.base.dataset": "StreamingDataset NEVER",
    "streaming.base.stream": "Stream streams_registry",
    "streaming.base.dataloader": "StreamingDataLoader",
    "streaming.base.local": "LocalDataset",
    "streaming.base.array": "Array",
    "streaming.base.spanner": "Spanner",
    "streaming.base.world": "World",
    "streaming.base.format": (
        "MDSWriter JSONWriter CSVWriter TSVWriter XSVWriter FileInfo Reader get_index_basename "
        "reader_from_json"
    ),
    "streaming.base.format.index": "get_index_basename",
    "streaming.base.format.mds": "MDSReader MDSWriter",
    "streaming.base.format.mds.encodings": "Encoding _encodings mds_encode mds_decode",
    "streaming.base.format.json": "JSONReader JSONWriter",
    "streaming.base.format.json.encodings": "is_json_encoding is_json_encoded",
    "streaming.base.format.xsv": "CSVReader CSVWriter TSVReader TSVWriter XSVReader XSVWriter",
    "streaming.base.format.xsv.encodings": "is_xsv_encoding xsv_encode xsv_decode",
    "streaming.base.partition": "get_partitions algos",
    "streaming.base.shuffle": "get_shuffle get_shuffle_naive get_shuffle_py1s get_shuffle_py2s "
    "get_shuffle_py1e get_shuffle_py1br algos",
    "streaming.base.batching": "generate_work batching_methods",
    "streaming.base.sampling": "get_sampling",
    "streaming.base.util": "merge_index retry get_list_arg clean_stale_shared_memory",
    "streaming.base.constant": "DEFAULT_TIMEOUT TICK",
    "streaming.base.registry_utils": "TypedRegistry create_registry import_file save_registry",
}


@pytest.mark.parametrize("module", MODULES)
def test_public_names_of_modules(module: str) -> None:
    names = MODULES[module].split()
    assert all(hasattr(importlib.import_module(module), name) for name in names)


def test_public_names() -> None:
    names = (
        "StreamingDataset Stream StreamingDataLoader LocalDataset MDSWriter JSONWriter CSVWriter "
        "TSVWriter XSVWriter"
    ).split()
    for name in names:
        assert getattr(streaming, name) is getattr(streaming.base, name)
    assert streaming.__version__


def test_importing_is_quiet() -> None:
    heavy = [
        "transformers",
        "torchvision",
        "PIL",
        "zstandard",
        "brotli",
        "snappy",
        "xxhash",
        "tqdm",
    ]
    code = (
        f"import sys, torch; before = set(sys.modules); import streaming; print([m for m in {heavy}"
    )
    code += " if m in set(sys.modules) - before])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == "[]\n" and out.stderr == ""


@pytest.mark.parametrize(
    ("text", "size"),
    [(3, 3), (2.9, 2), ("17", 17), ("1b", 1), ("2 KB", 2048), ("1.5mb", 3 << 19), ("3tb", 3 << 40)],
)
def test_sizes(text: str | int | float, size: int) -> None:
    assert bytes_to_int(text) == size


@pytest.mark.parametrize(
    ("text", "count"), [(3, 3), ("17", 17), ("1k", 1000), ("1.5 M", 1_500_000), ("2b", 2 * 10**9)]
)
def test_counts(text: str | int, count: int) -> None:
    assert number_abbrev_to_int(text) == count


@pytest.mark.parametrize("text", ["", "kb", "12 parsecs", "1e", "nan", "inf kb"])
def test_bad_numbers(text: str) -> None:
    for function in (bytes_to_int, number_abbrev_to_int):
        with pytest.raises(ValueError, match="Unsupported value/suffix"):
            function(text)


def test_texts() -> None:
    assert get_list_arg("") == [] and get_list_arg("a,b") == ["a", "b"]
    assert "pip install 'llmfoundry[s3]'" in get_import_exception_message("x", "s3")
    clean_stale_shared_memory()


def test_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    cleaned: list[int] = []
    calls: list[int] = []

    @retry(KeyError, clean_up_fn=lambda: cleaned.append(1), num_attempts=3, max_jitter=0.0)
    def fails(times: int) -> str:
        calls.append(1)
        if len(calls) <= times:
            raise KeyError("x")
        return "done"

    assert fails(2) == "done" and slept == [1.0, 2.0] and len(cleaned) == 2
    calls.clear()
    with pytest.raises(KeyError):
        fails(3)

    @retry
    def bare() -> int:
        return 3

    assert bare() == 3
    with pytest.raises(ValueError, match="num_attempts must be at-least 1"):
        retry(num_attempts=0)


def test_waiting_for_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    threading.Timer(0.05, path.touch).start()
    wait_for_file_to_exist(str(path), 0.01, 5, "no")
    with pytest.raises(RuntimeError, match="no luck"):
        wait_for_file_to_exist(str(tmp_path / "other"), 0.01, 0.03, "no luck.")


def test_hashes() -> None:
    assert len(get_hashes()) == 17 and not is_hash("crc") and is_hash("xxh3_64")
    assert get_hash("sha1", b"") == "da39a3ee5e6b4b0d3255bfef95601890afd80709"
    assert get_hash("xxh64", b"") == "ef46db3751d8e999"
    for algo in get_hashes():
        assert get_hash(algo, b"a") != get_hash(algo, b"b")
    with pytest.raises(ValueError, match="crc is not a supported hash"):
        get_hash("crc", b"")


def test_codecs() -> None:
    assert len(get_compressions()) == 58 and is_compression(None) and not is_compression("br:12")
    data = bytes(range(256)) * 50
    for algo in sorted(get_compressions()):
        assert decompress(algo, compress(algo, data)) == data
        assert get_compression_extension(algo) == algo.partition(":")[0]
    assert compress(None, data) is data and decompress(None, data) is data
    assert compress("br:1", b"hello") == b"\x0b\x02\x80hello\x03"
    assert compress("gz", data) == compress("gz", data)
    for bad in ("lz9", "snappy:1", "zstd:23"):
        with pytest.raises(ValueError, match=f"{bad} is not a supported compression algorithm"):
            compress(bad, data)


def test_spanner() -> None:
    spanner = Spanner([3, 0, 2, 1])
    assert [spanner[i] for i in range(6)] == [(0, 0), (0, 1), (0, 2), (2, 0), (2, 1), (3, 0)]
    for bad in (-1, 6):
        with pytest.raises(IndexError, match="Invalid sample index"):
            spanner[bad]


def test_world() -> None:
    with world(5, 8, 4):
        here = World.detect()
    assert (here.node, here.num_nodes, here.rank, here.rank_of_node) == (1, 2, 5, 1)
    assert here.is_multinode and not here.is_leader and not here.is_local_leader
    half = here.replicate(2)
    assert (half.num_nodes, half.ranks_per_node, half.rank) == (1, 4, 2)
    assert here.copy() == here and here.to_json()["num_ranks"] == 8
    with world(0, 6, 4), pytest.raises(ValueError, match="not a multiple of LOCAL_WORLD_SIZE"):
        World.detect()
    with pytest.raises(ValueError, match="not one of the 2 workers"):
        World(1, 2, 1, 2)


def test_collectives_alone() -> None:
    barrier()
    tensor, out = torch.tensor([3]), [torch.tensor([0])]
    broadcast(tensor, 0)
    all_gather(out, tensor)
    assert out[0].item() == 3 and all_gather_object("x") == ["x"] and not maybe_init_dist()


def test_registries(tmp_path: Path) -> None:
    with save_registry():
        registry = create_registry("streaming", "test_things", entry_points=True)
        registry.register("a", func=dict)

        @registry.register("b")
        def make(x: int) -> int:
            return x + 1

        assert construct_from_registry("b", registry, {"x": 1}) == 2
        assert construct_from_registry("a", registry) == {} and "b" in registry
        assert sorted(registry.get_all()) == ["a", "b"] and make(1) == 2
        with pytest.raises(ValueError, match="'c' is not in the registry streaming.test_things"):
            registry.get("c")
    assert "a" not in registry
    (tmp_path / "mine.py").write_text("value = 3\n")
    assert import_file(tmp_path / "mine.py").value == 3
    with pytest.raises(FileNotFoundError):
        import_file(tmp_path / "none.py")


def test_stores(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"abc")
    store = open_store(f"file://{tmp_path}/some%20where")
    assert isinstance(store, FolderStore) and store.list() == []
    store.put(str(tmp_path / "source"), "a/b")
    store.put(str(tmp_path / "source"), "c")
    assert store.list() == ["a/b", "c"]
    assert (tmp_path / "some where" / "a" / "b").read_bytes() == b"abc"
    for url, cure in (
        ("oci://bucket@space/x", "s3:// with S3_ENDPOINT_URL"),
        ("dbfs:/Volumes/x", "the path of the mounted volume, such as /Volumes/"),
        ("alipan:///x", "s3:// with S3_ENDPOINT_URL"),
        ("gcs://b/k", "is not one of file://, s3://, gs://, az://"),
        ("s3://", "names no bucket"),
    ):
        with pytest.raises(ValueError, match=f"Unsupported remote path: {url}.*{cure}"):
            open_store(url)


def test_progress() -> None:
    progress = Progress(5)
    assert progress.next_epoch == 0 and progress.current() == Start(0, 0, 5, None, None)
    assert progress.begin() == Start(0, 0, 5, None, None)
    assert progress.begin().epoch == 1 and progress.current().epoch == 1
    progress.load(Start(1, 30, 6, 2, 1))
    assert progress.current() == Start(1, 30, 6, 2, 1)
    twin = pickle.loads(pickle.dumps(progress))
    assert progress.begin() == Start(1, 30, 6, 2, 1) and progress.begin() == Start(2, 0, 6, 2, 1)
    assert twin.next_epoch == 1 and twin.begin().sample == 30


def test_no_names_in_shared_memory() -> None:
    if not os.path.isdir("/dev/shm"):
        pytest.skip("no folder of shared memory")
    before = set(os.listdir("/dev/shm"))
    kept = [Progress(0) for _ in range(3)]
    assert set(os.listdir("/dev/shm")) <= before | {
        name for name in os.listdir("/dev/shm") if not name.startswith(f"torch_{os.getpid()}_")
    }
    assert all(np.all(progress._last == -1) for progress in kept)
