"""Disks that are full or read-only, and a store with moods: no checkpoint is lost to them."""

import random
import subprocess
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from torch.multiprocessing.spawn import ProcessRaisedException

from composer.utils import dist
from composer.utils.file_helpers import list_remote_objects
from composer.utils.object_store import _drivers
from composer.utils.object_store.remote_object_store import RemoteObjectStore
from tests.composer.checkpoint.sharded_runs import make
from tests.composer.utils.object_store.faults import SECRET, TOKEN, Proxy
from tests.launch import run_ranks

pytestmark = pytest.mark.slow

WIDTH = 4096  # 0.7 MB with moments
KINDS = [
    pytest.param(sharded, save_async, id=f"{form}-{how}")
    for sharded, form in ((False, "file"), (True, "shards"))
    for save_async, how in ((False, "sync"), (True, "async"))
]


@dataclass
class Told:
    """What a rank says of a run."""

    error: str
    began: int
    samples: list[list[int]]
    losses: list[float]


def run(end: str, folder: str, sharded: bool, save_async: bool) -> Told:
    """Trains as far as it goes, saving at every second batch; goes on where the last one was."""
    trainer, diary = make(
        end,
        {"state_dict_type": "sharded"} if sharded else None,
        width=WIDTH,
        save_folder=folder,
        save_async=save_async,
        autoresume=True,
    )
    began, error = int(trainer.state.timestamp.batch), ""
    try:
        trainer.fit()
    except Exception as caught:  # every kind is looked at
        error = f"{type(caught).__name__}: {caught}"
    trainer.close()
    dist.barrier()
    return Told(error, began, diary.samples, diary.losses)


def whole_run(end: str, sharded: bool) -> Told:
    trainer, diary = make(end, {"state_dict_type": "sharded"} if sharded else None, width=WIDTH)
    trainer.fit()
    trainer.close()
    return Told("", 0, diary.samples, diary.losses)


def remount(folder: str, options: str) -> None:
    if dist.get_global_rank() == 0:
        subprocess.run(["mount", "-o", f"remount,{options}", folder], check=True)
    dist.barrier()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[str]:
    """A disk of its own, with room for one checkpoint."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1100k", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no disk may be mounted here: {done.stderr.strip()}")
    yield str(folder)
    subprocess.run(["umount", str(folder)], check=True)


def _runs_on_a_disk(disk: str, sharded: bool, save_async: bool, broken: str) -> list[Told]:
    """Runs into the broken disk, and, once it is mended, to the end."""
    if broken == "ro":
        remount(disk, "size=50m")
        told = [run("2ba", f"{disk}/run", sharded, save_async)]
        remount(disk, "ro")
        told.append(run("6ba", f"{disk}/run", sharded, save_async))
        remount(disk, "rw")
    else:
        told = [run("6ba", f"{disk}/run", sharded, save_async)]
        remount(disk, "size=50m")
    told.append(run("6ba", f"{disk}/run", sharded, save_async))
    return [*told, whole_run("6ba", sharded)]


@pytest.mark.parametrize(("sharded", "save_async"), KINDS)
@pytest.mark.parametrize(("broken", "words"), [("full", "No space left"), ("ro", "Read-only")])
def test_a_disk_that_takes_no_more(
    disk: str, sharded: bool, save_async: bool, broken: str, words: str
) -> None:
    for *_, stopped, resumed, whole in run_ranks(
        _runs_on_a_disk, 2, disk, sharded, save_async, broken
    ):
        assert words in stopped.error, stopped
        assert (resumed.error, resumed.began) == ("", 2)
        assert resumed.samples == whole.samples[2:]
        assert resumed.losses == whole.losses[2:]
    assert not [path for path in Path(disk).rglob("*") if path.name.endswith(".partial")]
    assert Path(disk, "run", "latest-rank0.pt").resolve().name.startswith("ep0-ba6")


def _quickly() -> None:
    RemoteObjectStore.backoff_seconds = 0.01
    _drivers.FIRST_PAUSE_SECONDS = 0.002
    warnings.filterwarnings("ignore", message="(?s).*may not have been uploaded")


def _run_in_store(folder: str, end: str, sharded: bool, save_async: bool) -> list[Told]:
    _quickly()
    return [run(end, folder, sharded, save_async), whole_run(end, sharded)]


@pytest.mark.parametrize(("sharded", "save_async"), KINDS)
def test_a_store_with_moods_changes_nothing(s3: Proxy, sharded: bool, save_async: bool) -> None:
    dice, lock, met = random.Random(1), threading.Lock(), set()

    def mood(method: str) -> str | None:
        with lock:
            if dice.random() > 0.3:
                return None
            fault = dice.choices(
                ["500", "503", "reset", "truncated", "slow"], [3, 3, 3, 3 * (method == "GET"), 1]
            )[0]
            met.add(fault)
            return fault

    s3.mood = mood
    for end, began in (("4ba", 0), ("8ba", 4)):
        for told, whole in run_ranks(
            _run_in_store, 2, "s3://bucket/{run_name}", end, sharded, save_async
        ):
            assert (told.error, told.began) == ("", began)
            assert told.losses == whole.losses[began:]
            assert told.samples == whole.samples[began:]
    assert {"500", "503", "reset"} <= met
    s3.mood = lambda method: None
    names = list_remote_objects("s3://bucket/run/")
    assert (
        len({name.split("/")[1].split("-rank")[0] for name in names}) == 5
    )  # ba2, ba4, ... latest


def _fails_in_store(folder: str, end: str, sharded: bool, save_async: bool) -> None:
    """Ends as a program does that catches nothing: whoever launched the ranks ends the others."""
    _quickly()
    parallelism = {"state_dict_type": "sharded"} if sharded else None
    how = {"save_folder": folder, "save_async": save_async, "autoresume": True}
    trainer, _ = make(end, parallelism, width=WIDTH, **how)
    assert trainer.state.timestamp.batch == 4
    trainer.fit()


@pytest.mark.parametrize(("sharded", "save_async"), KINDS)
@pytest.mark.parametrize("fault", ["503", "reset", "403"])
def test_a_store_that_takes_no_more(s3: Proxy, sharded: bool, save_async: bool, fault: str) -> None:
    folder = "s3://bucket/{run_name}"
    run_ranks(_run_in_store, 2, folder, "4ba", sharded, save_async)
    before = list_remote_objects("s3://bucket/run/")
    s3.mood = lambda method: fault if method in ("PUT", "POST") else None
    begin = time.monotonic()
    with pytest.raises(ProcessRaisedException, match="s3://bucket/run/") as error:
        run_ranks(_fails_in_store, 2, folder, "8ba", sharded, save_async)
    assert time.monotonic() - begin < 60
    assert SECRET not in str(error.value) and TOKEN not in str(error.value)
    s3.mood = lambda method: None
    assert list_remote_objects("s3://bucket/run/") == before
    for told, whole in run_ranks(_run_in_store, 2, folder, "8ba", sharded, save_async):
        assert (told.error, told.began) == ("", 4)
        assert told.losses == whole.losses[4:] and told.samples == whole.samples[4:]
