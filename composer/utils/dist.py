"""Ranks, world sizes and the few collectives that everybody uses, working launched or not.

One file because every answer rests on the same two sources, the process group and the launcher's
environment. Without a launcher the world has one rank, and every collective returns at once.
"""

import atexit
import contextlib
import datetime
import os
import random
import string
import time
from collections.abc import Callable, Iterator, Sized
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import torch
import torch.distributed as dist
import torch.utils.data
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.utils.data.distributed import DistributedSampler

from composer.utils.phases import join_board, phase

__all__ = [
    "MissingEnvironmentError",
    "all_gather",
    "all_gather_object",
    "all_reduce",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "busy_wait_for_local_rank_zero",
    "from_rank_zero",
    "get_global_rank",
    "get_local_rank",
    "get_local_world_size",
    "get_node_rank",
    "get_node_signal_file_name",
    "get_sampler",
    "get_world_size",
    "initialize_dist",
    "is_available",
    "is_initialized",
    "local_rank_zero_download_and_wait",
    "run_local_rank_zero_first",
    "write_signal_file",
]

TObj = TypeVar("TObj")

_POLL_SECONDS = 0.1
_SECONDS_TO_LET_GO = 0.1

_BACKEND_OF_DEVICE = {
    "cpu": "gloo",
    "gpu": "nccl",
    "cuda": "nccl",
    "mps": "gloo",
    "tpu": "xla",
    "neuron": "xla",
    "hpu": "hccl",
}

# NCCL moves CUDA tensors only. With gloo beside it, objects and CPU tensors (rank agreement,
# checkpoint plans) need no copy to the device.
_BACKEND_WITH_CPU = {"nccl": "cpu:gloo,cuda:nccl"}

_LAUNCH_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


class MissingEnvironmentError(Exception):
    """Raised when several ranks run but the environment does not say where this one is."""


class _HasBackend(Protocol):
    @property
    def dist_backend(self) -> str: ...


def is_available() -> bool:
    """Tells whether this build of torch has ``torch.distributed``."""
    return dist.is_available()


def is_initialized() -> bool:
    """Tells whether the default process group exists."""
    return dist.is_available() and dist.is_initialized()


def _env_int(name: str) -> int | None:
    text = os.environ.get(name)
    if text is None or text == "":
        return None
    try:
        return int(text)
    except ValueError as error:
        raise ValueError(
            f"Environment variable {name}={text!r} must be an integer; unset it, or start the "
            "program with the `composer` launcher, which sets it.",
        ) from error


def _agreed(name: str, of_group: int) -> int:
    """Returns the process group's figure after checking that the environment says the same."""
    of_env = _env_int(name)
    if of_env is not None and of_env != of_group:
        raise RuntimeError(
            f"Environment variable {name}={of_env} disagrees with torch.distributed, which says "
            f"{of_group}. Leave {name} as the launcher set it, or unset it.",
        )
    return of_group


def _local(names: tuple[str, ...], default: int) -> int:
    """Returns the first of the variables that is set; torch itself does not know these."""
    for name in names:
        value = _env_int(name)
        if value is not None:
            return value
    if is_initialized() and dist.get_world_size() > 1:
        raise MissingEnvironmentError(
            f"torch.distributed is initialized with {dist.get_world_size()} ranks, but the "
            f"environment variable {names[0]} is missing. Start the program with the `composer` "
            f"launcher or torchrun, or set {names[0]}.",
        )
    return default


def get_world_size() -> int:
    """Returns the number of ranks in the run, 1 when nothing was launched."""
    if is_initialized():
        return _agreed("WORLD_SIZE", dist.get_world_size())
    value = _env_int("WORLD_SIZE")
    return 1 if value is None else value


def get_global_rank(group: dist.ProcessGroup | None = None) -> int:
    """Returns this process's rank in the run, or in ``group``; 0 when nothing was launched."""
    if group is not None:
        return dist.get_rank(group)
    if is_initialized():
        return _agreed("RANK", dist.get_rank())
    value = _env_int("RANK")
    return 0 if value is None else value


def get_local_world_size() -> int:
    """Returns the number of ranks on this node."""
    return _local(("LOCAL_WORLD_SIZE",), 1)


def get_local_rank() -> int:
    """Returns this process's rank among those of its node."""
    return _local(("LOCAL_RANK",), 0)


