"""Public path of the MPT configuration; its home is ``config``."""

from llmfoundry.models.mpt.config import MPTConfig

__all__ = ["MPTConfig"]
