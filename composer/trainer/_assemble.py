"""Puts a run together from its options, in the order in which Composer's users know it."""

import logging
import os
import warnings
from typing import Any

import torch

from composer._version import __version__
from composer.algorithms.conflicts import check_conflicts
from composer.algorithms.schedule_free.schedule_free import ScheduleFree
from composer.callbacks.checkpoint_saver import CheckpointSaver
from composer.core.data_spec import ensure_data_spec
from composer.core.engine import Engine
from composer.core.event import Event
from composer.core.logger import Logger
from composer.core.logger_destination import LoggerDestination
from composer.core.precision import Precision, validate_precision
from composer.core.protocols import KeepsCheckpoints
from composer.core.state import State
from composer.devices.device import Device
from composer.devices.factory import get_device
from composer.distributed.combinations import Feature, check_combination
from composer.distributed.compiling import compile_model
from composer.distributed.ddp import DDPSyncStrategy, prepare_ddp_module
from composer.distributed.deepspeed import prepare_deepspeed
from composer.distributed.deepspeed_settings import engine_settings, threshold_of_clipping
from composer.distributed.plan import plan_parallelism
from composer.loggers.console_logger import ConsoleLogger
from composer.loggers.progress_bar_logger import ProgressBarLogger
from composer.loggers.remote_uploader_downloader import (
    maybe_create_remote_uploader_downloader_from_uri,
)
from composer.models.base import ComposerModel
from composer.optim.decoupled_weight_decay import DecoupledSGDW
from composer.optim.grad_scaler import takes_closure
from composer.trainer._evaluators import parse_evaluators
from composer.trainer._in_step import seed_of_draws, share_batches
from composer.trainer._memory import supports_finding_a_size
from composer.trainer._metrics import metrics_of_evaluators, metrics_on_device
from composer.trainer._microbatching import parse_microbatch_size
from composer.trainer._options import (
    CheckpointOptions,
    LoggingOptions,
    SystemOptions,
    TrainerOptions,
    as_list,
    parse_duration,
)
from composer.trainer._resume import resume
from composer.trainer._run import Run
from composer.trainer._run_name import generate_run_name, given_run_name
from composer.trainer._scaling import make_scaler
from composer.trainer._schedules import compile_schedulers, scaled_duration, step_unit
from composer.utils import dist, reproducibility
from composer.utils.file_helpers import is_uri, parse_uri
from composer.utils.iter_helpers import ensure_tuple
from composer.utils.model_wrapper import ModelWrapper
from composer.utils.parallelism import ParallelismConfig, parse_parallelism_config
from composer.utils.phases import phase

log = logging.getLogger(__name__)


@phase("starting the trainer")
def assemble(options: TrainerOptions) -> Run:
    """Builds everything up to the first step: state, engine, loaders, weights, wrappers."""
    _set_log_level(options.logging.python_log_level)
    device = get_device(options.system.device)
    precision = _choose_precision(options.system.precision, device)
    model, compile_config = _unwrap_compiled(options.model, options.system.compile_config)
    parallelism = parse_parallelism_config(options.system.parallelism_config)
    if dist.get_world_size() > 1 or options.system.deepspeed_config:
        dist.initialize_dist(device, options.system.dist_timeout)
    seed = _seed(options.system)
    optimizers = _optimizers(model, options.optim.optimizers)
    if parallelism is None and not any(p.is_meta for p in model.parameters()):
        model = device.module_to_device(model)
        for optimizer in optimizers:
            device.optimizer_to_device(optimizer)
    state = _make_state(options, model, optimizers, device, precision, seed, parallelism)
    saver = _add_callbacks(state, options)
    run = Run(state, _make_engine(state, options), saver)
    _plan(run)
    _announce(run, options)
    _set_data(run, options)
    _set_schedules(run, options)
    state.scaler = make_scaler(state)
    compile_config = _spread(run, options, compile_config)
    run.engine.run_event(Event.BEFORE_LOAD)
    resume(run, options)
    run.engine.run_event(Event.AFTER_LOAD)
    reproducibility.seed_all(seed_of_draws(state))
    _wrap(run, options.system, compile_config)
    return run


def _set_log_level(level: str | None) -> None:
    if level is None:
        return
    logging.basicConfig(
        format=(
            f"%(asctime)s: rank{dist.get_global_rank()}[%(process)d][%(threadName)s]: "
            "%(levelname)s: %(name)s: %(message)s"
        )
    )
    logging.getLogger("composer").setLevel(level.upper())


