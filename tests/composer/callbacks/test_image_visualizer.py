"""ImageVisualizer hands images and masks to the loggers."""

import pytest
import torch
from torch.utils.data import DataLoader

from composer import Evaluator, Trainer
from composer.callbacks.image_visualizer import ImageVisualizer
from composer.loggers.in_memory_logger import InMemoryLogger
from composer.models.base import ComposerModel

CLASSES = 3


class Gallery(InMemoryLogger):
    def __init__(self):
        super().__init__()
        self.shown = []

    def log_images(self, images, name="Images", channels_last=False, step=None, masks=None, *rest):
        self.shown.append((name, step, images, masks))


class Segmenter(ComposerModel):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Conv2d(1, CLASSES, 1)

    def forward(self, batch):
        return self.net(batch[0])

    def loss(self, outputs, batch):
        return torch.nn.functional.cross_entropy(outputs, batch[1], ignore_index=-1)


def samples(count):
    torch.manual_seed(2)
    return [(torch.randn(1, 5, 5), torch.randint(-1, CLASSES, (5, 5))) for _ in range(count)]


def run_with(visualizer, duration="5ba"):
    gallery, model = Gallery(), Segmenter()
    trainer = Trainer(
        model=model,
        optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
        train_dataloader=DataLoader(samples(20), batch_size=4),
        eval_dataloader=Evaluator(label="eval", dataloader=DataLoader(samples(8), batch_size=4)),
        eval_interval="5ba",
        max_duration=duration,
        callbacks=visualizer,
        loggers=gallery,
        device_train_microbatch_size=2,
        progress_bar=False,
    )
    trainer.fit()
    trainer.close()
    return gallery.shown


@pytest.mark.filterwarnings("ignore:No batches were evaluated")
def test_inputs():
    shown = run_with(ImageVisualizer("2ba", num_images=1))
    assert [(name, step) for name, step, *_ in shown] == [
        ("Images/Train", 0),
        ("Images/Train", 2),
        ("Images/Train", 4),
        ("Images/Eval", 5),
    ]
    assert all(images.shape == (1, 1, 5, 5) and masks is None for _, _, images, masks in shown)


def test_masks():
    shown = run_with(ImageVisualizer(mode="segmentation"))
    assert [name for name, *_ in shown] == ["Images/Train", "Images/Eval"]
    for _, _, images, masks in shown:
        assert set(masks) == {"prediction", "ground_truth"}
        assert masks["prediction"].shape == masks["ground_truth"].shape == (len(images), 5, 5)
        assert masks["prediction"].max() < CLASSES
        assert masks["ground_truth"].min() >= 0
        assert masks["ground_truth"].max() == CLASSES  # of pixels that do not count


def test_what_is_no_image_is_not_shown():
    visualizer = ImageVisualizer()
    gallery = Gallery()

    class State:
        def batch_get_item(self, key):
            return torch.zeros(8, 1, 1)

    visualizer._log_inputs(State(), gallery, "Images/Train")
    assert gallery.shown == []


@pytest.mark.parametrize("kwargs", [{"mode": "video"}, {"interval": "5sp"}, {"interval": 0}])
def test_wrong_settings(kwargs):
    with pytest.raises(ValueError, match=next(iter(kwargs))):
        ImageVisualizer(**kwargs)
