"""How each kind of MDS column becomes bytes, and what comes back.

``_encodings`` is the documented place for one's own: subclass ``Encoding`` and put the class there
under the name that columns shall use.
"""

import json
import pickle
import struct
from abc import ABC, abstractmethod
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray as Array

__all__ = [
    "Encoding",
    "get_encoding",
    "get_mds_encoded_size",
    "get_mds_encodings",
    "is_mds_encoding",
    "is_mds_encoding_safe",
    "mds_decode",
    "mds_encode",
]


class Encoding(ABC):
    """One kind of column. ``size`` is the number of bytes of every value, or None if it varies."""

    size: int | None = None
    is_safe: bool = True
    """Whether decoding bytes from strangers can only give a value, and never run code."""

    @abstractmethod
    def encode(self, obj: Any) -> bytes:
        """Bytes of a value."""

    @abstractmethod
    def decode(self, data: bytes) -> Any:
        """The value of these bytes."""

    def decode_from(self, buffer: Any, start: int, stop: int) -> Any:
        """The value in a part of a mapped file; kinds that can, give a view of it."""
        return self.decode(buffer[start:stop])

    @staticmethod
    def _validate(data: Any, expected_type: Any) -> None:
        if not isinstance(data, expected_type):
            raise AttributeError(
                f"data should be of type {expected_type}, but instead, found as {type(data)}"
            )


class Bytes(Encoding):
    """Bytes as they are."""

    def encode(self, obj: bytes) -> bytes:
        self._validate(obj, bytes)
        return obj

    def decode(self, data: bytes) -> bytes:
        return data


class Str(Encoding):
    """Text in UTF-8."""

    def encode(self, obj: str) -> bytes:
        self._validate(obj, str)
        return obj.encode("utf-8")

    def decode(self, data: bytes) -> str:
        return data.decode("utf-8")


class Int(Encoding):
    """A Python integer of 64 bits."""

    size = 8
    _struct = struct.Struct("<q")

    def encode(self, obj: int) -> bytes:
        self._validate(obj, int)
        try:
            return self._struct.pack(obj)
        except struct.error:
            raise OverflowError(f"{obj} does not fit into 64 bits: use str_int.") from None

    def decode(self, data: bytes) -> int:
        return self._struct.unpack(data)[0]

    def decode_from(self, buffer: Any, start: int, stop: int) -> int:
        return self._struct.unpack_from(buffer, start)[0]


class Scalar(Encoding):
    """A numpy scalar of one dtype."""

    def __init__(self, dtype: type[np.generic]) -> None:
        self.dtype = np.dtype(dtype).newbyteorder("<")
        self._type = dtype
        self.size = self.dtype.itemsize

    def encode(self, obj: Any) -> bytes:
        return np.asarray(self._type(obj), self.dtype).tobytes()

    def decode(self, data: bytes) -> Any:
        return np.frombuffer(data, self.dtype)[0]

    def decode_from(self, buffer: Any, start: int, stop: int) -> Any:
        return np.frombuffer(buffer, self.dtype, 1, start)[0]


class _NumberText(Encoding):
    """A number as the text that Python prints for it."""

    kind: type

    def encode(self, obj: Any) -> bytes:
        self._validate(obj, self.kind)
        return str(obj).encode("utf-8")

    def decode(self, data: bytes) -> Any:
        return self.kind(data.decode("utf-8"))


class StrInt(_NumberText):
    """An integer of any length, as text."""

    kind = int


class StrFloat(_NumberText):
    """A float, as text."""

    kind = float


class StrDecimal(_NumberText):
    """A decimal number, as text."""

    kind = Decimal


class JSON(Encoding):
    """Anything that JSON can express; arrays become lists."""

    def encode(self, obj: Any) -> bytes:
        return json.dumps(obj, default=self._plain).encode("utf-8")

    @staticmethod
    def _plain(obj: Any) -> Any:
        if isinstance(obj, np.ndarray):
            return obj.tolist()
        raise TypeError(f"Object of type {type(obj).__name__} is not JSON serializable")

    def decode(self, data: bytes) -> Any:
        return json.loads(data)


class Pickle(Encoding):
    """Any Python object. Decoding runs what the file says, so readers refuse it unless allowed."""

    is_safe = False

    def encode(self, obj: Any) -> bytes:
        return pickle.dumps(obj)

    def decode(self, data: bytes) -> Any:
        return pickle.loads(data)


