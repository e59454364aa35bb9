"""CutOut equals upstream's, and cuts what it says."""

import pytest
import torch

from composer.algorithms.cutout import CutOut, cutout_batch
from composer.algorithms.cutout.cutout import _generate_mask
from composer.core.event import Event
from tests.composer.algorithms.golden_runs import functional_record, seed_as
from tests.composer.plugins import HandRun


@pytest.mark.parametrize(
    ("case", "kwargs"),
    [("cutout_1", {}), ("cutout_3u", {"num_holes": 3, "length": 0.25, "uniform_sampling": True})],
)
def test_golden(case, kwargs):
    record = functional_record(case)
    seed_as(record)
    assert torch.equal(cutout_batch(record["x"], **kwargs), record["out"])


def test_every_pixel_is_cut_equally_often_with_uniform_sampling():
    cuts = sum((cutout_batch(torch.ones(4, 8), 1, 0.5, True) == 0).float() for _ in range(3000))
    assert cuts.max() / cuts.min() < 1.4
    cuts = sum((cutout_batch(torch.ones(4, 8), 1, 0.5) == 0).float() for _ in range(3000))
    assert cuts.max() / cuts.min() > 1.8  # the middle more often than corners
    assert cuts.sum() > 0


def test_the_side_is_a_fraction_of_the_shorter_one():
    areas = [int((cutout_batch(torch.ones(4, 40), 1, 0.5) == 0).sum()) for _ in range(50)]
    assert max(areas) == 4


def test_masks():
    mask = _generate_mask(torch.ones(4, 6), 6, 4, x=5, y=1, cutout_length=2)
    expected = torch.ones(4, 6)
    expected[0:2, 4:6] = 0
    assert torch.equal(mask, expected)


def test_it_cuts_batches_as_they_are_loaded():
    algorithm = CutOut(length=1.0, input_key="images")
    run = HandRun(algorithms=[algorithm])
    images = torch.ones(2, 3, 8, 8)
    run.state.batch = {"images": images, "labels": [1, 2]}
    run.engine.run_event(Event.AFTER_DATALOADER)
    run.engine.run_event(Event.BATCH_START)
    cut = run.state.batch["images"]
    assert images.all()
    assert 16 <= (cut[0, 0] == 0).sum() <= 64
    assert torch.equal(cut[0], cut[1])
    run.state.batch = {"images": [1]}
    with pytest.raises(NotImplementedError, match="takes a tensor of images, not list"):
        run.engine.run_event(Event.AFTER_DATALOADER)
    run.close()


def test_wrong_settings():
    with pytest.raises(ValueError, match="length=0"):
        CutOut(length=0)
