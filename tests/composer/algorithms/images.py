"""A dataset of images in the shape of torchvision's, and what an algorithm makes of it."""

from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from composer.core.event import Event
from tests.composer.plugins import HandRun


class ToTensor:
    """As torchvision's of that name."""

    def __call__(self, image: Image.Image) -> torch.Tensor:
        return torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255


class Images(Dataset):
    """Random Pillow images of four classes; ``transform`` is applied to each."""

    def __init__(self, length: int, size: tuple[int, int] = (16, 16)) -> None:
        generator = np.random.default_rng(0)
        self.pixels = generator.integers(0, 256, (length, *size, 3), dtype=np.uint8)
        self.transform: Any = ToTensor()

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.transform(Image.fromarray(self.pixels[index])), index % 4


def loaded(algorithm: Any, dataset: Dataset) -> Any:
    """Returns the whole dataset as one batch, after the algorithm has had FIT_START twice."""
    loader = DataLoader(dataset, batch_size=len(dataset))
    run = HandRun(algorithms=[algorithm])
    run.state.set_dataloader(loader, "train")
    for _ in range(2):
        run.engine.run_event(Event.FIT_START)
    run.close()
    return next(iter(loader))
