"""Residual blocks that leave out their main branch at random."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from composer.utils.fx_utils import BlockStochasticModule

__all__ = [
    "BlockStochasticModule",
    "Branches",
    "StochasticBlock",
    "block_stochastic_forward",
    "bottlenecks",
    "make_resnet_bottleneck_stochastic",
    "sample_stochastic_forward",
]


class Branches(NamedTuple):
    """How to compute the parts of a residual block."""

    main: Callable[[torch.Tensor], torch.Tensor]
    shortcut: Callable[[torch.Tensor], torch.Tensor] | None
    """None adds the input itself, which has been through the activation already."""
    activation: Callable[[torch.Tensor], torch.Tensor]


class StochasticBlock(torch.nn.Module):
    """What a residual block becomes: in training it leaves out its main branch at random.

    In evaluation the branch is always there, scaled by how often it was there in training.
    """

    branches: Callable[[], Branches]
    stochastic_method: str
    drop_rate: float

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns what the branches that are there add up to."""
        if self.stochastic_method == "sample":
            return sample_stochastic_forward(self, x)
        return block_stochastic_forward(self, x)


def block_stochastic_forward(self: StochasticBlock, x: torch.Tensor) -> torch.Tensor:
    """Leaves the main branch out for the whole batch, which saves its time."""
    main, shortcut, activation = self.branches()
    passed = x if shortcut is None else shortcut(x)
    # From the CPU's generator, so that the branch that is taken waits for no device.
    if self.training and bool(torch.rand(()) < self.drop_rate):
        return x if shortcut is None else activation(passed)
    share = 1.0 if self.training else 1 - self.drop_rate
    return activation(main(x) * share + passed)


def sample_stochastic_forward(self: StochasticBlock, x: torch.Tensor) -> torch.Tensor:
    """Leaves the main branch out for some of the samples."""
    main, shortcut, activation = self.branches()
    share: Any = 1 - self.drop_rate
    if self.training:
        shape = (x.shape[0],) + (1,) * (x.ndim - 1)
        share = torch.rand(shape, device=x.device) >= self.drop_rate
    return activation(main(x) * share + (x if shortcut is None else shortcut(x)))


class _Bottleneck:
    """How torchvision's ResNet bottleneck is computed."""

    def branches(self: Any) -> Branches:
        def main(x: torch.Tensor) -> torch.Tensor:
            x = self.relu(self.bn1(self.conv1(x)))
            x = self.relu(self.bn2(self.conv2(x)))
            return self.bn3(self.conv3(x))

        return Branches(main, self.downsample, self.relu)


class _ResNetBottleNeckLayer:
    """How transformers' ResNet bottleneck is computed."""

    def branches(self: Any) -> Branches:
        is_identity = isinstance(self.shortcut, torch.nn.Identity)
        return Branches(self.layer, None if is_identity else self.shortcut, self.activation)


# By name, so that neither package is imported; both are what "ResNetBottleneck" means.
_KNOWN = {"Bottleneck": _Bottleneck, "ResNetBottleNeckLayer": _ResNetBottleNeckLayer}


def bottlenecks(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Returns the ResNet bottlenecks of a model, in order, stochastic ones too."""
    return [
        module
        for module in model.modules()
        if isinstance(module, StochasticBlock) or type(module).__name__ in _KNOWN
    ]


def make_resnet_bottleneck_stochastic(
    module: torch.nn.Module,
    module_index: int,
    module_count: int,
    drop_rate: float,
    drop_distribution: str,
    stochastic_method: str,
) -> None:
    """Lets a bottleneck leave out its main branch; its parameters and their names stay.

    Args:
        module: The bottleneck, stochastic already or not.
        module_index: Its number among those of the model.
        module_count: How many the model has.
        drop_rate: How often the branch is left out.
        drop_distribution: ``"uniform"``, or ``"linear"`` with a rate that grows with the number.
        stochastic_method: ``"block"`` or ``"sample"``.
    """
    made: Any = module
    kind = type(module)
    if not isinstance(module, StochasticBlock):
        bases = (_KNOWN[kind.__name__], StochasticBlock, kind)
        made.__class__ = type(f"Stochastic{kind.__name__}", bases, {})
    made.stochastic_method = stochastic_method
    depth = 1.0 if drop_distribution == "uniform" else (module_index + 1) / module_count
    made.drop_rate = drop_rate * depth
