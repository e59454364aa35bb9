"""Where training stands: all counters and the clocks, as one value."""

from __future__ import annotations

import datetime
from typing import Any

from composer.core.duration import Time
from composer.core.serializable import Serializable
from composer.core.time_unit import TimeUnit

_COUNTERS = {
    "iteration": TimeUnit.ITERATION,
    "epoch": TimeUnit.EPOCH,
    "batch": TimeUnit.BATCH,
    "sample": TimeUnit.SAMPLE,
    "token": TimeUnit.TOKEN,
    "epoch_in_iteration": TimeUnit.EPOCH,
    "token_in_iteration": TimeUnit.TOKEN,
    "batch_in_epoch": TimeUnit.BATCH,
    "sample_in_epoch": TimeUnit.SAMPLE,
    "token_in_epoch": TimeUnit.TOKEN,
}
_CLOCKS = ("total_wct", "iteration_wct", "epoch_wct", "batch_wct")
_ALWAYS_SAVED = (
    "epoch",
    "batch",
    "sample",
    "token",
    "batch_in_epoch",
    "sample_in_epoch",
    "token_in_epoch",
)
_COUNTER_OF_UNIT = {
    TimeUnit.ITERATION: "iteration",
    TimeUnit.EPOCH: "epoch",
    TimeUnit.BATCH: "batch",
    TimeUnit.SAMPLE: "sample",
    TimeUnit.TOKEN: "token",
}


def _counter(name: str, value: Any) -> Time[int]:
    unit = _COUNTERS[name]
    if not isinstance(value, Time):
        return Time(value, unit)
    if value.unit is not unit:
        raise ValueError(f"The {name} of a Timestamp is counted in {unit}, not {value.unit}")
    return value


