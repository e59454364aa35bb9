"""A budget of memory decides what a compiled model keeps for its backward pass."""

from typing import Any

import pytest
import torch

from composer import Trainer
from composer.models import ComposerClassifier
from tests.composer.distributed.sharded_models import batch


class Deep(torch.nn.Sequential):
    """Layers of which the compiler may keep, or compute again, what is in between."""

    def __init__(self) -> None:
        layers: list[torch.nn.Module] = [torch.nn.Linear(8, 32)]
        for _ in range(4):
            layers += [torch.nn.GELU(), torch.nn.Linear(32, 32), torch.nn.Sigmoid()]
        super().__init__(*layers, torch.nn.Linear(32, 4))


def _kept(activation_checkpointing: Any, compile_config: Any) -> tuple[int, torch.Tensor]:
    """Returns how many numbers a compiled model keeps, and what its first gradient is."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = ComposerClassifier(Deep(), num_classes=4)
    Trainer(
        model=model,
        optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
        parallelism_config={"fsdp2": {"activation_checkpointing": activation_checkpointing}},
        compile_config=compile_config,
        device="cpu",
        progress_bar=False,
    )
    kept: list[int] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.numel())
        return tensor

    inputs = batch(64)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        outputs = model(inputs)
    model.loss(outputs, inputs).backward()
    gradient = model.module[0].weight.grad  # type: ignore[index, union-attr]
    assert isinstance(gradient, torch.Tensor)
    return sum(kept), gradient


def test_a_smaller_budget_keeps_less_and_changes_nothing() -> None:
    import torch._functorch.config as compiler

    with compiler.patch(activation_memory_budget=1.0):
        found = [_kept({"memory_budget": b}, {"backend": "aot_eager"}) for b in (1.0, 0.5, 0.0)]
        eager = _kept(False, None)
    (much, _), (some, _), (little, _) = found
    assert much > some > little
    for _, gradient in found:
        torch.testing.assert_close(gradient, eager[1])


@pytest.mark.parametrize("compile_config", [None, {"backend": "eager"}])
def test_a_budget_without_a_compiler_that_plans_is_refused(compile_config: Any) -> None:
    with pytest.raises(ValueError, match="memory_budget: ...} needs compile_config with a backend"):
        _kept({"memory_budget": 0.5}, compile_config)
