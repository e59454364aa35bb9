"""Mean average precision, where pycocotools is installed."""

import importlib.util

import pytest
import torch

from composer.metrics import MAP
from composer.metrics.map import MAPMetricResults

HAS_COCO = importlib.util.find_spec("pycocotools") is not None
needs_coco = pytest.mark.skipif(not HAS_COCO, reason="pycocotools is not installed")


def _item(boxes, labels, scores=None):
    item = {"boxes": torch.tensor(boxes).reshape(-1, 4), "labels": torch.tensor(labels)}
    return item if scores is None else {**item, "scores": torch.tensor(scores)}


@pytest.mark.skipif(HAS_COCO, reason="pycocotools is installed")
def test_the_missing_package_is_named():
    with pytest.raises(ImportError, match="pycocotools"):
        MAP()


@needs_coco
def test_the_usual_example():
    metric = MAP(class_metrics=True)
    metric.update(
        [_item([258.0, 41.0, 606.0, 285.0], [0], [0.536])],
        [_item([214.0, 41.0, 562.0, 285.0], [0])],
    )
    result = metric.compute()
    expected = {"map": 0.6, "map_50": 1.0, "map_75": 1.0, "map_small": -1, "map_medium": -1}
    expected |= {"map_large": 0.6, "mar_1": 0.6, "mar_10": 0.6, "mar_100": 0.6}
    for name, value in expected.items():
        assert result[name].item() == pytest.approx(value, abs=1e-4), name
    assert result["map_per_class"].flatten().tolist() == pytest.approx([0.6], abs=1e-4)
    assert MAPMetricResults(**result)["map"] is result["map"]


@needs_coco
def test_several_images_classes_and_nothing_found():
    metric = MAP(class_metrics=True)
    right = [[0.0, 0.0, 10.0, 10.0], [20.0, 20.0, 40.0, 40.0]]
    metric.update([_item(right, [1, 2], [0.9, 0.8])], [_item(right, [1, 2])])
    metric.update([_item([], [], [])], [_item([0.0, 0.0, 10.0, 10.0], [1])])
    result = metric.compute()
    assert result["map_per_class"].tolist() == pytest.approx([51 / 101, 1.0], abs=1e-4)
    assert result["map"].item() == pytest.approx((51 / 101 + 1) / 2, abs=1e-4)
    metric.reset()
    metric.update([_item([], [], [])], [_item([], [])])
    assert metric.compute()["map"].item() == -1


@needs_coco
def test_malformed_input_is_refused():
    metric = MAP()
    with pytest.raises(ValueError, match="predictions for"):
        metric.update([], [_item([], [])])
    with pytest.raises(ValueError, match="lacks"):
        metric.update([_item([], [])], [_item([], [])])
    with pytest.raises(ValueError, match="unequal length"):
        metric.update([_item([0.0, 0, 1, 1], [1], [0.5, 0.6])], [_item([], [])])
    with pytest.raises(ValueError, match="class_metrics"):
        MAP(class_metrics=1)
