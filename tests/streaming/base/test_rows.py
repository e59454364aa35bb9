"""Rows that an object gives by number, such as a Hugging Face dataset's."""

from pathlib import Path

import pytest

from streaming import Stream, StreamingDataLoader, StreamingDataset
from streaming.base.rows import RowsStream
from tests.streaming.shards import write_ids


def test_a_hugging_face_dataset_mixes_with_shards(tmp_path: Path) -> None:
    import datasets

    made = datasets.Dataset.from_dict({"number": list(range(100, 150)), "other": ["x"] * 50})
    streams = [
        RowsStream(made, columns={"id": "number"}, proportion=0.5),
        Stream(local=write_ids(tmp_path, 30), proportion=0.5),
    ]
    dataset = StreamingDataset(streams=streams, batch_size=8, shuffle=True, epoch_size=40)
    orders = []
    for workers in (0, 2):
        dataset.next_epoch = 0
        loader = StreamingDataLoader(dataset, batch_size=8, num_workers=workers)
        orders.append([number for batch in loader for number in batch["id"].tolist()])
    assert orders[0] == orders[1] and len(set(orders[0])) == 40
    assert sum(number >= 100 for number in orders[0]) == 20


def test_a_long_name_is_no_long_file_name() -> None:
    """File names end at 255 bytes, and paths and addresses do not."""
    streams = [RowsStream([{"a": 1}], name="b/" * 200 + end) for end in "cd"]
    assert len({stream.local for stream in streams}) == 2
    assert all(len(name) < 256 for name in Path(streams[0].local).parts)


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match=r"my rows has no column 'b'; it has \['a'\]"):
        StreamingDataset(
            streams=[RowsStream([{"a": 1}], name="my rows", columns=["b"])], batch_size=1
        )
    with pytest.raises(RuntimeError, match="no samples: my rows"):
        StreamingDataset(streams=[RowsStream([], name="my rows")], batch_size=1)
