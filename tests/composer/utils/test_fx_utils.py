import operator

import pytest
import torch
from torch import nn
from torch.fx import symbolic_trace

from composer.utils.fx_utils import (
    BlockStochasticModule,
    apply_stochastic_residual,
    count_op_instances,
    fuse_parallel_linears,
    replace_op,
)


class Sums(nn.Module):
    def forward(self, x, y):
        return (torch.add(x, y) + x.add(y)) * y


def test_ops_are_counted_and_replaced():
    gm = symbolic_trace(Sums())
    assert count_op_instances(gm, operator.add) == 1
    assert count_op_instances(gm, [operator.add, torch.add, "add"]) == 3
    x, y = torch.tensor(2.0), torch.tensor(3.0)
    assert replace_op(gm, [torch.add, "add"], torch.mul) is gm
    assert gm(x, y) == (6 + 6) * 3
    assert count_op_instances(gm, torch.mul) == 2
    gm = symbolic_trace(nn.Sequential(nn.ReLU(), nn.ReLU()))
    assert count_op_instances(gm, nn.ReLU) == 2
    replace_op(gm, nn.ReLU, torch.neg)
    assert gm(x) == 2.0 and not list(gm.named_children())


class Parallel(nn.Module):
    def __init__(self, biases=(True, True, True)):
        super().__init__()
        for name, bias in zip("qkv", biases, strict=True):
            setattr(self, name, nn.Linear(4, 2 + ord(name) % 3, bias=bias))
        self.after = nn.Linear(4, 4)

    def forward(self, x):
        return torch.cat([self.q(x), self.k(x), self.v(x), self.after(torch.relu(x))], dim=-1)


@pytest.mark.parametrize(
    ("biases", "left"),
    [((True,) * 3, 2), ((False,) * 3, 2), ((True, True, False), 3), ((True, False, True), 3)],
)
def test_parallel_linears_become_one(biases, left):
    model, x = Parallel(biases), torch.rand(3, 5, 4)
    expected = model(x)
    gm = fuse_parallel_linears(symbolic_trace(model), keep_weights=True)
    torch.testing.assert_close(gm(x), expected)
    assert count_op_instances(gm, nn.Linear) == left
    assert len(list(gm.children())) == left
    fresh = fuse_parallel_linears(symbolic_trace(model))
    assert fresh(x).shape == expected.shape
    assert not torch.equal(fresh(x)[..., :2], expected[..., :2])


def test_a_linear_that_is_called_twice_stays():
    class Twice(Parallel):
        def forward(self, x):
            return self.q(x) + self.q(x) + self.q(self.after(x))

    gm = fuse_parallel_linears(symbolic_trace(Twice()))
    assert count_op_instances(gm, nn.Linear) == 4


class Residual(nn.Module):
    def __init__(self, shortcut=False, addition=operator.add):
        super().__init__()
        self.main = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        self.shortcut = nn.Linear(4, 4) if shortcut else None
        self.scale = nn.Parameter(torch.ones(4))
        self.addition = addition

    def forward(self, x):
        x = torch.relu(x)
        rest = x if self.shortcut is None else self.shortcut(x)
        return self.addition(rest, self.main(x) * self.scale)


@pytest.mark.parametrize("shortcut", [False, True])
@pytest.mark.parametrize("addition", [operator.add, torch.add, lambda a, b: b.add(a)])
def test_residual_blocks_are_dropped_at_random(shortcut, addition):
    model = nn.Sequential(Residual(shortcut, addition), Residual(shortcut, addition))
    x = torch.rand(2, 4)
    expected = model(x)
    gm, count = apply_stochastic_residual(symbolic_trace(model), drop_rate=0.0)
    assert count == 2
    torch.testing.assert_close(gm(x), expected)
    torch.testing.assert_close(gm.eval()(x), expected)
    assert {id(p) for p in gm.parameters()} == {id(p) for p in model.parameters()}
    blocks = [module for module in gm.modules() if isinstance(module, BlockStochasticModule)]
    assert len(blocks) == 2 and all(block.training is False for block in blocks)


def test_dropping_and_scaling():
    model, x = Residual(shortcut=True), torch.rand(2, 4)
    x_in = torch.relu(x)
    gm, _ = apply_stochastic_residual(symbolic_trace(model), drop_rate=1.0)
    torch.testing.assert_close(gm(x), model.shortcut(x_in))
    gm, _ = apply_stochastic_residual(symbolic_trace(model), drop_rate=0.25)
    full = model.main(x_in)
    torch.testing.assert_close(gm.eval()(x), model.shortcut(x_in) + 0.75 * full)
    gm.train()
    seen = [torch.allclose(gm(x), model.shortcut(x_in)) for _ in range(400)]
    assert 60 < sum(seen) < 140


def test_nested_blocks():
    class Nested(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            inner = self.a(x)
            inner = inner + self.b(inner)
            return x + inner

    model, x = Nested(), torch.rand(2, 4)
    gm, count = apply_stochastic_residual(symbolic_trace(model), 0.0)
    assert count == 2
    torch.testing.assert_close(gm(x), model(x))


def test_what_is_no_residual_block_stays():
    class Others(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
            self.shift = nn.Parameter(torch.ones(4))

        def forward(self, x, y):
            inside = self.a(x)
            used_outside = x + self.b(inside)
            doubled = x + x
            of_two_inputs = x + y
            return used_outside + inside, doubled + 1, of_two_inputs + self.shift

    model, x = Others(), torch.rand(2, 4)
    gm, count = apply_stochastic_residual(symbolic_trace(model), 0.0)
    assert count == 0
    for a, b in zip(gm(x, x), model(x, x), strict=True):
        torch.testing.assert_close(a, b)


def test_bad_input():
    with pytest.raises(ValueError, match="GraphModule is needed, not a Linear"):
        apply_stochastic_residual(nn.Linear(1, 1))
    with pytest.raises(ValueError, match="drop_rate=1.5"):
        apply_stochastic_residual(symbolic_trace(Residual()), 1.5)
