"""A stream: where a part of the data lies, where it is kept here, and how much of it is taken."""

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, partial
from io import BytesIO
from typing import Any, BinaryIO

from streaming.base.compression import decompress
from streaming.base.constant import DEFAULT_TIMEOUT
from streaming.base.files import disk_full_named, make_once, remove_file
from streaming.base.format.plain import (
    ROW_OPTIONS,
    check_shards,
    choose_files,
    files_in,
    index_text,
    matching,
    plain_records,
    split_pattern,
)
from streaming.base.format.reader import FileInfo, FilePair, Reader
from streaming.base.format.shards import reader_from_json
from streaming.base.hashing import get_hash, is_hash
from streaming.base.index import get_index_basename, parse_index
from streaming.base.kept_index import KeptIndex
from streaming.base.registry_utils import create_registry
from streaming.base.store import Store, open_store
from streaming.base.util import call_store
from streaming.base.weights import apply_weights, check_weights, validate_weights
from streaming.base.world import World

_DEFAULTS = {
    **dict.fromkeys(ROW_OPTIONS),
    "split": None,
    "download_retry": 2,
    "download_timeout": DEFAULT_TIMEOUT,
    "validate_hash": None,
    "keep_zip": False,
}

_make_room: ContextVar[Callable[[], None] | None] = ContextVar("make_room", default=None)


@contextmanager
def making_room(make_room: Callable[[], None] | None) -> Iterator[None]:
    """Has each file that is fetched in here call this first, when it stands empty in full size.

    It is no argument of `Stream.prepare_shard`, which streams of others replace as it is.
    """
    token = _make_room.set(make_room)
    try:
        yield
    finally:
        _make_room.reset(token)


