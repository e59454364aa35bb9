"""Image columns."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streaming import LocalDataset
from streaming.base.format.mds import mds_decode, mds_encode

Image = pytest.importorskip("PIL.Image")


def check(got: Any, want: Any, tolerance: int) -> None:
    if isinstance(want, dict) and "__list__" in want:
        assert len(got) == len(want["__list__"])
        for image, record in zip(got, want["__list__"], strict=True):
            check(image, record, tolerance)
    else:
        record = want["__image__"]
        assert got.mode == record["mode"] and list(got.size) == record["size"]
        pixels = np.asarray(got, np.int64).ravel()
        np.testing.assert_allclose(pixels, record["pixels"], atol=tolerance)


def test_recorded_images(golden: Path) -> None:
    rows = json.loads((golden / "mds" / "images_expected_rows.json").read_text())
    dataset = LocalDataset(str(golden / "mds" / "images"))
    assert len(dataset) == len(rows)
    for got, want in zip(dataset, rows, strict=True):
        assert sorted(got) == sorted(want)
        assert got.pop("id") == want.pop("id")
        for name, value in got.items():
            check(value, want[name], 2 if "jpeg" in name or "jpg" in name else 0)


@pytest.mark.parametrize("encoding", ["pil", "png", "list[pil]", "list[png]"])
def test_lossless_images_come_back(encoding: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 5, 3), np.uint8)
    image = Image.fromarray(pixels)
    value = [image, image] if "list" in encoding else image
    got = mds_decode(encoding, mds_encode(encoding, value))
    for back in got if "list" in encoding else [got]:
        np.testing.assert_array_equal(np.asarray(back), pixels)
    with pytest.raises(AttributeError, match="data should be of type"):
        mds_encode(encoding, "no image")


def test_a_jpeg_file_is_stored_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "x.jpg"
    Image.new("RGB", (8, 8), (200, 10, 10)).save(path, quality=31)
    assert mds_encode("jpeg", Image.open(path)) == path.read_bytes()
    blob = path.read_bytes()
    images = mds_decode("jpeg_array", mds_encode("jpeg_array", [blob, blob]))
    assert [image.size for image in images] == [(8, 8), (8, 8)]
    for broken in (b"", b"\0\0\0\0", mds_encode("jpegarray", [blob])[:40]):
        with pytest.raises(ValueError, match="jpeg_array"):
            mds_decode("jpeg_array", broken)
