"""A temporary folder that a node's ranks share."""

from pathlib import Path

from llmfoundry.utils.file_utils import dist_mkdtemp
from tests.launch import run_ranks


def _make() -> str:
    folder = dist_mkdtemp()
    assert Path(folder).is_dir()
    return folder


def test_ranks_of_a_node_get_the_same_folder() -> None:
    first, second = run_ranks(_make, 2)
    assert first == second
    Path(first).rmdir()
    alone = _make()
    assert alone != first
    Path(alone).rmdir()
