"""Flat files of token ids, nothing between them: read as rows of one length, and written."""

import copy
import os
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from streaming.base.format.reader import FileInfo, FilePair, Reader
from streaming.base.format.writer import RawFile, Writer

TOKEN_TYPES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")

_NUMPY_MAGIC = b"\x93NUMPY"
_LLM_C_TYPES = {20240520: "uint16", 20240801: "uint32"}
_LLM_C_HEADER = 1024


def describe_tokens(path: str) -> dict[str, Any]:
    """Number type (None if the file does not say), offset of the first token, number of tokens.

    Known are numpy's header and the one of llm.c; everything else is tokens from the first byte on,
    also a ``.npy`` without a header, as OLMo writes them.

    Raises:
        ValueError: if a header is there and what it describes cannot be read as tokens.
    """
    with open(path, "rb") as file:
        head = file.read(12)
    if head.startswith(_NUMPY_MAGIC):
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise ValueError(
                f"{path} has numpy's header but cannot be read: {error}. It is cut short, or holds "
                "no numbers; write it again."
            ) from None
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise ValueError(
                f"{path} is an array of {array.dtype} with shape {array.shape}. Token ids must be "
                "whole numbers in one dimension: save tokens.reshape(-1), of a type such as uint16."
            )
        return {"dtype": array.dtype.str, "offset": array.offset, "tokens": len(array)}
    magic, version, count = np.frombuffer(head.ljust(12, b"\0"), "<i4").tolist()
    if magic in _LLM_C_TYPES and 0 < version < 16:
        return {"dtype": _LLM_C_TYPES[magic], "offset": _LLM_C_HEADER, "tokens": count}
    return {"dtype": None, "offset": 0, "tokens": None}


class TokensReader(Reader):
    """Rows of ``max_seq_len`` consecutive tokens; what fills no row at the end is left out.

    Rows do not overlap: the models here shift the labels themselves, so that a row is both inputs
    and targets, and of each token only the first of a row is no target.

    Args:
        dirname: Folder of the dataset.
        split: Folder below it, if any.
        obj: The record of the index, with the options.
    """

    reads_excerpts = True
    options: ClassVar[tuple[str, ...]] = ("max_seq_len", "token_encoding_type")

    def __init__(self, dirname: str, split: str | None, obj: dict[str, Any]) -> None:
        raw, packed = FileInfo(**obj["raw_data"]), obj["zip_data"]
        options, self.offset = obj["options"], obj["offset"]
        name = os.path.join(dirname, split or "", raw.basename)
        self.dtype = _number_type(name, obj["dtype"], options["token_encoding_type"])
        self.row_tokens = options["max_seq_len"]
        if self.row_tokens is None or self.row_tokens < 1:
            raise ValueError(
                f"{name} is tokens without rows, and max_seq_len, the tokens of a row, is "
                f"{self.row_tokens}. Pass a positive `max_seq_len`."
            )
        self.num_tokens, rest = divmod(raw.bytes - self.offset, self.dtype.itemsize)
        if rest or obj["tokens"] not in (None, self.num_tokens):
            raise ValueError(
                f"{name} has {raw.bytes - self.offset} bytes of tokens, which are "
                f"{self.num_tokens} of {self.dtype.name} and {rest} bytes, "
                + (f"but should be {obj['tokens']}. " if obj["tokens"] is not None else ". ")
                + "It is cut short, or `token_encoding_type` is not what it was written with."
            )
        pairs = [FilePair(raw, FileInfo(**packed) if packed else None)]
        samples = self.num_tokens // self.row_tokens
        super().__init__(
            dirname, split, obj["compression"], obj["hashes"], pairs, samples, obj["size_limit"]
        )
        self.left_out = self.num_tokens - samples * self.row_tokens
        self.columns = {"tokens": "ndarray:int64"}
        self.chosen = f"{self.dtype.name} {self.row_tokens}"
        self._vocab_size: int | None = None
        self._first = 0

    @classmethod
    def from_json(cls, dirname: str, split: str | None, obj: dict[str, Any]) -> "TokensReader":
        """The reader for a record of the index."""
        return cls(dirname, split, obj)

    def expect(self, columns: tuple[str, ...], vocab_size: int) -> None:
        """Refuses, as rows are read, token ids that the vocabulary does not have."""
        self._vocab_size = vocab_size

    def attach(self, buffers: list[Any]) -> list[Any]:
        """Reads from these bytes, as an array of rows."""
        count = self.samples * self.row_tokens
        tokens = np.frombuffer(buffers[0], self.dtype, count, self.offset)
        self._buffers = [tokens.reshape(self.samples, self.row_tokens)]
        return self._buffers

    def excerpt(self, idx: int, fetch: Callable[[str, int, int], bytes]) -> "TokensReader":
        """A shard that holds one row of this one, read without the others."""
        size = self.row_tokens * self.dtype.itemsize
        start = self.offset + idx * size
        twin = copy.copy(self)
        twin.samples, twin.offset, twin._first = 1, 0, idx
        twin.attach([fetch(self.file_pairs[0].raw.basename, start, start + size)])
        return twin

    def read(self, idx: int) -> dict[str, Any]:
        """The row of this number, as int64, so that files of other types mix."""
        row = self._get_buffers()[0][idx]
        if self._vocab_size is not None:
            self._check(idx, row, self._vocab_size)
        return {"tokens": row.astype(np.int64)}

    def _check(self, idx: int, row: NDArray[Any], vocab_size: int) -> None:
        if row.max() < vocab_size and (self.dtype.kind == "u" or row.min() >= 0):
            return
        at = int(np.flatnonzero((row >= vocab_size) | (row < 0))[0])
        place = (self._first + idx) * self.row_tokens + at
        raise ValueError(
            f"{self.raw_path(self.file_pairs[0])}: token {place} is {row[at]}, and the tokenizer's "
            f"vocabulary has {vocab_size}. The file was made with another tokenizer, or is not of "
            f"{self.dtype.name} (`token_encoding_type`)."
        )


