"""What each rank is busy with, so that an error in a collective says who is waited for, and where.

A collective that fails knows a socket and a time. The trainer wraps its long parts in ``phase``;
each rank writes the name of its own on a board that all ranks can read, the launcher's key-value
store, and reads the others' when something goes wrong. Nothing is written per step.
"""

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

__all__ = ["LostRanksError", "join_board", "phase"]

_REACH_SECONDS = 5
_HEAR_SECONDS = 3.0
_POLL_SECONDS = 0.1
_SHOWN_RANKS = 8
# Gloo raises plain RuntimeErrors.
_SIGNS_OF_GLOO = ("gloo", "pair closure", "Connection closed by peer")
_NOWHERE = "the program outside the trainer"
_LOST = "lost"
_FAILED = "failed"


class LostRanksError(RuntimeError):
    """Raised when a collective fails or times out; names the phase and the ranks waited for."""


class _Board:
    """One line a rank in the store: its phase, and how that ended if it ended badly."""

    def __init__(self) -> None:
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        self.address = f"{host}:{port}"
        # As for the group itself, see dist.initialize_dist.
        alone = os.environ.get("GROUP_WORLD_SIZE", "1") == "1"
        tries = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if alone else "0"
        self._prefix = f"composer/phases/{tries}"
        self._rank = int(os.environ["RANK"])
        self._world_size = int(os.environ["WORLD_SIZE"])
        # A connection of its own: one that hangs must not hold a lock that the group needs. As rank
        # 1, because rank 0's would start a server.
        url = f"tcp://{self.address}?rank=1&world_size={self._world_size}"
        self._store, _, _ = next(rendezvous(url, timeout=timedelta(seconds=_REACH_SECONDS)))

    def write(self, name: str, state: str = "", detail: str = "") -> None:
        self._store.set(f"{self._prefix}/{self._rank}", "\n".join((name, state, detail)))

    def read(self) -> dict[int, list[str]]:
        """Returns [phase, state, detail] of each other rank that has written, by rank."""
        lines = {}
        for rank in range(self._world_size):
            key = f"{self._prefix}/{rank}"
            if rank != self._rank and self._store.check([key]):
                lines[rank] = self._store.get(key).decode().split("\n", 2)
        return lines

    def hear(self) -> dict[int, list[str]]:
        """Reads the board once all others have noticed too, or after a while."""
        deadline = time.monotonic() + _HEAR_SECONDS
        lines = self.read()
        while time.monotonic() < deadline and not (
            len(lines) == self._world_size - 1 and all(line[1] for line in lines.values())
        ):
            time.sleep(_POLL_SECONDS)
            lines = self.read()
        return lines

    @property
    def others(self) -> list[int]:
        return [rank for rank in range(self._world_size) if rank != self._rank]


_board: _Board | None = None
_names: list[str] = []
_has_failed = False


def join_board() -> None:
    """Connects to the other ranks' board, if the launcher's variables say where a store is."""
    global _board
    if _board is not None or os.environ.get("WORLD_SIZE", "1") == "1":
        return
    try:
        _board = _Board()
    except (KeyError, ValueError, RuntimeError):  # it is only for better errors
        return
    _tell(_names[-1] if _names else _NOWHERE)


def _tell(name: str, state: str = "", detail: str = "") -> None:
    if _board is not None:
        with contextlib.suppress(RuntimeError):
            _board.write(name, state, detail)


def _of_the_group(error: BaseException) -> bool:
    """Tells whether an error says that other ranks do not answer."""
    if isinstance(error, dist.DistError):
        return True
    return isinstance(error, RuntimeError) and any(s in str(error) for s in _SIGNS_OF_GLOO)


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """Names what this rank does in the body, for the errors of all who wait for it.

    Args:
        name: Completes "waiting at", such as "loading the checkpoint". Of a part that all ranks go
            through; not for what happens every step.

    Raises:
        LostRanksError: If a collective in the body fails because other ranks do not answer.
    """
    global _has_failed
    _names.append(name)
    _has_failed = False
    _tell(name)
    try:
        yield
    except LostRanksError:  # named by a phase further in
        raise
    except Exception as error:
        if _of_the_group(error):
            raise LostRanksError(f"{_explain(name)}\nThe collective said: {error}") from error
        if not _has_failed:  # else a phase further in has said it better
            _has_failed = True
            _tell(name, _FAILED, f"{type(error).__name__}: {error}")
        raise
    else:
        _has_failed = False
        _tell(_names[-2] if len(_names) > 1 else _NOWHERE)
    finally:
        _names.pop()


def _explain(name: str) -> str:
    """Says which ranks were waited for, and where they were seen last."""
    rank = os.environ.get("RANK", "?")
    if _board is None:
        return f'Rank {rank} lost the other ranks at "{name}".'
    _tell(name, _LOST)
    lines: dict[int, list[str]] | None = None

    def ask(board: _Board) -> None:
        nonlocal lines
        with contextlib.suppress(RuntimeError):
            lines = board.hear()

    # In a thread, because a store behind a cut cable answers neither yes nor no.
    thread = threading.Thread(target=ask, args=(_board,), daemon=True)
    thread.start()
    thread.join(_HEAR_SECONDS + _REACH_SECONDS)
    if lines is None:
        return (
            f'Rank {rank} lost the other ranks at "{name}", and the store at {_board.address} does '
            "not answer either: its machine or the network is down, or its process has ended."
        )
    return f'Rank {rank} lost other ranks at "{name}": {_blame(lines, _board.others)}'


def _blame(lines: dict[int, list[str]], others: list[int]) -> str:
    """Sorts the others into those that failed, those that say nothing, and fellow victims."""
    told = []
    for rank in others:
        where, state, detail = lines.get(rank, ["", "", ""])
        if state == _FAILED:
            told.append(f'rank {rank} failed at "{where}" with {detail}')
        elif not state:
            place = f'last seen at "{where}"' if where else "which never came"
            told.append(f"waiting for rank {rank}, {place}")
    if not told:
        return "all of them still run, but the connections between them broke."
    rest = f"; and {len(told) - _SHOWN_RANKS} more" if len(told) > _SHOWN_RANKS else ""
    return "; ".join(told[:_SHOWN_RANKS]) + rest + "."
