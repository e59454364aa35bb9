"""The state of a training run: one record that everybody reads, with one writer a row.

=======================================================  ==========================================
attributes                                               written by
=======================================================  ==========================================
model, optimizers, schedulers, scaler                    the trainer's assembly; algorithms at INIT
batch, outputs, loss                                     the train step, the eval loop; algorithms
batch_loss, step_is_skipped                              the train step; skip_step
timestamp, previous_timestamp, eval_timestamp,           the loops, through advance_* and
predict_timestamp, max_duration                          stop_training
dataloader, dataloader_label, dataloader_len, evaluators the loops, through set_dataloader
epoch_length                                             the trainer's feed of batches
train_metrics, eval_metrics, *_metric_values,            the trainer's metrics
total_loss_dict, metric_outputs
device, precision*, parallelism configs, device_mesh,    the trainer's assembly
auto_microbatching
device_train_microbatch_size                             the trainer's micro-batch sizer
algorithms, callbacks, profiler, run_name, seeds         the trainer's assembly
dataset_state, dataset_resumption, loaded_batch_size,    the trainer's resumption
surplus_batches, load_path, autoresume
=======================================================  ==========================================

State touches no file. What it gives to a checkpoint is described at
`CheckpointedState.state_dict`, beside this file.
"""

from __future__ import annotations

import datetime
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from composer.core.checkpointed_state import CheckpointedState
from composer.core.duration import Time, ensure_time
from composer.core.precision import Precision
from composer.core.protocols import AlgorithmLike, CallbackLike, EvaluatorLike, ProfilerLike
from composer.core.sharded_state import (
    fsdp_state_dict_type_context,
    get_fsdp_full_optim_state_dict,
    get_fsdp_sharded_optim_state_dict,
)
from composer.core.time_unit import TimeUnit
from composer.core.timestamp import Timestamp
from composer.core.watched_list import WatchedList
from composer.devices.device import Device
from composer.utils import dist
from composer.utils.batch_helpers import batch_get, batch_set
from composer.utils.iter_helpers import ensure_tuple
from composer.utils.parallelism import (
    ParallelismConfig,
    parse_parallelism_config,
    settle_parallelism,
)

__all__ = [
    "State",
    "fsdp_state_dict_type_context",
    "get_fsdp_full_optim_state_dict",
    "get_fsdp_sharded_optim_state_dict",
]

_SERIALIZED = (
    "model",
    "optimizers",
    "schedulers",
    "algorithms",
    "callbacks",
    "scaler",
    "timestamp",
    "rank_zero_seed",
    "train_metrics",
    "eval_metrics",
    "run_name",
    "dataset_state",
)


