"""Trains a small convolutional network to read digits, on whatever device is there.

    python examples/image_classifier.py --duration 8ep

The digits are scikit-learn's 1,797 scanned ones if it is installed; otherwise they are drawn.
"""

import argparse

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from composer import Trainer
from composer.algorithms import GradientClipping
from composer.callbacks import LRMonitor, SpeedMonitor
from composer.models import ComposerClassifier
from composer.optim import CosineAnnealingWithWarmupScheduler, DecoupledAdamW


def load_digits() -> TensorDataset:
    """Returns images, shaped (1, height, width) with values from 0 to 1, and their digits."""
    try:
        from sklearn import datasets
    except ImportError:
        return draw_digits(1800)
    digits = datasets.load_digits()
    images = torch.from_numpy(digits.images).float().unsqueeze(1) / 16
    return TensorDataset(images, torch.from_numpy(digits.target).long())


def draw_digits(count: int, size: int = 16) -> TensorDataset:
    """Draws digits somewhere in noisy images."""
    generator = torch.Generator().manual_seed(0)
    digits = torch.randint(10, (count,), generator=generator)
    corners = torch.randint(size - 10, (count, 2), generator=generator).tolist()
    font = ImageFont.load_default()
    images = 0.2 * torch.rand(count, 1, size, size, generator=generator)
    for image, digit, (x, y) in zip(images, digits.tolist(), corners, strict=True):
        canvas = Image.new("L", (size, size))
        ImageDraw.Draw(canvas).text((x, y - 1), str(digit), fill=200, font=font)
        image += torch.tensor(list(canvas.tobytes())).view(1, size, size) / 255
    return TensorDataset(images, digits)


def build_network() -> nn.Module:
    """Two convolutions, and a linear layer over what is left of the image."""
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, kernel_size=3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


def train(duration: str, batch_size: int = 64, seed: int = 17) -> float:
    """Trains, and returns the accuracy on digits that were not trained on."""
    torch.manual_seed(seed)
    digits = load_digits()
    held_out, trained_on = random_split(digits, [0.2, 0.8])
    model = ComposerClassifier(build_network(), num_classes=10)
    trainer = Trainer(
        model=model,
        train_dataloader=DataLoader(trained_on, batch_size, shuffle=True, drop_last=True),
        eval_dataloader=DataLoader(held_out, batch_size=256),
        optimizers=DecoupledAdamW(model.parameters(), lr=3e-3, weight_decay=1e-4),
        schedulers=CosineAnnealingWithWarmupScheduler(t_warmup="0.1dur"),
        max_duration=duration,
        algorithms=GradientClipping(clipping_type="norm", clipping_threshold=1.0),
        callbacks=[LRMonitor(), SpeedMonitor(window_size=10)],
        seed=seed,
    )
    trainer.fit()
    trainer.close()
    return float(trainer.state.eval_metric_values["MulticlassAccuracy"])


def main() -> None:
    """Trains as the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--duration", default="8ep", help="such as 8ep or 200ba")
    parser.add_argument("--batch_size", type=int, default=64)
    arguments = parser.parse_args()
    accuracy = train(arguments.duration, arguments.batch_size)
    print(f"{accuracy:.1%} of the held-out digits are read correctly")


if __name__ == "__main__":
    main()
