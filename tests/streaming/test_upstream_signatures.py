"""Every public name of Streaming 0.12 is where it was, with its parameters and defaults."""

import pytest

from tests.signatures import unlike

NOT_YET = (
    # Remote shards: downloads, the cache's size, uploads.
    "streaming.base.storage",
    "streaming.base.format.mds.MDSWriter.cloud_writer",
    "streaming.base.format.mds.MDSWriter.event",
    "streaming.base.dataset.StreamingDataset.cache_usage",
    "streaming.base.dataset.StreamingDataset.download_",
    "streaming.base.dataset.StreamingDataset.initial_physical_nodes",
    # Helper data sets and converters.
    "streaming.base.converters",
    "streaming.multimodal",
    "streaming.text",
    "streaming.vision",
)
_NO_SHARED_MEMORY = "nothing is shared between processes but files: no name outlives a run"
_ORDER = "an epoch's order is a pure function, made lazily"
DIFFERENCES = {
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
    problems = unlike("streaming.txt", NOT_YET, DIFFERENCES)
    assert not problems, "\n".join(problems)
