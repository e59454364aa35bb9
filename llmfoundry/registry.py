"""What a recipe can name, and where each name leads; nothing is imported before it is asked for."""

from typing import Any

from llmfoundry.layers_registry import (
    attention_classes,
    attention_implementations,
    fcs,
    ffns,
    ffns_with_megablocks,
    ffns_with_norm,
    module_init_fns,
    norms,
    param_init_fns,
)
from llmfoundry.utils.registry_utils import TypedRegistry, create_registry

__all__ = [
    "algorithms",
    "attention_classes",
    "attention_implementations",
    "callbacks",
    "callbacks_with_config",
    "collators",
    "config_transforms",
    "data_specs",
    "dataloaders",
    "dataset_replication_validators",
    "fcs",
    "ffns",
    "ffns_with_megablocks",
    "ffns_with_norm",
    "icl_datasets",
    "load_planners",
    "loggers",
    "metrics",
    "models",
    "module_init_fns",
    "norms",
    "optimizers",
    "param_init_fns",
    "save_planners",
    "schedulers",
    "tokenizers",
    "tp_strategies",
]


def _registry(name: str, description: str, **rows: str) -> TypedRegistry[Any]:
    """Creates a registry that packages may add to, with the rows of this house."""
    registry = create_registry(
        "llmfoundry", name, generic_type=Any, entry_points=True, description=description
    )
    for key, path in rows.items():
        registry.register_path(key, path)
    return registry


loggers = _registry(
    "loggers",
    "Loggers carry metrics out of a run. A class of composer.loggers.LoggerDestination.",
    inmemory="composer.loggers:InMemoryLogger",
    in_memory_logger="composer.loggers:InMemoryLogger",
    file_logger="composer.loggers:FileLogger",
    wandb="composer.loggers:WandBLogger",
    tensorboard="composer.loggers:TensorboardLogger",
    mlflow="composer.loggers:MLFlowLogger",
    comet="composer.loggers:CometMLLogger",
    slack="composer.loggers:SlackLogger",
    trackio="composer.loggers:TrackioLogger",
    remote_uploader_downloader="composer.loggers:RemoteUploaderDownloader",
)

callbacks = _registry(
    "callbacks",
    "Callbacks watch a run. A class of composer.core.Callback.",
    activation_monitor="composer.callbacks:ActivationMonitor",
    best_checkpoints="composer.callbacks:BestCheckpoints",
    checkpoint_now="composer.callbacks:CheckpointNow",
    generate_callback="composer.callbacks:Generate",
    image_visualizer="composer.callbacks:ImageVisualizer",
    lr_monitor="composer.callbacks:LRMonitor",
    memory_monitor="composer.callbacks:MemoryMonitor",
    memory_snapshot="composer.callbacks:MemorySnapshot",
    oom_observer="composer.callbacks:OOMObserver",
    stability_monitor="composer.callbacks:StabilityMonitor",
    system_metrics_monitor="composer.callbacks:SystemMetricsMonitor",
    threshold_stopper="composer.callbacks:ThresholdStopper",
    speed_monitor="composer.callbacks:SpeedMonitor",
    runtime_estimator="composer.callbacks:RuntimeEstimator",
    optimizer_monitor="composer.callbacks:OptimizerMonitor",
    early_stopper="composer.callbacks:EarlyStopper",
    nan_monitor="composer.callbacks:NaNMonitor",
    load_checkpoint="composer.callbacks:LoadCheckpoint",
    scheduled_gc="llmfoundry.callbacks.scheduled_gc_callback:ScheduledGarbageCollector",
    global_lr_scaling="llmfoundry.callbacks.resumption_callbacks:GlobalLRScaling",
    layer_freezing="llmfoundry.callbacks.resumption_callbacks:LayerFreezing",
    fdiff_metrics="llmfoundry.callbacks.fdiff_callback:FDiffMetrics",
    hf_checkpointer="llmfoundry.callbacks.hf_checkpointer:HuggingFaceCheckpointer",
    mono_checkpoint_saver=(
        "llmfoundry.callbacks.monolithic_ckpt_callback:MonolithicCheckpointSaver"
    ),
    env_logging="llmfoundry.callbacks.env_logging_callback:EnvironmentLoggingCallback",
    kill_loss_spike="llmfoundry.callbacks.kill_loss_spike_callback:KillLossSpike",
    loss_perp_v_len=("llmfoundry.callbacks.loss_perp_v_len_callback:LossPerpVsContextLengthLogger"),
    mbmoe_tok_per_expert=(
        "llmfoundry.callbacks.log_mbmoe_tok_per_expert_callback:MegaBlocksMoE_TokPerExpert"
    ),
    run_timeout="llmfoundry.callbacks.run_timeout_callback:RunTimeoutCallback",
)

