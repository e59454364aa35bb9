"""A stream: where a part of the data lies, where it is kept here, and how much of it is taken."""

import hashlib
import os
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from io import BytesIO
from typing import Any, BinaryIO

from streaming.base.compression import decompress
from streaming.base.constant import DEFAULT_TIMEOUT
from streaming.base.files import make_once, remove_file
from streaming.base.format.reader import FileInfo, FilePair, Reader
from streaming.base.format.shards import reader_from_json
from streaming.base.hashing import get_hash, is_hash
from streaming.base.index import get_index_basename, parse_index
from streaming.base.registry_utils import create_registry
from streaming.base.store import Store, open_store
from streaming.base.util import call_store
from streaming.base.weights import apply_weights, check_weights, validate_weights
from streaming.base.world import World

_INDEX_IS_NEW_SECONDS = 60

_DEFAULTS = {
    "split": None,
    "download_retry": 2,
    "download_timeout": DEFAULT_TIMEOUT,
    "validate_hash": None,
    "keep_zip": False,
}


class Stream:
    """One part of a dataset.

    Args:
        remote: Folder that holds it: a path, or an address such as ``s3://bucket/folder``
            (``gs``, ``az``, ``hf``, ``sftp``, ``memory`` and ``file`` as well).
        local: Folder where it is kept for reading. Without ``remote`` it must be there already;
            with one it defaults to a folder for temporary files.
        split: Folder below both.
        proportion: Weight relative to the other streams.
        repeat: How often an epoch goes through it; may be a fraction.
        choose: How many samples an epoch takes from it.
        download_retry: How often a failed download is tried again.
        download_timeout: Seconds for one download.
        validate_hash: Name of the checksum to verify, which must be in the index.
        keep_zip: Whether compressed files stay beside their unpacked form.
    """

    def __init__(
        self,
        *,
        remote: str | None = None,
        local: str | None = None,
        split: str | None = None,
        proportion: float | None = None,
        repeat: float | None = None,
        choose: int | None = None,
        download_retry: int | None = None,
        download_timeout: float | None = None,
        validate_hash: str | None = None,
        keep_zip: bool | None = None,
    ) -> None:
        self.remote = remote
        self.asked = check_weights(proportion, repeat, choose)
        self.proportion, self.repeat, self.choose = proportion, repeat, choose
        self._local = local
        self.local = local or ""
        self.split = split
        self.download_retry = download_retry
        self.download_timeout = download_timeout
        self.validate_hash = validate_hash
        self.keep_zip = keep_zip
        self._verified: set[str] = set()
        self._check_options()
        self._store: Store | None = open_store(remote) if remote else None

    def _check_options(self) -> None:
        if self.download_retry is not None and self.download_retry < 0:
            raise ValueError(f"`download_retry` must be at least 0, but got {self.download_retry}.")
        if self.download_timeout is not None and self.download_timeout <= 0:
            raise ValueError(
                f"`download_timeout` must be greater than 0, but got {self.download_timeout}."
            )
        if self.validate_hash is not None and not is_hash(self.validate_hash):
            raise ValueError(f"`validate_hash` {self.validate_hash!r} is no known hash.")

    def apply_default(self, default: dict[str, Any]) -> None:
        """Fills in what was left open, from the dataset's values."""
        if not (self.remote or self._local):
            raise ValueError("`remote` and/or `local` path must be provided for every stream.")
        for name, fallback in _DEFAULTS.items():
            if getattr(self, name) is None:
                setattr(self, name, default.get(name, fallback))
        self.split = self.split or ""
        self._check_options()
        if self._local:
            self.local = self._local
        else:
            digest = hashlib.blake2s(str(self.remote).encode(), digest_size=16).hexdigest()
            self.local = os.path.join(tempfile.gettempdir(), f"streaming-{os.getuid()}", digest)

    @property
    def folder(self) -> str:
        """Local folder of the split."""
        return os.path.join(self.local, self.split or "")

    @property
    def has_source(self) -> bool:
        """Whether files can be fetched again: there is a remote, and it is not the local folder."""
        if self._store is None:
            return False
        source = getattr(self._store, "path", None)
        return source is None or os.path.abspath(source) != os.path.abspath(self.local)

    validate_weights = staticmethod(validate_weights)

    @classmethod
    def apply_weights(
        cls,
        streams: Sequence["Stream"],
        samples_per_stream: Any,
        choose_per_epoch: int | None,
        seed: int,
    ) -> int:
        """Gives every stream its proportion, repeat and choose; returns the size of an epoch."""
        return apply_weights(streams, samples_per_stream, choose_per_epoch, seed)

    def get_index_size(self) -> int:
        """Bytes of the index file."""
        return os.stat(os.path.join(self.folder, get_index_basename())).st_size

    def get_shards(
        self, world: World | None = None, allow_unsafe_types: bool = False
    ) -> list[Reader]:
        """Reads the index, fetching it if need be, and gives a reader for each shard.

        Raises:
            FileNotFoundError: if the remote has no index.
            RuntimeError: if there is no remote and no index, or there are no samples.
        """
        filename = os.path.join(self.folder, get_index_basename())
        shards = []
        for obj in self._load_index(filename):
            shard = reader_from_json(self.local, self.split, obj)
            if self.validate_hash and self.validate_hash not in shard.hashes:
                raise ValueError(
                    f"Hash algorithm `{self.validate_hash}` does not match with those provided in "
                    f"{filename}: {shard.hashes}."
                )
            shard.validate(allow_unsafe_types)
            shards.append(shard)
        if not sum(map(len, shards)):
            raise RuntimeError(f"Stream contains no samples: {filename}.")
        return shards

    def _load_index(self, filename: str) -> list[dict[str, Any]]:
        """The index's records; a local copy that is missing, broken or outdated is fetched anew."""
        if not self.has_source:
            if not os.path.exists(filename):
                raise RuntimeError(
                    f"No `remote` provided, but local file {filename} does not exist either. Check "
                    "`local` and `split`."
                )
        else:
            try:
                if make_once(filename, partial(_is_renewed, filename), self._fetch_index):
                    _renewed[filename] = os.stat(filename).st_mtime_ns
            except (OSError, ValueError):
                if not _is_index(filename):
                    raise  # With one, work on without the network, or in a folder that is full.
        with open(filename, "rb") as file:
            return parse_index(file.read(), filename)

    def _fetch_index(self, out: BinaryIO) -> None:
        fetched = self._fetch(get_index_basename())
        parse_index(fetched, f"{self.remote}/{self.split}/{get_index_basename()}")
        out.write(fetched)

    def _fetch(self, basename: str) -> bytes:
        """Content of a remote file."""
        store = self._store
        assert store is not None

        name = os.path.join(self.split or "", basename)

        def download() -> bytes:
            out = BytesIO()
            store.fetch(name, out, self.download_timeout or DEFAULT_TIMEOUT)
            return out.getvalue()

        try:
            return call_store(download, 1 + (self.download_retry or 0))
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{store.url} has no file {name}.") from error

    def prepare_shard(self, shard: Reader) -> int:
        """Makes a shard's files ready for reading; returns how many bytes the folder grew by.

        A file that is missing, cut short or (with ``validate_hash``) of a wrong checksum is
        unpacked or fetched again. Of all processes of a node, one does it.

        Raises:
            RuntimeError: if a file is missing and there is nowhere to get it from.
            ValueError: if a file is broken and there is nowhere to get a good one from.
        """
        return sum(self._prepare_file(shard, pair) for pair in shard.file_pairs)

    def _prepare_file(self, shard: Reader, pair: FilePair) -> int:
        path = shard.raw_path(pair)
        known = path in self._verified or not self.validate_hash
        is_good = partial(self._is_good, path, pair.raw, not known)
        made = [0]

        def make(out: BinaryIO) -> None:
            data = self._raw_content(shard, pair, made)
            _write(out, data)
            made[0] += len(data)

        if not is_good():
            if pair.zip is None and not self.has_source:
                self._raw_content(shard, pair, made)  # Says what is wrong with the only copy.
            elif not make_once(path, is_good, make):
                made[0] = 0
        self._verified.add(path)
        return made[0]

    def _raw_content(self, shard: Reader, pair: FilePair, made: list[int]) -> bytes:
        """Content of a file as it is read, from its source."""
        if pair.zip is None:
            return self._checked(self._get(shard, pair.raw), pair.raw, shard.raw_path(pair))
        path = os.path.join(shard.folder, pair.zip.basename)
        if self._is_good(path, pair.zip, bool(self.validate_hash)):
            with open(path, "rb") as file:
                packed = file.read()
        else:
            packed = self._checked(self._get(shard, pair.zip), pair.zip, path)
            if self.keep_zip:
                make_once(path, lambda: False, lambda out: _write(out, packed))
                made[0] += len(packed)
        return self._checked(_unpack(shard, packed, path), pair.raw, path)

    def raw_contents(self, shard: Reader) -> list[bytes]:
        """Contents of a shard's files, for folders in which nothing can be written."""
        return [self._raw_content(shard, pair, [0]) for pair in shard.file_pairs]

    def _get(self, shard: Reader, info: FileInfo) -> bytes:
        """Content of a file from the remote; says what is missing if there is none."""
        if self.has_source:
            try:
                return self._fetch(info.basename)
            except FileNotFoundError as error:
                raise RuntimeError(
                    f"{error} Its index names it, so the copy is not whole."
                ) from error
        path = os.path.join(shard.folder, info.basename)
        if not os.path.exists(path):
            raise RuntimeError(
                f"No `remote` provided, but local file {path} does not exist: the index names it. "
                "Restore it, or write the dataset again."
            )
        with open(path, "rb") as file:
            return file.read()  # Too short, or of a wrong checksum, which is what the caller says.

    def _is_good(self, path: str, info: FileInfo, verify: bool) -> bool:
        """Whether a file is there with the right size and, if asked, the right checksum."""
        try:
            if os.stat(path).st_size != info.bytes:
                return False
        except FileNotFoundError:
            return False
        if not (verify and self.validate_hash):
            return True
        with open(path, "rb") as file:
            return get_hash(self.validate_hash, file.read()) == info.hashes[self.validate_hash]

    def _checked(self, data: bytes, info: FileInfo, path: str) -> bytes:
        """The data, if it is what the index says."""
        if len(data) != info.bytes:
            raise ValueError(
                f"Shard file {path} has {len(data)} bytes, but the index says {info.bytes}: it is "
                "cut short or of another dataset. Restore it, or write the dataset again."
            )
        if self.validate_hash:
            digest = get_hash(self.validate_hash, data)
            if digest != info.hashes[self.validate_hash]:
                raise ValueError(
                    f"Checksum failure: {path}: {self.validate_hash} is {digest}, but the index "
                    f"says {info.hashes[self.validate_hash]}."
                )
        return data

    def can_evict(self, shard: Reader) -> bool:
        """Whether the shard's files can be had again after they are removed."""
        zips = [pair.zip for pair in shard.file_pairs]
        return self.has_source or all(
            info and os.path.exists(os.path.join(shard.folder, info.basename)) for info in zips
        )

    def evict_shard(self, shard: Reader) -> int:
        """Removes a shard's files as far as they can be had again; returns how many bytes."""
        shard.close()
        removed = 0
        if self.can_evict(shard):
            for pair in shard.file_pairs:
                removed += remove_file(shard.raw_path(pair))
                self._verified.discard(shard.raw_path(pair))
                if pair.zip and self.has_source:
                    removed += remove_file(os.path.join(shard.folder, pair.zip.basename))
        return removed


