"""Algorithms that change a model do so before it is spread over ranks, or are refused."""

from typing import Any

import torch
from torch import nn

from composer import Algorithm, Event, Trainer
from composer.utils import dist
from composer.utils.module_surgery import replace_module_classes
from tests.composer.distributed.sharded_models import batch, classifier
from tests.launch import run_ranks


class Scaled(nn.Module):
    """A layer that an algorithm puts in the place of an activation; it has a weight, drawn."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(factor * torch.rand(16))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.tanh(inputs * self.weight)


class ScaledActivations(Algorithm):
    """Gives each activation a scale."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __repr__(self) -> str:
        return f"ScaledActivations(factor={self.factor})"

    @staticmethod
    def required_on_load() -> bool:
        return True

    def match(self, event: Event, state: Any) -> bool:
        return event == Event.INIT

    def apply(self, event: Event, state: Any, logger: Any) -> None:
        policy = {nn.Tanh: lambda module, index: Scaled(self.factor)}
        replace_module_classes(state.model, policy, state.optimizers)


def _trainer(algorithms: Any, device: str = "cpu", **settings: Any) -> Trainer:
    model = classifier(device)
    sharded = {"fsdp2": {"state_dict_type": "full"}} if dist.get_world_size() > 1 else None
    rank, size = dist.get_global_rank(), 8 // dist.get_world_size()
    rows = tuple(each[rank * size : (rank + 1) * size] for each in batch())
    return Trainer(
        model=model,
        optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
        train_dataloader=[rows],
        device_train_microbatch_size=8,
        algorithms=algorithms,
        parallelism_config=sharded,
        device="cpu",
        seed=3,
        progress_bar=False,
        **{"max_duration": "4ba", **settings},
    )


def _refused(build: Any) -> str:
    try:
        build()
    except (TypeError, ValueError) as error:
        return str(error)
    return "nothing is refused"


def _loaded(path: str) -> dict[str, Any]:
    trainer = _trainer(ScaledActivations(0.5), load_path=path)
    found: dict[str, Any] = {
        "sharded": all(hasattr(p, "device_mesh") for p in trainer.state.model.parameters()),
        "missing": _refused(lambda: _trainer(None, load_path=path)),
    }
    trainer.fit()
    found["weights"] = trainer.state.state_dict()["model"]
    relu = {nn.Tanh: lambda module, index: nn.ReLU()}
    linear = {nn.Linear: lambda module, index: nn.Identity()}
    model = _trainer(None).state.model
    found["stateless"] = len(replace_module_classes(model, relu))
    found["late"] = _refused(lambda: replace_module_classes(model, linear))
    # On meta, what the algorithm draws on each rank stands beside what is not there yet.
    added: Any = _trainer(ScaledActivations(0.5), "meta").state.model.module.blocks[0][1].weight
    found["drawn"] = added.full_tensor().tolist()
    return found


def test_a_model_is_changed_before_it_is_sharded(tmp_path: Any) -> None:
    started = _trainer(ScaledActivations(0.5), max_duration="2ba")
    drawn: Any = started.state.model.module.blocks[0][1].weight  # type: ignore[union-attr, index]
    drawn = drawn.tolist()
    started.fit()
    path = started.save_checkpoint(str(tmp_path / "saved.pt"))
    trainer = _trainer(ScaledActivations(0.5), load_path=path)
    trainer.fit()
    expected = trainer.state.state_dict()["model"]
    first, second = run_ranks(_loaded, 2, str(path))
    assert first["sharded"] and second["sharded"]
    for name, value in expected.items():
        torch.testing.assert_close(first["weights"][name], value, atol=1e-5, rtol=1e-5)
    for found in (first, second):
        assert "pass it in algorithms=[...]" in found["missing"]
        assert "ScaledActivations(factor=0.5)" in found["missing"]
        assert found["stateless"] == 2
        assert "cannot be replaced after its parameters were spread" in found["late"]
    assert first["drawn"] == second["drawn"] == drawn
