"""How many processes a command starts unless it is told."""

import os

__all__ = ["default_processes"]


def default_processes() -> int:
    """All CPUs but two, and 1 to 32 of them."""
    return min(max((os.cpu_count() or 1) - 2, 1), 32)
