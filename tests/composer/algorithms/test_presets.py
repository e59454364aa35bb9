"""Presets in programs."""

import pytest
import torch
from torch.utils.data import DataLoader

from composer import Trainer, algorithms
from composer.algorithms import PRESETS, preset
from composer.models import ComposerClassifier


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_builds_its_algorithms_and_prints_them(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    built = preset(name)
    folders = [type(each).__module__.split(".")[2] for each in built]
    assert folders == list(PRESETS[name].algorithms)
    said = capsys.readouterr().out
    assert said.startswith(f"preset {name}:\n  algorithms.{folders[0]}: ")
    assert ("use it as the optimizer" in said) == bool(PRESETS[name].optimizer)


def test_a_preset_that_does_not_exist() -> None:
    with pytest.raises(ValueError, match=r"no preset 'vision-slow'\. Did you mean 'vision-fast'\?"):
        preset("vision-slow")


def test_the_vision_preset_trains() -> None:
    torch.manual_seed(0)
    rows = [(torch.randn(3, 16, 16), index % 4) for index in range(32)]
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3, stride=2, padding=1),
        torch.nn.BatchNorm2d(32),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(32, 4),
    )
    trainer = Trainer(
        model=ComposerClassifier(network, num_classes=4),
        train_dataloader=DataLoader(rows, batch_size=8),
        optimizers=torch.optim.SGD(network.parameters(), lr=0.1),
        max_duration="2ep",
        algorithms=preset("vision-fast"),
        device="cpu",
        progress_bar=False,
    )
    before = network[5].weight.detach().clone()
    trainer.fit()
    assert {type(each) for each in trainer.state.algorithms} >= {
        getattr(algorithms, name)
        for name in ("ChannelsLast", "WeightStandardization", "LabelSmoothing")
    }
    assert not torch.equal(network[5].weight, before)
