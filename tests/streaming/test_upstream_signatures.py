"""Every public name of Streaming 0.12 is where it was, with its parameters and defaults."""

import pytest

from tests.signatures import unlike

_NO_SHARED_MEMORY = "nothing is shared between processes but files: no name outlives a run"
_ORDER = "an epoch's order is a pure function, made lazily"
_NO_SPARK = "Spark is left behind; the error names what to do instead"
DIFFERENCES = {
    **{
        f"streaming.base.converters.{name}": _NO_SPARK
        for name in (
            "SPARK_TO_MDS",
            "dataframe_to_mds",
            "infer_dataframe_schema",
            "is_json_compatible",
        )
    },
    "streaming.base.dataset.StreamingDataset.cache_usage": _NO_SHARED_MEMORY,
    "streaming.base.dataset.StreamingDataset.initial_physical_nodes": _ORDER,
    "streaming.base.format.mds.MDSWriter.event": "a failed upload is raised by the next write",
    "streaming.base.shared": _NO_SHARED_MEMORY,
    "streaming.base.dataset._ShardState": _NO_SHARED_MEMORY,
    "streaming.base.dataset._IterState": _NO_SHARED_MEMORY,
    "streaming.base.dataset._Iterator": _NO_SHARED_MEMORY,
    "streaming.base.dataset.StreamingDataset.on_exception": _NO_SHARED_MEMORY,
    "streaming.base.stream.Stream.set_up_local": _NO_SHARED_MEMORY,
    "streaming.base.dataset.StreamingDataset.epoch_seed_change": _ORDER,
    "streaming.base.dataset.StreamingDataset.resample_streams": _ORDER,
}


@pytest.mark.filterwarnings("ignore")
def test_streaming_keeps_upstream_signatures() -> None:
    problems = unlike("streaming.txt", (), DIFFERENCES)
    assert not problems, "\n".join(problems)
