"""The first rank of each node before its others, however long it takes, on however many nodes."""

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch.distributed as torch_dist

from composer.utils import dist

__all__ = ["Share", "first_rank_first"]

Share = Callable[[Callable[[], str]], str]
"""Calls a function on the first rank of each node; gives its result to the others of that node."""

POLL_SECONDS = 0.1


@contextmanager
def first_rank_first() -> Iterator[Share]:
    """Runs the body on local rank 0 of each node, then on the others, and waits for all nodes.

    Ranks look into the process group's store: downloading and tokenising may outlast the timeout of
    a collective, on one node alone too (the others have it all in their caches).

    Yields:
        A function for the body, to be called by all: see :data:`Share`.

    Raises:
        RuntimeError: On the ranks where the body did not fail, if it did on another.
    """
    if dist.get_world_size() == 1:
        yield lambda make: make()
        return
    meeting = _Meeting(dist.from_rank_zero(lambda: f"first_rank_first/{secrets.token_hex(8)}"))
    try:
        if dist.get_local_rank() > 0:
            meeting.wait_for(meeting.node, 1)
        yield meeting.share
    except BaseException as error:
        meeting.fail(f"{type(error).__name__}: {error}")
        raise
    if dist.get_local_rank() == 0:
        meeting.arrive(meeting.node)
    meeting.arrive("all")
    meeting.wait_for("all", dist.get_world_size())


class _Meeting:
    """Counts in the store who has come where, and what failed.

    Args:
        name: One that no other meeting has.
    """

    def __init__(self, name: str) -> None:
        # torch has no public name for it.
        self._store = torch_dist.distributed_c10d._get_default_store()
        self._name = name
        self.node = f"node {dist.get_node_rank()}"
        self._shared = 0

    def arrive(self, place: str) -> None:
        self._store.add(f"{self._name}/{place}", 1)

    def wait_for(self, place: str, ranks: int) -> None:
        while self._store.add(f"{self._name}/{place}", 0) < ranks:
            if self._store.add(f"{self._name}/failed", 0):
                raise RuntimeError(self._store.get(f"{self._name}/trouble").decode())
            time.sleep(POLL_SECONDS)

    def fail(self, text: str) -> None:
        if not self._store.add(f"{self._name}/failed", 0):  # not because another did
            rank = f"Rank {dist.get_global_rank()} failed, so this one stops too"
            self._store.set(f"{self._name}/trouble", f"{rank}: {text}")
            self._store.add(f"{self._name}/failed", 1)

    def share(self, make: Callable[[], str]) -> str:
        self._shared += 1
        key = f"{self._name}/{self.node}/{self._shared}"
        if dist.get_local_rank() > 0:
            return self._store.get(key).decode()
        made = make()
        self._store.set(key, made)
        return made