callbacks_with_config = _registry(
    "callbacks_with_config",
    "Callbacks that are also given the whole recipe. A class of "
    "llmfoundry.interfaces.CallbackWithConfig.",
    curriculum_learning=("llmfoundry.callbacks.curriculum_learning_callback:CurriculumLearning"),
    dataset_swap="llmfoundry.callbacks.dataset_swap_callback:DatasetSwap",
    hf_checkpointer="llmfoundry.callbacks.hf_checkpointer:HuggingFaceCheckpointer",
)

optimizers = _registry(
    "optimizers",
    "Optimizers. A class of torch.optim.Optimizer.",
    adalr_lion="llmfoundry.optim.adaptive_lion:DecoupledAdaLRLion",
    clip_lion="llmfoundry.optim.adaptive_lion:DecoupledClipLion",
    decoupled_lionw="llmfoundry.optim.lion:DecoupledLionW",
    decoupled_adamw="composer.optim.decoupled_weight_decay:DecoupledAdamW",
    decoupled_ademamix="composer.optim.ademamix:DecoupledAdEMAMix",
    decoupled_muon="composer.optim.muon:DecoupledMuon",
    schedule_free_adamw="composer.optim.schedule_free:ScheduleFreeAdamW",
    no_op="llmfoundry.optim.no_op:NoOp",
)

algorithms = _registry(
    "algorithms",
    "Algorithms change training. A class of composer.core.Algorithm.",
    alibi="composer.algorithms:Alibi",
    batch_size_warmup="composer.algorithms:BatchSizeWarmup",
    checkpoint_averaging="composer.algorithms:CheckpointAveraging",
    ema="composer.algorithms:EMA",
    factorize="composer.algorithms:Factorize",
    fp8="composer.algorithms:FP8",
    gated_linear_units="composer.algorithms:GatedLinearUnits",
    gradient_clipping="composer.algorithms:GradientClipping",
    gyro_dropout="composer.algorithms:GyroDropout",
    layer_freezing="composer.algorithms:LayerFreezing",
    low_precision_layernorm="composer.algorithms:LowPrecisionLayerNorm",
    mup="composer.algorithms:MuP",
    sam="composer.algorithms:SAM",
    seq_length_curriculum="composer.algorithms:SeqLengthCurriculum",
    seq_length_warmup="composer.algorithms:SeqLengthWarmup",
    swa="composer.algorithms:SWA",
    token_dropping="composer.algorithms:TokenDropping",
    z_loss="composer.algorithms:ZLoss",
)

schedulers = _registry(
    "schedulers",
    "Learning-rate schedules. A class of composer.optim.ComposerScheduler.",
    constant_with_warmup="composer.optim.scheduler:ConstantWithWarmupScheduler",
    cosine_with_warmup="composer.optim.scheduler:CosineAnnealingWithWarmupScheduler",
    warmup_stable_decay="composer.optim.warmup_schedules:WarmupStableDecayScheduler",
    linear_decay_with_warmup="composer.optim.scheduler:LinearWithWarmupScheduler",
    inv_sqrt_with_warmup="llmfoundry.optim.scheduler:InverseSquareRootWithWarmupScheduler",
)

tokenizers = _registry(
    "tokenizers",
    "Tokenizers that are no folder or hub name. A class of transformers.PreTrainedTokenizerBase.",
    tiktoken="llmfoundry.tokenizers.tiktoken:TiktokenTokenizerWrapper",
)

