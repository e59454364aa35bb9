"""Transforms are only added where they will be used."""

import pytest
from torch.utils.data import DataLoader

from composer.algorithms.randaugment import RandAugment
from composer.core.event import Event
from tests.composer.algorithms.images import Images
from tests.composer.plugins import HandRun


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        ([1, 2], "dataset of a torch DataLoader, and this one is list"),
        (DataLoader([1, 2]), "attribute `transform`.*and list has none"),
    ],
)
def test_what_is_no_dataset_of_images_is_refused(loader, message):
    run = HandRun(algorithms=[RandAugment()])
    run.state.set_dataloader(loader, "train")
    with pytest.raises(TypeError, match=message):
        run.engine.run_event(Event.FIT_START)
    run.close()


def test_each_dataset_gets_it_once():
    run = HandRun(algorithms=[RandAugment()])
    first, second = Images(2), Images(2)
    for dataset in (first, second, first, second):
        run.state.set_dataloader(DataLoader(dataset), "train")
        run.engine.run_event(Event.FIT_START)
    assert len(first.transform.transforms) == len(second.transform.transforms) == 2
    run.close()
