"""Which epoch runs, and where it began, as seen by a rank and by all of its loader workers.

The numbers lie in one torch tensor in shared memory that has no name: it is handed to workers when
they start and is gone with the last process that holds it.
"""

import multiprocessing
import os
import re
import zlib
from typing import Any, NamedTuple

import torch
from torch.utils.data import get_worker_info

_GENERATION, _EPOCH, _SAMPLE, _SEED, _CANONICAL, _PHYSICAL = range(6)
_HEADER = 8
_SLOTS = 1024
_LOW = (1 << 32) - 1


class Start(NamedTuple):
    """Where an epoch begins, and what a loaded state says about its order."""

    epoch: int
    sample: int
    seed: int
    num_canonical_nodes: int | None
    initial_physical_nodes: int | None


class Progress:
    """Counts epochs, for a rank and its workers together, without a lock.

    Each worker writes only to its own slot. Workers that begin the same epoch find the same number
    in whatever order they come: the first iteration of a group of workers takes the epoch after the
    last one that anybody began, unless a worker of the same group has already said which that is;
    later ones (of persistent workers) count on.
    """

    def __init__(self, seed: int) -> None:
        self._cells = torch.zeros(_HEADER + 2 * _SLOTS, dtype=torch.int64)
        self._cells.share_memory_()
        self._pid = 0
        self._generation = -1
        self._first = 0
        self._runs = 0
        self.load(Start(0, 0, seed, None, None))

    def __getstate__(self) -> dict[str, Any]:
        return {"cells": self._cells}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._cells = state["cells"]
        if not self._cells.is_shared():  # An ordinary copy, not one on its way to a worker.
            self._cells = self._cells.clone().share_memory_()
        self._pid, self._generation, self._first, self._runs = 0, -1, 0, 0

    def load(self, start: Start) -> None:
        """Makes the next epoch begin there, whatever has run before."""
        cells = self._cells.numpy()
        cells[_EPOCH], cells[_SAMPLE], cells[_SEED] = start.epoch, start.sample, start.seed
        nodes = (start.num_canonical_nodes, start.initial_physical_nodes)
        cells[_CANONICAL], cells[_PHYSICAL] = (0 if count is None else count for count in nodes)
        self._tokens[:] = 0
        self._last[:] = -1
        cells[_GENERATION] += 1

    @property
    def _tokens(self) -> Any:
        return self._cells.numpy()[_HEADER : _HEADER + _SLOTS]

    @property
    def _last(self) -> Any:
        return self._cells.numpy()[_HEADER + _SLOTS :]

    def _start(self, epoch: int) -> Start:
        cells = self._cells.numpy()
        return Start(
            epoch,
            int(cells[_SAMPLE]) if epoch == cells[_EPOCH] else 0,
            int(cells[_SEED]),
            int(cells[_CANONICAL]) or None,
            int(cells[_PHYSICAL]) or None,
        )

    @property
    def next_epoch(self) -> int:
        """Number of the epoch that begins next."""
        last = int(self._last.max())
        return int(self._cells[_EPOCH]) if last < 0 else last + 1

    def current(self) -> Start:
        """Where the epoch that runs (or has run last, or is to begin) began."""
        last = int(self._last.max())
        return self._start(int(self._cells[_EPOCH]) if last < 0 else last)

    def begin(self) -> Start:
        """Begins an epoch in this process."""
        info = get_worker_info()
        if info is None:
            epoch, slot = self.next_epoch, 0
        else:
            epoch, slot = self._begin_in_worker(info), info.id
        self._last[slot] = epoch
        return self._start(epoch)

    def _begin_in_worker(self, info: Any) -> int:
        if info.id >= _SLOTS:
            raise ValueError(
                f"At most {_SLOTS} loader workers are possible, but this is {info.id}."
            )
        generation = int(self._cells[_GENERATION])
        if (self._pid, self._generation) != (os.getpid(), generation):
            self._pid, self._generation, self._runs = os.getpid(), generation, 0
            token = _group_token(info, generation)
            # First what was begun, then who began it: a fellow writes these in the other order.
            epoch = self.next_epoch
            for value in self._tokens[: info.num_workers].tolist():
                if value >> 32 == token:
                    epoch = value & _LOW
            self._first = epoch
            self._tokens[info.id] = token << 32 | epoch
        self._runs += 1
        return self._first + self._runs - 1


def _group_token(info: Any, generation: int) -> int:
    """A number that workers of one loader's iteration share, and others do not.

    Torch starts such workers one after another, so the number in a worker's process name less its
    own number is the same for all. The seed is drawn per iteration, but a user may draw it again.
    """
    found = re.search(r"(\d+)$", multiprocessing.current_process().name)
    first = int(found.group(1)) - info.id if found else 0
    text = f"{info.seed - info.id} {first} {generation}"
    return (zlib.crc32(text.encode()) & 0x7FFFFFFF) | 1