def _write(out: BinaryIO, data: bytes) -> None:
    out.write(data)


_began = time.time()
_renewed: dict[str, int] = {}
"""When this process has fetched an index, by the file's own time."""


def _is_renewed(filename: str) -> bool:
    """Whether another process, as of the same node's ranks, has just fetched the index."""
    try:
        written = os.stat(filename).st_mtime_ns
    except FileNotFoundError:
        return False
    now = time.time()
    is_new = max(_began, now - _INDEX_IS_NEW_SECONDS) < written / 1e9 <= now
    return is_new and _renewed.get(filename) != written and _is_index(filename)


def _is_index(filename: str) -> bool:
    try:
        with open(filename, "rb") as file:
            parse_index(file.read(), filename)
    except (OSError, ValueError):
        return False
    return True


def _unpack(shard: Reader, packed: bytes, path: str) -> bytes:
    try:
        return decompress(shard.compression, packed)
    except Exception as error:  # Each codec has errors of its own.
        raise ValueError(
            f"Shard file {path} does not unpack as {shard.compression} ({error}). Delete it to "
            "have it fetched again, or write the dataset again."
        ) from error


def present_bytes(shard: Reader) -> int:
    """Bytes that a shard's files take on disk here."""
    total = 0
    for pair in shard.file_pairs:
        for info in (pair.raw, pair.zip):
            if info is not None:
                path = os.path.join(shard.folder, info.basename)
                total += os.stat(path).st_size if os.path.exists(path) else 0
    return total


streams_registry = create_registry(
    "streaming",
    "streams_registry",
    generic_type=type[Stream],
    entry_points=True,
    description="Classes of streams, by the name that `stream_name` gives.",
)
streams_registry.register("stream", func=Stream)
