"""What a checkpoint may hold, and what is said when it holds more.

Reading a pickle can run any code that it names. Checkpoints are read with ``weights_only=True``,
which knows tensors and plain containers; this list adds the few names that Composer's own files
have held since they exist. No class of this project is on it, so none has to be.
"""

import collections
import datetime
import pickle
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.torch_version import TorchVersion

__all__ = [
    "CheckpointContentError",
    "SAFE_GLOBALS",
    "explain_refusal",
    "things_that_cannot_be_read",
]


class CheckpointContentError(ValueError, pickle.UnpicklingError):
    """Raised when a checkpoint names something that reading it must not import or run."""


_Allowed = Callable[..., Any] | tuple[Callable[..., Any], str]


def _numpy_names() -> list[_Allowed]:
    """Returns numpy's pickling functions under the names of numpy 1 and 2, and its plain dtypes."""
    functions: dict[str, Any] = {
        "_reconstruct": np.array([0]).__reduce__()[0],
        "scalar": np.float64(0).__reduce__()[0],
    }
    codes = np.typecodes["AllInteger"] + np.typecodes["AllFloat"] + "?SU"
    return [
        np.ndarray,
        np.dtype,
        *((made, f"numpy.core.multiarray.{name}") for name, made in functions.items()),
        *((made, f"numpy._core.multiarray.{name}") for name, made in functions.items()),
        *{type(np.dtype(code)) for code in codes},
    ]


SAFE_GLOBALS: list[_Allowed] = [
    datetime.timedelta,
    TorchVersion,
    *_numpy_names(),
]

# Types whose values travel as themselves. Containers are walked.
_LEAVES = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    bytearray,
    datetime.timedelta,
    TorchVersion,
    torch.Tensor,
    torch.nn.Parameter,
    torch.Size,
    torch.dtype,
    torch.device,
    np.generic,
    np.dtype,
)
_CONTAINERS = (dict, list, tuple, set, collections.OrderedDict, collections.Counter)


def _is_leaf(value: object) -> bool:
    if isinstance(value, (torch.Tensor, np.generic, np.dtype, torch.dtype)):
        return True
    if isinstance(value, np.ndarray):
        return not value.dtype.hasobject
    return type(value) in _LEAVES or type(value) in torch.serialization.get_safe_globals()


def things_that_cannot_be_read(value: object, path: str = "") -> Iterator[tuple[str, type]]:
    """Yields path and type of each thing in a state that reading it back would refuse."""
    if isinstance(value, _CONTAINERS) and type(value) in _CONTAINERS:
        for key, child in value.items() if isinstance(value, dict) else enumerate(value):
            yield from things_that_cannot_be_read(child, f"{path}/{key}" if path else str(key))
    elif not _is_leaf(value):
        yield path, type(value)


_REFUSED = re.compile(
    r"(?:GLOBAL |global )\"?([\w.<>]+)\"?|instantiate class ([\w.]+)|load dangerous module (\S+)"
)


def explain_refusal(path: str, error: pickle.UnpicklingError) -> CheckpointContentError:
    """Turns torch's refusal into an error that names the file, what it asked for, and the cure."""
    message = str(error)
    match = _REFUSED.search(message)
    if match is None:
        return CheckpointContentError(
            f"{path} is damaged, or no checkpoint of this program: {message}"
        )
    name = next(group for group in match.groups() if group)
    return CheckpointContentError(
        f"{path} was not loaded: it names {name!r} (global not in allowlist), which reading it "
        "would import or call, and only tensors, plain containers, numpy arrays and time spans may "
        "stand in a checkpoint. If you know where the file comes from and need that object, import "
        "it in your program and call torch.serialization.add_safe_globals([it]) before loading; if "
        "not, do not load the file.",
    )
