"""The keys of a training recipe; the text under each field is its manual entry."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

__all__ = ["TRAIN_CONFIG_KEYS", "TrainConfig"]


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A checked training recipe: what ``llmfoundry train recipe.yaml key=value`` runs."""

    model: dict[str, Any]
    """``name`` of a registered model, then its arguments; ``master_weights_dtype`` (``fp32``,
    ``bf16``, ``fp16``) casts the weights after they are built."""

    tokenizer: dict[str, Any]
    """``name`` (a folder, a hub name or a registered tokenizer) and ``kwargs``; ``{}`` trains
    without one."""

    optimizer: dict[str, Any]
    """``name`` of a registered optimizer and its arguments. ``disable_grad`` freezes the parameters
    whose names match its regular expressions; ``param_groups`` gives the parameters that match each
    ``param_str_match`` settings of their own (the first match wins)."""

    scheduler: dict[str, Any]
    """``name`` of a registered learning-rate schedule and its arguments."""

    train_loader: dict[str, Any]
    """``name`` of a registered loader (``text``, ``finetuning``, ...), its ``dataset`` and the
    arguments of the loader."""

    max_duration: int | str
    """How long to train: ``'2ba'`` batches, ``'1ep'`` epochs, ``'1e9tok'`` tokens; a bare number is
    epochs."""

    max_seq_len: int
    """The context length in tokens. The model and the loaders take theirs from it by
    interpolation: ``${max_seq_len}``."""

    global_train_batch_size: int
    """Samples in one optimizer step, over all ranks."""

    seed: int = 17
    """Seeds weights, data order and every other choice of the run."""

    precision: str = "amp_bf16"
    """``fp32``, ``amp_bf16``, ``amp_fp16`` or ``amp_fp8``."""

    code_paths: list[str] | None = None
    """Python files or folders to import before the recipe is read further, so that what they
    register can be named in it."""

    max_split_size_mb: int | None = None
    """Largest block of GPU memory that the caching allocator may split, in MB."""

    expandable_segments: bool = True
    """Lets the caching allocator grow its segments, which fragments less."""

    cuda_load_lazy: bool = False
    """Loads CUDA kernels when they are first used."""

    dist_timeout: int | float = 600.0
    """Seconds after which a collective that some rank never joined is an error."""

    fsdp_config: dict[str, Any] | None = None
    """Shards the model over the ranks; see the parallelism manual for its keys. On one rank it is
    left out with a warning, but for activation checkpointing."""

    tp_config: dict[str, Any] | None = None
    """Splits layers over ranks: ``strategy`` (a registered one), ``tensor_parallel_degree``."""

    cp_config: dict[str, Any] | None = None
    """Splits sequences over ranks: ``context_parallel_degree``."""

    deepspeed_config: dict[str, Any] | None = None
    """Trains under DeepSpeed's ZeRO: its own settings, with ``zero_optimization.stage``."""

    accumulate_train_batch_on_tokens: bool = True
    """Weighs every supervised token of a batch equally, whatever micro-batch and rank it is on;
    false weighs samples."""

    eval_interval: int | str = 1
    """How often to evaluate: ``'500ba'``; a bare number is epochs, 0 is never."""

    eval_loader: dict[str, Any] | list[dict[str, Any]] | None = None
    """A loader like ``train_loader``, or a list of them, each with a ``label`` of its own."""

    icl_tasks: list[dict[str, Any]] | str | None = None
    """In-context-learning tasks, or the path of a file of them."""

    eval_gauntlet: dict[str, Any] | str | None = None
    """How task scores are averaged, or the path of a file that says so."""

    icl_subset_num_batches: int | None = None
    """Batches to take of each in-context-learning task."""

    icl_seq_len: int | None = None
    """Context length of in-context-learning tasks; ``max_seq_len`` if unset."""

    loggers: dict[str, Any] | None = None
    """Where metrics go: a registered logger's name and its arguments (or nothing), for each."""

    progress_bar: bool = False
    """Shows a progress bar."""

    log_to_console: bool = True
    """Prints metrics as text."""

    python_log_level: str | None = "debug"
    """Level of Python's logging for the packages of this house; null leaves logging alone."""

    console_log_interval: int | str = "1ba"
    """How often to print metrics."""

    log_config: bool = True
    """Prints the resolved recipe and logs it as hyperparameters."""

    callbacks: dict[str, Any] | None = None
    """A registered callback's name and its arguments (or nothing), for each."""

    algorithms: dict[str, Any] | None = None
    """A registered algorithm's name and its arguments (or nothing), for each."""

    save_folder: str | None = None
    """Folder or URI for checkpoints; ``{run_name}`` is filled in. Unset saves nothing."""

    save_filename: str | None = None
    """Name of a checkpoint; unset is ``ep{epoch}-ba{batch}-rank{rank}.pt``."""

    save_latest_filename: str | None = None
    """Name of the link to the newest checkpoint; unset is ``latest-rank{rank}.pt``, or
    ``latest-sharded-rank{rank}`` for sharded checkpoints."""

    save_overwrite: bool = False
    """Lets a checkpoint replace one of the same name."""

    save_weights_only: bool = False
    """Saves the model without what resuming needs."""

    save_interval: int | str = "1000ba"
    """How often to save; a bare number is epochs."""

    save_num_checkpoints_to_keep: int = -1
    """How many checkpoints to keep; -1 keeps all."""

    save_async: bool = False
    """Lets training go on while a checkpoint is written from a copy in the host's memory."""

    save_ignore_keys: list[str] | None = None
    """Globs of state to leave out of checkpoints, for example ``state/optimizers/*``."""

    load_path: str | None = None
    """A checkpoint to start from."""

    load_weights_only: bool = False
    """Takes the weights of ``load_path`` and starts the run anew."""

    load_strict_model_weights: bool = True
    """Demands that the weights of ``load_path`` fit the model exactly."""

    load_ignore_keys: list[str] | None = None
    """Globs of state not to take from ``load_path``."""

    only_hf_checkpoint: bool = False
    """Writes the Hugging Face folder of the ``hf_checkpointer`` callback and does not train."""

    only_composer_checkpoint: bool = False
    """Saves a checkpoint to ``save_folder`` and does not train."""

    autoresume: bool = False
    """Continues from the newest complete checkpoint in ``save_folder``, if there is one; a run that
    has already reached ``max_duration`` says so and ends well. Needs ``run_name``."""

    train_subset_num_batches: int = -1
    """Batches to take of each epoch; -1 takes all."""

    device_train_microbatch_size: str | int | float = "auto"
    """Samples that one device computes at once: a number, or ``'auto'`` to find the largest that
    fits. It does not change the result."""

    spin_dataloaders: bool = True
    """Winds loaders that keep no position of their own forward on resumption."""

    device_eval_batch_size: int | float | None = None
    """Samples of one evaluation batch on one device; unset is ``device_train_microbatch_size``, or
    1 where that is ``'auto'``."""

    eval_subset_num_batches: int = -1
    """Batches to take of each evaluation; -1 takes all."""

    eval_first: bool = False
    """Evaluates before the first step of a new run."""

    compile_config: dict[str, Any] | None = None
    """Arguments of ``torch.compile``; ``{}`` compiles with its defaults."""

    metadata: dict[str, Any] | None = None
    """Anything to log beside the recipe."""

    flatten_metadata: bool = True
    """Logs the keys of ``metadata`` beside the recipe's own instead of below ``metadata``."""

    run_name: str | None = None
    """Name of the run; unset is the environment variable ``RUN_NAME``, then a random name."""

    profiler: dict[str, Any] | None = None
    """``schedule`` (required), ``json_trace_handler`` and the arguments of the profiler."""

    variables: dict[str, Any] = field(default_factory=dict)
    """Anything; the rest of the recipe refers to it by interpolation, ``${variables.x}``."""

    n_gpus: int | None = None
    """Filled in: the number of ranks."""

    device_train_batch_size: int | float | None = None
    """Filled in: samples of one step on one rank."""

    device_train_grad_accum: str | int | None = None
    """Filled in: micro-batches of one step, or ``'auto'``."""


TRAIN_CONFIG_KEYS: set[str] = {each.name for each in dataclasses.fields(TrainConfig)}
