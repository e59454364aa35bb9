"""MDS encodings of images; Pillow is imported when the first image is seen."""

import os
import struct
from abc import ABC
from io import BytesIO
from typing import Any

from streaming.base.format.mds.encodings import Encoding, _encodings


def _pil() -> Any:
    """The PIL.Image module."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(
            "Image columns need Pillow: run `pip install 'llmfoundry[vision]'`."
        ) from error
    return Image


class _Image(Encoding, ABC):
    """Shared by the three image kinds: they take a Pillow image and nothing else."""

    def _check(self, obj: Any) -> None:
        self._validate(obj, _pil().Image)


class PIL(_Image):
    """Raw pixels with size and mode."""

    def encode(self, obj: Any) -> bytes:
        """Bytes of a value."""
        self._check(obj)
        mode = obj.mode.encode("utf-8")
        width, height = obj.size
        return struct.pack("<III", width, height, len(mode)) + mode + obj.tobytes()

    def decode(self, data: bytes) -> Any:
        """The value of these bytes."""
        width, height, mode_size = struct.unpack_from("<III", data)
        mode = bytes(data[12 : 12 + mode_size]).decode("utf-8")
        return _pil().frombytes(mode, (width, height), bytes(data[12 + mode_size :]))


class JPEG(_Image):
    """A JPEG file; an image that was opened from one is stored byte for byte."""

    def encode(self, obj: Any) -> bytes:
        """Bytes of a value."""
        self._check(obj)
        filename = getattr(obj, "filename", "")
        if obj.format == "JPEG" and filename and os.path.exists(filename):
            with open(filename, "rb") as file:
                return file.read()
        out = BytesIO()
        obj.save(out, format="JPEG")
        return out.getvalue()

    def decode(self, data: bytes) -> Any:
        """The value of these bytes."""
        return _pil().open(BytesIO(data))


class PNG(_Image):
    """A PNG file."""

    def encode(self, obj: Any) -> bytes:
        """Bytes of a value."""
        self._check(obj)
        out = BytesIO()
        obj.save(out, format="PNG")
        return out.getvalue()

    def decode(self, data: bytes) -> Any:
        """The value of these bytes."""
        return _pil().open(BytesIO(data))


def _split_blobs(data: bytes, start: int, sizes: tuple[int, ...], name: str) -> list[bytes]:
    """Cuts concatenated blobs apart."""
    if start + sum(sizes) > len(data):
        raise ValueError(
            f"Data of {name} is too short: its {len(sizes)} parts need {start + sum(sizes)} bytes, "
            f"but there are {len(data)}."
        )
    blobs = []
    for size in sizes:
        blobs.append(data[start : start + size])
        start += size
    return blobs


class JPEGArray(Encoding):
    """A sequence of encoded JPEG files; it decodes to a list of images."""

    def encode(self, obj: Any) -> bytes:
        """Bytes of a value."""
        self._validate(obj, (list, tuple))
        for blob in obj:
            self._validate(blob, (bytes, bytearray))
        sizes = [len(blob) for blob in obj]
        return struct.pack(f"<{len(obj) + 1}I", len(obj), *sizes) + b"".join(obj)

    def decode(self, data: bytes) -> Any:
        """The value of these bytes."""
        if len(data) < 4:
            raise ValueError(f"Data of jpeg_array is too short: {len(data)} bytes.")
        (count,) = struct.unpack_from("<I", data)
        if count == 0:
            raise ValueError("Data of jpeg_array holds no image.")
        start = 4 * (count + 1)
        if start > len(data):
            raise ValueError(f"Data of jpeg_array is too short for the sizes of {count} images.")
        sizes = struct.unpack_from(f"<{count}I", data, 4)
        return [_pil().open(BytesIO(b)) for b in _split_blobs(data, start, sizes, "jpeg_array")]


class _ImageList(Encoding):
    """A list of images, each in one of the encodings above."""

    inner: _Image

    def encode(self, obj: Any) -> bytes:
        """Bytes of a value."""
        self._validate(obj, list)
        blobs = [self.inner.encode(image) for image in obj]
        sizes = [len(blob) for blob in blobs]
        return struct.pack(f"<{len(blobs) + 2}I", 0, len(blobs), *sizes) + b"".join(blobs)

    def decode(self, data: bytes) -> Any:
        """The value of these bytes."""
        _, count = struct.unpack_from("<II", data)
        sizes = struct.unpack_from(f"<{count}I", data, 8)
        blobs = _split_blobs(data, 8 + 4 * count, sizes, "an image list")
        return [self.inner.decode(blob) for blob in blobs]


class PILList(_ImageList):
    """A list of images as raw pixels."""

    inner = PIL()


class JPEGList(_ImageList):
    """A list of images as JPEG files."""

    inner = JPEG()


class PNGList(_ImageList):
    """A list of images as PNG files."""

    inner = PNG()


_encodings.update(
    {
        "pil": PIL,
        "jpeg": JPEG,
        "png": PNG,
        "jpeg_array": JPEGArray,
        "jpegarray": JPEGArray,
        "list[pil]": PILList,
        "list[jpeg]": JPEGList,
        "list[png]": PNGList,
    }
)
