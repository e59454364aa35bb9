"""Batch-size warm-up: small optimizer steps first, as long as larger ones would not pay."""

from composer.algorithms.batch_size_warmup.batch_size_warmup import BatchSizeWarmup

__all__ = ["BatchSizeWarmup"]
