"""Mean average precision of object detection, by the COCO rules."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torchmetrics import Metric

from composer.utils.import_helpers import MissingConditionalImportError

__all__ = ["MAP", "MAPMetricResults"]

_STATES = ("detection_boxes", "detection_scores", "detection_labels")
_TRUTHS = ("groundtruth_boxes", "groundtruth_labels")


@dataclass
class MAPMetricResults:
    """The numbers of a COCO evaluation; -1 where nothing of the kind occurred."""

    map: torch.Tensor
    map_50: torch.Tensor
    map_75: torch.Tensor
    map_small: torch.Tensor
    map_medium: torch.Tensor
    map_large: torch.Tensor
    mar_1: torch.Tensor
    mar_10: torch.Tensor
    mar_100: torch.Tensor
    mar_small: torch.Tensor
    mar_medium: torch.Tensor
    mar_large: torch.Tensor
    map_per_class: torch.Tensor
    mar_100_per_class: torch.Tensor

    def __getitem__(self, key: str) -> torch.Tensor:
        """Returns a number by its name."""
        return getattr(self, key)


class WriteToLog:
    """A stream that swallows what pycocotools prints."""

    def write(self, buf: str) -> None:
        """Drops the text."""

    def flush(self) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""


class MAP(Metric):
    """Mean average precision and recall of boxes, as pycocotools computes them.

    Args:
        class_metrics: Computes the numbers of each class too, which takes longer.
        dist_sync_on_step: Synchronises over the ranks on every call of ``forward``.
        process_group: The ranks that take part, all by default.
        dist_sync_fn: Gathers the states; torchmetrics' own by default.
    """

    full_state_update = True
    detection_boxes: list[torch.Tensor]
    detection_scores: list[torch.Tensor]
    detection_labels: list[torch.Tensor]
    groundtruth_boxes: list[torch.Tensor]
    groundtruth_labels: list[torch.Tensor]

    def __init__(
        self,
        class_metrics: bool = False,
        dist_sync_on_step: bool = False,
        process_group: Any | None = None,
        dist_sync_fn: Callable[..., Any] | None = None,
    ) -> None:
        super().__init__(
            dist_sync_on_step=dist_sync_on_step,
            process_group=process_group,
            dist_sync_fn=dist_sync_fn,
        )
        try:
            from pycocotools.coco import COCO  # pyright: ignore[reportMissingModuleSource]
            from pycocotools.cocoeval import COCOeval  # pyright: ignore[reportMissingModuleSource]
        except ImportError as e:
            raise MissingConditionalImportError("vision", "pycocotools") from e
        if not isinstance(class_metrics, bool):
            raise ValueError(f"class_metrics={class_metrics!r} is not a boolean.")
        self.COCO: Any = COCO
        self.COCOeval: Any = COCOeval
        self.class_metrics = class_metrics
        for name in _STATES + _TRUTHS:
            self.add_state(name, default=[], dist_reduce_fx=None)

    def update(
        self, preds: Sequence[dict[str, torch.Tensor]], target: Sequence[dict[str, torch.Tensor]]
    ) -> None:
        """Adds a batch of images.

        Args:
            preds: For each image ``boxes`` (as corners x1, y1, x2, y2), ``scores`` and ``labels``.
            target: For each image ``boxes`` and ``labels``.
        """
        _check(preds, target)
        for item in preds:
            self.detection_boxes.append(item["boxes"].reshape(-1, 4).float())
            self.detection_scores.append(item["scores"].float())
            self.detection_labels.append(item["labels"])
        for item in target:
            self.groundtruth_boxes.append(item["boxes"].reshape(-1, 4).float())
            self.groundtruth_labels.append(item["labels"])

    def compute(self) -> dict[str, torch.Tensor]:
        """Returns the numbers of ``MAPMetricResults`` by name."""
        swallowing: Any = WriteToLog()
        with contextlib.redirect_stdout(swallowing):
            everything = self._evaluate(None)
            per_class: dict[str, list[float]] = {"map": [], "mar_100": []}
            if self.class_metrics:
                for label in self._classes():
                    stats = self._evaluate([label])
                    per_class["map"].append(stats[0])
                    per_class["mar_100"].append(stats[8])
        values = [torch.tensor(value, dtype=torch.float32) for value in everything]
        values += [torch.tensor(row or [-1.0]) for row in per_class.values()]
        names = [field.name for field in fields(MAPMetricResults)]
        return dict(zip(names, values, strict=True))

    def _classes(self) -> list[int]:
        labels = [t for t in [*self.detection_labels, *self.groundtruth_labels] if t.numel()]
        return torch.cat(labels).unique().tolist() if labels else []

    def _evaluate(self, classes: list[int] | None) -> list[float]:
        truth = self._coco(self.groundtruth_boxes, self.groundtruth_labels, None)
        found = self._coco(self.detection_boxes, self.detection_labels, self.detection_scores)
        evaluation = self.COCOeval(truth, found, "bbox")
        if classes is not None:
            evaluation.params.catIds = classes
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
        return [float(value) for value in np.asarray(evaluation.stats)]

    def _coco(
        self,
        boxes: list[torch.Tensor],
        labels: list[torch.Tensor],
        scores: list[torch.Tensor] | None,
    ) -> Any:
        """Builds the data set that pycocotools wants out of one image's tensors each."""
        rows: Iterator[tuple[int, int, int]] = (
            (image, row, int(label))
            for image, image_labels in enumerate(labels)
            for row, label in enumerate(image_labels)
        )
        annotations = []
        for image, row, label in rows:
            x1, y1, x2, y2 = boxes[image][row].tolist()
            annotation = {
                "id": len(annotations) + 1,
                "image_id": image,
                "category_id": label,
                "bbox": [x1, y1, x2 - x1, y2 - y1],
                "area": (x2 - x1) * (y2 - y1),
                "iscrowd": 0,
            }
            if scores is not None:
                annotation["score"] = float(scores[image][row])
            annotations.append(annotation)
        coco: Any = self.COCO()
        coco.dataset = {
            "images": [{"id": image} for image in range(len(labels))],
            "annotations": annotations,
            "categories": [{"id": label, "name": str(label)} for label in self._classes()],
        }
        coco.createIndex()
        return coco


def _check(
    preds: Sequence[dict[str, torch.Tensor]], target: Sequence[dict[str, torch.Tensor]]
) -> None:
    if not isinstance(preds, Sequence) or not isinstance(target, Sequence):
        raise ValueError("MAP.update takes one list of predictions and one of targets.")
    if len(preds) != len(target):
        raise ValueError(f"MAP.update got {len(preds)} predictions for {len(target)} targets.")
    for name, items, keys in (
        ("preds", preds, ("boxes", "scores", "labels")),
        ("target", target, ("boxes", "labels")),
    ):
        for item in items:
            missing = [key for key in keys if key not in item]
            if missing:
                raise ValueError(f"An item of {name} lacks {missing}; it needs {list(keys)}.")
            if len({len(item[key]) for key in keys}) > 1:
                sizes = {key: len(item[key]) for key in keys}
                raise ValueError(f"An item of {name} has tensors of unequal length: {sizes}.")
