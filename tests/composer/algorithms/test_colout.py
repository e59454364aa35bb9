"""ColOut equals upstream's, for batches, Pillow images and targets that are images."""

import numpy as np
import pytest
import torch
from PIL import Image

from composer.algorithms.colout import ColOut, ColOutTransform, colout_batch
from composer.core.event import Event
from tests.composer.algorithms.golden_runs import functional_record, seed_as
from tests.composer.algorithms.images import Images, loaded
from tests.composer.plugins import HandRun


@pytest.mark.parametrize(
    ("case", "kwargs"), [("colout_auto", {}), ("colout_05", {"p_row": 0.25, "p_col": 0.5})]
)
def test_golden(case, kwargs):
    record = functional_record(case)
    seed_as(record)
    assert torch.equal(colout_batch(record["x"], **kwargs), record["out"])


def test_golden_target_of_the_same_size():
    record = functional_record("colout_seg")
    seed_as(record)
    images, target = colout_batch((record["x"], record["seg"]))
    assert torch.equal(images, record["out_x"])
    assert torch.equal(target, record["out_seg"])


def test_pillow_images_lose_the_same_rows_and_columns():
    pixels = np.random.randint(0, 256, (10, 12, 3), dtype=np.uint8)
    torch.manual_seed(5)
    image, mask = ColOutTransform(0.5, 0.25)(
        (Image.fromarray(pixels), Image.fromarray(pixels[..., 0]))
    )
    torch.manual_seed(5)
    kept = colout_batch(torch.from_numpy(pixels).permute(2, 0, 1), 0.5, 0.25)
    assert image.size == (9, 5)
    assert np.array_equal(np.asarray(image), kept.permute(1, 2, 0).numpy())
    assert np.array_equal(np.asarray(mask), kept[0].numpy())


def test_targets_are_resized_only_if_they_are_images():
    images = torch.randn(4, 3, 8, 8)
    for target, resize, shape in [
        (torch.randn(4, 1, 8, 8), "auto", (4, 1, 4, 4)),
        (torch.randn(4, 1, 8, 8), False, (4, 1, 8, 8)),
        (torch.randn(4, 1, 8, 6), "auto", (4, 1, 8, 6)),
        (torch.arange(4), "auto", (4,)),
        (torch.randn(8, 8), True, (4, 4)),
    ]:
        assert colout_batch((images, target), 0.5, 0.5, resize)[1].shape == shape
    assert colout_batch(images, 0.0, 0.0).equal(images)


def test_it_acts_on_loaded_batches():
    algorithm = ColOut(0.5, 0.25, input_key="x", target_key="y")
    run = HandRun(algorithms=[algorithm])
    assert not algorithm.match(Event.FIT_START, run.state)
    labels = torch.arange(4)
    run.state.batch = {"x": torch.randn(4, 3, 8, 8), "y": labels}
    run.engine.run_event(Event.AFTER_DATALOADER)
    assert run.state.batch["x"].shape == (4, 3, 4, 6)
    assert run.state.batch["y"] is labels
    run.state.batch = {"x": torch.randn(4, 3, 8, 8), "y": torch.zeros(4, 8, 8)}
    run.engine.run_event(Event.AFTER_DATALOADER)
    assert run.state.batch["y"].shape == (4, 4, 6)
    run.close()


def test_it_acts_on_the_images_of_a_dataset():
    algorithm = ColOut(0.5, 0.25, batch=False)
    assert not algorithm.match(Event.AFTER_DATALOADER, HandRun().state)
    [images, _] = loaded(algorithm, Images(8, size=(8, 8)))
    assert images.shape == (8, 3, 4, 6)


@pytest.mark.parametrize(
    ("error", "kwargs"),
    [
        (ValueError, {"p_row": 1.5}),
        (ValueError, {"p_col": -0.1}),
        (ValueError, {"resize_target": "yes"}),
        (NotImplementedError, {"resize_target": True, "batch": False}),
    ],
)
def test_wrong_settings(error, kwargs):
    with pytest.raises(error, match=next(iter(kwargs))):
        ColOut(**kwargs)


def test_wrong_samples():
    with pytest.raises(ValueError, match="not 3 parts"):
        colout_batch((torch.zeros(3, 4, 4),) * 3)
    with pytest.raises(ValueError, match="p_row=2"):
        colout_batch(torch.zeros(3, 4, 4), p_row=2)
