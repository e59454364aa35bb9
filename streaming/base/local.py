"""Random access to a dataset that lies in a local folder."""

from typing import Any

import numpy as np
from torch.utils.data import Dataset

from streaming.base.array import Array
from streaming.base.cache import ShardCache
from streaming.base.spanner import Spanner
from streaming.base.stream import Stream


class LocalDataset(Array, Dataset[dict[str, Any]]):
    """A map-style dataset over local shards; compressed ones are unpacked beside themselves.

    Args:
        local: Folder of the dataset.
        split: Folder below it, if any.
        allow_unsafe_types: Whether columns may run code that their author put there (``pkl``).
    """

    def __init__(
        self, local: str, split: str | None = None, allow_unsafe_types: bool = False
    ) -> None:
        self.local, self.split = local, split or ""
        stream = Stream(local=local, split=split)
        stream.apply_default({})
        try:
            self.shards = stream.get_shards(allow_unsafe_types=allow_unsafe_types)
        except RuntimeError as error:
            raise FileNotFoundError(str(error)) from error
        self.num_samples = sum(map(len, self.shards))
        self.spanner = Spanner(np.array([len(shard) for shard in self.shards]))
        self._cache = ShardCache(self.shards, [stream], [0] * len(self.shards), None)

    @property
    def size(self) -> int:
        """Number of samples."""
        return self.num_samples

    def get_item(self, sample_id: int) -> dict[str, Any]:
        """The sample of this number."""
        shard, offset = self.spanner[sample_id]
        return self._cache.get(shard).read(offset)

    def __getitems__(self, sample_ids: list[int]) -> list[Any]:
        """The samples of a batch, as torch's loader asks for them."""
        return [self[sample_id] for sample_id in sample_ids]
