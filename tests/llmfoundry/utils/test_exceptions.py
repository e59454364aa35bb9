"""The named errors keep their values, also across processes."""

import inspect
import pickle
from typing import Any

import pytest

from llmfoundry.utils import exceptions
from llmfoundry.utils.exceptions import BaseContextualError, InternalError, NetworkError, UserError

BASES = (BaseContextualError, UserError, InternalError, NetworkError)
CLASSES = [
    each
    for each in vars(exceptions).values()
    if inspect.isclass(each)
    and issubclass(each, BaseContextualError)
    and each not in BASES
    and not each.__name__.startswith("_")
]


def example(parameter: inspect.Parameter) -> Any:
    if parameter.name == "loss_window":
        return [1.0]
    if parameter.name in ("keys", "files_searched", "supported_extensions", "valid_extensions"):
        return ["a", "b"]
    if parameter.name in ("valid_roles", "expected_roles"):
        return {"a"}
    if parameter.name in ("mapping", "example"):
        return {"prompt": "a"}
    return 3 if parameter.annotation in (int, float) else "text"


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_an_error_survives_pickling_with_its_values(kind: type) -> None:
    values = {name: example(p) for name, p in inspect.signature(kind).parameters.items()}
    error: Any = kind(**values)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind and str(again) == str(error) == error.error
    for name, value in values.items():
        assert getattr(error, name) == getattr(again, name) == value
    assert error.serializable_attributes == list(values)
    assert error.error_attribution in ("UserError", "InternalError", "NetworkError")
    assert error.location is None


@pytest.mark.parametrize("kind", BASES)
def test_bases_do_not_pickle(kind: type) -> None:
    with pytest.raises(NotImplementedError):
        pickle.dumps(kind("text"))


def test_what_is_promised_is_there() -> None:
    assert set(exceptions.__all__) <= set(vars(exceptions))
    assert {each.__name__ for each in CLASSES} <= set(exceptions.__all__)
