"""LocalDataset: random access to what lies in a folder."""

from pathlib import Path

import pytest
from torch.utils.data import DataLoader

from streaming import LocalDataset
from tests.streaming.shards import ids_of, write_ids


def test_random_access(tmp_path: Path) -> None:
    folder = Path(write_ids(tmp_path, 30))
    dataset = LocalDataset(str(folder.parent), folder.name)
    assert len(dataset) == dataset.size == 30 and len(dataset.shards) == 5
    assert [sample["id"] for sample in dataset] == list(range(30))
    assert dataset[-1]["id"] == 29 and [s["id"] for s in dataset[3:9:2]] == [3, 5, 7]
    with pytest.raises(IndexError):
        dataset[30]


@pytest.mark.parametrize("workers", [0, 2])
def test_shuffled_by_torch(workers: int, tmp_path: Path) -> None:
    dataset = LocalDataset(write_ids(tmp_path, 30))
    loader = DataLoader(dataset, batch_size=4, shuffle=True, num_workers=workers)
    seen = [number for batch in loader for number in ids_of(batch)]
    assert seen != sorted(seen) and sorted(seen) == list(range(30))


def test_many_shards_keep_few_files_open(tmp_path: Path) -> None:
    dataset = LocalDataset(write_ids(tmp_path, 2000, per_shard=5))
    assert len(dataset.shards) == 400
    for _ in range(2):
        assert [sample["id"] for sample in dataset] == list(range(2000))
    assert sum(shard.is_open for shard in dataset.shards) == 256


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="index.json"):
        LocalDataset(str(tmp_path / "none"))