class NDArray(Encoding):
    """A numpy array; dtype and shape are in the value, unless the column fixes them.

    Decoding gives a read-only view of the bytes: copy it before writing to it.
    """

    codes = {
        "uint8": 8,
        "int8": 9,
        "uint16": 16,
        "int16": 17,
        "float16": 18,
        "uint32": 32,
        "int32": 33,
        "float32": 34,
        "uint64": 64,
        "int64": 65,
        "float64": 66,
    }
    _dtypes = {code: np.dtype(name).newbyteorder("<") for name, code in codes.items()}
    _dims = tuple(np.dtype(kind) for kind in ("<u1", "<u2", "<u4", "<u8"))

    def __init__(self, dtype: str | None = None, shape: tuple[int, ...] | None = None) -> None:
        if dtype is not None and dtype not in self.codes:
            raise ValueError(f"Unsupported dtype: {dtype}. Choose one of {sorted(self.codes)}.")
        if shape is not None and (not shape or min(shape) < 1):
            raise ValueError(f"Array shape must have positive dimensions, but got {shape}.")
        self.dtype = None if dtype is None else np.dtype(dtype).newbyteorder("<")
        self.shape = shape
        self.size = None
        if self.dtype is not None and shape is not None:
            self.size = int(np.prod(shape)) * self.dtype.itemsize

    @classmethod
    def from_str(cls, text: str) -> "NDArray":
        """Reads what stands behind ``ndarray:`` in a column, for example ``int32:2,3``."""
        dtype, _, dims = text.partition(":")
        try:
            shape = tuple(int(dim) for dim in dims.split(",")) if dims else None
        except ValueError:
            raise ValueError(
                f"Bad array encoding 'ndarray:{text}': write ndarray, ndarray:dtype or "
                "ndarray:dtype:dim,dim,..."
            ) from None
        return cls(dtype, shape)

    def encode(self, obj: Array[Any]) -> bytes:
        if np.isscalar(obj) or (isinstance(obj, np.ndarray) and obj.ndim == 0):
            raise ValueError(
                "Attempting to encode a scalar with NDArray encoding. Please use a scalar encoding."
            )
        name = obj.dtype.name  # A list has none, which is the error to see.
        if obj.size == 0:
            raise ValueError("Attempting to encode a numpy array with 0 elements.")
        if name not in self.codes:
            raise ValueError(f"Unsupported dtype: {name}.")
        if obj.ndim >= 64:
            raise ValueError(f"Array dimensionality {obj.ndim} is too big: at most 63.")
        parts = []
        if self.dtype is None:
            parts.append(bytes([self.codes[name]]))
        elif name != self.dtype.name:
            raise ValueError(f"Wrong dtype: expected {self.dtype.name}, got {name}.")
        if self.shape is None:
            parts.append(self._encode_shape(obj.shape))
        elif obj.shape != self.shape:
            raise ValueError(f"Wrong shape: expected {self.shape}, got {obj.shape}.")
        parts.append(obj.astype(obj.dtype.newbyteorder("<"), copy=False).tobytes())
        return b"".join(parts)

    def _encode_shape(self, shape: tuple[int, ...]) -> bytes:
        largest = max(shape)
        kind = next(k for k in range(4) if largest < 1 << (8 << k))
        return bytes([(len(shape) << 2) | kind]) + np.asarray(shape, self._dims[kind]).tobytes()

    def decode(self, data: bytes) -> Array[Any]:
        return self.decode_from(data, 0, len(data))

    def decode_from(self, buffer: Any, start: int, stop: int) -> Array[Any]:
        dtype, shape = self.dtype, self.shape
        if dtype is None:
            dtype = self._dtypes[buffer[start]]
            start += 1
        if shape is None:
            head = buffer[start]
            ndim, dim_type = head >> 2, self._dims[head & 3]
            start += 1
            if ndim == 1:
                # The one dimension is what the length says: no need to read it.
                start += dim_type.itemsize
                shape = ((stop - start) // dtype.itemsize,)
            else:
                shape = tuple(np.frombuffer(buffer, dim_type, ndim, start).tolist())
                start += ndim * dim_type.itemsize
        return np.ndarray(shape, dtype, buffer, start)


_encodings: dict[str, Any] = {
    "bytes": Bytes,
    "str": Str,
    "int": Int,
    "ndarray": NDArray,
    "str_int": StrInt,
    "str_float": StrFloat,
    "str_decimal": StrDecimal,
    "pkl": Pickle,
    "json": JSON,
}
"""Encoding classes (or functions that make one) by name; images are added by ``images``."""


def _scalar_factory(name: str) -> Any:
    return lambda: Scalar(getattr(np, name))


for _name in "uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 float32 float64".split():
    _encodings[_name] = _scalar_factory(_name)

_cache: dict[tuple[str, Any], Encoding] = {}


def get_encoding(name: str) -> Encoding | None:
    """The encoding of a column by its text, or None if there is none of this name.

    Raises:
        ValueError: if the name is known and what follows the colon is wrong.
    """
    base, colon, args = name.partition(":")
    factory = _encodings.get(base)
    if factory is None:
        return None
    key = (name, factory)  # The factory is part of the key: users replace entries.
    if key not in _cache:
        if colon and not hasattr(factory, "from_str"):
            raise ValueError(f"Encoding {base} takes no parameters, but got {name!r}.")
        _cache[key] = factory.from_str(args) if colon else factory()
    return _cache[key]


def get_mds_encodings() -> set[str]:
    """Names of all encodings."""
    return set(_encodings)


def is_mds_encoding(encoding: str) -> bool:
    """Whether a column may have this encoding."""
    return get_encoding(encoding) is not None


def _existing(encoding: str) -> Encoding:
    found = get_encoding(encoding)
    if found is None:
        raise ValueError(f"Unsupported encoding: {encoding}.")
    return found


def is_mds_encoding_safe(encoding: str) -> bool:
    """Whether decoding can never run code (everything but ``pkl``)."""
    return getattr(_existing(encoding), "is_safe", True)


def mds_encode(encoding: str, obj: Any) -> bytes:
    """Bytes of a value; what is bytes already is stored as it is, whatever the encoding."""
    coder = _existing(encoding)
    return obj if isinstance(obj, bytes) else coder.encode(obj)


def mds_decode(encoding: str, data: bytes) -> Any:
    """The value of these bytes."""
    return _existing(encoding).decode(data)


def get_mds_encoded_size(encoding: str) -> int | None:
    """Bytes of every value of this encoding, or None if they vary."""
    return _existing(encoding).size
