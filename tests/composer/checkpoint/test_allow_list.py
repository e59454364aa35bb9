"""What may stand in a checkpoint, and the words for what may not."""

import collections
import datetime
import enum
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from composer.checkpoint.allow_list import explain_refusal, things_that_cannot_be_read


class Colour(enum.Enum):
    RED = "red"


class Special(dict[str, Any]):
    pass


def test_plain_things_are_fine() -> None:
    content = {
        "a": [1, 2.0, "x", None, True, b"x", 1j, {1, 2}],
        "b": (torch.ones(1), torch.nn.Parameter(torch.ones(1)), torch.float32, torch.Size([1])),
        "c": collections.OrderedDict(d=collections.Counter("aa")),
        "e": [np.ones(2), np.float32(1), np.array(["x"]), datetime.timedelta(1)],
    }
    assert not list(things_that_cannot_be_read(content))


@pytest.mark.parametrize(
    "thing", [Colour.RED, Special(), Path("x"), print, object(), np.array([object()]), range(3)]
)
def test_other_things_are_found_with_their_path(thing: Any) -> None:
    content = {"state": {"callbacks": [("Mine", {3: thing})]}}
    assert list(things_that_cannot_be_read(content)) == [("state/callbacks/0/1/3", type(thing))]


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("Unsupported global: GLOBAL os.system was not an allowed", "it names 'os.system'"),
        ("Trying to load unsupported GLOBAL a.B whose module", "it names 'a.B'"),
        ("Can only SETITEMS for dict, but got x", "is damaged, or no checkpoint of this program"),
    ],
)
def test_refusals_are_explained(message: str, said: str) -> None:
    assert said in str(explain_refusal("x.pt", pickle.UnpicklingError(message)))