class State(CheckpointedState):
    """Holds everything that training reads and changes.

    Args:
        model: The model.
        rank_zero_seed: The seed of rank 0; rank r has this plus r.
        run_name: The run's name.
        device: Where it trains.
        max_duration: When it ends; a plain number counts epochs.
        device_train_microbatch_size: Samples in a micro-batch.
        auto_microbatching: Whether that number is found by trying.
        train_dataloader: The dataloader to train on.
        evaluators: What to evaluate on, and when.
        dataloader: The dataloader in use.
        dataloader_label: Its name.
        dataloader_len: How many of its batches to use; -1 for all.
        dataset_state: Position in the datasets, from a checkpoint.
        dataset_resumption: Which datasets have taken their position back.
        precision: In what precision it computes.
        precision_config: Settings of FP8.
        optimizers: The optimizer.
        scaler: The gradient scaler.
        save_metrics: Whether checkpoints keep the metrics.
        algorithms: What changes training.
        callbacks: What watches training; loggers too.
        parallelism_config: How the model is sharded.
    """

    _epoch_length: int | None = None

    def __init__(
        self,
        model: torch.nn.Module,
        rank_zero_seed: int,
        run_name: str,
        device: Device,
        max_duration: str | Time[int] | int | None = None,
        device_train_microbatch_size: int | float | None = None,
        auto_microbatching: bool = False,
        train_dataloader: Iterable[Any] | None = None,
        evaluators: EvaluatorLike | Sequence[EvaluatorLike] | None = None,
        dataloader: Iterable[Any] | None = None,
        dataloader_label: str | None = None,
        dataloader_len: int | Time[int] = -1,
        dataset_state: dict[str, Any] | None = None,
        dataset_resumption: dict[str, Any] | None = None,
        precision: str | Precision = Precision.FP32,
        precision_config: dict[str, Any] | None = None,
        optimizers: Optimizer | Sequence[Optimizer] | None = None,
        scaler: Any = None,
        save_metrics: bool = False,
        algorithms: AlgorithmLike | Sequence[AlgorithmLike] | None = None,
        callbacks: CallbackLike | Sequence[CallbackLike] | None = None,
        parallelism_config: ParallelismConfig | Mapping[str, Any] | None = None,
    ) -> None:
        self.rank_zero_seed = rank_zero_seed
        self.model = model
        self.run_name = run_name
        self.device = device
        self.device_train_microbatch_size = device_train_microbatch_size
        self.auto_microbatching = auto_microbatching
        self.save_metrics = save_metrics
        self.scaler = scaler
        self.load_path: str | None = None
        self.profiler: ProfilerLike | None = None
        self._precision = Precision(precision)
        self._precision_config = precision_config
        self._max_duration: Time[Any] | None = None
        self.max_duration = max_duration

        self.timestamp = Timestamp()
        self.previous_timestamp: Timestamp | None = None
        self.eval_timestamp = Timestamp()
        self.predict_timestamp = Timestamp()
        self._length_of_iteration: Time[int] | None = None

        self._optimizers = list(ensure_tuple(optimizers))
        self._schedulers: list[Any] = []
        self._algorithms: list[Any] = list(ensure_tuple(algorithms))
        self._callbacks: WatchedList[Any] = WatchedList(ensure_tuple(callbacks))
        self._evaluators: list[Any] = list(ensure_tuple(evaluators))

        self.batch: Any = None
        self.loss: Any = torch.Tensor()
        self.outputs: Any = torch.Tensor()
        self.batch_loss: torch.Tensor | None = None
        """The loss of the whole batch, at AFTER_TRAIN_BATCH; its mean over ranks is logged."""
        self.step_is_skipped = False
        self.train_metrics: dict[str, Any] = {}
        self.eval_metrics: dict[str, dict[str, Any]] = {}
        self.train_metric_values: dict[str, Any] = {}
        self.eval_metric_values: dict[str, Any] = {}
        self.total_loss_dict: dict[str, float] = {}
        self.metric_outputs: dict[str, Any] = {}

        parallelism = settle_parallelism(parse_parallelism_config(parallelism_config), save_metrics)
        self._fsdp_config = parallelism and parallelism.fsdp
        self._fsdp2_config = parallelism and parallelism.fsdp2
        self.tp_config = parallelism and parallelism.tp
        self.cp_config = parallelism and parallelism.cp
        self.device_mesh: Any = None
        """The ranks with their named axes, once the model is spread over them."""
        self.fsdp_modules: dict[str, torch.nn.Module] = {}
        self.automicrobatch_fsdp_hook_handles: list[Any] = []

        self.dataset_state = dataset_state
        self.dataset_resumption = dataset_resumption or {}
        self._dataloader: Iterable[Any] | None = None
        self._dataloader_label: str | None = None
        self._dataloader_len: Time[int] | None = None
        self.set_dataloader(dataloader, dataloader_label, dataloader_len)
        self._train_dataloader: Iterable[Any] | None = None
        self.train_dataloader = train_dataloader

        self.serialized_attributes = list(_SERIALIZED)

    # Time

    @property
    def seed(self) -> int:
        """This rank's seed."""
        return self.rank_zero_seed + dist.get_global_rank()

    @property
    def max_duration(self) -> Time[Any] | None:
        """When training ends; set it with a Time, a time string, or a number of epochs.

        Raises:
            ValueError: If the unit is ``dur``: a duration cannot be a fraction of itself.
        """
        return self._max_duration

    @max_duration.setter
    def max_duration(self, max_duration: str | Time[Any] | int | None) -> None:
        if max_duration is None:
            self._max_duration = None
            return
        parsed = ensure_time(max_duration, TimeUnit.EPOCH)
        if parsed.unit is TimeUnit.DURATION:
            raise ValueError(
                f"max_duration {parsed} cannot be a fraction of itself; use ep, ba, sp or tok"
            )
        self._max_duration = parsed

    @property
    def _iteration_length(self) -> Time[int] | None:
        """How long an iteration is, in epochs or tokens; None for one endless iteration."""
        return self._length_of_iteration

    @_iteration_length.setter
    def _iteration_length(self, length: str | Time[int] | int | None) -> None:
        if length is None:
            self._length_of_iteration = None
            return
        parsed = ensure_time(length, TimeUnit.EPOCH)
        if parsed.unit not in (TimeUnit.EPOCH, TimeUnit.TOKEN):
            raise NotImplementedError(
                f"The length of an iteration is in epochs or tokens, not {parsed}"
            )
        self._length_of_iteration = parsed

    def get_elapsed_duration(self) -> Time[float] | None:
        """Returns how much of the duration is over, 0.0 to 1.0; None if there is no duration."""
        if self.max_duration is None:
            return None
        if self.max_duration == 0:  # stopped before the first batch
            return Time.from_duration(1.0)
        return self.timestamp.get(self.max_duration.unit) / self.max_duration

    def stop_training(self) -> None:
        """Ends training at the end of this batch, by making now the duration."""
        duration = self.max_duration
        if duration is None or duration.unit is TimeUnit.EPOCH:
            self.max_duration = self.timestamp.batch
        else:
            self.max_duration = self.timestamp.get(duration.unit)

    def skip_step(self) -> None:
        """Leaves out the optimizer's step of this batch, and the schedulers'; the batch counts.

        All ranks call it at AFTER_TRAIN_BATCH: weights, moments and schedules stay as they were.
        """
        self.step_is_skipped = True

    def advance_batch(
        self, samples: int, tokens: int, duration: datetime.timedelta | None = None
    ) -> None:
        """Counts one more batch.

        Args:
            samples: Its samples, over all ranks.
            tokens: Its tokens, over all ranks.
            duration: How long it took.
        """
        self.previous_timestamp = self.timestamp
        self.timestamp = self.timestamp.to_next_batch(samples, tokens, duration)

    def advance_epoch(self, duration: datetime.timedelta | None = None) -> None:
        """Counts one more epoch."""
        self.previous_timestamp = self.timestamp
        self.timestamp = self.timestamp.to_next_epoch(duration)

    def advance_iteration(self, duration: datetime.timedelta | None = None) -> None:
        """Counts one more iteration."""
        self.previous_timestamp = self.timestamp
        self.timestamp = self.timestamp.to_next_iteration(duration)

    # What takes part: lists that keep their identity, so that whoever holds one sees changes

    @property
    def optimizers(self) -> list[Optimizer]:
        """The optimizers."""
        return self._optimizers

    @optimizers.setter
    def optimizers(self, optimizers: Optimizer | Sequence[Optimizer]) -> None:
        self._optimizers[:] = ensure_tuple(optimizers)

    @property
    def schedulers(self) -> list[Any]:
        """The learning rate schedulers."""
        return self._schedulers

    @schedulers.setter
    def schedulers(self, schedulers: Any) -> None:
        self._schedulers[:] = ensure_tuple(schedulers)

    @property
    def algorithms(self) -> list[Any]:
        """The algorithms, in the order in which they were given."""
        return self._algorithms

    @algorithms.setter
    def algorithms(self, algorithms: Sequence[AlgorithmLike]) -> None:
        self._algorithms[:] = algorithms

    @property
    def callbacks(self) -> WatchedList[Any]:
        """The callbacks and loggers, in the order in which they are called."""
        return self._callbacks

    @callbacks.setter
    def callbacks(self, callbacks: Sequence[CallbackLike]) -> None:
        self._callbacks[:] = callbacks

    @property
    def evaluators(self) -> list[Any]:
        """What to evaluate on, and when."""
        return self._evaluators

    @evaluators.setter
    def evaluators(self, evaluators: EvaluatorLike | Sequence[EvaluatorLike]) -> None:
        self._evaluators[:] = ensure_tuple(evaluators)

    # Data

    def batch_get_item(self, key: Any) -> Any:
        """Returns a part of the current batch; see `composer.utils.batch_get`."""
        return batch_get(self.batch, key)

    def batch_set_item(self, key: Any, value: Any) -> None:
        """Replaces a part of the current batch; see `composer.utils.batch_set`."""
        self.batch = batch_set(self.batch, key, value)

    @property
    def dataloader(self) -> Iterable[Any] | None:
        """The dataloader in use; set it with `set_dataloader`."""
        return self._dataloader

    @property
    def dataloader_label(self) -> str | None:
        """The name of the dataloader in use."""
        return self._dataloader_label

    def set_dataloader(
        self,
        dataloader: Iterable[Any] | None = None,
        dataloader_label: str | None = None,
        dataloader_len: int | Time[int] = -1,
    ) -> None:
        """Says which dataloader is in use from now on.

        Args:
            dataloader: The dataloader.
            dataloader_label: Its name.
            dataloader_len: How many of its batches to use; -1 for all.

        Raises:
            ValueError: If a dataloader comes without its name.
        """
        self._dataloader = dataloader
        if dataloader is None:
            self._dataloader_label, self._dataloader_len = None, None
            return
        if dataloader_label is None:
            raise ValueError("set_dataloader needs the dataloader_label of the dataloader")
        self._dataloader_label = dataloader_label
        self.dataloader_len = dataloader_len

    @property
    def dataloader_len(self) -> Time[int] | None:
        """Batches of the dataloader in use in an epoch; None if it cannot be told."""
        return self._dataloader_len

    @dataloader_len.setter
    def dataloader_len(self, num_batches: int | Time[int]) -> None:
        if self._dataloader is None:
            raise RuntimeError("dataloader_len cannot be set without a dataloader: set that first")
        num_batches = int(num_batches)
        length = _length(self._dataloader)
        if num_batches < 0:
            self._dataloader_len = None if length is None else Time.from_batch(length)
            return
        if length is not None and num_batches > length:
            warnings.warn(
                f"DataloaderNumBatchesWarning: the dataloader {self._dataloader_label!r} has "
                f"{length} batches, so all of them are used and not {num_batches}",
                stacklevel=2,
            )
            num_batches = length
        self._dataloader_len = Time.from_batch(num_batches)

    @property
    def epoch_length(self) -> int | None:
        """Batches of the epoch in training, None if it cannot be told.

        It is ``dataloader_len`` but where the epoch was resumed with batches of another size.
        """
        if self._epoch_length is None and self._dataloader_len is not None:
            return int(self._dataloader_len)
        return self._epoch_length

    @epoch_length.setter
    def epoch_length(self, num_batches: int | None) -> None:
        self._epoch_length = num_batches

    @property
    def train_dataloader(self) -> Iterable[Any] | None:
        """The dataloader to train on; setting it hands its dataset the position of a checkpoint."""
        return self._train_dataloader

    @train_dataloader.setter
    def train_dataloader(self, train_dataloader: Iterable[Any] | None) -> None:
        self._train_dataloader = train_dataloader
        self._resume_train_dataset()

    # How it computes

    @property
    def precision(self) -> Precision:
        """In what precision it computes."""
        return self._precision

    @precision.setter
    def precision(self, precision: str | Precision) -> None:
        self._precision = Precision(precision)

    @property
    def precision_config(self) -> dict[str, Any] | None:
        """Settings of FP8."""
        return self._precision_config


def _length(dataloader: Iterable[Any]) -> int | None:
    """Returns the number of batches, or None if the dataloader cannot tell."""
    try:
        return len(dataloader)  # type: ignore[arg-type]  # asked, not known
    except (TypeError, NotImplementedError):
        return None
