"""Sharded training on two and four ranks equals training on one."""

from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed
from torch import nn

from composer.distributed.full_parameters import get_summon_params_fn, summon_full_params_fsdp2
from composer.distributed.optimizer_parameters import sync_optimizer_and_model_params
from composer.distributed.parallelize import (
    parallelize_composer_model,
    update_sync_module_states_if_needed,
)
from composer.utils import dist
from composer.utils.gradients import total_norm
from composer.utils.parallelism import FSDP2Config
from tests.composer.distributed.sharded_models import Blocks, batch, classifier
from tests.launch import run_ranks


def _worst_difference(settings: dict[str, Any], *, freeze: bool = False) -> float:
    """Trains sharded and whole, side by side; returns what differs most of losses and norms."""
    rank, world_size = dist.get_global_rank(), dist.get_world_size()
    sharded, whole = classifier(), classifier()
    if freeze:
        for model in (sharded, whole):
            model.module.blocks[0].requires_grad_(False)  # type: ignore[index, union-attr]
    optimizers = [
        torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
        for model in (sharded, whole)
    ]
    parallelize_composer_model(sharded, optimizers[0], FSDP2Config(**settings))
    worst = 0.0
    for step in range(5):
        inputs, targets = batch(8, seed=step)
        share = slice(rank * 8 // world_size, (rank + 1) * 8 // world_size)
        part = inputs[share], targets[share]
        loss = sharded.loss(sharded(part), part)
        loss.backward()
        expected = whole.loss(whole((inputs, targets)), (inputs, targets))
        expected.backward()
        mean = loss.detach().clone()
        torch.distributed.all_reduce(mean)
        norms = [
            total_norm([p.grad for p in model.parameters() if p.grad is not None]).item()
            for model in (sharded, whole)
        ]
        worst = max(
            worst, abs(mean.item() / world_size - expected.item()), abs(norms[0] - norms[1])
        )
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return worst


def _all_settings() -> dict[str, float]:
    found = {}
    for checkpointing in (False, True, "operators", {"every": 2}):
        found[f"checkpointing {checkpointing}"] = _worst_difference(
            {"activation_checkpointing": checkpointing}
        )
    found["offload of activations"] = _worst_difference({"activation_cpu_offload": True})
    found["kept whole between the passes"] = _worst_difference({"reshard_after_forward": False})
    found["prefetching"] = _worst_difference({"num_units_to_prefetch": 2})
    with pytest.warns(UserWarning, match="cpu_offload has no effect on the CPU"):
        found["offload of weights"] = _worst_difference({"cpu_offload": True})
    found["frozen"] = _worst_difference({}, freeze=True)
    return found


def test_two_ranks_equal_one() -> None:
    for name, worst in run_ranks(_all_settings, 2)[0].items():
        assert worst < 1e-5, name


def _hybrid() -> float:
    return _worst_difference({"data_parallel_replicate_degree": 2})


def test_four_ranks_that_shard_by_two_equal_one() -> None:
    assert run_ranks(_hybrid, 4)[0] < 1e-5


def _with_a_part_outside() -> tuple[bool, float]:
    sharded, whole = classifier(), classifier()
    sharded.module.first._fsdp_wrap = False  # type: ignore[union-attr, assignment]
    scale = nn.Parameter(torch.ones(4))
    sharded.scale, whole.scale = scale, nn.Parameter(torch.ones(4))  # type: ignore[assignment]
    parallelize_composer_model(sharded, None, FSDP2Config())
    rank = dist.get_global_rank()
    inputs, targets = batch(8)
    for share in (slice(rank * 2, rank * 2 + 2), slice(4 + rank * 2, 6 + rank * 2)):
        part = inputs[share], targets[share]
        loss = nn.functional.cross_entropy(sharded(part) * sharded.scale, part[1]) / 2
        loss.backward()
    nn.functional.cross_entropy(whole((inputs, targets)) * whole.scale, targets).backward()
    assert whole.scale.grad is not None and sharded.scale.grad is not None
    return hasattr(sharded.scale, "device_mesh"), (
        (sharded.scale.grad - whole.scale.grad).abs().max().item()
    )


@pytest.mark.filterwarnings("ignore:The _fsdp_wrap attribute")
def test_gradients_of_what_is_in_no_unit_are_averaged() -> None:
    for is_sharded, difference in run_ranks(_with_a_part_outside, 2):
        assert not is_sharded
        assert difference < 1e-6


def _from_meta() -> tuple[bool, bool]:
    expected = {name: p.detach().clone() for name, p in _initialised().named_parameters()}
    model = classifier("meta")
    torch.manual_seed(11 + dist.get_global_rank())
    torch.set_rng_state(torch.Generator().manual_seed(11).get_state())
    if dist.get_global_rank() > 0:
        torch.manual_seed(99)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parallelize_composer_model(model, optimizer, FSDP2Config())
    same = all(
        torch.equal(p.full_tensor(), expected[name])  # type: ignore[attr-defined]
        for name, p in model.named_parameters()
    )
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return same, held == {id(p) for p in model.parameters()}


def _initialised() -> nn.Module:
    """The weights that one process draws: built without numbers, then reset in order."""
    model = classifier()
    torch.manual_seed(11)
    model.apply(lambda m: m.reset_parameters() if isinstance(m, nn.Linear) else None)
    return model


def test_a_model_on_meta_starts_as_one_process_would() -> None:
    assert run_ranks(_from_meta, 2) == [(True, True)] * 2


def _whole_at_once() -> tuple[int, list[int]]:
    """Counts the parameters that are whole while a model on meta is initialised."""
    model, counts = classifier("meta"), []
    reset = nn.Linear.reset_parameters

    def counting(module: nn.Linear) -> None:
        whole = [p.numel() for p in model.parameters() if not hasattr(p, "device_mesh")]
        counts.append(sum(whole))
        reset(module)

    with mock.patch.object(nn.Linear, "reset_parameters", counting):
        parallelize_composer_model(model, None, FSDP2Config())
    layers = [m for m in model.modules() if isinstance(m, nn.Linear)]
    return len(layers), [count - sum(p.numel() for p in _largest(layers)) for count in counts]


def _largest(layers: list[nn.Linear]) -> list[nn.Parameter]:
    return list(max(layers, key=lambda layer: layer.weight.numel()).parameters())


def test_one_layer_at_a_time_is_whole_while_a_model_is_initialised() -> None:
    for layers, beyond_the_largest in run_ranks(_whole_at_once, 2):
        assert len(beyond_the_largest) == layers == 4
        assert max(beyond_the_largest) == 0


def _mixed() -> tuple[bool, bool]:
    expected = classifier()
    model = classifier("cpu" if dist.get_global_rank() == 0 else "meta")
    config = FSDP2Config()
    parallelize_composer_model(model, None, config)
    pairs = zip(model.parameters(), expected.parameters(), strict=True)
    same = all(torch.equal(p.full_tensor(), q) for p, q in pairs)  # type: ignore[attr-defined]
    try:
        update_sync_module_states_if_needed(
            classifier("meta" if dist.get_global_rank() == 0 else "cpu"), FSDP2Config()
        )
    except ValueError as error:
        return same and config.sync_module_states, "Detected mixed initialization" in str(error)
    return same, False


def test_rank_zero_gives_its_weights_when_only_it_has_any() -> None:
    assert run_ranks(_mixed, 2) == [(True, True)] * 2


def _summoned() -> list[bool]:
    whole, sharded = classifier(), classifier()
    parallelize_composer_model(sharded, None, FSDP2Config())
    inputs, targets = batch(8)
    sharded.loss(sharded((inputs, targets)), (inputs, targets)).backward()
    whole.loss(whole((inputs, targets)), (inputs, targets)).backward()
    found = []
    with summon_full_params_fsdp2(sharded, with_grads=True):
        for one, other in zip(sharded.parameters(), whole.parameters(), strict=True):
            found.append(torch.equal(one, other) and torch.allclose(one.grad, other.grad))  # type: ignore[arg-type]
            one.data.add_(1)
    with torch.no_grad():
        found += [
            torch.equal(one.full_tensor(), other + 1)  # type: ignore[attr-defined]
            for one, other in zip(sharded.parameters(), whole.parameters(), strict=True)
        ]
    with get_summon_params_fn(sharded)(sharded, writeback=False):
        sharded.module.first.weight.data.zero_()  # type: ignore[union-attr]
    found.append(bool(sharded.module.first.weight.full_tensor().any()))  # type: ignore[union-attr]
    found.append(torch.isfinite(sharded((inputs, targets))).all().item())
    return found


def test_whole_parameters_can_be_had_and_changed() -> None:
    assert all(all(found) for found in run_ranks(_summoned, 2))


def test_an_optimizer_of_another_model_is_refused() -> None:
    model = Blocks()
    optimizer = torch.optim.SGD(Blocks().parameters(), lr=0.1)
    with (
        pytest.raises(ValueError, match="The same model must be passed"),
        sync_optimizer_and_model_params(optimizer, model),
    ):
        pass
