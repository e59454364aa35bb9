"""Folders that the ranks of a node share."""

from composer.checkpoint.download import make_node_folder

__all__ = ["dist_mkdtemp"]


def dist_mkdtemp() -> str:
    """Makes a temporary folder on each node, and returns its path to all ranks of the node.

    Who asked for it removes it.
    """
    return make_node_folder("llmfoundry_")
