"""Seeds, the states of all random generators, and deterministic mode."""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from composer.utils import dist

__all__ = [
    "MAX_SEED",
    "configure_deterministic_mode",
    "get_random_seed",
    "get_rng_state",
    "load_rng_state",
    "remember_determinism",
    "seed_all",
    "seed_context",
]

MAX_SEED = 2**32 - 1
"""The largest seed: numpy's generator takes 32 bits."""


def configure_deterministic_mode() -> None:
    """Makes torch use deterministic algorithms only, or refuse where there is none.

    Call it before the first CUDA operation: cuBLAS reads its workspace setting once.
    """
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    warnings.warn(
        "Deterministic mode is activated. This will negatively impact performance.",
        category=UserWarning,
        stacklevel=2,
    )


def remember_determinism() -> Callable[[], None]:
    """Returns a function that undoes what `configure_deterministic_mode` is going to change."""
    algorithms = torch.are_deterministic_algorithms_enabled()
    only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
    benchmark, deterministic = torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic
    workspace = os.environ.get("CUBLAS_WORKSPACE_CONFIG")

    def restore() -> None:
        torch.use_deterministic_algorithms(algorithms, warn_only=only_warns)
        torch.backends.cudnn.benchmark = benchmark
        torch.backends.cudnn.deterministic = deterministic
        os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)
        if workspace is not None:
            os.environ["CUBLAS_WORKSPACE_CONFIG"] = workspace

    return restore


def get_random_seed() -> int:
    """Returns a seed that no other run will have, without touching any random generator."""
    return secrets.randbelow(MAX_SEED + 1)


def seed_all(seed: int) -> None:
    """Seeds Python's, numpy's and torch's generators, on every device.

    Args:
        seed: From 0 to `MAX_SEED`.

    Raises:
        ValueError: If the seed is out of that range.
    """
    if not 0 <= seed <= MAX_SEED:
        raise ValueError(f"Seed {seed} is invalid: it must be from 0 to {MAX_SEED}")
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)  # on CUDA and MPS too, at their first use if they sleep


@contextlib.contextmanager
def seed_context(seed: int) -> Iterator[None]:
    """Seeds everything inside the block and puts this rank's generators back afterwards."""
    before = _own_state()
    seed_all(seed)
    try:
        yield
    finally:
        _load_own_state(before)


def get_rng_state() -> list[dict[str, Any]]:
    """Returns the state of every generator of every rank, in the order of the ranks."""
    return dist.all_gather_object(_own_state())


def load_rng_state(rng_state_dicts: list[dict[str, Any]]) -> None:
    """Puts this rank's generators into the state that `get_rng_state` returned for it.

    Warns, and leaves the generators alone, if the states are of another number of ranks.
    """
    if len(rng_state_dicts) != dist.get_world_size():
        warnings.warn(
            f"The checkpoint has the random states of {len(rng_state_dicts)} ranks and this run "
            f"has {dist.get_world_size()}; they will not be restored, so random operations such as "
            "dropout will differ from the unbroken run",
            stacklevel=2,
        )
        return
    _load_own_state(rng_state_dicts[dist.get_global_rank()])


def _own_state() -> dict[str, Any]:
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.random.get_rng_state(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    if torch.backends.mps.is_available():
        state["mps"] = torch.mps.get_rng_state()
    return state


def _load_own_state(state: dict[str, Any]) -> None:
    random.setstate(_as_tuples(state["python"]))
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    for name, module in (("cuda", torch.cuda), ("mps", torch.mps)):
        if name in state and _has_device(name):
            try:
                module.set_rng_state(state[name])
            except RuntimeError as error:
                warnings.warn(
                    f"The {name} random state could not be restored, probably because the devices "
                    f"of the checkpoint and of this run differ: {error}",
                    stacklevel=2,
                )


def _has_device(name: str) -> bool:
    return torch.cuda.is_available() if name == "cuda" else torch.backends.mps.is_available()


def _as_tuples(state: Any) -> Any:
    """Turns lists back into the tuples that `random.setstate` insists on."""
    return tuple(_as_tuples(item) for item in state) if isinstance(state, (list, tuple)) else state
