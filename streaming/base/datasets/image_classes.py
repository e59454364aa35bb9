"""Pairs of an image and a class, into shards."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from streaming.base.format.mds.writer import MDSWriter

__all__ = ["convert_image_class_dataset"]


def convert_image_class_dataset(
    dataset: Sequence[tuple[Any, int]],
    out_root: str,
    split: str | None = None,
    compression: str | None = None,
    hashes: list[str] | None = None,
    size_limit: int | str = 1 << 24,
    progress_bar: bool = True,
    leave: bool = False,
    encoding: str = "pil",
) -> None:
    """Writes a data set of (image, class) pairs to shards, in a random order.

    The order is the same every time. Columns are ``i``, the pair's number, ``x`` and ``y``.

    Args:
        dataset: The pairs.
        out_root: Folder or address for the shards.
        split: Folder below it.
        compression: As for ``MDSWriter``.
        hashes: As for ``MDSWriter``.
        size_limit: As for ``MDSWriter``.
        progress_bar: Shows how far it is.
        leave: Whether the bar stays at the end.
        encoding: The images' MDS encoding: ``pil``, ``jpeg`` or ``png``.
    """
    from tqdm.auto import tqdm

    order = np.random.default_rng(0).permutation(len(dataset)).tolist()
    with MDSWriter(
        columns={"i": "int", "x": encoding, "y": "int"},
        out=os.path.join(out_root, split or ""),
        compression=compression,
        hashes=hashes,
        size_limit=size_limit,
    ) as writer:
        for number in tqdm(order, disable=not progress_bar, leave=leave):
            image, target = dataset[number]
            writer.write({"i": number, "x": image, "y": target})
