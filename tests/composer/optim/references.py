"""What the tests of optimizers share: a model, its gradients, and one process in place of many."""

from collections.abc import Callable
from typing import Any

import torch

from tests.cross.algorithm_models import trainer

Make = Callable[[torch.nn.Module], torch.optim.Optimizer]


class Model(torch.nn.Module):
    """An embedding, two hidden layers of other shapes, a norm and a head."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.embedding = torch.nn.Embedding(10, 6)
        self.up = torch.nn.Linear(6, 9)
        self.down = torch.nn.Linear(9, 6, bias=False)
        self.norm = torch.nn.LayerNorm(6)
        self.head = torch.nn.Linear(6, 10)
        self.to(dtype)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        seen = self.embedding(tokens)
        return self.head(self.norm(seen + self.down(torch.tanh(self.up(seen)))))


def loss_of(model: torch.nn.Module, rows: slice = slice(None)) -> torch.Tensor:
    tokens = torch.arange(8)[rows]
    return torch.nn.functional.cross_entropy(model(tokens), (tokens * 3 + 1) % 10)


def steps(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, number: int = 5
) -> list[dict[str, torch.Tensor]]:
    """Takes steps; returns the gradients of each."""
    gradients = []
    for _ in range(number):
        optimizer.zero_grad()
        loss_of(model).backward()
        gradients.append(
            {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        )
        optimizer.step()
    return gradients


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def sharded_steps(make: Make, number: int = 4) -> dict[str, Any]:
    """Trains on every rank's share of the rows, sharded; returns the whole weights."""
    import os

    from torch.distributed.fsdp import fully_shard

    model = Model()
    optimizer = make(model)
    names = {p: n for n, p in model.named_parameters()}
    named = [[names[p] for p in group["params"]] for group in optimizer.param_groups]
    for module in (model.up, model.down, model):
        fully_shard(module)
    parameters = dict(model.named_parameters())
    for group, members in zip(optimizer.param_groups, named, strict=True):
        group["params"] = [parameters[name] for name in members]
    size = int(os.environ["WORLD_SIZE"])
    rank = int(os.environ["RANK"])
    for _ in range(number):
        optimizer.zero_grad()
        loss_of(model, slice(rank, None, size)).backward()
        optimizer.step()
    return {name: p.full_tensor().detach() for name, p in model.named_parameters()}  # type: ignore[attr-defined]


def resumed_in_shards(make: Make, folder: str) -> list[torch.Tensor]:
    """Trains sharded at once, and from a folder of shards saved on the way; returns the weights."""
    settings: dict[str, Any] = {"optimizer": make, "save_folder": folder, "run_name": "run"}
    settings |= {"save_interval": "2ba", "save_overwrite": True}
    settings["parallelism_config"] = {"fsdp2": {"state_dict_type": "sharded"}}
    found = []
    for load in (None, f"{folder}/ep1-ba4"):
        run = trainer("mlp", [], load_path=load, **settings)
        run.fit()
        found.append(
            torch.cat([p.full_tensor().flatten() for p in run.state.model.parameters()]).detach()  # type: ignore[attr-defined]
        )
        run.close()
    return found
