"""Degrees that fit the ranks become axes; others are refused by name."""

import pytest

from composer.distributed.mesh import CONTEXT, REPLICATE, SHARD, TENSOR, settle_degrees


@pytest.mark.parametrize(
    ("degrees", "world_size", "expected"),
    [
        ({SHARD: -1}, 8, {SHARD: 8}),
        ({TENSOR: 2, SHARD: -1}, 8, {SHARD: 4, TENSOR: 2}),
        ({SHARD: 2, REPLICATE: -1}, 8, {REPLICATE: 4, SHARD: 2}),
        ({SHARD: -1, REPLICATE: None}, 1, {SHARD: 1}),
        (
            {REPLICATE: 2, SHARD: 2, CONTEXT: 2, TENSOR: 2},
            16,
            {REPLICATE: 2, SHARD: 2, CONTEXT: 2, TENSOR: 2},
        ),
    ],
)
def test_degrees_are_settled_in_the_order_of_the_links(
    degrees: dict[str, int | None], world_size: int, expected: dict[str, int]
) -> None:
    settled = settle_degrees(degrees, world_size)
    assert list(settled.items()) == list(expected.items())


@pytest.mark.parametrize(
    "degrees",
    [{SHARD: 3}, {SHARD: -1, TENSOR: 3}, {SHARD: -1, REPLICATE: -1}, {SHARD: 0}, {SHARD: 16}],
)
def test_degrees_that_do_not_fit_are_refused(degrees: dict[str, int | None]) -> None:
    with pytest.raises(ValueError, match="parallelism over data_parallel"):
        settle_degrees(degrees, 8)
