"""Constants that several floors of llmfoundry share."""

__all__ = ["CROSS_ENTROPY_IGNORE_INDEX"]

CROSS_ENTROPY_IGNORE_INDEX: int = -100
"""A label with this value is no target: it takes no part in the loss and in no metric."""
