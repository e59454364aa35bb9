"""What stands in a checkpoint: the whole run or its weights, less what the user leaves out."""

import fnmatch
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from composer.core.state import State
from composer.utils import dist, reproducibility

__all__ = [
    "IgnoreKeys",
    "apply_ignore_keys",
    "check_agreement",
    "full_state",
    "glob_filter",
    "is_rng_key",
    "storages_of_run",
    "tensors_of_run",
    "weights_state",
]

IgnoreKeys = Sequence[str] | Callable[[dict[str, Any]], None]


def full_state(state: State, whole: bool = False, with_optimizers: bool = True) -> dict[str, Any]:
    """Collects all that a run needs to go on. All ranks call it, because the parts are gathered.

    Args:
        state: The run's State.
        whole: As for ``State.state_dict``, and so is the next.
        with_optimizers: Whether moments are collected.
    """
    saved = state.state_dict(whole=whole, with_optimizers=with_optimizers)
    return {"state": saved, "rng": reproducibility.get_rng_state()}


def weights_state(state: State) -> dict[str, Any]:
    """Collects the weights and what is needed to build the model again. All ranks call it."""
    return {
        "state": {
            "model": state.get_model_state_dict(),
            "integrations": state._get_integrations_state_dict(),
            "metadata": state._get_state_metadata(),
        },
    }


def tensors_of_run(state: State, weights_only: bool = False) -> Iterator[torch.Tensor]:
    """Yields this rank's weights, buffers and moments themselves; of sharded ones, its part."""
    found = [*state.model.parameters(), *state.model.buffers()]
    for optimizer in () if weights_only else state.optimizers:
        for moments in optimizer.state.values():
            found += [value for value in moments.values() if isinstance(value, torch.Tensor)]
    for tensor in found:
        yield getattr(tensor, "_local_tensor", tensor).detach()


def storages_of_run(state: State) -> set[int]:
    """Returns the addresses of the memory that training changes."""
    return {tensor.untyped_storage().data_ptr() for tensor in tensors_of_run(state)}


def apply_ignore_keys(state_dict: dict[str, Any], ignore_keys: IgnoreKeys | None) -> None:
    """Removes from a checkpoint's content, in place, what globs or a function name."""
    if not ignore_keys:
        return
    remove = ignore_keys if callable(ignore_keys) else glob_filter(ignore_keys)
    remove(state_dict)


def is_rng_key(key: str, value: object) -> bool:
    """Tells whether an entry of a sharded checkpoint's index is a random generator's state.

    Such a key reads like ``rng.0.cuda``, and what it leads to is a path of three steps.
    """
    ends = ("cuda", "torch", "python", "numpy")
    is_named = key.startswith("rng") and key.endswith(ends)
    return is_named and isinstance(value, tuple) and len(value) == 3


def _children(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, dict):
        return list(value.items())
    if isinstance(value, (list, tuple)):
        return list(enumerate(value))
    return []


def _matches(
    value: Any, path: str, globs: Sequence[str], used: set[str]
) -> Iterator[tuple[Any, Any]]:
    """Yields (container, key) of each match; lists from their end, to keep indices true."""
    children = _children(value)
    for key, child in reversed(children) if isinstance(value, list) else children:
        child_path = f"{path}/{key}" if path else str(key)
        hits = [glob for glob in globs if fnmatch.fnmatchcase(child_path, glob)]
        used.update(hits)
        if hits and not isinstance(value, tuple):
            yield value, key
        else:
            yield from _matches(child, child_path, globs, used)


def glob_filter(exclude_globs: Sequence[str]) -> Callable[[dict[str, Any]], None]:
    """Returns a function that removes, in place, each part of a state whose path fits a glob.

    A path is the keys from the checkpoint's root joined by ``/``, list indices included, such as
    ``state/model/module.layer1.weight`` or ``state/optimizers``. Removing a part removes what is in
    it. A glob that fits nothing is warned about.

    Args:
        exclude_globs: Shell-style patterns; ``*`` fits any text, ``/`` included.
    """
    globs = [exclude_globs] if isinstance(exclude_globs, str) else list(exclude_globs)

    def filter_in_place(state_dict: dict[str, Any]) -> None:
        used: set[str] = set()
        for container, key in list(_matches(state_dict, "", globs, used)):
            del container[key]
        idle = [glob for glob in globs if glob not in used]
        if idle:
            warnings.warn(
                f"No part of the checkpoint fits the ignore keys {idle}; paths look like "
                "'state/model/<parameter name>', 'state/optimizers', 'state/callbacks/<class>' or "
                "'rng'.",
                stacklevel=2,
            )

    return filter_in_place


def check_agreement(state: State, path: str) -> None:
    """Raises RuntimeError, on all ranks, if what they have loaded is not of one time."""
    batches = dist.all_gather_object(int(state.timestamp.batch))
    if len(set(batches)) > 1:
        raise RuntimeError(
            f"Timestamp mismatch error: after loading {path}, the ranks stand at batches "
            f"{batches}. Give all ranks the same checkpoint.",
        )
