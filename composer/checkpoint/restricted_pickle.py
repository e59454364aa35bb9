"""Reads a plain pickle that may name only what is listed here."""

import builtins
import collections
import datetime
import io
import pickle
from typing import Any

import torch
from torch import _utils as torch_utils

from composer.checkpoint.allow_list import SAFE_GLOBALS, CheckpointContentError

__all__ = ["RestrictedUnpickler"]

_BUILTINS = "bool bytearray bytes complex dict float frozenset int list range set slice str tuple"


def _load_storage(data: bytes) -> Any:
    """Stands for the function that tensors name in a pickle, and which would run anything."""
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


def _allowed() -> dict[tuple[str, str], Any]:
    """Returns what may be named, by module and name."""
    found: dict[tuple[str, str], Any] = {
        ("builtins", name): getattr(builtins, name) for name in _BUILTINS.split()
    }
    for name in ("Counter", "OrderedDict", "defaultdict", "deque"):
        found["collections", name] = getattr(collections, name)
    for listed in SAFE_GLOBALS:
        if isinstance(listed, tuple):
            module, _, name = listed[1].rpartition(".")
            found[module, name] = listed[0]
        else:
            found[listed.__module__, listed.__qualname__] = listed
    for name in ("date", "datetime", "time", "timezone"):
        found["datetime", name] = getattr(datetime, name)
    for rebuild in ("_rebuild_tensor_v2", "_rebuild_parameter"):
        found["torch._utils", rebuild] = getattr(torch_utils, rebuild)
    found["torch.storage", "_load_from_bytes"] = _load_storage
    for name in ("Size", "device"):
        found["torch", name] = getattr(torch, name)
    for name, value in vars(torch).items():
        if isinstance(value, torch.dtype):
            found["torch", name] = value
    return found


class RestrictedUnpickler(pickle.Unpickler):
    """Unpickles plain containers, numbers, times, numpy arrays and tensors, and nothing else.

    Raises:
        pickle.UnpicklingError: From ``load``, if the pickle names anything outside the list.
    """

    _globals = _allowed()

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        """Returns what a pickle names, if the list has it."""
        try:
            return self._globals[module_name, global_name]
        except KeyError:
            raise CheckpointContentError(
                f"{module_name}.{global_name}: global not in allowlist. Reading this file would "
                "import or call it, and only plain containers, numbers, times, numpy arrays and "
                "tensors may stand in it; do not load it."
            ) from None
