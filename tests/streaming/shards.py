"""Small datasets for the tests, and what the recorded rows mean."""

import base64
import os
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from streaming import MDSWriter, StreamingDataset


def untag(value: Any) -> Any:
    """A recorded value as the Python object that it stands for."""
    if isinstance(value, list):
        return [untag(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "__bytes_b64__" in value:
        return base64.b64decode(value["__bytes_b64__"])
    if "__ndarray__" in value:
        array = value["__ndarray__"]
        return np.array(array["data"], array["dtype"]).reshape(array["shape"])
    if "__npscalar__" in value:
        return np.dtype(value["__npscalar__"]["dtype"]).type(value["__npscalar__"]["value"])
    if "__decimal__" in value:
        return Decimal(value["__decimal__"])
    return {key: untag(item) for key, item in value.items()}


def assert_same(got: Any, want: Any) -> None:
    """Equal in value, type, dtype and shape."""
    assert type(got) is type(want), (got, want)
    if isinstance(want, dict):
        assert sorted(got) == sorted(want)
        for key in want:
            assert_same(got[key], want[key])
    elif isinstance(want, np.ndarray):
        assert got.dtype == want.dtype and got.shape == want.shape
        np.testing.assert_array_equal(got, want)
    else:
        assert got == want


def write_ids(folder: Path, count: int, first: int = 0, per_shard: int = 7, **kwargs: Any) -> str:
    """A dataset of one column, ``id``, that counts from ``first``."""
    header = 0
    with MDSWriter(columns={"id": "int"}, out=str(folder / "probe"), **kwargs) as probe:
        header = probe.extra_bytes_per_shard
    for file in (folder / "probe").iterdir():
        file.unlink()
    (folder / "probe").rmdir()
    # The header holds the limit itself, so its length depends on the limit's digits.
    limit = header - len(str(probe.size_limit)) + 3 + per_shard * 12
    out = folder / f"ids-{first}-{count}"
    with MDSWriter(columns={"id": "int"}, out=str(out), size_limit=limit, **kwargs) as writer:
        for number in range(first, first + count):
            writer.write({"id": number})
    return str(out)


@contextmanager
def world(rank: int, num_ranks: int, ranks_per_node: int | None = None) -> Iterator[None]:
    """Makes datasets that are built inside believe that they are on this rank."""
    facts = {
        "RANK": rank,
        "WORLD_SIZE": num_ranks,
        "LOCAL_WORLD_SIZE": ranks_per_node or num_ranks,
    }
    saved = {name: os.environ.get(name) for name in facts}
    os.environ.update({name: str(value) for name, value in facts.items()})
    try:
        yield
    finally:
        for name, value in saved.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def ids_of(batch: Any) -> list[int]:
    """The ids in a batch."""
    return batch["id"].tolist()


class Square(StreamingDataset):
    """A dataset whose subclass changes what a sample is."""

    def __getitem__(self, at: Any) -> Any:
        """The square of the id."""
        return super().__getitem__(at)["id"] ** 2