def _choose_precision(precision: str | Precision | None, device: Device) -> Precision:
    if precision is None:
        precision = Precision.AMP_FP16 if device.name == "gpu" else Precision.FP32
    precision = Precision(precision)
    validate_precision(precision, device)
    return precision


def _unwrap_compiled(
    model: Any, compile_config: dict[str, Any] | None
) -> tuple[ComposerModel, dict[str, Any] | None]:
    """Takes a torch.compile wrapper off, to be put back on last; checks the model's kind."""
    original = getattr(model, "_orig_mod", None)
    if original is not None:
        log.warning(
            "The model was given compiled: the Trainer compiles it anew once it is wrapped, with "
            "torch's defaults; compile_config is ignored. Give the plain model with compile_config "
            "to choose settings."
        )
        model, compile_config = original, {}
    if not isinstance(model, ComposerModel):
        raise ValueError(
            f"model is a {type(model).__name__}; give a ComposerModel. ComposerClassifier and "
            "HuggingFaceModel wrap classifiers and transformers models; for others, subclass "
            "composer.models.ComposerModel with forward(batch) and loss(outputs, batch)."
        )
    return model, compile_config


def _seed(options: SystemOptions) -> int:
    """Seeds this rank's generators from rank 0's seed; returns the latter."""
    seeds = [options.seed if options.seed is not None else reproducibility.get_random_seed()]
    dist.broadcast_object_list(seeds)
    reproducibility.seed_all((seeds[0] + dist.get_global_rank()) % (reproducibility.MAX_SEED + 1))
    if options.deterministic_mode:
        reproducibility.configure_deterministic_mode()
    return seeds[0]


def _optimizers(model: ComposerModel, optimizers: Any) -> list[torch.optim.Optimizer]:
    given = as_list(optimizers)
    if given:
        return given
    if next(model.parameters(), None) is None:
        warnings.warn(
            "No optimizer was specified, and the model does not have parameters: none is created, "
            "and nothing will be trained."
        )
        return []
    warnings.warn(
        "No optimizer was specified. Defaulting to DecoupledSGDW(model.parameters(), lr=0.1); give "
        "`optimizers` to choose another."
    )
    return [DecoupledSGDW(model.parameters(), lr=0.1)]


def _algorithms(given: Any, optimizers: list[torch.optim.Optimizer]) -> list[Any]:
    """Returns the algorithms, and what an optimizer that keeps an average needs of them."""
    algorithms = as_list(given)
    averages = any(getattr(optimizer, "evaluates_average", False) for optimizer in optimizers)
    if averages and not any(isinstance(each, ScheduleFree) for each in algorithms):
        algorithms.append(ScheduleFree())
    check_conflicts([*algorithms, *optimizers])
    return algorithms


def _make_state(
    options: TrainerOptions,
    model: ComposerModel,
    optimizers: list[torch.optim.Optimizer],
    device: Device,
    precision: Precision,
    seed: int,
    parallelism: ParallelismConfig | None,
) -> State:
    return State(
        model=model,
        rank_zero_seed=seed,
        run_name=given_run_name(options.logging.run_name) or generate_run_name(),
        device=device,
        precision=precision,
        precision_config=options.system.precision_config,
        optimizers=optimizers,
        algorithms=_algorithms(options.optim.algorithms, optimizers),
        save_metrics=options.checkpoint.save_metrics,
        parallelism_config=parallelism,
    )


def _add_callbacks(state: State, options: TrainerOptions) -> KeepsCheckpoints | None:
    """Sets ``state.callbacks``: loggers, callbacks, then the saver that save_folder asks for."""
    callbacks, profiler = as_list(options.logging.callbacks), options.logging.profiler
    loggers = _destinations(options.logging)
    # Not those of loggers: what FileLogger's file is called is not known before INIT.
    others = [c for c in callbacks if not isinstance(c, LoggerDestination)]
    remote_names = [getattr(callback, "remote_file_name", None) for callback in others]
    remote_names += [] if profiler is None else profiler.remote_filenames
    state.callbacks = [*loggers, *_uploaders(remote_names, loggers), *callbacks]
    if profiler is not None:
        state.profiler = profiler
        profiler.bind_to_state(state)
    savers = [c for c in others if isinstance(c, KeepsCheckpoints)]
    if not savers and options.checkpoint.save_folder is not None:
        savers = [_make_saver(options.checkpoint)]
        state.callbacks.append(savers[0])
    return savers[0] if savers else None


