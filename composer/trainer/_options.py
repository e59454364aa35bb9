"""What was asked of a Trainer, grouped and cross-checked before anything is built."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from composer.core.time import Time, TimeUnit
from composer.devices.device import Device
from composer.utils.iter_helpers import ensure_tuple


@dataclass(frozen=True)
class DataOptions:
    """The training data, how long to train on them, and how a batch is cut."""

    train_dataloader: Any
    train_dataloader_label: str
    train_subset_num_batches: int
    spin_dataloaders: bool
    max_duration: int | str | Time | None
    device_train_microbatch_size: int | float | str | None
    accumulate_train_batch_on_tokens: bool | None

    def __post_init__(self):
        parse_duration(self.max_duration, "max_duration")


@dataclass(frozen=True)
class OptimOptions:
    """How weights change: algorithms, the optimizer and its schedulers."""

    algorithms: Any
    algorithm_passes: Any
    optimizers: Any
    schedulers: Any
    scale_schedule_ratio: float
    step_schedulers_every_batch: bool | None

    def __post_init__(self):
        count = len(ensure_tuple(self.optimizers))
        if count > 1:
            raise NotImplementedError(
                f"{count} optimizers were given; exactly one is supported. To treat parameters "
                "differently, give them parameter groups of one optimizer."
            )
        check_schedule_ratio(self.scale_schedule_ratio, self.schedulers)


@dataclass(frozen=True)
class EvalOptions:
    """What to evaluate on during training, and how often."""

    eval_dataloader: Any
    eval_interval: int | str | Time | Callable[..., bool]
    eval_subset_num_batches: int


@dataclass(frozen=True)
class LoggingOptions:
    """Who watches the run, and where its news go."""

    callbacks: Any
    loggers: Any
    run_name: str | None
    progress_bar: bool
    log_to_console: bool
    console_stream: Any
    console_log_interval: int | str | Time
    log_traces: bool
    local_hparams: dict[str, Any] | None
    """The constructor's arguments, to be logged as hyperparameters; None unless asked for."""
    python_log_level: str | None
    profiler: Any


@dataclass(frozen=True)
class CheckpointOptions:
    """What to load before training, and what to save, when and where."""

    load_path: str | None
    load_object_store: Any
    load_weights_only: bool
    load_strict_model_weights: bool
    load_progress_bar: bool
    load_ignore_keys: list[str] | Callable[[dict[str, Any]], None] | None
    load_exclude_algorithms: list[str] | None
    save_folder: str | None
    save_filename: str
    save_latest_filename: str | None
    save_overwrite: bool
    save_interval: int | str | Time | Callable[..., bool]
    save_weights_only: bool
    save_ignore_keys: list[str] | Callable[[dict[str, Any]], None] | None
    save_num_checkpoints_to_keep: int
    save_metrics: bool
    autoresume: bool
    save_async: bool


@dataclass(frozen=True)
class SystemOptions:
    """On what the run computes: devices, precision, randomness, compilation."""

    parallelism_config: Any
    device: str | Device | None
    precision: Any
    precision_config: dict[str, Any] | None
    seed: int | None
    deterministic_mode: bool
    dist_timeout: float
    ddp_sync_strategy: Any
    compile_config: dict[str, Any] | None
    deepspeed_config: dict[str, Any] | None

    def __post_init__(self):
        if self.seed is not None and not 0 <= self.seed <= 2**32 - 1:
            raise ValueError(f"seed={self.seed}; it must lie between 0 and 2**32 - 1.")
        if self.parallelism_config and self.deepspeed_config:
            raise ValueError(
                "parallelism_config and deepspeed_config both say how the model is spread; give "
                "one of them."
            )


@dataclass(frozen=True)
class TrainerOptions:
    """Everything that a Trainer was asked for."""

    model: Any
    data: DataOptions
    optim: OptimOptions
    eval: EvalOptions
    logging: LoggingOptions
    checkpoint: CheckpointOptions
    system: SystemOptions


def parse_duration(duration: int | str | Time | None, argument: str) -> Time | None:
    """Returns a training duration as Time (an int counts epochs).

    Raises:
        ValueError: for wall-clock seconds, for a fraction of itself, and for what is not positive.
    """
    if duration is None:
        return None
    time = Time.from_input(duration, TimeUnit.EPOCH)
    if time.unit in (TimeUnit.SECOND, TimeUnit.DURATION):
        raise ValueError(
            f"{argument}={duration!r}; a training duration is given in epochs (ep), batches (ba), "
            "samples (sp), tokens (tok) or iterations (iter), not in wall-clock time or as a "
            "fraction of itself."
        )
    if time.value <= 0:
        raise ValueError(f"{argument}={duration!r}; it must be positive.")
    return time


def check_schedule_ratio(ratio: float, schedulers: Any) -> None:
    """Refuses a schedule ratio that is not positive, or that has no scheduler to scale."""
    if ratio <= 0:
        raise ValueError(f"scale_schedule_ratio={ratio}; it must be positive.")
    if ratio != 1.0 and not ensure_tuple(schedulers):
        raise ValueError(
            f"scale_schedule_ratio={ratio} scales schedules, but no scheduler was given; give "
            "`schedulers`, or set the duration you want in max_duration."
        )


def as_list(value: Any) -> list[Any]:
    """Returns one object, a sequence of them, or None as a new list."""
    if value is None:
        return []
    return list(value) if isinstance(value, Sequence) else [value]
