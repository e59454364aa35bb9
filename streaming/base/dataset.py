"""StreamingDataset: shards from anywhere, in an order that does not depend on who loads them."""

import copy
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import IterableDataset

from streaming.base.array import Array
from streaming.base.cache import ShardCache
from streaming.base.constant import DEFAULT_TIMEOUT
from streaming.base.format.reader import Reader
from streaming.base.mosaic import MosaicPlan
from streaming.base.order.epoch import BATCHING_METHODS
from streaming.base.plan import ON_MIXTURE_CHANGE, ExactPlan, Loading, OrderOptions, OrderPlan
from streaming.base.prefetch import Prefetcher
from streaming.base.progress import Progress, Start
from streaming.base.registry_utils import construct_from_registry
from streaming.base.spanner import Spanner
from streaming.base.stream import Stream, streams_registry
from streaming.base.util import bytes_to_int, number_abbrev_to_int
from streaming.base.weights import apply_weights
from streaming.base.world import World

NEVER = np.iinfo(np.uint64).max

_SAMPLING_METHODS = ("balanced", "fixed")
_PLANS: dict[str, Any] = {"exact": ExactPlan, "mosaic": MosaicPlan}


class StreamingDataset(Array, IterableDataset[Any]):
    """Samples of one or more streams, shuffled, sharded over ranks and workers, and resumable.

    The order of an epoch is a function of seed, epoch number and mixture. Ranks and workers take
    slices of it: each global batch is the same under any number of them, if its size is the same,
    and a run that was stopped goes on exactly, also under other numbers of ranks and workers and
    with other batch sizes.

    Subclasses may override ``__getitem__`` or ``get_item`` to change what a sample is.

    Args:
        streams: The streams; give either them or ``remote`` and/or ``local``.
        remote: Folder of the only stream: a path or a ``file://`` address.
        local: Folder where it is, or is kept, for reading.
        split: Folder below both, for streams that do not say.
        download_retry: How often a failed download is tried again.
        download_timeout: Seconds for one download.
        validate_hash: Name of the checksum to verify.
        keep_zip: Whether compressed files stay beside their unpacked form.
        epoch_size: Samples of an epoch, as a number or a text such as ``1.5m``.
        predownload: How many samples ahead a worker fetches shards; default 8 batches, and at
            least two shards.
        cache_limit: Bytes (or text such as ``100gb``) that fetched shards may take on this node.
        sampling_method: ``balanced`` takes other samples each epoch where it takes not all of a
            stream, ``fixed`` the same.
        sampling_granularity: Neighbours that are taken together then.
        partition_algo: For ``order="mosaic"``.
        num_canonical_nodes: For ``order="mosaic"``.
        batch_size: Samples of a device batch; a ``StreamingDataLoader`` fills it in.
        shuffle: Whether to shuffle.
        shuffle_algo: For ``order="mosaic"``.
        shuffle_seed: Seed of the order.
        shuffle_block_size: Samples that are mixed with each other; bounds the shards in use.
        batching_method: ``random`` mixes the streams at random; ``stratified`` weaves them evenly
            (of n streams, each whole global batch holds each in its share p, to within
            1 + p (n - 2) samples, and at least once); ``per_stream`` and ``device_per_stream`` take
            each global or device batch from one stream.
        allow_unsafe_types: Whether columns may run code that their author put there (``pkl``).
        replication: How many consecutive ranks get the same samples.
        stream_name: Registered name of the class of the only stream.
        stream_config: Further arguments of it.
        order: ``exact``, or ``mosaic`` for the orders of mosaicml-streaming.
        on_mixture_change: What happens when a loaded state is of another mixture (streams, weights,
            sizes, shuffling, batching): ``error``, or ``record``, which goes on at the same sample
            of the new mixture, and keeps in log and states that it did.
        max_seq_len: For streams that do not say, as the next two: tokens of a sample, of flat token
            files.
        token_encoding_type: Number type of flat token files that do not say it themselves.
        columns: Columns to take of Parquet, JSONL and other rows, as of :class:`Stream`.
    """

    packed_as: str | None = None
    """What a subclass packs samples into, as a text that changes with any row; None without."""
    own_options: tuple[str, ...] = ()
    """Which of max_seq_len, token_encoding_type and columns mean something to a subclass itself."""

    def __init__(
        self,
        *,
        streams: Sequence[Stream] | None = None,
        remote: str | None = None,
        local: str | None = None,
        split: str | None = None,
        download_retry: int = 2,
        download_timeout: float = DEFAULT_TIMEOUT,
        validate_hash: str | None = None,
        keep_zip: bool = False,
        epoch_size: int | str | None = None,
        predownload: int | None = None,
        cache_limit: int | str | None = None,
        sampling_method: str = "balanced",
        sampling_granularity: int = 1,
        partition_algo: str = "relaxed",
        num_canonical_nodes: int | None = None,
        batch_size: int | None = None,
        shuffle: bool = False,
        shuffle_algo: str = "py1e",
        shuffle_seed: int = 9176,
        shuffle_block_size: int | None = None,
        batching_method: str = "random",
        allow_unsafe_types: bool = False,
        replication: int | None = None,
        stream_name: str = "stream",
        stream_config: dict[str, Any] | None = None,
        order: str = "exact",
        on_mixture_change: str = "error",
        max_seq_len: int | None = None,
        token_encoding_type: str | None = None,
        columns: Any = None,
    ) -> None:
        self.download_retry, self.download_timeout = download_retry, download_timeout
        self.predownload = predownload
        self.cache_limit = cache_limit if cache_limit is None else bytes_to_int(cache_limit)
        self.sampling_method, self.sampling_granularity = sampling_method, sampling_granularity
        self.partition_algo, self.num_canonical_nodes = partition_algo, num_canonical_nodes
        self.batch_size, self.shuffle, self.shuffle_algo = batch_size, shuffle, shuffle_algo
        self.shuffle_seed, self.shuffle_block_size = shuffle_seed, shuffle_block_size
        self.batching_method, self.allow_unsafe_types = batching_method, allow_unsafe_types
        self.replication, self.order = replication, order
        self.on_mixture_change = on_mixture_change
        self._check_arguments()
        self._world = World.detect()
        self._replicated = self._world.replicate(1 if replication is None else replication)
        self.drop_partial = False

        defaults = {
            "remote": remote,
            "local": local,
            "split": split,
            "download_retry": download_retry,
            "download_timeout": download_timeout,
            "validate_hash": validate_hash,
            "keep_zip": keep_zip,
        }
        options: dict[str, Any] = {
            "max_seq_len": max_seq_len,
            "token_encoding_type": token_encoding_type,
            "columns": columns,
        }
        self.streams = _open_streams(streams, stream_name, stream_config, defaults, options)
        self.num_streams = len(self.streams)
        self._set_shards()
        self._check_used(options)
        size = number_abbrev_to_int(epoch_size) if epoch_size else None
        samples = self.samples_per_stream.tolist()
        self.epoch_size = apply_weights(self.streams, samples, size, shuffle_seed)
        self._plan = self._build_plan()
        if batch_size is not None:
            self._plan.num_places(self._loading())  # Says now if streams are too small for it.
        self._progress = Progress(shuffle_seed)

    def _check_arguments(self) -> None:
        if self.sampling_method not in _SAMPLING_METHODS:
            raise ValueError(
                f"Invalid sampling method: {self.sampling_method}. Must be one of "
                f"{', '.join(_SAMPLING_METHODS)}."
            )
        if self.batching_method not in BATCHING_METHODS:
            raise ValueError(
                f"Invalid batching method: {self.batching_method}. Must be one of "
                f"{', '.join(BATCHING_METHODS)}."
            )
        if self.order not in _PLANS:
            raise ValueError(f"Invalid order: {self.order}. Must be one of {', '.join(_PLANS)}.")
        if self.on_mixture_change not in ON_MIXTURE_CHANGE:
            raise ValueError(
                f"Invalid on_mixture_change: {self.on_mixture_change}. Must be one of "
                f"{', '.join(ON_MIXTURE_CHANGE)}."
            )
        bounds = {"sampling_granularity": 1, "shuffle_seed": 0, "batch_size": 1}
        bounds |= {"predownload": 0, "shuffle_block_size": 1}
        for name, least in bounds.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"`{name}` must be at least {least}, but got {value}.")
        predownload, batch_size = self.predownload, self.batch_size
        if predownload is not None and batch_size is not None and predownload < batch_size:
            warnings.warn(
                f"predownload < batch_size ({predownload} < {batch_size}): a batch then waits for "
                "its own shards. Leave it out for 8 batches.",
                stacklevel=3,
            )

    def _check_used(self, options: dict[str, Any]) -> None:
        """Refuses a setting of rows that no stream heeds."""
        for name in options.keys() - self.own_options:
            if options[name] is not None and not any(name in one.options for one in self.shards):
                raise ValueError(
                    f"`{name}` has no effect: all streams have samples of their own kind. Leave it "
                    "out."
                )

    def _set_shards(self) -> None:
        """Reads the indexes of all streams and numbers their shards and samples."""
        self.shards: list[Reader] = []
        shards_per_stream = []
        for stream in self.streams:
            shards = stream.get_shards(self._world, self.allow_unsafe_types)
            shards_per_stream.append(len(shards))
            self.shards += shards
        self.num_shards = len(self.shards)
        self.shards_per_stream = np.array(shards_per_stream, np.int64)
        self.stream_per_shard = np.repeat(np.arange(self.num_streams), self.shards_per_stream)
        self.shard_offset_per_stream = self.shards_per_stream.cumsum() - self.shards_per_stream
        self._cache = ShardCache(
            self.shards, self.streams, self.stream_per_shard.tolist(), self.cache_limit
        )
        self._number_samples(np.array([len(shard) for shard in self.shards], np.int64))

    def _number_samples(self, samples_per_shard: NDArray[np.int64]) -> None:
        """Numbers what an epoch is made of, shard by shard."""
        self.samples_per_shard = samples_per_shard
        by_stream = np.split(samples_per_shard, self.shard_offset_per_stream[1:])
        self.samples_per_stream = np.array([sizes.sum() for sizes in by_stream], np.int64)
        self.sample_offset_per_stream = self.samples_per_stream.cumsum() - self.samples_per_stream
        self.sample_offset_per_shard = self.samples_per_shard.cumsum() - self.samples_per_shard
        self.spanner = Spanner(self.samples_per_shard)
        self.num_samples = self.spanner.num_samples

    def _build_plan(self) -> OrderPlan:
        options = OrderOptions(
            shuffle=self.shuffle,
            shuffle_algo=self.shuffle_algo,
            shuffle_block_size=self.shuffle_block_size,
            sampling_method=self.sampling_method,
            sampling_granularity=self.sampling_granularity,
            partition_algo=self.partition_algo,
            num_canonical_nodes=self.num_canonical_nodes,
            batching_method=self.batching_method,
            on_mixture_change=self.on_mixture_change,
            packing=self.packed_as,
        )
        sizes = np.split(self.samples_per_shard, self.shard_offset_per_stream[1:])
        return _PLANS[self.order](options, sizes, [stream.choose or 0 for stream in self.streams])

    def _loading(self) -> Loading:
        """Who loads, as seen from the process that asks."""
        if self.batch_size is None:
            raise ValueError(
                "Please pass `batch_size` to StreamingDataset (the size of a device batch, as of "
                "the DataLoader): the order needs it to give each rank whole batches."
            )
        return Loading(self._replicated.detect_workers(), self.batch_size, self.drop_partial)

    def _loading_if_known(self) -> Loading | None:
        return None if self.batch_size is None else self._loading()

    @property
    def size(self) -> int:
        """Number of distinct samples."""
        return self.num_samples

    @property
    def length(self) -> int:
        """Samples that each rank gets in an epoch, rounded up."""
        total = self.epoch_size
        if self.batch_size is not None:
            total = self._plan.num_places(self._loading())
        return -(-total // self._replicated.num_ranks)

    def __len__(self) -> int:
        return self.length

    @property
    def own_samples(self) -> int | None:
        """How many samples of an epoch this rank takes before those that repeat others.

        These come last, where the rest of an epoch does not go round, and must not count twice in a
        score. It is None if there are none.
        """
        return self._plan.own_samples(self._progress.current(), self._loading())

    @property
    def samples_left(self) -> int | None:
        """How many samples this rank takes of the epoch, from where that was begun or resumed.

        It is None if an epoch cannot be resumed exactly with batches of another size.
        """
        return self._plan.samples_left(self._progress.current(), self._loading())

    @property
    def next_epoch(self) -> int:
        """Number of the epoch that begins next."""
        return self._progress.next_epoch

    @next_epoch.setter
    def next_epoch(self, next_epoch: int) -> None:
        start = self._progress.current()
        self._progress.load(start._replace(epoch=next_epoch, sample=0))

    @property
    def cache_usage(self) -> int:
        """Bytes on disk of all shards and indexes."""
        return self._cache.usage()

    def get_item(self, sample_id: int, retry: int = 7) -> Any:
        """The sample of this number; its shard is fetched if it is not there.

        Args:
            sample_id: Number among the distinct samples of all streams.
            retry: How often to try again when another process removes the shard in between.
        """
        return self._read(*self.spanner[sample_id], retry)

    def _read(self, number: int, offset: int, retry: int = 7) -> Any:
        """The sample at a place in a shard."""
        for _ in range(retry):
            try:
                return self._cache.read(number, offset)
            except FileNotFoundError:
                continue
        try:
            return self._cache.read(number, offset)
        except FileNotFoundError as error:
            raise RuntimeError(
                f"Shard {number} was removed as often as it was made ready, {retry + 1} times: "
                f"{error}. The cache limit ({self.cache_limit}) is too low for what is in use at a "
                "time, or another program deletes files here."
            ) from error

    def __getitems__(self, sample_ids: Sequence[int]) -> list[Any]:
        """The samples of a batch."""
        return [self[sample_id] for sample_id in sample_ids]

    def __iter__(self) -> Iterator[Any]:
        """Begins the next epoch, and gives this worker's samples of it."""
        loading = self._loading()
        return self._iterate(self._progress.begin(), loading)

    def _iterate(self, start: Start, loading: Loading) -> Iterator[Any]:
        chunks = self._plan.sample_ids(start, loading)
        if any(stream.has_source for stream in self.streams):
            prefetcher = Prefetcher(
                self._cache,
                self.shards_behind,
                self.spanner.shard_bounds[1:],
                self.predownload,
                loading.batch_size,
            )
            for sample_id in prefetcher(chunks):
                yield self[sample_id]
            return
        for chunk in chunks:
            for sample_id in chunk.tolist():
                yield self[sample_id]

    def state_after(self, num_samples: int) -> dict[str, Any]:
        """What must be kept to go on after this rank has taken so many samples since it began.

        Unlike ``state_dict`` it counts this rank's samples, and gives the same on every rank.
        """
        start, loading = self._progress.current(), self._loading()
        place = self._plan.place_after(start, loading, num_samples)
        return self._plan.state(start, place, loading)

    def state_dict(self, num_samples: int, from_beginning: bool) -> dict[str, Any]:
        """What must be kept to go on after ``num_samples`` samples, counted over all ranks.

        Args:
            num_samples: Samples taken by all ranks together.
            from_beginning: Whether they are counted from the beginning of the epoch, rather than
                from where it was resumed.
        """
        start = self._progress.current()
        sample = int(num_samples) + (0 if from_beginning else start.sample)
        return self._plan.state(start, sample, self._loading_if_known())

    def load_state_dict(self, obj: dict[str, Any]) -> None:
        """Makes the next iteration go on where a state says.

        A state from before the first iteration (with a negative epoch) changes nothing. The state's
        seed counts, not the dataset's.

        Raises:
            ValueError: if it is of another mixture, unless ``on_mixture_change="record"``.
        """
        if obj["epoch"] < 0:
            return
        start = self._plan.start_from(obj, self.shuffle_seed, self._loading_if_known())
        self.shuffle_seed = start.seed
        self._progress.load(start)

    def prepare_shard(self, shard_id: int, blocking: bool = True) -> None:
        """Makes a shard's files ready; ``blocking`` is kept for old callers and always so."""
        for number in self.shards_behind(shard_id):
            self._cache.prepare(number)

    def shards_behind(self, shard_id: int) -> Sequence[int]:
        """Which shards must be there to read a shard of the order: itself, but for packed rows."""
        return (shard_id,)

    def evict_shard(self, shard_id: int) -> None:
        """Removes a shard's files as far as they can be had again."""
        self._cache.evict(shard_id)

    def evict_coldest_shard(self) -> None:
        """Removes the files of the shard that was opened longest ago."""
        self._cache.evict_coldest()


def _open_streams(
    streams: Sequence[Stream] | None,
    stream_name: str,
    stream_config: dict[str, Any] | None,
    defaults: dict[str, Any],
    options: dict[str, Any],
) -> list[Stream]:
    """The streams, with what they leave open filled in."""
    has_paths = bool(defaults["remote"] or defaults["local"])
    if bool(streams) == has_paths:
        raise ValueError("You must provide either `streams` or `remote`/`local`, but not both.")
    if streams:
        opened = [copy.copy(stream) for stream in streams]  # A caller's own stay as they are.
        for stream in opened:
            stream.apply_default({**defaults, **options})
    else:
        config = {**(stream_config or {}), **defaults}
        opened = [construct_from_registry(stream_name, streams_registry, config)]
        opened[0].apply_default({**defaults, **options})
    seen: dict[str, Stream] = {}
    for stream in opened:
        folder = stream.folder
        if folder in seen and (stream.has_source or seen[folder].has_source):
            raise ValueError(
                f"Reused local directory: {folder} of {stream.remote} vs. of "
                f"{seen[folder].remote}. Provide a different one."
            )
        seen[folder] = stream
    return opened