def get_node_rank() -> int:
    """Returns the number of this node. Under torchrun, which calls it so, that is GROUP_RANK."""
    return _local(("NODE_RANK", "GROUP_RANK"), 0)


def _stands_alone(group: dist.ProcessGroup | None, task: str) -> bool:
    """Tells whether a collective has nobody to talk to."""
    if is_initialized():
        return dist.get_world_size(group) == 1
    world_size = get_world_size()
    if world_size == 1:
        return True
    raise RuntimeError(
        f"{task} needs all {world_size} ranks (WORLD_SIZE={world_size}), but torch.distributed is "
        "not initialized. Call composer.utils.dist.initialize_dist(device) first.",
    )


def barrier(group: dist.ProcessGroup | None = None) -> None:
    """Waits until every rank of ``group`` has come here."""
    if not _stands_alone(group, "barrier"):
        dist.barrier(group=group)


def all_reduce(
    tensor: torch.Tensor, reduce_operation: str = "SUM", group: dist.ProcessGroup | None = None
) -> None:
    """Reduces ``tensor`` over all ranks, in place.

    Args:
        tensor: Holds this rank's part before, the result after.
        reduce_operation: Name of a ``torch.distributed.ReduceOp``: SUM, AVG, PRODUCT, MIN, MAX, ...
        group: The ranks that take part, all by default.
    """
    operation = getattr(dist.ReduceOp, reduce_operation.upper(), None)
    if operation is None:
        raise ValueError(
            f"reduce_operation={reduce_operation!r} is not a torch.distributed.ReduceOp; use one "
            "of SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR.",
        )
    if not _stands_alone(group, "all_reduce"):
        dist.all_reduce(tensor, op=operation, group=group)


def broadcast(tensor: torch.Tensor, src: int, group: dist.ProcessGroup | None = None) -> None:
    """Copies global rank ``src``'s tensor into every rank's ``tensor``, in place."""
    if not _stands_alone(group, "broadcast"):
        dist.broadcast(tensor, src, group=group)


def broadcast_object_list(
    object_list: list[Any],
    src: int = 0,
    group: dist.ProcessGroup | None = None,
) -> None:
    """Replaces the items of ``object_list`` by those of rank ``src``; they travel pickled."""
    if not _stands_alone(group, "broadcast_object_list"):
        dist.broadcast_object_list(object_list, src, group=group)


def all_gather(tensor: torch.Tensor, group: dist.ProcessGroup | None = None) -> list[torch.Tensor]:
    """Returns every rank's tensor, in rank order. All must have one shape and dtype."""
    if _stands_alone(group, "all_gather"):
        return [tensor]
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, tensor, group=group)
    return parts


def all_gather_object(obj: TObj, group: dist.ProcessGroup | None = None) -> list[TObj]:
    """Returns every rank's object, in rank order; they travel pickled."""
    if _stands_alone(group, "all_gather_object"):
        return [obj]
    parts: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(parts, obj, group=group)
    return cast("list[TObj]", parts)


def from_rank_zero(make: Callable[[], TObj]) -> TObj:
    """Calls ``make`` on rank 0 and returns its result on every rank; an error raises on every rank.

    What only rank 0 does (write a file, look into a folder) belongs in here: if it fails outside,
    the other ranks wait for rank 0 until a timeout.

    Args:
        make: Called on rank 0 alone. Its result travels pickled.

    Raises:
        RuntimeError: On the other ranks, with the text of what rank 0 met; rank 0 raises that
            itself.
    """
    if _stands_alone(None, "from_rank_zero"):
        return make()
    trouble: Exception | None = None
    told: list[Any] = [None, None]
    if get_global_rank() == 0:
        try:
            told[0] = make()
        except Exception as error:
            trouble = error
            told[1] = f"{type(error).__name__}: {error}"
    broadcast_object_list(told, src=0)
    if trouble is not None:
        raise trouble
    if told[1] is not None:
        raise RuntimeError(f"Rank 0 failed, so rank {get_global_rank()} stops too: {told[1]}")
    return cast("TObj", told[0])


