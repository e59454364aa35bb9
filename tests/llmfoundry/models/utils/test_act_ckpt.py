"""Which blocks ``activation_checkpointing_target`` names."""

from typing import Any

import pytest

from llmfoundry.models.layers.attention import GroupedQueryAttention
from llmfoundry.models.layers.blocks import MPTBlock
from llmfoundry.models.layers.ffn import MPTGLU
from llmfoundry.models.utils.act_ckpt import (
    build_act_ckpt_mod_to_blocks,
    check_mapping_blocks_overlap,
    get_target_block_list,
)

LAST = 15


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        (3, [0, 1, 2]),
        ("first-2, last-2", [0, 1, 14, 15]),
        ("middle-4", [5, 6, 7, 8]),
        ("range-3-6", [3, 4, 5]),
        ([2, 5], [2, 5]),
        (["first-1", 4, "range-3-5"], [0, 3, 4]),
    ],
)
def test_blocks(blocks: Any, expected: list[int]) -> None:
    assert get_target_block_list(blocks, LAST) == expected


@pytest.mark.parametrize("blocks", ["firs-2", "first-", "range-3", {}, 1.5])
def test_malformed_blocks(blocks: Any) -> None:
    with pytest.raises(ValueError, match="activation_checkpointing_target"):
        get_target_block_list(blocks, LAST)


def test_targets() -> None:
    def mapping(target: Any) -> dict[Any, list[int]]:
        return build_act_ckpt_mod_to_blocks(target, MPTBlock, LAST)

    assert mapping(None) == mapping([]) == mapping("MPTBlock") == {MPTBlock: [-1]}
    assert mapping(["grouped_query_attention", "mptglu"]) == {
        GroupedQueryAttention: [-1],
        MPTGLU: [-1],
    }
    assert mapping({"mptblock": 2, "mptglu": -1}) == {MPTBlock: [0, 1], MPTGLU: [-1]}
    with pytest.raises(ValueError, match="mptblok"):
        mapping("mptblok")
    with pytest.raises(ValueError, match="a name, a list"):
        mapping(3.5)


def test_overlap() -> None:
    check_mapping_blocks_overlap({MPTBlock: [0, 1], MPTGLU: [2]}, LAST)
    for other in ([1], [-1]):
        with pytest.raises(ValueError, match="duplicated"):
            check_mapping_blocks_overlap({MPTBlock: [0, 1], MPTGLU: other}, LAST)
