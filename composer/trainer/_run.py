"""A run: what ``assemble`` built, handed from stage to stage and kept by the Trainer."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from composer.core._state_dict import global_batch_size
from composer.core.data_spec import DataSpec
from composer.core.engine import Engine
from composer.core.precision import get_precision_context
from composer.core.protocols import DividesBatches
from composer.core.state import State
from composer.core.time import TimeUnit
from composer.distributed.ddp import DDPSyncStrategy, ddp_no_sync, ddp_sync_context
from composer.distributed.deepspeed import ZeroModel
from composer.distributed.plan import Plan
from composer.models.base import ComposerModel
from composer.trainer._dataloading import BatchFeed, batches_left
from composer.trainer._eval_loop import EvalLoop, PredictLoop
from composer.trainer._in_step import InStep, copies_of_a_batch
from composer.trainer._memory import AgreedAttempt
from composer.trainer._metrics import TrainMetrics
from composer.trainer._microbatching import AutoSize, FixedSize, MemoryRecord, split_batch
from composer.trainer._scaling import scaling_of
from composer.trainer._several_steps import SeveralSteps
from composer.trainer._targets import Weigher, target_counter
from composer.trainer._train_loop import TrainLoop
from composer.trainer._train_step import TrainStep
from composer.utils import dist, reproducibility
from composer.utils.model_wrapper import ModelWrapper


class Run:
    """Holds the parts of a run and builds its loops from them.

    Args:
        saver: the checkpoint saver whose folder the run resumes from.
    """

    def __init__(self, state: State, engine: Engine, saver: Any):
        self.state = state
        self.engine = engine
        self.saver = saver
        self.plan = Plan()
        """How the model is spread over the ranks."""
        self.memory = MemoryRecord()
        self.train_spec: DataSpec | None = None
        self.schedule_unit = TimeUnit.BATCH
        self.waiting_schedulers: tuple[tuple[Any, ...], float] | None = None
        """Schedulers with their ratio, until the duration is known."""
        self.microbatch_size: int | float | str | None = None
        """As it was given; None takes the loader's batch size, whatever the loader."""
        self.finds_unused_parameters = False
        self.ddp_sync_strategy = DDPSyncStrategy.SINGLE_AUTO_SYNC
        self.is_compiled = False
        self.rng_state: list[dict[str, Any]] | None = None
        """Generator states of a loaded checkpoint, until training stands where they were taken."""
        self.position_is_loaded = False
        """Whether training stands where a checkpoint left it, and has not gone on yet."""
        self.was_autoresumed = False

    @property
    def model(self) -> ComposerModel:
        """The model without wrappers; an algorithm may have put another in ``state.model``."""
        model: Any = self.state.model
        return model.module if isinstance(model, (DistributedDataParallel, ModelWrapper)) else model

    def autocast(self, **settings: Any) -> Callable[[], AbstractContextManager[Any]]:
        """Returns the function that makes the precision context of a forward pass."""
        state = self.state
        return partial(
            get_precision_context,
            state.precision,
            state.precision_config,
            device_type=state.device._device.type,
            **settings,
        )

    def eval_loop(self) -> EvalLoop:
        """Builds the evaluation loop."""
        return EvalLoop(
            self.state,
            self.engine,
            self.engine.logger,
            module=self.model,
            autocast=self.autocast(fp8_autocast_enabled=False),
        )

    def predict_loop(self) -> PredictLoop:
        """Builds the prediction loop."""
        return PredictLoop(self.state, self.engine, self.model, self.autocast())

    def train_loop(self, on_tokens: bool | None) -> TrainLoop:
        """Builds the training loop for the model and optimizer as algorithms left them."""
        assert self.train_spec is not None
        state, engine = self.state, self.engine
        count = target_counter(self.model, self.train_spec, on_tokens)
        in_step = InStep(state, getattr(self.model, "ranks_meet_in_training", False))
        weigher = Weigher(state, count, recount=bool(state.algorithms), in_step=in_step)
        autocast = self.autocast()
        metrics = TrainMetrics(state, engine.logger, self.model, autocast)
        step = TrainStep(
            state,
            engine,
            module=self.model,
            autocast=autocast,
            to_device=self._to_device,
            gradient_sync=self._gradient_sync(),
            attempt=nullcontext,
            weigher=weigher,
            scaling=scaling_of(state),
            metrics=metrics,
        )
        return TrainLoop(
            state,
            engine,
            engine.logger,
            feed=BatchFeed(state, engine, self.train_spec, count, self.resume_within_epoch),
            weigher=weigher,
            sizer=self._sizer(step, weigher),
            evals=self.eval_loop(),
            metrics=metrics,
            schedule_unit=self.schedule_unit,
        )

    def _gradient_sync(self) -> Callable[[bool, bool], AbstractContextManager[Any]]:
        if isinstance(self.state.model, ZeroModel):
            return self.state.model.at_microbatch
        return partial(_gradient_sync, self.state, self.ddp_sync_strategy)

    def _sizer(self, step: TrainStep, weigher: Weigher) -> FixedSize | SeveralSteps:
        """Chooses how batches are cut into steps, and these into micro-batches."""
        assert self.train_spec is not None
        dividers = [each for each in self.state.algorithms if isinstance(each, DividesBatches)]
        sizer = self._step_sizer(step, self.train_spec)
        if not dividers:
            return sizer
        return SeveralSteps(self.state, sizer, self.train_spec, weigher, dividers)

    def _step_sizer(self, step: TrainStep, data_spec: DataSpec) -> FixedSize:
        """Chooses how a step is cut; finding the size needs a step that all ranks agree on."""
        split = partial(split_batch, data_spec)
        if not self.state.auto_microbatching:
            return FixedSize(self.state, step, split, self.memory)
        step.attempt = AgreedAttempt(self.state)
        step.gradient_sync = partial(ddp_no_sync, self.state)
        loader: Any = data_spec.dataloader
        return AutoSize(self.state, step, split, self.memory, largest=loader.batch_size)

    def resume_within_epoch(self, samples: int | None) -> None:
        """Goes on from where a checkpoint stood, if the batches passed over are those it had seen.

        An epoch that was made shorter by ``train_subset_num_batches`` may hold fewer.

        Raises:
            ValueError: if as many batches now hold other samples.
        """
        timestamp, length = self.state.timestamp, self.state.dataloader_len
        saved = int(timestamp.sample_in_epoch)
        is_shorter = length is not None and length < timestamp.batch_in_epoch
        if samples is None:
            samples = self._samples_if_batches_changed(saved)
        fits = samples == saved or (is_shorter and samples < saved)
        if self.position_is_loaded and not fits:
            raise ValueError(
                f"the checkpoint was saved in the middle of an epoch, after {saved} samples in "
                f"{int(timestamp.batch_in_epoch)} batches; as many batches now hold {samples}, so "
                "samples would be repeated or left out. Keep the global batch size (batch size "
                "times ranks), or start from a checkpoint of an epoch's end."
            )
        self.restore_rng()

    def _changed_batch_size(self) -> int | None:
        """Returns the size of batches over all ranks if the checkpoint had another, else None."""
        size = getattr(self.state.train_dataloader, "batch_size", None)
        now = global_batch_size(size, dist.get_world_size())
        return None if self.state.loaded_batch_size in (None, now) else now

    def _samples_if_batches_changed(self, saved: int) -> int:
        """Returns what as many batches hold now, for a data set that keeps its position itself.

        It would go on after the right sample, but the epoch, which counts batches, would end early
        or late.
        """
        state, now = self.state, self._changed_batch_size()
        if now is None:
            return saved
        return int(state.timestamp.batch_in_epoch) * now // copies_of_a_batch(state)

    def count_in_present_batches(self) -> None:
        """Lets what is scheduled in epochs count batches of the present size, if it has changed.

        An epoch then has more or fewer batches than those that were trained of it.
        """
        state, length = self.state, self.state.dataloader_len
        if self._changed_batch_size() is None or length is None:
            return
        timestamp, within = state.timestamp, 0
        if int(timestamp.batch_in_epoch):
            loader: Any = state.train_dataloader
            left = batches_left(loader)
            if left is None:
                return  # As many batches are passed over, and the run is refused.
            within = len(loader) - left
        done = int(timestamp.epoch) * int(length) + within
        state.surplus_batches = int(timestamp.batch) - done
        state.loaded_batch_size = None  # It is counted with now.

    def restore_rng(self) -> None:
        """Puts the generators where the loaded checkpoint had them, once."""
        self.position_is_loaded = False
        if self.rng_state is not None:
            reproducibility.load_rng_state(self.rng_state)
            self.rng_state = None

    def _to_device(self, microbatch: Any) -> Any:
        assert self.train_spec is not None
        batch = self.state.device.batch_to_device(microbatch)
        return self.train_spec.microbatch_transforms(batch)


def _gradient_sync(
    state: State, strategy: DDPSyncStrategy, is_last: bool, ddp_sync: bool
) -> AbstractContextManager[None]:
    return ddp_sync_context(state, is_last, strategy) if ddp_sync else ddp_no_sync(state)
