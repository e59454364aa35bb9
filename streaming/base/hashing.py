"""Checksums of shard files by name."""

import hashlib
from collections.abc import Callable
from typing import Any

_XXHASH = {
    "xxh32": "xxh32",
    "xxh64": "xxh64",
    "xxh128": "xxh128",
    "xxh3_64": "xxh3_64",
    "xxh3_128": "xxh3_128",
}
_HASHLIB = (
    "blake2b blake2s md5 sha1 sha224 sha256 sha384 sha512 sha3_224 sha3_256 sha3_384 sha3_512"
).split()


def get_hashes() -> set[str]:
    """Names of all supported hash algorithms."""
    return {*_HASHLIB, *_XXHASH}


def is_hash(algo: str) -> bool:
    """Whether a hash algorithm of this name is supported."""
    return algo in _XXHASH or algo in _HASHLIB


def _hasher(algo: str) -> Callable[..., Any]:
    if algo in _XXHASH:
        import xxhash

        return getattr(xxhash, _XXHASH[algo])
    if algo in _HASHLIB:
        return lambda data: hashlib.new(algo, data, usedforsecurity=False)
    raise ValueError(
        f"{algo} is not a supported hash algorithm. Choose one of {sorted(get_hashes())}."
    )


def get_hash(algo: str, data: bytes | memoryview) -> str:
    """Hex digest of the data under the named algorithm."""
    return _hasher(algo)(data).hexdigest()
