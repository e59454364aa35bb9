"""The public Trainer: Composer's arguments and methods, handed to the parts that do the work."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, TextIO

import torch
from torch.optim.lr_scheduler import LRScheduler

from composer.checkpoint import whole_run as checkpoint
from composer.core.algorithm import Algorithm
from composer.core.callback import Callback
from composer.core.data_spec import DataSpec, ensure_data_spec
from composer.core.engine import Engine
from composer.core.evaluator import Evaluator
from composer.core.event import Event
from composer.core.logger import Logger
from composer.core.logger_destination import LoggerDestination
from composer.core.passes import AlgorithmPass
from composer.core.precision import Precision, validate_precision
from composer.core.state import State
from composer.core.time import Time, TimeUnit
from composer.core.timestamp import Timestamp
from composer.devices.device import Device
from composer.distributed.ddp import DDPSyncStrategy
from composer.models.base import ComposerModel
from composer.optim.schedules import ComposerScheduler
from composer.trainer import _assemble
from composer.trainer._assemble import assemble
from composer.trainer._clock import total_over_ranks
from composer.trainer._dataloading import advance_own_generator, has_own_generator
from composer.trainer._evaluators import check_is_finite, parse_evaluators
from composer.trainer._in_step import seed_of_batches
from composer.trainer._memory import OOM_FOUND_ON_OTHER_RANK
from composer.trainer._memory import is_out_of_memory as _is_cuda_oom
from composer.trainer._metrics import metrics_of_evaluators
from composer.trainer._microbatching import (
    halve_microbatch_size as _adjust_device_train_microbatch_size,
)
from composer.trainer._options import (
    CheckpointOptions,
    DataOptions,
    EvalOptions,
    LoggingOptions,
    OptimOptions,
    SystemOptions,
    TrainerOptions,
    check_schedule_ratio,
    parse_duration,
)
from composer.trainer._run_name import generate_run_name as _generate_run_name
from composer.trainer._scaling import make_scaler
from composer.utils import dist
from composer.utils.auto_log_hparams import extract_hparams
from composer.utils.inference import ExportFormat, Transform, export_with_logger
from composer.utils.iter_helpers import ensure_tuple
from composer.utils.model_wrapper import ModelWrapper
from composer.utils.object_store.object_store import ObjectStore
from composer.utils.phases import phase
from composer.utils.reproducibility import remember_determinism

# After the class, what programs and tests of Composer import from here, or replace.
__all__ = [
    "Trainer",
    "OOM_FOUND_ON_OTHER_RANK",
    "_adjust_device_train_microbatch_size",
    "_generate_run_name",
    "_is_cuda_oom",
    "checkpoint",
]

log = logging.getLogger(__name__)

Scheduler = ComposerScheduler | LRScheduler
Loader = Iterable[Any] | DataSpec | dict[str, Any]


class Trainer:
    """Trains, evaluates and predicts with any ComposerModel.

    Durations and intervals are Time, strings (``"2ep"``, ``"500ba"``, ``"1e9tok"``) or ints of
    epochs. All arguments are keywords.

    Args:
        model: the ComposerModel to train.
        train_dataloader: batches, or a DataSpec (or its arguments) that says how to read them.
        train_dataloader_label: the name of the training data in the state.
        train_subset_num_batches: ends each epoch after so many batches; -1 for all.
        spin_dataloaders: on resume, whether to move a loader's own random generator over the epochs
            that are done.
        max_duration: when training ends.
        algorithms: changes to training, applied by their events.
        algorithm_passes: reorderings of the algorithms of an event.
        optimizers: the optimizer (one).
        schedulers: learning-rate schedulers, Composer's or torch's.
        scale_schedule_ratio: stretches schedules and max_duration by a factor.
        step_schedulers_every_batch: by default false if a scheduler is torch's, otherwise true.
        eval_dataloader: a loader, a DataSpec, an Evaluator or a sequence of Evaluators.
        eval_interval: when to evaluate (0 for never), for evaluators that do not say.
        eval_subset_num_batches: how many batches to evaluate on, for evaluators that do not say; -1
            for all.
        callbacks: watchers of training.
        loggers: where metrics go.
        run_name: the run's name; by default COMPOSER_RUN_NAME, RUN_NAME, or one made up.
        progress_bar: whether to show progress on the console stream.
        log_to_console: whether to write metrics to the console stream.
        console_stream: ``"stderr"``, ``"stdout"`` or an open stream.
        console_log_interval: how often ``log_to_console`` writes.
        log_traces: whether console loggers write which algorithms ran.
        auto_log_hparams: whether to log these arguments as hyperparameters.
        load_path: a checkpoint to start from.
        load_object_store: where ``load_path`` is an object's name.
        load_weights_only: whether to load the model's weights alone.
        load_strict_model_weights: with ``load_weights_only``, whether missing or unknown weights
            are an error.
        load_progress_bar: whether to show the progress of a download.
        load_ignore_keys: globs of checkpoint entries to leave out (``state/model/head.*``), or a
            function that removes them from the dict.
        load_exclude_algorithms: names of algorithms in the checkpoint that must not be re-applied.
        save_folder: where to save checkpoints; None saves none.
        save_filename: the name of a checkpoint, with placeholders.
        save_latest_filename: the name of the link to the newest checkpoint; None makes no link.
        save_overwrite: whether later checkpoints of an earlier run in the folder may be replaced.
        save_interval: when to save.
        save_weights_only: whether to save the model's weights alone.
        save_ignore_keys: like ``load_ignore_keys``, for saving.
        save_num_checkpoints_to_keep: deletes the oldest beyond so many; -1 keeps all.
        save_metrics: whether the state of metrics is saved.
        autoresume: continues from the newest complete checkpoint of this run, if there is one; a
            run that is already finished says so and trains no further.
        save_async: whether training goes on while a checkpoint is written; see CheckpointSaver.
        parallelism_config: how to shard the model; not available in this version.
        device: ``"cpu"``, ``"gpu"``, ``"mps"``, ... or a Device; by default a GPU if there is one.
        precision: ``"fp32"``, ``"amp_bf16"``, ``"amp_fp16"``, ``"amp_fp8"``; by default amp_fp16 on
            a GPU, else fp32.
        precision_config: the recipe of fp8.
        device_train_microbatch_size: how many samples pass through the model at a time; by default
            the loader's batch size. It changes memory use only, never the update.
        accumulate_train_batch_on_tokens: whether micro-batches and ranks weigh by the tokens that
            have a target (true) or by samples (false); by default by tokens if the model says how
            many it has, or says nothing and the batch has ``labels`` as wide as ``input_ids``.
        seed: seeds all random generators; by default taken from the clock.
        deterministic_mode: whether torch must refuse operations whose results vary.
        dist_timeout: seconds until a collective gives up.
        ddp_sync_strategy: when replicas exchange gradients.
        profiler: a profiler to bind to the run.
        python_log_level: sets up Python's logging for this package at a level.
        compile_config: arguments for torch.compile, and ``per_block: true`` to compile each block
            instead of the whole; None does not compile.
        deepspeed_config: settings of DeepSpeed, which then trains with ZeRO 1, 2 or 3; sizes of
            batches, precision and clipping are the Trainer's (see docs/deepspeed.md).

    Raises:
        ValueError: for arguments that contradict each other, the data or the device.
    """

    def __init__(
        self,
        *,
        model: ComposerModel,
        train_dataloader: Loader | None = None,
        train_dataloader_label: str = "train",
        train_subset_num_batches: int = -1,
        spin_dataloaders: bool = True,
        max_duration: int | str | Time | None = None,
        algorithms: Algorithm | Sequence[Algorithm] | None = None,
        algorithm_passes: AlgorithmPass
        | tuple[AlgorithmPass, int]
        | Sequence[AlgorithmPass | tuple[AlgorithmPass, int]]
        | None = None,
        optimizers: torch.optim.Optimizer | None = None,
        schedulers: Scheduler | Sequence[Scheduler] | None = None,
        scale_schedule_ratio: float = 1.0,
        step_schedulers_every_batch: bool | None = None,
        eval_dataloader: Loader | Evaluator | Sequence[Evaluator] | None = None,
        eval_interval: int | str | Time | Callable[[State, Event], bool] = 1,
        eval_subset_num_batches: int = -1,
        callbacks: Callback | Sequence[Callback] | None = None,
        loggers: LoggerDestination | Sequence[LoggerDestination] | None = None,
        run_name: str | None = None,
        progress_bar: bool = True,
        log_to_console: bool = False,
        console_stream: str | TextIO = "stderr",
        console_log_interval: int | str | Time = "1ba",
        log_traces: bool = False,
        auto_log_hparams: bool = False,
        load_path: str | None = None,
        load_object_store: Any = None,
        load_weights_only: bool = False,
        load_strict_model_weights: bool = True,
        load_progress_bar: bool = True,
        load_ignore_keys: list[str] | Callable[[dict[str, Any]], None] | None = None,
        load_exclude_algorithms: list[str] | None = None,
        save_folder: str | None = None,
        save_filename: str = "ep{epoch}-ba{batch}-rank{rank}.pt",
        save_latest_filename: str | None = "latest-rank{rank}.pt",
        save_overwrite: bool = False,
        save_interval: str | int | Time | Callable[[State, Event], bool] = "1ep",
        save_weights_only: bool = False,
        save_ignore_keys: list[str] | Callable[[dict[str, Any]], None] | None = None,
        save_num_checkpoints_to_keep: int = -1,
        save_metrics: bool = False,
        autoresume: bool = False,
        save_async: bool = False,
        parallelism_config: dict[str, Any] | None = None,
        device: str | Device | None = None,
        precision: str | Precision | None = None,
        precision_config: dict[str, Any] | None = None,
        device_train_microbatch_size: int | float | str | None = None,
        accumulate_train_batch_on_tokens: bool | None = None,
        seed: int | None = None,
        deterministic_mode: bool = False,
        dist_timeout: float = 300.0,
        ddp_sync_strategy: str | DDPSyncStrategy | None = None,
        profiler: Any = None,
        python_log_level: str | None = None,
        compile_config: dict[str, Any] | None = None,
        deepspeed_config: dict[str, Any] | None = None,
    ):
        self.auto_log_hparams = auto_log_hparams
        self.local_hparams = extract_hparams(locals()) if auto_log_hparams else {}
        self.python_log_level = python_log_level
        self.spin_dataloaders = spin_dataloaders
        self.accumulate_train_batch_on_tokens = accumulate_train_batch_on_tokens
        if auto_log_hparams:
            self.local_hparams["is_model_compiled"] = compile_config is not None or hasattr(
                model, "_orig_mod"
            )
        options = TrainerOptions(
            model=model,
            data=DataOptions(
                train_dataloader,
                train_dataloader_label,
                train_subset_num_batches,
                spin_dataloaders,
                max_duration,
                device_train_microbatch_size,
                accumulate_train_batch_on_tokens,
            ),
            optim=OptimOptions(
                algorithms,
                algorithm_passes,
                optimizers,
                schedulers,
                scale_schedule_ratio,
                step_schedulers_every_batch,
            ),
            eval=EvalOptions(eval_dataloader, eval_interval, eval_subset_num_batches),
            logging=LoggingOptions(
                callbacks,
                loggers,
                run_name,
                progress_bar,
                log_to_console,
                console_stream,
                console_log_interval,
                log_traces,
                self.local_hparams if auto_log_hparams else None,
                python_log_level,
                profiler,
            ),
            checkpoint=CheckpointOptions(
                load_path,
                load_object_store,
                load_weights_only,
                load_strict_model_weights,
                load_progress_bar,
                load_ignore_keys,
                load_exclude_algorithms,
                save_folder,
                save_filename,
                save_latest_filename,
                save_overwrite,
                save_interval,
                save_weights_only,
                save_ignore_keys,
                save_num_checkpoints_to_keep,
                save_metrics,
                autoresume,
                save_async,
            ),
            system=SystemOptions(
                parallelism_config,
                device,
                precision,
                precision_config,
                seed,
                deterministic_mode,
                dist_timeout,
                ddp_sync_strategy,
                compile_config,
                deepspeed_config,
            ),
        )
        self._undo = [remember_determinism()] if deterministic_mode else []
        self._run = assemble(options)
        self.state: State = self._run.state
        self.engine: Engine = self._run.engine
        self.logger: Logger = self._run.engine.logger

    @property
    def saved_checkpoints(self) -> list[str]:
        """The files of the checkpoints that were saved and kept, oldest first."""
        return self._run.saver.saved_checkpoints if self._run.saver is not None else []

    def fit(
        self,
        *,
        train_dataloader: Loader | None = None,
        train_dataloader_label: str = "train",
        train_subset_num_batches: int | None = None,
        spin_dataloaders: bool | None = None,
        duration: int | str | Time | None = None,
        reset_time: bool = False,
        schedulers: Scheduler | Sequence[Scheduler] | None = None,
        scale_schedule_ratio: float = 1.0,
        step_schedulers_every_batch: bool | None = None,
        eval_dataloader: Loader | Evaluator | Sequence[Evaluator] | None = None,
        eval_subset_num_batches: int = -1,
        eval_interval: int | str | Time | Callable[[State, Event], bool] = 1,
        device_train_microbatch_size: int | float | str | None = None,
        precision: str | Precision | None = None,
    ) -> None:
        """Trains from where the run stands until its duration is reached; called again, it goes on.

        Args:
            train_dataloader: replaces the training data.
            train_dataloader_label: the name of the training data in the state.
            train_subset_num_batches: ends each epoch after so many batches; -1 for all.
            spin_dataloaders: overrides the constructor's.
            duration: how much longer to train, added to where the run stands (an int counts
                epochs).
            reset_time: whether counters start from zero.
            schedulers: replace the schedulers.
            scale_schedule_ratio: stretches the given schedulers and the duration.
            step_schedulers_every_batch: how the given schedulers step.
            eval_dataloader: replaces what is evaluated on.
            eval_subset_num_batches: goes with ``eval_dataloader``.
            eval_interval: goes with ``eval_dataloader``.
            device_train_microbatch_size: replaces the size, from now on.
            precision: replaces the precision, from now on.

        Raises:
            ValueError: if there is nothing to train with or no duration, or the duration has
                passed.
        """
        run, state = self._run, self.state
        if train_dataloader is not None:
            subset = -1 if train_subset_num_batches is None else train_subset_num_batches
            _assemble.set_train_data(run, train_dataloader, train_dataloader_label, subset)
        elif train_subset_num_batches is not None and state.dataloader is not None:
            state.dataloader_len = train_subset_num_batches
        self._require_to_fit(duration)
        if reset_time:
            state.timestamp = Timestamp()
            state.surplus_batches, state.loaded_batch_size = 0, None
        self._set_duration(duration)
        if self._has_finished():
            return
        self._set_fit_schedules(schedulers, scale_schedule_ratio, step_schedulers_every_batch)
        self._set_fit_evaluation(eval_dataloader, eval_interval, eval_subset_num_batches)
        self._set_fit_batches(
            device_train_microbatch_size, precision, has_new_data=train_dataloader is not None
        )
        self._train(self.spin_dataloaders if spin_dataloaders is None else spin_dataloaders)

    def _require_to_fit(self, duration: Any) -> None:
        state = self.state
        if not state.optimizers:
            raise ValueError(
                "No optimizer was specified when constructing the Trainer, as the model had no "
                "parameters; training needs one: give `optimizers` to Trainer()."
            )
        if self._run.train_spec is None:
            raise ValueError(
                "train_dataloader was given neither to Trainer() nor to Trainer.fit(); give it to "
                "one of them."
            )
        if state.max_duration is None and duration is None:
            raise ValueError(
                "max_duration was not given to Trainer(), and duration not to Trainer.fit(); give "
                "one of them."
            )
        state.set_dataloader(
            state.train_dataloader,
            state.dataloader_label,
            -1 if state.dataloader_len is None else state.dataloader_len,
        )

    def _set_duration(self, duration: int | str | Time | None) -> None:
        state = self.state
        length = parse_duration(duration, "duration")
        if length is not None:
            state.max_duration = length + state.timestamp.get(length.unit)
        assert state.max_duration is not None
        if state.dataloader_len is None and state.max_duration.unit is TimeUnit.EPOCH:
            raise ValueError(
                f"max_duration cannot be specified in epochs ({state.max_duration}) with a "
                "training dataloader that has no length: an epoch of it may never end. Give "
                "max_duration in batches (ba), samples (sp) or tokens (tok), or set "
                "train_subset_num_batches."
            )

    def _has_finished(self) -> bool:
        """Tells whether a restarted run had nothing left; raises if what was asked has passed."""
        state = self.state
        assert state.max_duration is not None
        if state.timestamp < state.max_duration:
            return False
        done = state.timestamp.get(state.max_duration.unit)
        if self._run.was_autoresumed:
            log.warning(
                "The run %s has already reached max_duration=%s (it stands at %s): nothing is left "
                "to train. Raise max_duration to go on.",
                state.run_name,
                state.max_duration,
                done,
            )
            return True
        raise ValueError(
            f"max_duration={state.max_duration} must be greater than what has already been trained "
            f"({done}): raise max_duration, give `duration` to Trainer.fit() to train so much "
            "longer, or reset_time=True to start counting again."
        )

    def _set_fit_schedules(self, schedulers: Any, ratio: float, every_batch: bool | None) -> None:
        if ensure_tuple(schedulers):
            check_schedule_ratio(ratio, schedulers)
            _assemble.set_schedules(self._run, schedulers, ratio, every_batch)
        elif ratio != 1.0 or every_batch is not None:
            raise ValueError(
                f"scale_schedule_ratio={ratio} and step_schedulers_every_batch={every_batch} go "
                "with the `schedulers` given to Trainer.fit(); give schedulers, or leave them out."
            )
        _assemble.compile_waiting_schedulers(self._run)

    def _set_fit_evaluation(self, loaders: Any, interval: Any, subset: int) -> None:
        if loaders is not None:
            _assemble.set_evaluators(self._run, loaders, interval, subset)

    def _set_fit_batches(
        self, microbatch_size: Any, precision: str | Precision | None, has_new_data: bool
    ) -> None:
        run, state = self._run, self.state
        if microbatch_size is not None or has_new_data:
            size = run.microbatch_size if microbatch_size is None else microbatch_size
            _assemble.set_microbatch_size(run, size)
        if precision is not None:
            precision = Precision(precision)
            validate_precision(precision, state.device)
            if isinstance(state.model, ModelWrapper) and precision is not state.precision:
                raise ValueError(
                    f"precision={precision.value} in Trainer.fit(): DeepSpeed was set up for "
                    f"{state.precision.value}, and cannot change it. Give it to Trainer()."
                )
            state.precision = precision
            state.scaler = make_scaler(state)

    @phase("training")
    def _train(self, spin_dataloaders: bool) -> None:
        run, state = self._run, self.state
        assert run.train_spec is not None
        self.logger.log_hyperparameters(
            {f"enabled_algorithms/{type(a).__name__}": True for a in state.algorithms}
        )
        loop = run.train_loop(self.accumulate_train_batch_on_tokens)
        self.engine.run_event(Event.FIT_START)
        loader = run.train_spec.dataloader
        if spin_dataloaders and has_own_generator(loader):
            advance_own_generator(loader, int(state.timestamp.epoch), seed_of_batches(state))
        loop.end_pending_iteration()
        run.count_in_present_batches()
        if int(state.timestamp.batch_in_epoch) == 0:
            run.restore_rng()
        loop.run()
        for optimizer in state.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def eval(
        self,
        eval_dataloader: Loader | Evaluator | Sequence[Evaluator] | None = None,
        subset_num_batches: int = -1,
    ) -> None:
        """Evaluates now, on given loaders or the run's own; results are in ``state.eval_metrics``.

        Args:
            eval_dataloader: what to evaluate on instead of the run's evaluators; they are left as
                they are.
            subset_num_batches: evaluates on so many batches; -1 for what each evaluator says.

        Raises:
            ValueError: if there is nothing to evaluate on.
        """
        state, run = self.state, self._run
        held = list(state.evaluators)
        if eval_dataloader is None:
            if not held:
                raise ValueError(
                    "there is nothing to evaluate on: give eval_dataloader to Trainer.eval() or to "
                    "Trainer()."
                )
            evaluators = held
        else:
            names = list(run.model.get_metrics(is_train=False))
            evaluators = parse_evaluators(eval_dataloader, names, "1ep", subset_num_batches)
            for evaluator in evaluators:
                check_is_finite(evaluator)
                if evaluator.label in state.eval_metrics:
                    warnings.warn(
                        f"the results of the evaluator {evaluator.label!r} are overwritten by "
                        "another of the same label; give each evaluator its own label."
                    )
            state.eval_metrics.update(metrics_of_evaluators(run.model, evaluators))
            state.evaluators = [*held, *evaluators]
        loop = run.eval_loop()
        self.engine.run_event(Event.EVAL_STANDALONE_START)
        for evaluator in evaluators:
            subset = (
                evaluator.subset_num_batches if subset_num_batches == -1 else subset_num_batches
            )
            loop.run(evaluator, subset)
        state.evaluators = held
        self.engine.run_event(Event.EVAL_STANDALONE_END)

    def predict(
        self,
        dataloader: DataSpec | Iterable[Any],
        subset_num_batches: int = -1,
        *,
        return_outputs: bool = True,
    ) -> list[Any]:
        """Runs the model over a loader and returns its outputs by batch, on the CPU.

        Args:
            dataloader: whole batches to predict on.
            subset_num_batches: how many batches; -1 for all.
            return_outputs: false keeps nothing and returns an empty list (for callbacks that write
                them out).
        """
        return self._run.predict_loop().run(
            ensure_data_spec(dataloader), subset_num_batches, return_outputs
        )

    def save_checkpoint(
        self, name: str = "ep{epoch}-ba{batch}-rank{rank}", *, weights_only: bool = False
    ) -> str | None:
        """Saves the run now; returns the file, or None on ranks that write none.

        Args:
            name: the file, with placeholders, relative to the working directory.
            weights_only: whether to save the model's weights alone.
        """
        return checkpoint.save_checkpoint(
            state=self.state, filename=name, weights_only=weights_only
        )

    def save_checkpoint_to_save_folder(self) -> None:
        """Saves the run now, into its save folder and under its naming.

        Raises:
            ValueError: if the run has no save folder.
        """
        if self._run.saver is None:
            raise ValueError(
                "In order to use save_checkpoint_to_save_folder you must pass a save_folder to the "
                "Trainer."
            )
        self._run.saver._save_checkpoint(self.state, self.logger)

    def export_for_inference(
        self,
        save_format: str | ExportFormat,
        save_path: str,
        save_object_store: ObjectStore | None = None,
        sample_input: Any = None,
        transforms: Transform | Sequence[Transform] | None = None,
        input_names: Sequence[str] | None = None,
        output_names: Sequence[str] | None = None,
    ) -> None:
        """Writes the model in a form that runs without this program.

        Args:
            save_format: ``"torch_export"``, ``"onnx"``, or ``"torchscript"``, which is deprecated.
            save_path: a path, an address, or the name where a store or a logger uploads it to.
            save_object_store: a store to save to.
            sample_input: what the model is called with, as ``(batch, {})``; by default the last
                batch of the run.
            transforms: functions that change the copy that is exported.
            input_names: names for the inputs.
            output_names: names for the outputs.

        Raises:
            ValueError: if the model is sharded, or there is no sample and no batch.
        """
        if sample_input is None and self.state.batch is not None:
            sample_input = (self.state.batch, {})
        export_with_logger(
            model=self._run.model,
            save_format=save_format,
            save_path=save_path,
            logger=self.logger,
            save_object_store=save_object_store,
            sample_input=sample_input,
            transforms=transforms,
            input_names=input_names,
            output_names=output_names,
        )

    @phase("closing the trainer")
    def close(self) -> None:
        """Closes callbacks and loggers and waits for the other ranks; events then are an error."""
        self.engine.close()
        for undo in self._undo:  # of settings that all trainers of a process share
            undo()
        dist.barrier()

    @property
    def first_train_batch_complete(self) -> bool:
        """Whether a batch has been trained on."""
        return self._run.memory.first_train_batch_complete

    @property
    def cumulative_alloc_retries(self) -> int:
        """How often CUDA's allocator has flushed its cache (only known with ``"auto"``)."""
        return self._run.memory.cumulative_alloc_retries

    @property
    def num_consecutive_thrashes(self) -> int:
        """In how many batches on end it had to (only known with ``"auto"``)."""
        return self._run.memory.num_consecutive_thrashes

    @property
    def num_consecutive_non_OOM_batches(self) -> int:
        """How many batches have fitted on end (only known with ``"auto"``)."""
        return self._run.memory.num_consecutive_non_OOM_batches

    def _accumulate_time_across_ranks(
        self, num_samples: int | float, num_tokens: int | float, batch_time: timedelta
    ) -> tuple[int, int, timedelta]:
        return total_over_ranks(self.state.device, num_samples, num_tokens, batch_time)

    # Read by programs and tests of Composer.
    _checkpoint_saver = property(lambda self: self._run.saver)
    _rng_state = property(lambda self: self._run.rng_state)
    _train_data_spec = property(lambda self: self._run.train_spec)
    _original_model = property(lambda self: self._run.model)
    _scheduler_step_frequency = property(lambda self: self._run.schedule_unit)
    _ddp_sync_strategy = property(lambda self: self._run.ddp_sync_strategy)
    _find_unused_parameters = property(lambda self: self._run.finds_unused_parameters)
    _backwards_create_graph = property(
        lambda self: any(a.backwards_create_graph for a in self.state.algorithms)
    )
