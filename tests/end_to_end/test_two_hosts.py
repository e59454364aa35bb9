"""One run on two hosts: network namespaces with their own addresses, and a cable to cut."""

import contextlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.launching import ids_by_batch, read_records, start
from tests.streaming.shards import write_ids

pytestmark = pytest.mark.slow

# Addresses for documentation: nothing else has them.
ADDRESSES = ("192.0.2.1", "192.0.2.2")
PORT = 29500
DIST_TIMEOUT = 5.0


def ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=30)
    if done.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


class Hosts:
    """Two namespaces, joined by a pair of virtual interfaces."""

    def __init__(self) -> None:
        self.names = [f"host{number}-{os.getpid()}" for number in range(2)]
        self.interfaces = [f"cable{number}-{os.getpid() % 100000}" for number in range(2)]

    def make(self) -> None:
        for name in self.names:
            ip("netns", "add", name)
        one, other = self.interfaces
        ip("link", "add", one, "netns", self.names[0], "type", "veth",
           "peer", "name", other, "netns", self.names[1])  # fmt: skip
        for name, interface, address in zip(self.names, self.interfaces, ADDRESSES, strict=True):
            ip("-n", name, "address", "add", f"{address}/24", "dev", interface)
            ip("-n", name, "link", "set", interface, "up")
            ip("-n", name, "link", "set", "lo", "up")

    def remove(self) -> None:
        for name in self.names:  # the cable goes with them
            with contextlib.suppress(OSError):
                ip("netns", "delete", name)

    def cut(self) -> None:
        ip("-n", self.names[1], "link", "set", self.interfaces[1], "down")

    def start(self, host: int, options: list[object], arguments: list[object], **env: str):
        meeting = ["-n", 1, "--node_rank", host]
        meeting += ["--master_addr", ADDRESSES[0], "--master_port", PORT]
        before = ["ip", "netns", "exec", self.names[host]]
        return start([*meeting, *options], arguments, before, **env)

    def processes(self, host: int) -> list[str]:
        return ip("netns", "pids", self.names[host]).split()

    def received_bytes(self, host: int) -> int:
        path = f"/sys/class/net/{self.interfaces[host]}/statistics/rx_bytes"
        return int(ip("netns", "exec", self.names[host], "cat", path))


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    if shutil.which("ip") is None:
        pytest.skip("the command ip (package iproute2) is not there")
    hosts = Hosts()
    try:
        hosts.make()
    except OSError as error:
        hosts.remove()
        pytest.skip(f"network namespaces are not allowed here: {error}")
    yield hosts
    hosts.remove()


def test_a_run_on_two_hosts_sees_all_samples_and_ends(hosts: Hosts, tmp_path: Path) -> None:
    data = write_ids(tmp_path / "data", 64)
    folders = [tmp_path / "one", tmp_path / "other"]
    for folder in folders:
        folder.mkdir()
    options: list[object] = ["--nnodes", 2]
    # Both write to one disk, and only rank 0 writes checkpoints: a file system that they share.
    runs = [hosts.start(host, options, [data, tmp_path, "1ep"]) for host in range(2)]
    answers = [run.communicate(timeout=90) for run in runs]
    assert [run.returncode for run in runs] == [0, 0], answers
    seen = ids_by_batch(tmp_path)
    assert len(seen) == 8 and all(len(parts) == 2 for parts in seen.values())
    assert sorted(i for parts in seen.values() for part in parts for i in part) == list(range(64))
    assert hosts.received_bytes(0) > 10_000, "the gradients did not go over the cable"
    assert [hosts.processes(host) for host in range(2)] == [[], []]


@pytest.mark.parametrize("options", [[], ["--max-restarts", 1]], ids=["ends", "waits-then-ends"])
def test_a_cut_cable_ends_both_sides_with_the_phase(
    options: list[object], hosts: Hosts, tmp_path: Path
) -> None:
    data = write_ids(tmp_path / "data", 64)
    settings = {"DIST_TIMEOUT": str(DIST_TIMEOUT), "SAVE_INTERVAL": "1000ep"}
    runs = [
        hosts.start(
            host,
            ["--nnodes", 2, "--join_timeout", 20, *options],
            [data, tmp_path, "1000ep"],
            **settings,
        )
        for host in range(2)
    ]
    try:
        deadline = time.monotonic() + 60
        while max(read_records(tmp_path), default=0) < 8:
            assert time.monotonic() < deadline, "training never began"
            assert all(run.poll() is None for run in runs), [run.communicate() for run in runs]
            time.sleep(0.2)
        hosts.cut()
        answers = [run.communicate(timeout=120)[1] for run in runs]
    finally:
        for run in runs:
            run.kill()
    assert all(run.returncode > 0 for run in runs)
    for answer in answers:
        assert re.search(r'Rank \d lost (the )?other ranks at "training"', answer), answer
    assert 'waiting for rank 1, last seen at "training"' in answers[0], answers[0]
    assert "does not answer" in answers[1], answers[1]
    if options:
        assert "waiting for 2 nodes at 192.0.2.1:29500 failed" in answers[0], answers[0]
    assert [hosts.processes(host) for host in range(2)] == [[], []]
