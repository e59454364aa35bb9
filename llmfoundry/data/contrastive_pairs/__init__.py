"""Face of the loader of texts that belong together."""

from llmfoundry.data.contrastive_pairs.dataloader import (
    StreamingPairsDataset,
    build_pairs_dataloader,
)

__all__ = ["StreamingPairsDataset", "build_pairs_dataloader"]