def _backend_for(device: str | _HasBackend | None) -> str:
    """Returns the backend for a device or its name; a backend's own name is handed back."""
    if device is None:
        return "nccl" if torch.cuda.is_available() else "gloo"
    if not isinstance(device, str):
        return device.dist_backend or "gloo"
    return _BACKEND_OF_DEVICE.get(device.lower(), device.lower())


def _check_backend(wanted: str) -> None:
    present = dist.get_backend_config().lower()  # such as "cpu:gloo,cuda:nccl"
    if wanted not in present:
        raise RuntimeError(
            f"torch.distributed is already initialized with the backends {present!r}, but this "
            f"device needs {wanted!r}. Initialize it once, with the device that the run uses.",
        )


def _initialize_alone(backend: str, timeout: datetime.timedelta) -> None:
    alone = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "NODE_RANK": 0}
    for name, value in alone.items():
        os.environ.setdefault(name, str(value))
    # torch documents HashStore under this name and forgot to export it.
    store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
    dist.init_process_group(backend, store=store, world_size=1, rank=0, timeout=timeout)


def initialize_dist(device: str | _HasBackend | None = None, timeout: float = 300.0) -> None:
    """Makes the default process group; a second call only checks that the backend fits.

    Args:
        device: A device's name, a backend's name, anything with ``dist_backend``, or None for NCCL
            where CUDA is and gloo elsewhere.
        timeout: Seconds until a collective that some rank never enters raises.
    """
    backend = _backend_for(device)
    if is_initialized():
        _check_backend(backend)
        return
    limit = datetime.timedelta(seconds=timeout)
    with_cpu = _BACKEND_WITH_CPU.get(backend, backend)
    if get_world_size() == 1 and get_global_rank() == 0 and "MASTER_ADDR" not in os.environ:
        _initialize_alone(with_cpu, limit)
        return
    missing = [name for name in _LAUNCH_VARIABLES if not os.environ.get(name)]
    if missing:
        raise MissingEnvironmentError(
            f"WORLD_SIZE={get_world_size()} asks for a process group, but {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} not set. Start the program with the "
            "`composer` launcher.",
        )
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":  # otherwise rank 0 will bring it
        join_board()
    with phase("forming the process group"):
        _initialize_among_others(with_cpu, limit)
    join_board()
    # The group's threads need Python's lock to let go of the last collective's tensors. One that
    # asks for it when the interpreter has begun to end takes the process down ("terminate called
    # without an active exception").
    atexit.register(time.sleep, _SECONDS_TO_LET_GO)


def _initialize_among_others(backend: str, limit: datetime.timedelta) -> None:
    if backend == "xla":
        dist.init_process_group(backend, init_method="xla://", timeout=limit)
        return
    store, rank, world_size = next(rendezvous("env://", timeout=limit))
    # Under a plain torchrun, the processes of a second try find the addresses of the first in the
    # agent's store, and fail. On several nodes, the agents count their restarts differently.
    if os.environ.get("GROUP_WORLD_SIZE", "1") == "1":
        store = PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=limit)


def get_sampler(
    dataset: torch.utils.data.Dataset[Any],
    *,
    drop_last: bool = False,
    shuffle: bool = False,
    num_replicas: int | None = None,
    rank: int | None = None,
    seed: int = 0,
) -> DistributedSampler[Any]:
    """Returns a sampler that gives each rank its share of ``dataset``, also when there is one rank.

    Args:
        dataset: A dataset with a length.
        drop_last: Drop the tail that does not divide among the ranks, instead of repeating samples
            to fill it.
        shuffle: Shuffle anew each epoch; the trainer calls ``set_epoch``.
        num_replicas: Number of shares, the world size by default.
        rank: Which share, this process's rank by default.
        seed: Seed of the shuffle; must be equal on all ranks.
    """
    if not isinstance(dataset, Sized):
        raise ValueError(
            f"{type(dataset).__name__} has no length, so it cannot be split among ranks; give it "
            "__len__, or split an iterable dataset inside its __iter__.",
        )
    return DistributedSampler(
        dataset,
        drop_last=drop_last,
        shuffle=shuffle,
        num_replicas=get_world_size() if num_replicas is None else num_replicas,
        rank=get_global_rank() if rank is None else rank,
        seed=seed,
    )


