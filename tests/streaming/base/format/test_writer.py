"""Writers: limits, folders, errors, and what a kill leaves."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from streaming import LocalDataset, MDSWriter
from tests.streaming.shards import write_ids

COLUMNS = {"x": "bytes"}


def write(out: Any, sizes: list[int], **kwargs: Any) -> MDSWriter:
    with MDSWriter(columns=COLUMNS, out=out, **kwargs) as writer:
        for size in sizes:
            writer.write({"x": b"x" * size})
    return writer


def samples_per_shard(folder: Path) -> list[int]:
    return [s["samples"] for s in json.loads((folder / "index.json").read_text())["shards"]]


def test_limit_is_inclusive_and_counts_the_whole_file(tmp_path: Path) -> None:
    write(str(tmp_path / "a"), [100, 100], size_limit=10_000)
    size = (tmp_path / "a" / "shard.00000.mds").stat().st_size
    assert size < 1000
    # The limit is in the header, so it must have as many digits.
    write(str(tmp_path / "b"), [100, 100], size_limit=f"{size - 2}")
    exact = (tmp_path / "b" / "shard.00000.mds").stat().st_size
    write(str(tmp_path / "c"), [100, 100], size_limit=size - 2)
    assert samples_per_shard(tmp_path / "b") == [2] and exact == size - 2
    write(str(tmp_path / "d"), [100, 100], size_limit=size - 3)
    assert samples_per_shard(tmp_path / "d") == [1, 1]


@pytest.mark.parametrize("limit", [None, 0])
def test_no_limit_is_one_shard(limit: int | None, tmp_path: Path) -> None:
    write(str(tmp_path), [1000] * 50, size_limit=limit)
    assert samples_per_shard(tmp_path) == [50]


def test_samples_beyond_the_limit_get_shards_of_their_own(tmp_path: Path) -> None:
    write(str(tmp_path), [5000, 10, 5000, 10], size_limit="1kb")
    assert samples_per_shard(tmp_path) == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"size_limit": -1}, ValueError, "must be greater than zero, instead, found as -1"),
        ({"size_limit": 2**32}, ValueError, r"must be less than 2\*\*32"),
        ({"size_limit": "12 parsecs"}, ValueError, "Unsupported value/suffix"),
        ({"compression": "lz9"}, ValueError, "Invalid compression: lz9."),
        ({"hashes": ["zzz"]}, ValueError, "Invalid hash: zzz."),
        ({"hashes": ["sha1", "md5"]}, ValueError, "unique and in sorted order"),
        ({"retries": 3}, ValueError, r"Invalid Writer argument\(s\).*retries"),
        ({"out": ("a", "b", "c")}, ValueError, "a pair"),
        ({"out": "oci://bucket/x"}, ValueError, "Unsupported remote path"),
        ({"out": "what://x"}, ValueError, "Unsupported remote path"),
    ],
)
def test_bad_arguments(
    kwargs: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        MDSWriter(**{"columns": COLUMNS, "out": str(tmp_path / "out"), **kwargs})


def test_folder_must_be_empty_or_given_up(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("x")
    with pytest.raises(FileExistsError, match="Directory is not empty.*no index"):
        write(str(tmp_path), [1])
    write(str(tmp_path), [1], exist_ok=True)
    assert sorted(os.listdir(tmp_path)) == ["index.json", "shard.00000.mds"]
    with pytest.raises(FileExistsError, match="Directory is not empty: [^(]*$"):
        write(str(tmp_path), [1])


def test_config_finish_and_empty_dataset(tmp_path: Path) -> None:
    writer = MDSWriter(columns={"b": "int", "a": "str"}, out=str(tmp_path))
    assert writer.get_config() == {
        "version": 2,
        "format": "mds",
        "compression": None,
        "hashes": [],
        "size_limit": 1 << 26,
        "column_names": ["a", "b"],
        "column_encodings": ["str", "int"],
        "column_sizes": [None, 8],
    }
    writer.finish()
    writer.finish()
    assert json.loads((tmp_path / "index.json").read_text()) == {"shards": [], "version": 2}
    with pytest.raises(RuntimeError, match="finished"):
        writer.write({"a": "", "b": 1})


@pytest.mark.parametrize("keep_local", [True, False])
def test_pair_of_folders(keep_local: bool, tmp_path: Path) -> None:
    local, remote = tmp_path / "local", tmp_path / "remote"
    write((str(local), f"file://{remote}"), [300] * 9, size_limit=700, keep_local=keep_local)
    assert local.exists() == keep_local
    assert len(LocalDataset(str(remote))) == 9
    if keep_local:
        assert sorted(os.listdir(local)) == sorted(os.listdir(remote))


def test_an_error_publishes_nothing(tmp_path: Path) -> None:
    writer = MDSWriter(columns=COLUMNS, out=str(tmp_path), size_limit=700)
    with pytest.raises(KeyError):
        with writer:
            for _ in range(9):
                writer.write({"x": b"x" * 300})
            writer.write({})
    assert not (tmp_path / "index.json").exists()
    with pytest.raises(RuntimeError, match="stopped after an error"):
        writer.write({"x": b""})


def test_errors_of_the_background_come_out(tmp_path: Path) -> None:
    (tmp_path / "remote").write_text("a file, where a folder is needed")
    with pytest.raises(OSError):
        write((str(tmp_path / "local"), str(tmp_path / "remote")), [300] * 9, size_limit=700)
    assert not (tmp_path / "local" / "index.json").exists()


def test_many_threads_write_what_one_writes(tmp_path: Path) -> None:
    for workers in (1, 7):
        write(
            str(tmp_path / str(workers)),
            list(range(500)),
            size_limit=4000,
            compression="zstd",
            max_workers=workers,
        )
    for file in (tmp_path / "1").iterdir():
        assert file.read_bytes() == (tmp_path / "7" / file.name).read_bytes()


_WRITE_FOR_EVER = """
import sys
from streaming import MDSWriter
with MDSWriter(columns={"x": "bytes"}, out=sys.argv[1], size_limit=20_000) as writer:
    print("begun", flush=True)
    for number in range(40_000):
        writer.write({"x": bytes(1000)})
"""


@pytest.mark.parametrize("delay", [0.0, 0.1, 0.3])
def test_a_kill_leaves_no_dataset_or_a_whole_one(delay: float, tmp_path: Path) -> None:
    out = tmp_path / "out"
    child = subprocess.Popen(
        [sys.executable, "-c", _WRITE_FOR_EVER, str(out)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None and child.stdout.readline() == "begun\n"
    time.sleep(delay)
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    if (out / "index.json").exists():
        assert len(LocalDataset(str(out))) == 40_000
    else:
        with pytest.raises(FileNotFoundError):
            LocalDataset(str(out))
    for shard in out.glob("*.mds"):  # What has its final name is whole.
        head = shard.read_bytes()[:8]
        assert shard.stat().st_size > 1000 and head[:4] != b"\0\0\0\0"
    write(str(out), [1, 2, 3], exist_ok=True)
    assert len(LocalDataset(str(out))) == 3


def test_progress_bar(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(str(tmp_path), [100], progress_bar=True)
    assert "Writing" in capsys.readouterr().err


def test_the_tests_own_datasets_have_the_shards_they_say(tmp_path: Path) -> None:
    assert samples_per_shard(Path(write_ids(tmp_path, 16))) == [7, 7, 2]
