"""Warnings of this project that name a version."""

from __future__ import annotations


class VersionedDeprecationWarning(DeprecationWarning):
    """Says that something is deprecated and in which version it goes.

    Args:
        message: What is deprecated, and what to use instead.
        remove_version: The version without it.
    """

    def __init__(self, message: str, remove_version: str) -> None:
        super().__init__(f"{message} It will be removed in version {remove_version}.")