def get_node_signal_file_name(rng: random.Random | None = None) -> str:
    """Returns a file name, fresh at each call and equal on all ranks of a node, for signals.

    Args:
        rng: Source of the random letters; rank 0's are used. A private one by default, so that no
            seeded generator moves.
    """
    source = rng or random.SystemRandom()
    letters = ["".join(source.choices(string.ascii_lowercase + string.digits, k=6))]
    broadcast_object_list(letters, src=0)
    return f"._signal_file_node{get_node_rank()}_{letters[0]}"


def write_signal_file(signal_file_name: str, dir_path: str | None = None) -> None:
    """Writes the node's signal file; only local rank 0 does it.

    Args:
        signal_file_name: From :func:`get_node_signal_file_name`.
        dir_path: A folder that all ranks of the node see, the working directory by default.
    """
    if get_local_rank() == 0:
        folder = Path(dir_path or os.getcwd())
        folder.mkdir(parents=True, exist_ok=True)
        _signal(folder / signal_file_name, "")


def _signal(path: Path, text: str) -> None:
    """Makes the file appear with its whole text, so that a waiter never reads half of it."""
    aside = path.with_name(path.name + ".writing")
    aside.write_text(text)
    aside.replace(path)


@contextlib.contextmanager
def busy_wait_for_local_rank_zero(dir_path: str | None = None) -> Iterator[None]:
    """Holds the other ranks of a node, after their own body, until local rank 0 has done its body.

    They poll a file, because a collective would time out during a long download. If the body fails
    on one rank, all ranks of all nodes raise instead of waiting for ever.

    Args:
        dir_path: A folder that all ranks of the node see, the working directory by default.
    """
    path = Path(dir_path or os.getcwd(), get_node_signal_file_name())
    error: Exception | None = None
    try:
        yield
    except Exception as caught:
        error = caught
    except BaseException as caught:  # this process is told to end
        if get_local_rank() == 0 and path.parent.is_dir():
            _signal(path, f"{type(caught).__name__}: {caught}")
        raise
    if get_local_world_size() > 1:
        write_signal_file(path.name, str(path.parent))
        while not path.exists():
            time.sleep(_POLL_SECONDS)
        if trouble := path.read_text():
            raise _failure_of_local_rank_zero(trouble)
    # Before anyone leaves: what is cleaned up then may be what others still look at.
    told = all_gather_object(None if error is None else f"{type(error).__name__}: {error}")
    if get_local_rank() == 0:
        path.unlink(missing_ok=True)
    if error is not None:
        raise error
    for rank, text in enumerate(told):
        if text is not None:
            raise RuntimeError(f"Rank {rank} failed, so rank {get_global_rank()} stops too: {text}")


@contextlib.contextmanager
def local_rank_zero_download_and_wait(expected_file_path: str | os.PathLike[str]) -> Iterator[None]:
    """Runs the body on local rank 0 first and on the others once the expected file exists.

    All ranks of a node call it. If local rank 0's body fails, the others raise too.

    Args:
        expected_file_path: What local rank 0's body makes appear, whole (write aside and rename).
    """
    expected = Path(expected_file_path)
    failed = expected.with_name(get_node_signal_file_name())
    if get_local_rank() == 0:
        try:
            yield
        except BaseException as error:
            failed.parent.mkdir(parents=True, exist_ok=True)
            _signal(failed, f"{type(error).__name__}: {error}")
            raise
    else:
        while not expected.exists():
            if failed.exists():
                raise _failure_of_local_rank_zero(failed.read_text())
            time.sleep(_POLL_SECONDS)
        yield
    barrier()


def _failure_of_local_rank_zero(text: str) -> RuntimeError:
    return RuntimeError(f"Local rank 0 of node {get_node_rank()} failed: {text}")


@contextlib.contextmanager
def run_local_rank_zero_first() -> Iterator[None]:
    """Runs the body on local rank 0 of each node first, then on the others.

    If it fails on a node's local rank 0, that node's others raise too, without running it.
    """
    if _stands_alone(None, "run_local_rank_zero_first"):
        yield
        return
    node = get_node_rank()
    if get_local_rank() == 0:
        try:
            yield
        except BaseException as error:
            all_gather_object({node: f"{type(error).__name__}: {error}"})
            raise
        all_gather_object({})
        return
    for troubles in all_gather_object({}):
        if node in troubles:
            raise _failure_of_local_rank_zero(troubles[node])
    yield
