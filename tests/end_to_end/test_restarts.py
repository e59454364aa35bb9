"""Runs that lose a rank or a node, start again, and end as if nothing had been."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.end_to_end.launching import PROGRAM, read_records, start
from tests.streaming.shards import write_ids

pytestmark = pytest.mark.slow

LAST = "2ep"  # of 8 batches each
KILLS = 50


def finish(options: list[object], arguments: list[object]) -> str:
    process = start(options, arguments)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return err


def folder(path: Path) -> Path:
    path.mkdir()
    return path


def processes_of_the_program() -> list[int]:
    return [
        p.pid for p in psutil.process_iter(["cmdline"]) if str(PROGRAM) in (p.info["cmdline"] or ())
    ]


def test_a_killed_rank_changes_nothing(tmp_path: Path) -> None:
    data = write_ids(tmp_path / "data", 64)
    whole, broken = folder(tmp_path / "whole"), folder(tmp_path / "broken")
    finish(["-n", 2], [data, whole, LAST])
    err = finish(["-n", 2, "--max-restarts", 2], [data, broken, LAST, "1:5"])
    assert "Global rank 1 (PID " in err and "exited with code -9" in err
    assert "restart 1 of 2" in err and "restart 2" not in err
    expected = read_records(whole)
    assert sorted(expected) == list(range(16))
    records = read_records(broken)
    # From the checkpoint at batch 4 on, batch 5 was done by no rank or by rank 0 alone before.
    assert [len(records[batch]) for batch in (3, 4, 6)] == [2, 4, 2]
    assert sorted(records) == sorted(expected)
    for batch, lines in records.items():
        for line in lines:
            assert line in expected[batch], "other samples, or another loss, than in one go"


def test_a_run_that_always_fails_ends_after_its_restarts(tmp_path: Path) -> None:
    data = write_ids(tmp_path / "data", 64)
    process = start(["-n", 1, "--max-restarts", 1], [data, tmp_path / "absent" / "folder", "ten"])
    _, err = process.communicate(timeout=90)
    assert process.returncode == 1
    assert "restart 1 of 1" in err and "global rank 0 failed first, all processes ended" in err


def test_nodes_come_and_go_and_the_data_stays_in_order(tmp_path: Path) -> None:
    data = write_ids(tmp_path / "data", 64)
    whole, broken = folder(tmp_path / "whole"), folder(tmp_path / "broken")
    finish(["-n", 1], [data, whole, "4ep"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    meeting = ["-n", 1, "--nnodes", "1:2", "--master_addr", "127.0.0.1", "--master_port", port]

    def start_node(rank: int) -> "subprocess.Popen[str]":
        options = [*meeting, "--node_rank", rank]
        return start(options, [data, broken, "4ep"], SECONDS_PER_BATCH="0.4")

    nodes = [start_node(0)]
    try:
        wait_for_world(1, batches=2, folder=broken, nodes=nodes)
        nodes.append(start_node(1))
        wait_for_world(2, batches=5, folder=broken, nodes=nodes)
        os.kill(nodes[1].pid, signal.SIGKILL)
        _, err = nodes[0].communicate(timeout=120)
    finally:
        for node in nodes:
            node.kill()
            node.communicate()
    assert nodes[0].returncode == 0, err
    expected = {batch: lines[0] for batch, lines in read_records(whole).items()}
    records = read_records(broken)
    assert {line["world"] for line in records[31]} == {1}
    assert sorted(records) == sorted(expected) == list(range(32))
    for batch, lines in records.items():
        assert {i for line in lines for i in line["ids"]} == set(expected[batch]["ids"])
        for line in lines:
            if line["world"] == 1:
                assert sorted(line["ids"]) == sorted(expected[batch]["ids"])
                assert line["loss"] == pytest.approx(expected[batch]["loss"], rel=1e-5)
    assert processes_of_the_program() == []


def test_fifty_random_deaths_change_nothing(tmp_path: Path) -> None:
    """A soak of one long run: any rank, at any moment, also while it starts, saves or loads."""
    data = write_ids(tmp_path / "data", 64)
    whole, broken = folder(tmp_path / "whole"), folder(tmp_path / "broken")
    duration = "150ep"
    finish(["-n", 2], [data, whole, duration])
    dice = random.Random(0)
    process = start(
        ["-n", 2, "--max-restarts", KILLS], [data, broken, duration], SECONDS_PER_BATCH="0.05"
    )
    try:
        for _ in range(KILLS):
            # By the clock it may fall anywhere; the bound on batches keeps a fast machine from
            # reaching the end before all kills were made (50 times 18 and what is trained
            # between two looks is less than 1,200).
            moment = time.monotonic() + dice.uniform(1, 9)
            enough = count_batches(broken) + dice.randint(1, 18)
            while time.monotonic() < moment and count_batches(broken) < enough:
                time.sleep(0.2)
            while not (ranks := children_that_train(process.pid)):
                assert process.poll() is None, process.communicate()
                time.sleep(0.02)
            os.kill(dice.choice(ranks), signal.SIGKILL)
        _, err = process.communicate(timeout=300)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, err
    assert err.count("exited with code -9") > 0.8 * KILLS, "kills found nothing to kill"
    expected, records = read_records(whole), read_records(broken)
    assert sorted(records) == sorted(expected)
    for batch, lines in records.items():
        assert all(line in expected[batch] for line in lines), batch
        assert all(line in lines for line in expected[batch]), batch


def count_batches(folder: Path) -> int:
    """Returns how many batches any rank has trained, those that were done again counted once."""
    return len(read_records(folder))


def children_that_train(launcher: int) -> list[int]:
    found = []
    for child in psutil.Process(launcher).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.cmdline()[1:2] == [str(PROGRAM)]:  # the launcher's own is python -m composer
                found.append(child.pid)
    return found


def wait_for_world(
    size: int, batches: int, folder: Path, nodes: "list[subprocess.Popen[str]]"
) -> None:
    """Waits until so many batches were trained by a world of this size."""
    deadline = time.monotonic() + 90
    while True:
        lines = [line for lines in read_records(folder).values() for line in lines]
        if sum(line["world"] == size for line in lines) >= batches * size:
            return
        assert time.monotonic() < deadline, f"no world of {size} trained"
        for node in nodes:
            assert node.poll() is None, node.communicate()
        time.sleep(0.1)