models = _registry(
    "models",
    "Models. A class of composer.models.ComposerModel, built with tokenizer=.",
    contrastive_lm="llmfoundry.models.llm_embed.contrastive_model:ContrastiveModel",
    fmapi_causal_lm="llmfoundry.models.inference_api_wrapper.fmapi:FMAPICasualLMEvalWrapper",
    fmapi_chat="llmfoundry.models.inference_api_wrapper.fmapi:FMAPIChatAPIEvalWrapper",
    finetune_embedding_model=(
        "llmfoundry.models.llm_embed.finetune_embedding_model:FinetuneEmbeddingModel"
    ),
    hf_causal_lm="llmfoundry.models.hf.hf_causal_lm:ComposerHFCausalLM",
    hf_t5="llmfoundry.models.hf.hf_t5:ComposerHFT5",
    mpt_causal_lm="llmfoundry.models.mpt.modeling_mpt:ComposerMPTCausalLM",
    openai_causal_lm=(
        "llmfoundry.models.inference_api_wrapper.openai_causal_lm:OpenAICausalLMEvalWrapper"
    ),
    openai_chat=(
        "llmfoundry.models.inference_api_wrapper.openai_causal_lm:OpenAIChatAPIEvalWrapper"
    ),
)

dataloaders = _registry(
    "dataloaders",
    "Loaders. A function of the loader's settings, tokenizer= and device_batch_size= that returns "
    "a composer.core.DataSpec.",
    contrastive_pairs="llmfoundry.data.contrastive_pairs.dataloader:build_pairs_dataloader",
    finetuning="llmfoundry.data.finetuning.dataloader:build_finetuning_dataloader",
    text="llmfoundry.data.text_data:build_text_dataloader",
)

dataset_replication_validators = _registry(
    "dataset_replication_validators",
    "Checks of the settings that data sets share: (dataset_cfg, tokenizer, device_batch_size) -> "
    "(replication factor, samples of a batch).",
    dataset_replication_validator="llmfoundry.data.utils:validate_ds_replication",
)

collators = _registry(
    "collators",
    "Makers of batches: (dataloader_cfg, tokenizer, dataset_batch_size) -> (collator, samples of a "
    "batch).",
    finetuning_collator="llmfoundry.data.utils:get_finetuning_collator",
    text_collator="llmfoundry.data.utils:get_text_collator",
)

data_specs = _registry(
    "data_specs",
    "Wrappers of loaders: (dl, dataset_cfg) -> composer.core.DataSpec.",
    data_spec="llmfoundry.data.utils:get_data_spec",
)

metrics = _registry(
    "metrics",
    "Metrics. A class of torchmetrics.Metric.",
    token_accuracy="llmfoundry.metrics.token_acc:TokenAccuracy",
    language_cross_entropy="composer.metrics:LanguageCrossEntropy",
    language_perplexity="composer.metrics:LanguagePerplexity",
    masked_accuracy="composer.metrics:MaskedAccuracy",
)

icl_datasets = _registry(
    "icl_datasets",
    "Data sets of in-context-learning tasks. A class of InContextLearningDataset.",
)

config_transforms = _registry(
    "config_transforms",
    "Changes of a recipe before it is checked: dict -> dict.",
    update_batch_size_info="llmfoundry.config.batch_size:update_batch_size_info",
)

load_planners = _registry(
    "load_planners", "Planners for loading sharded checkpoints. A class of DCP's LoadPlanner."
)

save_planners = _registry(
    "save_planners", "Planners for saving sharded checkpoints. A class of DCP's SavePlanner."
)

tp_strategies = _registry(
    "tp_strategies",
    "Tensor-parallel plans: model -> {module name: torch ParallelStyle}.",
    ffn="llmfoundry.tp.ffn:ffn_tp_strategy",
    llama="llmfoundry.tp.llama:llama_tp_strategy",
    mpt="llmfoundry.tp.mpt:mpt_tp_strategy",
)