class Timestamp(Serializable):
    """Where training stands: how much was trained in each unit, and how long it took.

    It does not change: `to_next_batch` and its like return a new one. Comparing it with a Time or a
    time string compares the counter of that unit: ``timestamp >= "10ba"``.

    Args:
        iteration: Iterations (user-defined spans of epochs or tokens) completed.
        epoch: Epochs completed.
        batch: Batches completed.
        sample: Samples seen, on all ranks.
        token: Tokens seen, on all ranks.
        epoch_in_iteration: Epochs completed in this iteration.
        token_in_iteration: Tokens seen in this iteration.
        batch_in_epoch: Batches completed in this epoch.
        sample_in_epoch: Samples seen in this epoch.
        token_in_epoch: Tokens seen in this epoch.
        total_wct: Training time so far.
        iteration_wct: Training time of this iteration so far.
        epoch_wct: Training time of this epoch so far.
        batch_wct: Training time of the last batch.

    Raises:
        ValueError: If a Time of another unit is given for a counter.
    """

    def __init__(
        self,
        iteration: int | Time[int] = 0,
        epoch: int | Time[int] = 0,
        batch: int | Time[int] = 0,
        sample: int | Time[int] = 0,
        token: int | Time[int] = 0,
        epoch_in_iteration: int | Time[int] = 0,
        token_in_iteration: int | Time[int] = 0,
        batch_in_epoch: int | Time[int] = 0,
        sample_in_epoch: int | Time[int] = 0,
        token_in_epoch: int | Time[int] = 0,
        total_wct: datetime.timedelta | None = None,
        iteration_wct: datetime.timedelta | None = None,
        epoch_wct: datetime.timedelta | None = None,
        batch_wct: datetime.timedelta | None = None,
    ) -> None:
        zero = datetime.timedelta()
        self._iteration = _counter("iteration", iteration)
        self._epoch = _counter("epoch", epoch)
        self._batch = _counter("batch", batch)
        self._sample = _counter("sample", sample)
        self._token = _counter("token", token)
        self._epoch_in_iteration = _counter("epoch_in_iteration", epoch_in_iteration)
        self._token_in_iteration = _counter("token_in_iteration", token_in_iteration)
        self._batch_in_epoch = _counter("batch_in_epoch", batch_in_epoch)
        self._sample_in_epoch = _counter("sample_in_epoch", sample_in_epoch)
        self._token_in_epoch = _counter("token_in_epoch", token_in_epoch)
        self._total_wct = zero if total_wct is None else total_wct
        self._iteration_wct = zero if iteration_wct is None else iteration_wct
        self._epoch_wct = zero if epoch_wct is None else epoch_wct
        self._batch_wct = zero if batch_wct is None else batch_wct

    @property
    def iteration(self) -> Time[int]:
        """Iterations completed."""
        return self._iteration

    @property
    def epoch(self) -> Time[int]:
        """Epochs completed."""
        return self._epoch

    @property
    def batch(self) -> Time[int]:
        """Batches completed."""
        return self._batch

    @property
    def sample(self) -> Time[int]:
        """Samples seen, on all ranks."""
        return self._sample

    @property
    def token(self) -> Time[int]:
        """Tokens seen, on all ranks."""
        return self._token

    @property
    def epoch_in_iteration(self) -> Time[int]:
        """Epochs completed in this iteration; the only counter that may be set."""
        return self._epoch_in_iteration

    @epoch_in_iteration.setter
    def epoch_in_iteration(self, epoch_in_iteration: int | Time[int]) -> None:
        self._epoch_in_iteration = _counter("epoch_in_iteration", epoch_in_iteration)

    @property
    def token_in_iteration(self) -> Time[int]:
        """Tokens seen in this iteration."""
        return self._token_in_iteration

    @property
    def batch_in_epoch(self) -> Time[int]:
        """Batches completed in this epoch."""
        return self._batch_in_epoch

    @property
    def sample_in_epoch(self) -> Time[int]:
        """Samples seen in this epoch."""
        return self._sample_in_epoch

    @property
    def token_in_epoch(self) -> Time[int]:
        """Tokens seen in this epoch."""
        return self._token_in_epoch

    @property
    def total_wct(self) -> datetime.timedelta:
        """Training time so far, without evaluation."""
        return self._total_wct

    @property
    def iteration_wct(self) -> datetime.timedelta:
        """Training time of this iteration so far."""
        return self._iteration_wct

    @property
    def epoch_wct(self) -> datetime.timedelta:
        """Training time of this epoch so far."""
        return self._epoch_wct

    @property
    def batch_wct(self) -> datetime.timedelta:
        """Training time of the last batch."""
        return self._batch_wct

    def get(self, unit: str | TimeUnit) -> Time[int]:
        """Returns how much was trained, in that unit; seconds are whole.

        Raises:
            ValueError: If the unit is ``dur``, for which one needs `State.get_elapsed_duration`.
        """
        if not isinstance(unit, TimeUnit):
            unit = TimeUnit(unit)
        if unit is TimeUnit.SECOND:
            return Time(int(self.total_wct.total_seconds()), unit)
        if unit not in _COUNTER_OF_UNIT:
            raise ValueError(f"Invalid unit: {unit}")
        return getattr(self, _COUNTER_OF_UNIT[unit])

    def state_dict(self) -> dict[str, Any]:
        """Returns the counters as integers and the clocks as timedeltas."""
        state: dict[str, Any] = {name: getattr(self, name).value for name in _COUNTERS}
        state.update((name, getattr(self, name)) for name in _CLOCKS)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes back what `state_dict` returned; what old checkpoints lack stays as it is."""
        for name in _ALWAYS_SAVED:
            setattr(self, f"_{name}", _counter(name, state[name]))
        for name in ("iteration", "epoch_in_iteration", "token_in_iteration"):
            if name in state:
                setattr(self, f"_{name}", _counter(name, state[name]))
        for name in _CLOCKS:
            if name in state:
                setattr(self, f"_{name}", state[name])

    def copy(
        self,
        iteration: int | Time[int] | None = None,
        epoch: int | Time[int] | None = None,
        batch: int | Time[int] | None = None,
        sample: int | Time[int] | None = None,
        token: int | Time[int] | None = None,
        epoch_in_iteration: int | Time[int] | None = None,
        token_in_iteration: int | Time[int] | None = None,
        batch_in_epoch: int | Time[int] | None = None,
        sample_in_epoch: int | Time[int] | None = None,
        token_in_epoch: int | Time[int] | None = None,
        total_wct: datetime.timedelta | None = None,
        iteration_wct: datetime.timedelta | None = None,
        epoch_wct: datetime.timedelta | None = None,
        batch_wct: datetime.timedelta | None = None,
    ) -> Timestamp:
        """Returns a copy with other values for the fields that are given, as to the constructor."""
        given = locals()
        fields = (
            getattr(self, name) if given[name] is None else given[name]
            for name in (*_COUNTERS, *_CLOCKS)
        )
        return Timestamp(*fields)

    def to_next_batch(
        self,
        samples: int | Time[int] = 0,
        tokens: int | Time[int] = 0,
        duration: datetime.timedelta | None = None,
    ) -> Timestamp:
        """Returns the timestamp after one more batch.

        Args:
            samples: Samples in the batch, on all ranks.
            tokens: Tokens in the batch, on all ranks.
            duration: How long it took.
        """
        duration = datetime.timedelta() if duration is None else duration
        after = object.__new__(Timestamp)  # once a batch: what follows needs no checks again
        after.__dict__ = {
            **self.__dict__,
            "_batch": self._batch + 1,
            "_batch_in_epoch": self._batch_in_epoch + 1,
            "_sample": self._sample + samples,
            "_sample_in_epoch": self._sample_in_epoch + samples,
            "_token": self._token + tokens,
            "_token_in_epoch": self._token_in_epoch + tokens,
            "_token_in_iteration": self._token_in_iteration + tokens,
            "_total_wct": self._total_wct + duration,
            "_iteration_wct": self._iteration_wct + duration,
            "_epoch_wct": self._epoch_wct + duration,
            "_batch_wct": duration,
        }
        return after

    def to_next_epoch(self, duration: datetime.timedelta | None = None) -> Timestamp:
        """Returns the timestamp at the start of the next epoch.

        Args:
            duration: Time since the last batch, which the total and the iteration count.
        """
        duration = datetime.timedelta() if duration is None else duration
        zero = datetime.timedelta()
        return self.copy(
            epoch=self.epoch + 1,
            epoch_in_iteration=self.epoch_in_iteration + 1,
            batch_in_epoch=0,
            sample_in_epoch=0,
            token_in_epoch=0,
            total_wct=self.total_wct + duration,
            iteration_wct=self.iteration_wct + duration,
            epoch_wct=zero,
            batch_wct=zero,
        )

    def to_next_iteration(self, duration: datetime.timedelta | None = None) -> Timestamp:
        """Returns the timestamp at the start of the next iteration.

        Args:
            duration: Time since the last batch, which the total counts.
        """
        duration = datetime.timedelta() if duration is None else duration
        zero = datetime.timedelta()
        return self.copy(
            iteration=self.iteration + 1,
            epoch_in_iteration=0,
            token_in_iteration=0,
            batch_in_epoch=0,
            sample_in_epoch=0,
            token_in_epoch=0,
            total_wct=self.total_wct + duration,
            iteration_wct=zero,
            epoch_wct=zero,
            batch_wct=zero,
        )

    def _counted(self, other: Any) -> tuple[Time[int], Time[Any]] | None:
        """Returns this counter and the other Time, or None if the other is neither of its kinds."""
        if not isinstance(other, (Time, str)):
            return None
        other = Time.from_input(other)
        return self.get(other.unit), other

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Timestamp):
            return self.state_dict() == other.state_dict()
        pair = self._counted(other)
        return NotImplemented if pair is None else pair[0] == pair[1]

    def __lt__(self, other: Time[Any] | str) -> bool:
        pair = self._counted(other)
        return NotImplemented if pair is None else pair[0] < pair[1]

    def __le__(self, other: Time[Any] | str) -> bool:
        pair = self._counted(other)
        return NotImplemented if pair is None else pair[0] <= pair[1]

    def __gt__(self, other: Time[Any] | str) -> bool:
        pair = self._counted(other)
        return NotImplemented if pair is None else pair[0] > pair[1]

    def __ge__(self, other: Time[Any] | str) -> bool:
        pair = self._counted(other)
        return NotImplemented if pair is None else pair[0] >= pair[1]

    __hash__ = None  # type: ignore[assignment]  # epoch_in_iteration may be set

    def __repr__(self) -> str:
        counters = [f"{name}={getattr(self, name).value}" for name in _COUNTERS]
        clocks = [f"{name}={getattr(self, name)!r}" for name in _CLOCKS]
        return f"Timestamp({', '.join(counters + clocks)})"
