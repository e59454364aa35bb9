"""Small models that say which of their modules are units."""

from typing import Any

import torch
from torch import nn

from composer.models import ComposerClassifier


class Blocks(nn.Module):
    """A layer, two blocks, a layer; the blocks are units and recompute."""

    def __init__(self, device: str = "cpu", tied: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16, device=device)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 16, device=device), nn.Tanh()) for _ in range(2)
        )
        self.last = nn.Linear(16, 4, device=device)
        if tied:
            self.blocks[1][0].weight = self.blocks[0][0].weight  # type: ignore[index, union-attr]

    def forward(self, batch: Any) -> torch.Tensor:
        hidden = self.first(batch[0] if isinstance(batch, (tuple, list)) else batch)
        for block in self.blocks:
            hidden = block(hidden)
        return self.last(hidden)

    def fsdp_wrap_fn(self, module: nn.Module) -> bool | dict[str, Any]:
        return isinstance(module, nn.Sequential)

    def activation_checkpointing_fn(self, module: nn.Module) -> bool:
        return isinstance(module, nn.Sequential)


def classifier(device: str = "cpu", seed: int = 3) -> ComposerClassifier:
    torch.manual_seed(seed)
    return ComposerClassifier(Blocks(device), num_classes=4)


def batch(rows: int = 8, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 8, generator=generator), torch.randint(
        0, 4, (rows,), generator=generator
    )
