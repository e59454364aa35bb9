"""The scaler for optimizers that run the passes themselves."""

import pytest
import torch

from composer.optim.grad_scaler import ClosureGradScaler
from tests.launch import run_ranks


class _Twice(torch.optim.SGD):
    """Runs its closure twice and skips the step if one of them met an infinity, like SAM."""

    def step(self, closure):
        with torch.enable_grad():
            results = [closure(), closure()]
        if all(result is not None for result in results):
            super().step()
        return results


def _run(scaler, factors):
    weight = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    optimizer = _Twice([weight], lr=0.1)
    factors = iter(factors)

    def closure():
        loss = weight.sum() * next(factors)
        scaler.scale(loss).backward()
        return loss.item()

    results = scaler.step(optimizer, closure=closure)
    scaler.update()
    return weight, results


def test_gradients_have_their_true_size_in_the_step():
    scaler = ClosureGradScaler(device="cpu", init_scale=1024.0)
    weight, results = _run(scaler, [1.0, 3.0])
    assert results == [3.0, 9.0]
    # The second run starts from no gradients, and its gradient is unscaled.
    torch.testing.assert_close(weight.grad, torch.tensor([3.0, 3.0]))
    torch.testing.assert_close(weight.data, torch.tensor([0.7, 1.7]))
    assert scaler.get_scale() == 1024.0


def test_overflow_skips_and_shrinks():
    scaler = ClosureGradScaler(device="cpu", init_scale=1024.0)
    weight, results = _run(scaler, [1.0, float("inf")])
    assert results == [3.0, None]
    torch.testing.assert_close(weight.data, torch.tensor([1.0, 2.0]))
    assert scaler.get_scale() == 512.0


def test_unscaling_early_is_allowed():
    scaler = ClosureGradScaler(device="cpu", init_scale=1024.0)
    weight = torch.nn.Parameter(torch.tensor([1.0]))
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def closure():
        scaler.scale(weight.sum()).backward()
        scaler.unscale_(optimizer)
        return 1.0

    assert scaler.step(optimizer, closure=closure) == 1.0
    torch.testing.assert_close(weight.data, torch.tensor([0.9]))


def test_disabled_scaler_only_steps():
    weight, results = _run(ClosureGradScaler(device="cpu", enabled=False), [1.0, 1.0])
    assert results == [3.0, 3.0]


def test_a_closure_is_needed():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    with pytest.raises(ValueError, match="closure="):
        ClosureGradScaler(device="cpu").step(optimizer)


def _one_rank_overflows():
    overflows = torch.distributed.get_rank() == 1
    scaler = ClosureGradScaler(device="cpu", init_scale=1024.0)
    weight, results = _run(scaler, [1.0, float("inf") if overflows else 1.0])
    return weight.tolist(), results, scaler.get_scale()


def test_all_ranks_skip_if_one_overflows():
    for weight, results, scale in run_ranks(_one_rank_overflows, 2):
        assert (weight, results, scale) == ([1.0, 2.0], [3.0, None], 512.0)
