"""Trains on one data set after another, each for as long as a schedule says."""

import copy
import logging
from collections.abc import Mapping
from typing import Any

from torch.utils.data import DataLoader

from composer.core.engine import stop_workers
from composer.core.logger import Logger
from composer.core.state import State
from composer.core.time import Time, TimeUnit, ensure_time
from llmfoundry import registry
from llmfoundry.builders.dataloaders import build_dataloader
from llmfoundry.builders.declared_keys import declared_keys
from llmfoundry.data.loader_options import check_dataset_keys
from llmfoundry.interfaces.callback_with_config import CallbackWithConfig
from streaming.base.dataset import StreamingDataset

__all__ = ["CurriculumLearning", "changed_settings"]

log = logging.getLogger(__name__)

SOURCES = frozenset({"streams", "local", "remote", "hf_name"})
OF_A_SOURCE = frozenset({*SOURCES, "hf_kwargs", "preprocessing_fn"})
WITHOUT_EFFECT_ON_SAMPLES = frozenset(
    "download_retry download_timeout validate_hash keep_zip predownload cache_limit".split()
)


class CurriculumLearning(CallbackWithConfig):
    """Trains on ``train_loader.dataset`` for ``duration``, then on the data sets of ``schedule``.

    It is one of the few callbacks that change the run. Each phase is an iteration of the run; its
    data set begins at its start, and begins again if it ends before the phase does. Loaders of all
    phases are built before training, so that a wrong one is known then. A run goes on exactly where
    it stopped, within a phase and between two; phases that have not begun may be changed.

    Args:
        train_config: The run's configuration.
        schedule: Phases after the first: their ``duration``, and ``dataset``, which is laid over
            ``train_loader.dataset``. A source (``streams``, ``local``, ``remote``, ``hf_name``)
            replaces that one's, and its ``hf_kwargs`` and ``preprocessing_fn`` too.
        duration: The first phase's, in tokens (``tok``) or epochs (``ep``) as ``max_duration``.

    Raises:
        ValueError: A phase or its duration is missing or wrong, or they do not sum up to
            ``max_duration``.
    """

    def __init__(
        self,
        train_config: dict[str, Any],
        schedule: list[dict[str, Any]],
        duration: Time[int] | str | int,
    ) -> None:
        if not schedule:
            raise ValueError(
                "The schedule of curriculum_learning is empty; give it the phases after the first, "
                "or remove the callback."
            )
        self._config = train_config
        loader = train_config["train_loader"]
        first = {"duration": duration, "dataset": loader["dataset"]}
        self._schedule = copy.deepcopy([first, *schedule])
        self._durations = [_duration(phase, n) for n, phase in enumerate(self._schedule)]
        known = declared_keys(registry.dataloaders.get(loader["name"])).get("dataset")
        if known is not None:
            for phase in self._schedule:
                check_dataset_keys(phase["dataset"], set(known))
        self._index = 0
        self._loaders: list[Any] = []

    def before_load(self, state: State, logger: Logger) -> None:
        """Builds the loaders; the dataset of the phase gets the position of a checkpoint later."""
        del logger
        if state.max_duration is None:
            raise ValueError("curriculum_learning needs max_duration, the sum of its phases.")
        for n, duration in enumerate(self._durations):
            if duration.unit is not state.max_duration.unit:
                raise ValueError(
                    f"The duration {duration} of phase {n} of curriculum_learning is in another "
                    f"unit than max_duration={state.max_duration}. Give all in the same, tokens "
                    "(tok) or epochs (ep)."
                )
        total = sum(duration.value for duration in self._durations)
        if total != state.max_duration.value:
            raise ValueError(
                f"The durations of curriculum_learning, {[str(each) for each in self._durations]}, "
                f"sum up to {total}, and max_duration is {state.max_duration}. Make them equal."
            )
        first: Any = state.train_dataloader
        if not isinstance(first, DataLoader) or not isinstance(first.dataset, StreamingDataset):
            raise ValueError(
                "curriculum_learning needs a torch DataLoader of a StreamingDataset, as of the "
                f"text loader; the train_loader is a {type(first).__name__} of a "
                f"{type(getattr(first, 'dataset', None)).__name__}."
            )
        later = [self._build(phase["dataset"], first) for phase in self._schedule[1:]]
        self._loaders = [first, *later]
        state.train_dataloader = None

    def _build(self, dataset: Mapping[str, Any], first: DataLoader[Any]) -> Any:
        """Builds a phase's loader, with what the trainer gave the first one."""
        own: Any = first.dataset
        base = self._schedule[0]["dataset"]
        if SOURCES & dataset.keys():
            # safe_load forbids code in whatever data comes from the hub.
            replaced = OF_A_SOURCE | (set() if "hf_name" in dataset else {"safe_load"})
            base = {key: value for key, value in base.items() if key not in replaced}
        settings = {"replication": own.replication, **copy.deepcopy(base), **dataset}
        loader = {**self._config["train_loader"], "dataset": settings}
        size = self._config["device_train_batch_size"]
        return build_dataloader(loader, own.tokenizer, size).dataloader

    def after_load(self, state: State, logger: Logger) -> None:
        """Puts the data of the phase in place."""
        del logger
        begins = (
            int(state.timestamp.epoch_in_iteration) == 0
            and int(state.timestamp.batch_in_epoch) == 0
        )
        self._enter(state, begins)

    def iteration_end(self, state: State, logger: Logger) -> None:
        """Puts the data of the next phase in place, so that a checkpoint from now on is of it."""
        del logger
        self._index += 1
        if self._index < len(self._schedule):
            log.info(
                "Phase %d of curriculum_learning begins at batch %d: %s",
                self._index,
                int(state.timestamp.batch),
                self._schedule[self._index],
            )
            stop_workers(state.train_dataloader)
            self._enter(state, begins=True)

    def _enter(self, state: State, begins: bool) -> None:
        if begins:
            state.start_of_train_dataset()  # A position that is still there is of the phase before.
        phase = min(self._index, len(self._schedule) - 1)
        loader = self._loaders[phase]
        label, batches = state.dataloader_label, self._config.get("train_subset_num_batches", -1)
        state.set_dataloader(loader, label, -1 if batches is None else batches)
        state.train_dataloader = loader
        state._iteration_length = self._durations[phase]
        if begins and state.dataloader_len is not None:
            # What is scheduled in epochs counts batches, of which an epoch had more or fewer.
            done = int(state.timestamp.epoch) * int(state.dataloader_len)
            state.surplus_batches = int(state.timestamp.batch) - done

    def state_dict(self) -> dict[str, Any]:
        """The schedule and which of its phases runs."""
        state = {"schedule": copy.deepcopy(self._schedule), "schedule_index": self._index}
        return {"state": state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on in the phase that ran.

        Raises:
            ValueError: A phase that is over, or the data of the one that runs, is another now.
        """
        saved, index = state["state"]["schedule"], int(state["state"]["schedule_index"])
        for n, before in enumerate(saved[: index + 1]):
            now: dict[str, Any] = self._schedule[n] if n < len(self._schedule) else {}
            changed = changed_settings(before["dataset"], now.get("dataset", {}))
            if n < index and str(before["duration"]) != str(now.get("duration")):
                changed.append("duration")
            if changed:
                raise ValueError(
                    f"Phase {n} of curriculum_learning has begun, and is another now: {changed} "
                    f"changed from {before} to {now}. Put it back; only phases that have not begun "
                    "may be changed."
                )
        self._index = index


def _duration(phase: Mapping[str, Any], number: int) -> Time[int]:
    what = f"Phase {number} of curriculum_learning"
    for name in ("duration", "dataset"):
        if phase.get(name) is None:
            raise ValueError(
                f"{what} has no {name}: {dict(phase)}. Give each duration and dataset."
            )
    if unknown := phase.keys() - {"duration", "dataset"}:
        raise ValueError(f"{what} has {sorted(unknown)}, and takes duration and dataset only.")
    duration = ensure_time(phase["duration"], TimeUnit.EPOCH)
    if duration.unit not in (TimeUnit.TOKEN, TimeUnit.EPOCH) or duration.value <= 0:
        raise ValueError(
            f"{what} lasts {phase['duration']!r}; give a positive number of tokens (tok) or epochs "
            "(ep)."
        )
    return duration


def changed_settings(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Names the settings of a data set that differ and that have an effect on its samples."""
    ignored = set(WITHOUT_EFFECT_ON_SAMPLES)
    if before.get("remote") and now.get("remote"):
        ignored.add("local")  # A place for copies.
    return sorted(
        key for key in (before.keys() | now.keys()) - ignored if before.get(key) != now.get(key)
    )
