"""Where the nodes of a run meet, and meet again after a failure.

torch's rendezvous does the work. Around it: numbers that the nodes wish for, and a store for the
processes that is new at each meeting. torch's own outlives a restart, so that new processes find
the addresses of dead ones in it, a new node never learns where it is, and a node 0 that is lost
takes it along.
"""

import contextlib
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any, TypeVar

import psutil

from composer.cli.options import LaunchOptions

__all__ = ["Meeting"]

_T = TypeVar("_T")

_LOCALHOST = "127.0.0.1"
_ANSWER_SECONDS = 60
# How long a complete minimum of nodes waits for more.
_LAST_CALL_SECONDS = 10
_NO_WISH = 1 << 30


class Meeting:
    """The rendezvous handler of this node.

    Args:
        options: What the launch was asked to do.
        before: Called before each meeting, with the number of those that were.
    """

    def __init__(self, options: LaunchOptions, before: Callable[[int], None]) -> None:
        self._options = options
        self._before = before
        self._meetings = 0
        self._server: Any = None
        single = options.max_nodes == 1
        self.place = f"{options.master_addr or _LOCALHOST}:{options.master_port or 0}"
        self.is_static = (
            options.master_port is not None
            and options.min_nodes == options.max_nodes
            and options.max_restarts == 0
        )
        self._answer_seconds = min(options.join_timeout, _ANSWER_SECONDS)
        self.is_met = False
        """Whether the nodes are together, as opposed to waiting for each other."""
        self._address = (options.master_addr or _LOCALHOST) if single else _own_address(self.place)
        if not single:
            _use_interface_of(self._address)
        self._handler = self._make_static() if self.is_static else self._make_dynamic()

    def _make_static(self) -> Any:
        settings = {"rank": self._options.node_rank, "timeout": self._options.join_timeout}
        return self._make("static", "composer", settings)

    def _make_dynamic(self) -> Any:
        """Connects to the store of node 0, or opens it, waiting for it if it is not there yet."""
        from torch.distributed.elastic.rendezvous import RendezvousConnectionError

        options = self._options
        os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # it is this class that shares one
        settings = {
            "join_timeout": options.join_timeout,
            "last_call_timeout": _LAST_CALL_SECONDS,
            "read_timeout": self._answer_seconds,
            "is_host": options.max_nodes == 1 or self._hosts_the_meeting(),
        }
        run_id = uuid.uuid4().hex if options.master_port is None else "composer"
        deadline = time.monotonic() + options.join_timeout
        while True:
            try:
                return self._make("c10d", run_id, settings)
            except RendezvousConnectionError:
                if settings["is_host"] or time.monotonic() > deadline:
                    raise

    def _make(self, backend: str, run_id: str, settings: dict[str, Any]) -> Any:
        from torch.distributed.elastic.rendezvous import RendezvousParameters, registry

        return registry.get_rendezvous_handler(
            RendezvousParameters(
                backend=backend,
                endpoint=self.place,
                run_id=run_id,
                min_nodes=self._options.min_nodes,
                max_nodes=self._options.max_nodes,
                local_addr=self._address,
                **settings,
            )
        )

    def _hosts_the_meeting(self) -> bool:
        """Tells whether the address of the meeting is this node's, and nobody listens there yet."""
        if self._options.node_rank is not None:
            return self._options.node_rank == 0
        host, _, port = self.place.rpartition(":")
        with socket.socket() as candidate:
            candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                candidate.bind((host, int(port)))
                return True
        return False

    def next_rendezvous(self) -> Any:
        """Waits until the nodes are together and says who they are, where, and which is this."""
        self._before(self._meetings)
        self._meetings += 1
        self.is_met = False
        if self.is_static:
            found = self._handler.next_rendezvous()
        else:
            limit = self._options.join_timeout + self._answer_seconds
            found = _bounded(lambda: self._settle(self._handler.next_rendezvous()), limit)
        self.is_met = True
        return found

    @property
    def use_agent_store(self) -> bool:
        """Whether the launcher keeps the processes' store: always, so that it outlives them."""
        return True

    def num_nodes_waiting(self) -> int:
        """Returns how many nodes want to take part; the agent asks all the time."""
        return _bounded(self._handler.num_nodes_waiting, self._answer_seconds)

    def shutdown(self) -> bool:
        """Tells the others that the run has ended."""
        return _bounded(self._handler.shutdown, self._answer_seconds)

    def _settle(self, found: Any) -> Any:
        """Numbers the nodes as they wish, as far as they do, and opens a store for the ranks."""
        from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]
        from torch.distributed.elastic.rendezvous import RendezvousInfo, RendezvousStoreInfo

        wish = self._options.node_rank
        found.store.set(f"wish/{found.rank}", str(_NO_WISH if wish is None else wish))
        wishes = [(int(found.store.get(f"wish/{i}")), i) for i in range(found.world_size)]
        rank = sorted(wishes).index(wishes[found.rank])
        if rank == 0:
            self._server = TCPStore(self._address, 0, is_master=True, wait_for_workers=False)
            found.store.set("server", f"{self._address} {self._server.port}")
        address, port = found.store.get("server").decode().split()
        return RendezvousInfo(
            found.store, rank, found.world_size, RendezvousStoreInfo(address, int(port))
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handler, name)


def _bounded(ask: Callable[[], _T], seconds: float) -> _T:
    """Calls a function that talks to the store, and gives up on it after a time.

    The store's own timeout does not hold behind a cut cable: once it has run out, the client tells
    the store so, and waits for its answer.
    """
    from torch.distributed.elastic.rendezvous import RendezvousConnectionError

    answers: list[_T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            answers.append(ask())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not answers:
        raise RendezvousConnectionError(f"no answer within {seconds} s")
    return answers[0]


def _own_address(place: str) -> str:
    """Returns the address by which a node that looks from ``place`` sees this one."""
    from torch.distributed.elastic.rendezvous import RendezvousConnectionError

    host, _, port = place.rpartition(":")
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # sends nothing
            return probe.getsockname()[0]
    except OSError as error:
        raise RendezvousConnectionError(f"no way leads to {host}: {error}") from error


def _use_interface_of(address: str) -> None:
    """Has gloo listen where the other nodes see this one, and not where the host name leads."""
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in entries):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
