"""Compression of whole shard files by name, such as ``zstd`` or ``zstd:7``."""

import bz2
import gzip
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class _Codec:
    """One family of codecs: its levels, and how it packs and unpacks."""

    levels: range
    default: int | None
    compress: Callable[[bytes, int], bytes]
    decompress: Callable[[bytes], bytes]


def _brotli_compress(data: bytes, level: int) -> bytes:
    import brotli

    return brotli.compress(data, quality=level)


def _brotli_decompress(data: bytes) -> bytes:
    import brotli

    return brotli.decompress(data)


def _snappy_compress(data: bytes, level: int) -> bytes:
    import snappy

    packed: Any = snappy.compress(data)
    return bytes(packed)


def _snappy_decompress(data: bytes) -> bytes:
    import snappy

    unpacked: Any = snappy.decompress(data)
    return bytes(unpacked)


def _zstd_compress(data: bytes, level: int) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor(level=level).compress(data)


def _zstd_decompress(data: bytes) -> bytes:
    import zstandard

    # The streaming form also reads frames that do not carry their own size.
    return zstandard.ZstdDecompressor().decompressobj().decompress(data)


def _gzip_compress(data: bytes, level: int) -> bytes:
    return gzip.compress(data, level, mtime=0)  # No time stamp: equal data gives equal files.


_CODECS = {
    "br": _Codec(range(0, 12), 11, _brotli_compress, _brotli_decompress),
    "bz2": _Codec(range(1, 10), 9, bz2.compress, bz2.decompress),
    "gz": _Codec(range(0, 10), 9, _gzip_compress, gzip.decompress),
    "snappy": _Codec(range(0), None, _snappy_compress, _snappy_decompress),
    "zstd": _Codec(range(1, 23), 3, _zstd_compress, _zstd_decompress),
}


def get_compressions() -> set[str]:
    """All supported names, with and without a level."""
    names = set(_CODECS)
    for family, codec in _CODECS.items():
        names |= {f"{family}:{level}" for level in codec.levels}
    return names


def is_compression(algo: str | None) -> bool:
    """Whether this name (or None, for no compression) is supported."""
    return algo is None or algo in get_compressions()


def _resolve(algo: str) -> tuple[_Codec, int]:
    """The codec and the level behind a name."""
    if not is_compression(algo):
        raise ValueError(
            f"{algo} is not a supported compression algorithm. Choose one of {sorted(_CODECS)}, "
            "with a level where it has levels (for example zstd:7)."
        )
    family, _, level = algo.partition(":")
    codec = _CODECS[family]
    return codec, int(level) if level else codec.default or 0


def get_compression_extension(algo: str) -> str:
    """File name suffix of the algorithm: its family, without the level."""
    _resolve(algo)
    return algo.partition(":")[0]


def compress(algo: str | None, data: bytes) -> bytes:
    """Compresses the data; None gives it back as it is."""
    if algo is None:
        return data
    codec, level = _resolve(algo)
    return codec.compress(data, level)


def decompress(algo: str | None, data: bytes) -> bytes:
    """Undoes ``compress`` of the same algorithm, whatever its level was."""
    if algo is None:
        return data
    return _resolve(algo)[0].decompress(data)