def _uploaders(names: list[Any], loggers: list[LoggerDestination]) -> list[LoggerDestination]:
    """Returns a destination for each store that addresses among the names are in, if none is."""
    addresses = [name for name in names if isinstance(name, str) and is_uri(name)]
    stores = {parse_uri(address)[:2]: address for address in addresses}
    made = (
        maybe_create_remote_uploader_downloader_from_uri(address, loggers)
        for address in stores.values()
    )
    return [uploader for uploader in made if uploader is not None]


def _destinations(options: LoggingOptions) -> list[LoggerDestination]:
    loggers = as_list(options.loggers)
    given = {getattr(logger, "on_console", None) for logger in loggers}
    how: dict[str, Any] = {"stream": options.console_stream, "log_traces": options.log_traces}
    if options.progress_bar and options.log_to_console:
        warnings.warn(
            "Setting both `progress_bar` and `log_to_console` to True is not recommended: their "
            "lines mix. Turn one of them off."
        )
    if options.progress_bar and ProgressBarLogger.on_console in given:
        log.info("A progress bar was given in `loggers`; `progress_bar` adds no second one.")
    elif options.progress_bar:
        loggers.append(ProgressBarLogger(**how))
    if options.log_to_console and ConsoleLogger.on_console in given:
        warnings.warn(
            "A ConsoleLogger was given in `loggers`, so `log_to_console` adds no second one; "
            "set its interval on the one that you give."
        )
    elif options.log_to_console:
        loggers.append(ConsoleLogger(log_interval=options.console_log_interval, **how))
    return loggers


def _make_saver(options: CheckpointOptions) -> CheckpointSaver:
    assert options.save_folder is not None
    return CheckpointSaver(
        folder=options.save_folder,
        filename=options.save_filename,
        latest_filename=options.save_latest_filename,
        overwrite=options.save_overwrite,
        weights_only=options.save_weights_only,
        ignore_keys=options.save_ignore_keys,
        save_interval=options.save_interval,
        num_checkpoints_to_keep=options.save_num_checkpoints_to_keep,
        save_async=options.save_async,
    )


def _make_engine(state: State, options: TrainerOptions) -> Engine:
    destinations = [c for c in state.callbacks if isinstance(c, LoggerDestination)]
    logger = Logger(state=state, destinations=destinations)
    return Engine(state=state, logger=logger, algorithm_passes=options.optim.algorithm_passes)


def _announce(run: Run, options: TrainerOptions) -> None:
    """Fires INIT and logs what the run is."""
    state, logger = run.state, run.engine.logger
    run.model.logger = logger
    run.engine.run_event(Event.INIT)
    world_size, per_node = dist.get_world_size(), dist.get_local_world_size()
    hparams = {
        "composer_version": __version__,
        "composer_commit_hash": str(os.environ.get("COMPOSER_COMMIT_HASH")),
        "num_nodes": world_size // per_node,
        f"num_{state.device.name}s_per_node": per_node,
        "node_name": os.environ.get(
            "NODENAME", "unknown because NODENAME environment variable not set"
        ),
        "rank_zero_seed": state.rank_zero_seed,
    }
    if options.logging.local_hparams is not None:
        hparams.update(options.logging.local_hparams)
    logger.log_hyperparameters(hparams)


def _set_data(run: Run, options: TrainerOptions) -> None:
    """Sets metrics, evaluators, the training loader and the size of a micro-batch."""
    state, data = run.state, options.data
    state.train_metrics = metrics_on_device(state, run.model.get_metrics(is_train=True))
    set_evaluators(
        run,
        options.eval.eval_dataloader,
        options.eval.eval_interval,
        options.eval.eval_subset_num_batches,
    )
    state.max_duration = parse_duration(data.max_duration, "max_duration")
    if data.train_dataloader is not None:
        set_train_data(
            run, data.train_dataloader, data.train_dataloader_label, data.train_subset_num_batches
        )
    set_microbatch_size(run, data.device_train_microbatch_size)


