"""Compiling in place: the whole model or its blocks, with equal results and unchanged names."""

import pytest
import torch

from composer.distributed import blocks_of, compile_model


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x))


class Stack(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.blocks = torch.nn.ModuleList([Block() for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return x


@pytest.mark.parametrize("per_block", [False, True])
def test_results_and_names_stay(per_block: bool) -> None:
    model, x = Stack(), torch.randn(2, 4)
    expected, names = model(x), list(model.state_dict())
    calls = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        calls.append(graph)
        return graph.forward

    compile_model(model, {"backend": backend, "per_block": per_block})
    torch.testing.assert_close(model(x), expected)
    assert list(model.state_dict()) == names
    assert calls
    compiled = {m for m in model.modules() if m._compiled_call_impl is not None}
    assert compiled == (set(model.blocks) if per_block else {model})


def test_a_model_says_what_its_blocks_are() -> None:
    class Says(Stack):
        def fsdp_wrap_fn(self, module: torch.nn.Module) -> bool:
            return module is self.first

    model = Says()
    assert blocks_of(model) == [model.first]


def test_no_blocks_is_an_error() -> None:
    with pytest.raises(ValueError, match="no repeated blocks"):
        compile_model(torch.nn.Linear(2, 2), {"per_block": True})
