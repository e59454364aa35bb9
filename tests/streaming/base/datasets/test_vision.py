"""Image data sets of earlier versions, and the function that writes them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import streaming
from streaming import LocalDataset, MDSWriter
from streaming.vision import (
    StreamingADE20K,
    StreamingCIFAR10,
    StreamingCOCO,
    StreamingImageNet,
    StreamingVisionDataset,
)
from streaming.vision.base import to_tensor
from streaming.vision.convert import convert_image_class_dataset

Image = pytest.importorskip("PIL.Image")


def image_of(value: int, mode: str = "RGB") -> Any:
    return Image.new(mode, (4, 3), (value, 0, 255) if mode == "RGB" else value)


@pytest.fixture
def classes(tmp_path: Path) -> str:
    pairs = [(image_of(number), number % 3) for number in range(12)]
    convert_image_class_dataset(pairs, str(tmp_path), "train", progress_bar=False)
    return str(tmp_path)


def test_converted_pairs_come_in_another_order(classes: str, tmp_path: Path) -> None:
    rows = list(LocalDataset(classes, "train"))
    numbers = [row["i"] for row in rows]
    assert sorted(numbers) == list(range(12)) != numbers
    for row in rows:
        assert row["y"] == row["i"] % 3
        assert row["x"].getpixel((0, 0)) == (row["i"], 0, 255)
    pairs = [(image_of(number), number % 3) for number in range(12)]
    again = tmp_path / "again"
    convert_image_class_dataset(pairs, str(again), progress_bar=False, encoding="png")
    assert [row["i"] for row in LocalDataset(str(again))] == numbers


@pytest.mark.parametrize("kind", [StreamingVisionDataset, StreamingCIFAR10, StreamingImageNet])
def test_images_go_through_transforms(kind: Any, classes: str) -> None:
    numbers = [row["i"] for row in LocalDataset(classes, "train")]
    where = {"local": classes, "split": "train", "batch_size": 4}
    for number, (image, target) in zip(numbers, kind(**where), strict=True):
        assert image.shape == (3, 3, 4) and image.dtype == torch.float32
        assert image[:, 0, 0].tolist() == pytest.approx([number / 255, 0, 1])
        assert target == number % 3
    doubled = kind(**where, target_transform=lambda y: 2 * y, transform=lambda x: x.size)
    assert doubled[0] == ((4, 3), 2 * (numbers[0] % 3))
    swapped = kind(**where, transforms=lambda x, y: (y, x))
    assert swapped[0][0] == numbers[0] % 3
    with pytest.raises(ValueError, match="not both kinds"):
        kind(**where, transforms=lambda x, y: (x, y), transform=to_tensor)
    with pytest.raises(TypeError, match="batch_size"):
        kind(local=classes, split="train")


def test_segmentation(tmp_path: Path) -> None:
    columns = {"uid": "bytes", "x": "jpeg", "y": "png"}
    with MDSWriter(columns=columns, out=str(tmp_path)) as writer:
        writer.write({"uid": b"a", "x": image_of(9), "y": image_of(7, "L")})
    image, target = StreamingADE20K(local=str(tmp_path))[0]
    assert image.size == (4, 3) and target.getpixel((0, 0)) == 7
    dataset = StreamingADE20K(
        local=str(tmp_path),
        joint_transform=lambda x, y: (x.resize((8, 6)), y.resize((8, 6))),
        transform=lambda x: x.size,
        target_transform=lambda y: np.array(y).shape,
    )
    assert dataset[0] == ((8, 6), (6, 8))


def test_detection(tmp_path: Path) -> None:
    columns = {"img": "png", "img_id": "int", "htot": "int", "wtot": "int"}
    columns |= {"bbox_sizes": "ndarray:float32", "bbox_labels": "ndarray:int64"}
    boxes, labels = np.ones((2, 4), np.float32), np.array([3, 5])
    with MDSWriter(columns=columns, out=str(tmp_path)) as writer:
        size = {"htot": 3, "wtot": 4, "bbox_sizes": boxes, "bbox_labels": labels}
        writer.write({"img": image_of(1, "L"), "img_id": 8, **size})
    image, number, size, found, classes = StreamingCOCO(local=str(tmp_path))[0]
    assert image.mode == "RGB" and number == 8 and size == (3, 4)
    assert (found == boxes).all() and (classes == labels).all()
    scaled = StreamingCOCO(local=str(tmp_path), transform=lambda i, s, b, c: (i, s, 2 * b, c))
    assert (scaled[0][3] == 2 * boxes).all()


def test_tensors_of_grey_and_deep_pixels() -> None:
    assert to_tensor(image_of(255, "L")).tolist() == torch.ones(1, 3, 4).tolist()
    deep = to_tensor(np.full((2, 2), 1.5, np.float32))
    assert deep.shape == (1, 2, 2) and deep[0, 0, 0] == 1.5


def test_they_are_there_when_streaming_is() -> None:
    assert streaming.vision.StreamingImageNet is StreamingImageNet
    assert streaming.text.StreamingC4 and streaming.multimodal.StreamingInsideWebVid
    with pytest.raises(AttributeError, match="no attribute 'audio'"):
        streaming.audio.StreamingSpeech
