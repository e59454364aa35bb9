"""How the lists and metrics of a State are written into its state dict, and read back."""

from __future__ import annotations

import inspect
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from composer.core.timestamp import Timestamp
from composer.utils.gradients import as_sharded


def qualname(obj: object) -> str:
    """Returns the class name under which an object's state is kept."""
    return type(obj).__qualname__


def _keyed(objects: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """Gives each object its key: its class's name; earlier ones of the same class are numbered.

    Checkpoints of upstream have one entry a class, that of the last object, so the last one keeps
    the plain name.
    """
    objects = list(objects)
    left = Counter(qualname(obj) for obj in objects)
    seen: Counter[str] = Counter()
    for obj in objects:
        name = qualname(obj)
        left[name] -= 1
        yield (f"{name}#{seen[name]}" if left[name] else name), obj
        seen[name] += 1


def save_by_class(objects: Iterable[Any]) -> dict[str, Any]:
    """Returns the states of objects, keyed by their classes' names."""
    return {key: obj.state_dict() for key, obj in _keyed(objects)}


def load_by_class(kind: str, objects: Iterable[Any], saved: Mapping[str, Any]) -> None:
    """Gives each object its state back; an object without one is warned about and left alone.

    Args:
        kind: What the objects are, for the warning.
        objects: Who takes a state back.
        saved: States by class name.
    """
    for key, obj in _keyed(objects):
        name = qualname(obj)
        found = key if key in saved else name
        if found not in saved:
            warnings.warn(
                f"{kind}: {name} is not in the state_dict. Its state will not be restored.",
                category=UserWarning,
                stacklevel=3,
            )
            continue
        obj.load_state_dict(saved[found])


def gathered(value: Any) -> Any:
    """Returns a nested state whose sharded tensors are whole, on the CPU. All ranks call it."""
    if isinstance(value, dict):
        return {key: gathered(child) for key, child in value.items()}
    if type(value) in (list, tuple):
        return type(value)(gathered(child) for child in value)
    sharded = as_sharded(value) if isinstance(value, torch.Tensor) else None
    return value if sharded is None else sharded.full_tensor().cpu()


def save_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the accumulated values of metrics, by name."""
    saved = {}
    for name, metric in metrics.items():
        metric.persistent(mode=True)
        saved[name] = {"state_dict": metric.state_dict(), "_computed": metric._computed}
    return saved


def load_metrics(metrics: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Gives metrics their accumulated values back; those that are not saved start anew."""
    for name, metric in metrics.items():
        if name not in saved:
            continue
        entry = saved[name]
        if isinstance(entry, Mapping):
            values, computed = entry["state_dict"], entry.get("_computed")
        else:  # checkpoints of older releases hold the metric itself
            entry.persistent(mode=True)
            values, computed = entry.state_dict(), entry._computed
        metric.persistent(mode=True)
        metric.load_state_dict(dict(values), strict=False)
        metric._computed = computed
        metric._update_count += 1  # or torchmetrics would warn that compute came before update


def dataset_position(loader: Any, timestamp: Timestamp) -> dict[str, Any] | None:
    """Returns where in its dataset a loader stands, or None if the dataset cannot tell."""
    dataset = getattr(loader, "dataset", None)
    if dataset is None or not _tells_position(dataset):
        return None
    position = dataset.state_dict(timestamp.sample_in_epoch.value, True)
    if position and not timestamp.batch_in_epoch.value and hasattr(dataset, "next_epoch"):
        # Between epochs: the dataset still tells the one that is over.
        position = {**position, "epoch": dataset.next_epoch}
    return position


def put_dataset(loader: Any, timestamp: Timestamp) -> bool:
    """Puts a loader's dataset where a run stands within an epoch, if it can be; says whether.

    It was read on from there when training stopped, or its epoch is to begin only now.
    """
    dataset: Any = getattr(loader, "dataset", None)
    position = dataset_position(loader, timestamp)
    if position is None or not hasattr(dataset, "load_state_dict"):
        return False
    dataset.load_state_dict(position)
    return True


def global_batch_size(batch_size: Any, world_size: Any) -> int | None:
    """Returns how many samples a loader's batches hold over all ranks, or None if it is unknown."""
    if isinstance(batch_size, int) and isinstance(world_size, int):
        return batch_size * world_size
    return None


def _tells_position(dataset: object) -> bool:
    """Tells whether a dataset offers ``state_dict(num_samples, from_beginning)``."""
    method = getattr(dataset, "state_dict", None)
    if method is None:
        return False
    try:
        inspect.signature(method).bind(0, True)
    except (TypeError, ValueError):
        return False
    return True


def without_legacy_names(state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the state dict with the names that the newest checkpoints have."""
    renamed = {}
    for key, value in state.items():
        key = key.removeprefix("_")
        renamed["is_model_ddp" if key == "is_model_ddp_wrapped" else key] = value
    return renamed