def set_microbatch_size(run: Run, size: Any) -> None:
    """Sets how many samples pass through the model at a time; "auto" needs a device that can tell.

    Raises:
        ValueError: for what is no size, or "auto" where running out of memory is no error to catch.
    """
    state = run.state
    sharers = getattr(run.train_spec, "seq_parallel_world_size", 1)
    if size == "auto" and sharers > 1:
        raise ValueError(
            "device_train_microbatch_size='auto' does not go together with sequence parallelism, "
            f"and the dataloader has seq_parallel_world_size={sharers}; give 1/{sharers}."
        )
    if size == "auto" and not supports_finding_a_size(state.device.name):
        raise ValueError(
            "device_train_microbatch_size='auto' finds the size from CUDA's out-of-memory errors "
            f"and is not supported on {state.device.name}; give a number of samples."
        )
    if size == "auto" and state.profiler is not None:
        raise ValueError(
            "device_train_microbatch_size='auto' and a profiler do not go together: batches that "
            "are tried again would be profiled twice; give a number of samples."
        )
    loader = None if run.train_spec is None else run.train_spec.dataloader
    state.auto_microbatching = size == "auto"
    found = parse_microbatch_size(size, loader, "device_train_microbatch_size")
    if sharers > 1 and found is not None and abs(found * sharers - 1) > 1e-4:
        raise ValueError(
            f"device_train_microbatch_size={found} with seq_parallel_world_size={sharers}: ranks "
            f"that share a sequence train on one at a time; give 1/{sharers}."
        )
    state.device_train_microbatch_size = found
    run.microbatch_size = size


def set_train_data(run: Run, loader: Any, label: str, subset_num_batches: int) -> None:
    """Makes a loader the one to train on."""
    run.train_spec = ensure_data_spec(loader)
    share_batches(run.state, run.train_spec)
    run.state.set_dataloader(run.train_spec.dataloader, label, subset_num_batches)
    run.state.train_dataloader = run.state.dataloader


def set_evaluators(
    run: Run, loaders: Any, interval: Any, subset_num_batches: int, *, warn_unused: bool = True
) -> None:
    """Makes loaders the evaluators of the run, each with its own copy of the model's metrics."""
    names = list(run.model.get_metrics(is_train=False))
    run.state.evaluators = parse_evaluators(
        loaders, names, interval, subset_num_batches, warn_unused=warn_unused
    )
    run.state.eval_metrics = metrics_of_evaluators(run.model, run.state.evaluators)


def _set_schedules(run: Run, options: TrainerOptions) -> None:
    """Keeps the schedulers, and compiles them if the duration is known; otherwise ``fit`` will."""
    optim = options.optim
    set_schedules(
        run, optim.schedulers, optim.scale_schedule_ratio, optim.step_schedulers_every_batch
    )


def set_schedules(run: Run, schedulers: Any, ratio: float, every_batch: bool | None) -> None:
    """Makes schedulers those of the run; they are compiled once the duration is known."""
    run.schedule_unit = step_unit(ensure_tuple(schedulers), every_batch)
    run.waiting_schedulers = ensure_tuple(schedulers), ratio
    if run.state.max_duration is not None:
        compile_waiting_schedulers(run)


def compile_waiting_schedulers(run: Run) -> None:
    """Compiles schedulers against the state, then scales the duration by the schedule ratio."""
    if run.waiting_schedulers is None:
        return
    schedulers, ratio = run.waiting_schedulers
    run.waiting_schedulers = None
    if schedulers:
        run.state.schedulers = compile_schedulers(schedulers, run.state, ratio)
    assert run.state.max_duration is not None
    run.state.max_duration = scaled_duration(run.state.max_duration, ratio)


def _plan(run: Run) -> None:
    """Settles how the model will be spread: who shares a batch must be known before data is."""
    state = run.state
    settings = ParallelismConfig(
        fsdp=state._fsdp_config, fsdp2=state._fsdp2_config, tp=state.tp_config, cp=state.cp_config
    )
    run.plan = plan_parallelism(settings, state.device._device.type)
    state.device_mesh = run.plan.mesh