def _number_type(name: str, known: str | None, asked: str | None) -> np.dtype[Any]:
    """The number type of a file: what it says itself, or else what the user says."""
    if asked is not None and asked not in TOKEN_TYPES:
        raise ValueError(f"`token_encoding_type` must be one of {TOKEN_TYPES}, but got {asked}.")
    if known is None and asked is None:
        raise ValueError(
            f"{name} does not say what numbers it holds: pass `token_encoding_type`, such as "
            "uint16 for files of nanoGPT."
        )
    dtype = np.dtype(known or asked)
    # int64 is the text loader's default, which a file that knows better overrules.
    if asked not in (None, "int64", dtype.name):
        raise ValueError(
            f"{name} holds {dtype.name}, but `token_encoding_type` is {asked}: leave it out."
        )
    return dtype


class TokensWriter(Writer):
    """Writes token ids into flat files, and an index that says their number type.

    A sample is ``{"tokens": ids}`` with any number of ids, as of a document; where one ends is not
    kept, so ids that separate documents must be among them. A sample is not cut by the end of a
    file. As with every writer, there is no index, and so no dataset, before ``finish``.

    Args:
        out: Folder, its address in a store, or a pair (local folder, remote folder).
        dtype: Number type of an id, such as ``uint16`` for vocabularies up to 65,536.
        keep_local: Whether the local folder stays when there is a remote one.
        compression: Algorithm for the files, for example ``zstd:7``.
        hashes: Sorted names of the checksums to put into the index.
        size_limit: Upper bound of a file's size in bytes, which is also what is held in memory.
        kwargs: ``exist_ok``, ``retry``, ``max_workers`` and ``progress_bar``, as of ``Writer``.
    """

    format = "bin"

    def __init__(
        self,
        *,
        out: str | tuple[str, str],
        dtype: str = "uint16",
        keep_local: bool = False,
        compression: str | None = None,
        hashes: list[str] | None = None,
        size_limit: int | str | None = 1 << 26,
        **kwargs: Any,
    ) -> None:
        if dtype not in TOKEN_TYPES:
            raise ValueError(f"`dtype` must be one of {TOKEN_TYPES}, but got {dtype}.")
        self.dtype = np.dtype(dtype)
        super().__init__(
            out=out,
            keep_local=keep_local,
            compression=compression,
            hashes=hashes,
            size_limit=size_limit,
            **kwargs,
        )

    def get_config(self) -> dict[str, Any]:
        """What the index says about how the files were written."""
        return {**super().get_config(), "dtype": self.dtype.name, "offset": 0, "tokens": None}

    def encode_sample(self, sample: dict[str, Any]) -> bytes:
        """The ids one after the other."""
        ids = np.asarray(sample["tokens"])
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            raise ValueError(
                f"`tokens` must be whole numbers in one dimension, but are {ids.dtype} with shape "
                f"{ids.shape}."
            )
        bounds = np.iinfo(self.dtype)
        if ids.size and not bounds.min <= int(ids.min()) <= int(ids.max()) <= bounds.max:
            raise ValueError(
                f"Token ids from {ids.min()} to {ids.max()} do not fit {self.dtype.name}. Pass a "
                "larger `dtype`, such as uint32."
            )
        return ids.astype(self.dtype).tobytes()

    def encode_files(self, samples: list[bytes]) -> list[RawFile]:
        """One file of tokens."""
        return [RawFile("data", "", b"".join(samples))]
