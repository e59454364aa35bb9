"""In which numbers a sharded model computes and sums, and for how long its weights stay whole."""

from typing import Any

import pytest
import torch

from composer.core.precision import Precision
from composer.distributed.fully_shard import create_mixed_precision_policy
from composer.distributed.parallelize import parallelize_composer_model
from composer.utils.parallelism import FSDP2Config
from tests.composer.distributed.sharded_models import batch, classifier
from tests.launch import run_ranks

LOW, FULL = torch.bfloat16, torch.float32


@pytest.mark.parametrize(
    ("setting", "computes", "sums"),
    [
        ("FULL", None, None),
        ("DEFAULT", LOW, FULL),
        ("pure", LOW, LOW),
        ({"param_dtype": "bf16", "reduce_dtype": "float32"}, LOW, FULL),
        ({"reduce_dtype": "fp32"}, None, FULL),
    ],
)
def test_settings_say_in_which_numbers(setting: Any, computes: Any, sums: Any) -> None:
    policy = create_mixed_precision_policy(Precision.AMP_BF16, setting)
    assert (policy.param_dtype, policy.reduce_dtype) == (computes, sums)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("HALF", "is not one of FULL, DEFAULT, PURE"),
        ({"param": "bf16"}, r"has no setting \['param'\]"),
        ({"param_dtype": "int3"}, "param_dtype='int3' is no number format"),
    ],
)
def test_settings_that_there_are_not_are_refused(setting: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        create_mixed_precision_policy(Precision.AMP_BF16, setting)


def _numbers() -> dict[str, tuple[set[torch.dtype], set[torch.dtype], float]]:
    """Returns in which numbers weights compute and gradients come, and how far the loss is off."""
    inputs = batch(8)
    whole = classifier()
    expected = whole.loss(whole(inputs), inputs)
    found = {}
    for setting in ("FULL", "DEFAULT", "PURE"):
        model, computing = classifier(), set()
        model.module.blocks[0][0].register_forward_pre_hook(  # type: ignore[index, union-attr]
            lambda layer, _, seen=computing: seen.add(layer.weight.dtype)
        )
        config = FSDP2Config(mixed_precision=setting)
        parallelize_composer_model(model, None, config, Precision.AMP_BF16)
        loss = model.loss(model(inputs), inputs)
        loss.backward()
        gradients = {p.grad.dtype for p in model.parameters() if p.grad is not None}
        found[setting] = computing, gradients, abs(loss.item() - expected.item())
    return found


def test_weights_are_cast_where_they_compute() -> None:
    for found in run_ranks(_numbers, 2):
        assert {name: kinds[0] for name, kinds in found.items()} == {
            "FULL": {FULL},
            "DEFAULT": {LOW},
            "PURE": {LOW},
        }
        assert all(gradients == {FULL} for _, gradients, _ in found.values())
        assert found["FULL"][2] < 1e-6 < found["DEFAULT"][2] < 0.02
        assert found["PURE"][2] < 0.02


def _whole_between_the_passes() -> dict[Any, tuple[int, int]]:
    """Returns how many numbers of a block a rank holds after a forward pass, and of how many."""
    found = {}
    for setting in (True, False, 2):
        model = classifier()
        block: Any = model.module.blocks[0][0]  # type: ignore[index, union-attr]
        total = block.weight.numel()
        parallelize_composer_model(model, None, FSDP2Config(reshard_after_forward=setting))
        model(batch(8))
        weight: Any = block.weight
        local = weight.to_local() if hasattr(weight, "device_mesh") else weight
        found[setting] = local.numel(), total
    return found


def test_weights_stay_whole_or_shared_between_the_passes() -> None:
    for found in run_ranks(_whole_between_the_passes, 4):
        total = found[True][1]
        held = [numbers for numbers, _ in found.values()]
        assert held == [total // 4, total, total // 2]