@lru_cache
def _is_one_folder(one: str, other: str) -> bool:
    """Whether two paths lead to one folder; asked for each shard, and seldom on a fast disk."""
    return os.path.realpath(one) == os.path.realpath(other)


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
        max_seq_len: Tokens of a sample, for flat token files.
        token_encoding_type: Number type of flat token files that do not say it themselves.
        columns: For Parquet, JSONL and rows in memory, the columns to take: a list, or a mapping
            from names in the sample to names in the file.
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
        max_seq_len: int | None = None,
        token_encoding_type: str | None = None,
        columns: Any = None,
    ) -> None:
        self.remote = remote
        self.asked = check_weights(proportion, repeat, choose)
        self._kept: KeptIndex | None = None
        self.proportion, self.repeat, self.choose = proportion, repeat, choose
        folder, self._pattern = split_pattern(remote or local or "")
        self._local = local if remote else (local and folder)
        self.local = self._local or ""
        self.split = split
        self.download_retry = download_retry
        self.download_timeout = download_timeout
        self.validate_hash = validate_hash
        self.keep_zip = keep_zip
        self.max_seq_len = max_seq_len
        self.token_encoding_type = token_encoding_type
        self.columns = columns
        self._own_options = [name for name in ROW_OPTIONS if getattr(self, name) is not None]
        self._verified: set[str] = set()
        self._check_options()
        self._store: Store | None = open_store(folder) if remote else None

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
        if self.split and self._pattern:
            raise ValueError(
                f"{self.remote or self.local!r} names files and `split` ({self.split!r}) a folder: "
                "leave the split out."
            )
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
        if source is None:
            return True
        return not _is_one_folder(os.path.join(source, self.split or ""), self.folder)

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
        """Bytes of the index file; 0 if there is none, and the files themselves are the index."""
        filename = os.path.join(self.folder, get_index_basename())
        return os.stat(filename).st_size if os.path.exists(filename) else 0

    def get_shards(
        self, world: World | None = None, allow_unsafe_types: bool = False
    ) -> list[Reader]:
        """Reads the index, fetching it if need be, and gives a reader for each shard.

        Raises:
            FileNotFoundError: if the remote has no index.
            RuntimeError: if there is no remote and no index, or there are no samples.
        """
        filename = os.path.join(self.folder, get_index_basename())
        shards, options = [], {name: getattr(self, name) for name in ROW_OPTIONS}
        for number, obj in enumerate(self._load_index(filename)):
            try:
                shard = reader_from_json(self.local, self.split, {**obj, "options": options})
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"{error} It is shard {number} of {filename}: write the dataset again."
                ) from error
            if self.validate_hash and self.validate_hash not in shard.hashes:
                raise ValueError(
                    f"Hash algorithm `{self.validate_hash}` does not match with those provided in "
                    f"{filename}: {shard.hashes}. Choose one of these, or leave it out."
                )
            shard.validate(allow_unsafe_types)
            shards.append(shard)
        check_shards(shards, self._own_options, filename, world is not None and world.rank == 0)
        return shards

    def _load_index(self, filename: str) -> list[dict[str, Any]]:
        """The index's records; a local copy that is missing, broken or outdated is fetched anew."""
        if not self.has_source:
            if not os.path.exists(filename):
                try:
                    return plain_records(self.folder, files_in(self.folder, self._pattern))
                except FileNotFoundError as error:
                    raise RuntimeError(
                        f"No `remote` provided, but local file {filename} does not exist either. "
                        f"Check `local` and `split`. {error}"
                    ) from None
        else:
            self._kept = KeptIndex(self.folder, self._source)
            self._kept.renew(partial(self._fetch_index, self._kept))
        with open(filename, "rb") as file:
            return matching(parse_index(file.read(), filename), self._pattern, filename)

    @property
    def _source(self) -> str:
        """Where the files come from, as the index that is kept here says it."""
        assert self._store is not None
        path = getattr(self._store, "path", None)
        place = self._store.url if path is None else os.path.abspath(path)
        return os.path.join(place, self.split) if self.split else place

    def _fetch_index(self, kept: KeptIndex) -> bytes:
        try:
            fetched = self._fetch(get_index_basename())
        except FileNotFoundError as error:
            return self._index_of_files(error, kept)
        kept.remove_foreign(fetched)
        return fetched

    def _index_of_files(self, missing: FileNotFoundError, kept: KeptIndex) -> bytes:
        """An index for remote files that have none, all of which are fetched for it once."""
        store, prefix = self._store, f"{self.split}/" if self.split else ""
        assert store is not None
        names = [name for name in store.list() if name.startswith(prefix)]
        names = [name for name in (name[len(prefix) :] for name in names) if "/" not in name]
        try:
            names = choose_files(names, self._pattern, store.url)
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{missing} {error}") from None
        if (text := kept.if_of(names)) is not None:
            return text
        for name in names:
            path = os.path.join(self.folder, name)
            make_once(path, partial(os.path.exists, path), partial(self._copy, name))
        return index_text(plain_records(self.folder, names))

    def _copy(self, name: str, out: BinaryIO) -> None:
        out.write(self._fetch(name))

    def _fetch(self, basename: str) -> bytes:
        """Content of a remote file."""
        store, timeout = self._store, self.download_timeout or DEFAULT_TIMEOUT
        assert store is not None

        def download(name: str) -> bytes:
            out = BytesIO()
            store.fetch(name, out, timeout)
            return out.getvalue()

        return self._from_source(basename, download)

    def _from_source(self, basename: str, get: Callable[[str], bytes]) -> bytes:
        name = os.path.join(self.split or "", basename)
        try:
            return call_store(partial(get, name), 1 + (self.download_retry or 0))
        except FileNotFoundError as error:
            where = self._store and self._store.url
            raise FileNotFoundError(f"{where} has no file {name}.") from error

    def can_read_one(self, shard: Reader) -> bool:
        """Whether a sample that is not here can be had alone, with nothing to unpack or verify."""
        if not (shard.reads_excerpts and self.has_source) or self.validate_hash:
            return False
        if any(pair.zip for pair in shard.file_pairs):
            return False
        return not all(self._is_good(shard.raw_path(p), p.raw, False) for p in shard.file_pairs)

    def read_one(self, shard: Reader, idx: int) -> dict[str, Any]:
        """A sample of a shard that is not here, without fetching the rest of it."""
        store, timeout = self._store, self.download_timeout or DEFAULT_TIMEOUT
        assert store is not None

        def fetch(basename: str, start: int, stop: int) -> bytes:
            def get(name: str) -> bytes:
                return store.fetch_range(name, start, stop, timeout)

            with self._named_by_index():
                return self._from_source(basename, get)

        return shard.excerpt(idx, fetch).read(0)

    @contextmanager
    def _named_by_index(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise RuntimeError(f"{error} Its index names it, so the copy is not whole.") from error

    def prepare_shard(self, shard: Reader) -> int:
        """Makes a shard's files ready for reading; returns how many bytes the folder grew by.

        A file that is missing, cut short or (with ``validate_hash``) of a wrong checksum is
        unpacked or fetched again. Of all processes of a node, one does it.

        Args:
            shard: The shard.

        Raises:
            RuntimeError: if a file is missing and there is nowhere to get it from.
            ValueError: if a file is broken and there is nowhere to get a good one from.
            OSError: if the disk is full.
        """
        return sum(self._prepare_file(shard, pair) for pair in shard.file_pairs)

    def _prepare_file(self, shard: Reader, pair: FilePair) -> int:
        path = shard.raw_path(pair)
        known = path in self._verified or not self.validate_hash
        is_good = partial(self._is_good, path, pair.raw, not known)
        grown = 0

        def fill(out: BinaryIO, get: Callable[[], bytes]) -> None:
            nonlocal grown
            if (make_room := _make_room.get()) is not None:
                make_room()
            data = get()
            out.write(data)
            grown += len(data)

        def keep(name: str, packed: bytes) -> None:
            if self.keep_zip:
                make_once(name, lambda: False, lambda out: fill(out, lambda: packed), len(packed))

        def make(out: BinaryIO) -> None:
            fill(out, lambda: self._raw_content(shard, pair, keep))

        if not is_good():
            if pair.zip is None and not self.has_source:
                self._raw_content(shard, pair)  # Says what is wrong with the only copy.
            with disk_full_named(path, pair.raw.bytes):
                make_once(path, is_good, make, pair.raw.bytes)
        self._verified.add(path)
        return grown

    def _raw_content(
        self, shard: Reader, pair: FilePair, keep: Callable[[str, bytes], None] | None = None
    ) -> bytes:
        """Content of a file as it is read, from its source; what is fetched packed, is to keep."""
        if pair.zip is None:
            return self._checked(shard, pair.raw, self._get(shard, pair.raw))
        path = os.path.join(shard.folder, pair.zip.basename)
        if self._is_good(path, pair.zip, bool(self.validate_hash)):
            with open(path, "rb") as file:
                packed = file.read()
        else:
            packed = self._checked(shard, pair.zip, self._get(shard, pair.zip))
            if keep is not None:
                keep(path, packed)
        return self._checked(shard, pair.raw, _unpack(shard, packed, path))

    def raw_contents(self, shard: Reader) -> list[bytes]:
        """Contents of a shard's files, for folders in which nothing can be written."""
        return [self._raw_content(shard, pair) for pair in shard.file_pairs]

    def _get(self, shard: Reader, info: FileInfo) -> bytes:
        """Content of a file from the remote; says what is missing if there is none."""
        if self.has_source:
            with self._named_by_index():
                return self._fetch(info.basename)
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

    def _checked(self, shard: Reader, info: FileInfo, data: bytes) -> bytes:
        """The data, if it is what the index says."""
        path = os.path.join(self._source if self.has_source else shard.folder, info.basename)
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
                    f"says {info.hashes[self.validate_hash]}. Restore the file at its source, or "
                    "write the dataset again."
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


def _unpack(shard: Reader, packed: bytes, path: str) -> bytes:
    try:
        return decompress(shard.compression, packed)
    except Exception as error:  # Each codec has errors of its own.
        raise ValueError(
            f"Shard file {path} does not unpack as {shard.compression} ({error}). Delete it to "
            "have it fetched again, or write the dataset again."
        ) from error


streams_registry = create_registry(
    "streaming",
    "streams_registry",
    generic_type=type[Stream],
    entry_points=True,
    description="Classes of streams, by the name that `stream_name` gives.",
)
streams_registry.register("stream", func=Stream)
