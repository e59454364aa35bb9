"""Progressive resizing equals upstream's: sizes, pixels, and the schedule."""

import pytest
import torch

from composer.algorithms.progressive_resizing import ProgressiveResizing, resize_batch
from composer.core.event import Event
from composer.core.time import Timestamp
from composer.loggers import InMemoryLogger
from tests.composer.algorithms.golden_runs import (
    LoaderDraw,
    Shapes,
    assert_losses_as_recorded,
    functional_record,
    run_as_recorded,
    seed_as,
)
from tests.composer.plugins import HandRun
from tests.composer.trainer.test_golden_runs import RECORDS


@pytest.mark.parametrize("scale", [0.5, 0.7])
def test_golden_resize(scale):
    record = functional_record(f"r_resize_{scale}")
    images, target = resize_batch(record["x"], torch.arange(6), scale)
    assert torch.equal(images, record["out"])
    assert torch.equal(target, torch.arange(6))


def test_golden_targets():
    record = functional_record("r_resize_targets")
    images, target = resize_batch(record["x"], record["seg"], 0.5, "resize", resize_targets=True)
    assert torch.equal(images, record["out"])
    assert torch.equal(target, record["out_seg"])
    indices = (record["seg"][:, 0] * 100).long()  # class indices have no channels
    small = resize_batch(record["x"], indices, 0.5, "resize", resize_targets=True)[1]
    assert torch.equal(small, (record["out_seg"][:, 0] * 100).long())


def test_golden_crop():
    record = functional_record("r_crop_rng")
    seed_as(record)
    images, _ = resize_batch(record["x"], torch.arange(6), 0.5, "crop")
    assert torch.equal(images, record["out"])


def test_targets_are_cropped_at_the_same_place():
    images = torch.arange(64.0).view(1, 1, 8, 8)
    small, target = resize_batch(images, images[:, 0], 0.6, "crop", resize_targets=True)
    assert small.shape == (1, 1, 4, 4)
    assert torch.equal(small[:, 0], target)


def test_golden_run():
    name, shapes = "progressive_resizing_crop", Shapes()
    algorithm = ProgressiveResizing("crop", 0.4, 0.1, 0.0, size_increment=1)
    _, note = run_as_recorded(name, algorithm, shapes, LoaderDraw())
    assert shapes.seen == RECORDS[name]["input_shapes_per_forward"]
    assert_losses_as_recorded(name, note)


def sizes(algorithm, batches=10, size=(40, 32)):
    logger = InMemoryLogger()
    run = HandRun(logger, algorithms=[algorithm], max_duration=f"{batches}ba")
    found = []
    for batch in range(batches + 1):
        run.state.timestamp = Timestamp(batch=batch)
        run.state.batch = (torch.randn(2, 3, *size), torch.zeros(2))
        run.engine.run_event(Event.AFTER_DATALOADER)
        found.append(tuple(run.state.batch[0].shape[2:]))
    run.close()
    return found, logger.data


def test_schedule_and_log():
    found, data = sizes(ProgressiveResizing(delay_fraction=0.2, finetune_fraction=0.3))
    # scale 0.5 until 20 %, whole from 70 %, in steps of 4 pixels of width
    assert [width for _, width in found] == [16, 16, 16, 20, 24, 24, 28, 32, 32, 32, 32]
    assert [height for height, _ in found] == [20, 20, 20, 25, 30, 30, 35, 40, 40, 40, 40]
    logged = {
        key: [float(value) for _, value in data[f"progressive_resizing/{key}"]]
        for key in ("height", "width", "scale_factor")
    }
    assert logged["width"] == [width for _, width in found]
    assert logged["height"] == [height for height, _ in found]
    assert logged["scale_factor"] == pytest.approx([width / 32 for _, width in found])


def test_the_size_grows_linearly():
    algorithm = ProgressiveResizing(initial_scale=0.2, size_increment=1)  # from 50 % to 80 %
    found, _ = sizes(algorithm, 20, size=(10, 1000))
    assert [width for _, width in found[10:17]] == [200, 333, 467, 600, 733, 867, 1000]


def test_no_time_to_grow_and_sizes_that_floats_would_round_down():
    found, _ = sizes(ProgressiveResizing(delay_fraction=0.5, finetune_fraction=0.5))
    assert [width for _, width in found] == [16] * 5 + [32] * 6
    algorithm = ProgressiveResizing("crop", 31 / 39, 0.0, 1.0, size_increment=1)
    found, _ = sizes(algorithm, size=(39, 39))
    assert found[0] == (31, 31)


@pytest.mark.parametrize(
    "kwargs",
    [
        {"mode": "stretch"},
        {"initial_scale": 1.5},
        {"finetune_fraction": -0.1},
        {"delay_fraction": 0.7, "finetune_fraction": 0.4},
    ],
)
def test_wrong_settings(kwargs):
    with pytest.raises(ValueError, match=next(iter(kwargs))):
        ProgressiveResizing(**kwargs)


def test_what_is_no_image_is_refused():
    run = HandRun(algorithms=[ProgressiveResizing()], max_duration="2ba")
    run.state.batch = (torch.randn(2, 3), torch.zeros(2))
    with pytest.raises(ValueError, match=r"not \(2, 3\)"):
        run.engine.run_event(Event.AFTER_DATALOADER)
    run.close()