def _spread(
    run: Run, options: TrainerOptions, compile_config: dict[str, Any] | None
) -> dict[str, Any] | None:
    """Spreads the model over the ranks if that is asked for; returns what is left to compile."""
    state = run.state
    _check_combination(run, options, compile_config)
    run.is_compiled = run.plan.spread(
        run.model,
        state.optimizers[0] if state.optimizers else None,
        device=state.device._device,
        precision=state.precision,
        seed=state.rank_zero_seed,
        compile_config=compile_config,
    )
    if run.plan.sharding is None:
        state.model = state.device.module_to_device(run.model)
        for optimizer in state.optimizers:
            state.device.optimizer_to_device(optimizer)
    if options.system.deepspeed_config:
        _hand_to_deepspeed(run, options.system.deepspeed_config)
    return None if run.is_compiled else compile_config


def _hand_to_deepspeed(run: Run, given: dict[str, Any]) -> None:
    """Has DeepSpeed train the model, under the settings given and those of the Trainer."""
    state = run.state
    if not state.optimizers:
        raise ValueError("deepspeed_config needs an optimizer, and there is nothing to train.")
    loader = None if run.train_spec is None else run.train_spec.dataloader
    settings = engine_settings(
        given,
        precision=state.precision,
        clipping=threshold_of_clipping(state.algorithms),
        microbatch_size=state.device_train_microbatch_size,
        batch_size=getattr(loader, "batch_size", None),
    )
    state.model = prepare_deepspeed(run.model, state.optimizers[0], settings, state.device._device)
    state.scaler = None  # the engine scales fp16 losses


def _check_combination(
    run: Run, options: TrainerOptions, compile_config: dict[str, Any] | None
) -> None:
    """Refuses what does not go together with the way in which the model is spread."""
    state = run.state
    names, watchers = (
        {kind.__name__ for each in plugins for kind in type(each).__mro__}
        for plugins in (state.algorithms, state.callbacks)
    )
    is_meta = any(parameter.is_meta for parameter in run.model.parameters())
    asked = {
        Feature.META: is_meta,
        Feature.MIXED: len(set(dist.all_gather_object(is_meta))) > 1,
        Feature.COMPILING: compile_config is not None,
        Feature.PARTITIONING: compile_config is not None
        and compile_config.get("backend") not in ("eager", "aot_eager_default_partitioner"),
        Feature.ADAPTERS: getattr(run.model, "using_peft", False),
        Feature.FEW_BITS: getattr(run.model, "has_few_bits", False),
        Feature.MEETING: dist.get_world_size() > 1
        and getattr(run.model, "ranks_meet_in_training", False),
        Feature.AUTO_SIZE: state.auto_microbatching
        or any(evaluator.auto_microbatching for evaluator in state.evaluators),
        Feature.CLOSURE: "SAM" in names or any(takes_closure(each) for each in state.optimizers),
        Feature.SECOND_ORDER: any(a.backwards_create_graph for a in state.algorithms),
        Feature.UNUSED_PARAMETERS: any(a.find_unused_parameters for a in state.algorithms),
        Feature.WEIGHT_COPIES: not names.isdisjoint({"EvaluatedAverage", "ScheduleFree", "SWA"}),
        Feature.FREEZING: "LayerFreezing" in names,
        Feature.SYNC_STRATEGY: options.system.ddp_sync_strategy is not None,
        Feature.SAVED_METRICS: state.save_metrics,
        Feature.ZERO: bool(options.system.deepspeed_config),
        Feature.READING_GRADIENTS: not watchers.isdisjoint(
            {"OptimizerMonitor", "StabilityMonitor"}
        ),
    }
    check_combination(
        run.plan.features() | {feature for feature, is_asked in asked.items() if is_asked}
    )


def _wrap(run: Run, options: SystemOptions, compile_config: dict[str, Any] | None) -> None:
    """Wraps the model for its replicas, then compiles it in place (names stay as they are)."""
    state = run.state
    unused = any(a.find_unused_parameters for a in state.algorithms)
    default = DDPSyncStrategy.MULTI_AUTO_SYNC if unused else DDPSyncStrategy.SINGLE_AUTO_SYNC
    strategy = options.ddp_sync_strategy
    run.finds_unused_parameters = unused
    run.ddp_sync_strategy = default if strategy is None else DDPSyncStrategy(strategy)
    is_spread = run.plan.sharding is not None or isinstance(state.model, ModelWrapper)
    if dist.get_world_size() > 1 and not is_spread:
        state.model = prepare_ddp_module(run.model, unused)
    if compile_config is not None:
        run.is_compiled = True
    if compile_config is not None:
        compile_model(state.model, compile_config)
