"""How each algorithm is made, and on which model, in the suites that try all of them."""

from typing import Any, NamedTuple


class Setting(NamedTuple):
    """A row: an algorithm of the face of ``composer.algorithms`` and what it is tried with."""

    algorithm: str
    kwargs: dict[str, Any]
    model: str
    """Which of ``tests/cross/algorithm_models.py``: mlp, cnn, images, gpt2, bert or mpt."""
    shards: bool = True
    """Whether it goes together with FSDP2; if not, it must be refused there in words."""
    follows_batches: bool = True
    """Whether micro-batches give what the whole batch gives; batch norms do not, nor what
    draws at random."""
    follows_ranks: bool = True
    """Whether two ranks give what one process gives, if micro-batches do."""
    precision: str = "fp32"
    """The precision of the training."""


SETTINGS = [
    # what acts on training
    Setting("EMA", {"half_life": "3ba"}, "mlp"),
    Setting(
        "EMA",
        {"smoothing": 0.5, "half_life": None, "update_interval": "2ba"},
        "cnn",
        follows_batches=False,
    ),
    Setting("SWA", {"swa_start": "0.4dur", "swa_end": "0.9dur", "update_interval": "1ba"}, "mlp"),
    Setting("CheckpointAveraging", {"interval": "1ba", "window": 3}, "mlp"),
    Setting("SAM", {"rho": 0.05, "interval": 2}, "mlp", shards=False, follows_ranks=False),
    Setting("LayerFreezing", {"freeze_start": 0.0}, "mlp", shards=False),
    Setting("GradientClipping", {"clipping_type": "norm", "clipping_threshold": 0.1}, "mlp"),
    Setting("BatchSizeWarmup", {"schedule": {"0ba": 2, "3ba": 1}}, "mpt"),
    # what changes the data and the loss
    Setting("AugMix", {}, "images", follows_batches=False),
    Setting("ColOut", {"p_row": 0.25, "p_col": 0.25}, "cnn", follows_batches=False),
    Setting("ColOut", {"batch": False}, "images", follows_batches=False),
    Setting("CutMix", {}, "cnn", follows_batches=False),
    Setting("CutOut", {}, "cnn", follows_batches=False),
    Setting("LabelSmoothing", {}, "mlp"),
    Setting("MixUp", {}, "mlp", follows_batches=False),
    Setting("MixUp", {"interpolate_loss": True}, "cnn", follows_batches=False),
    Setting("ProgressiveResizing", {"delay_fraction": 0.0}, "cnn", follows_batches=False),
    Setting("RandAugment", {}, "images", follows_batches=False),
    Setting(
        "SelectiveBackprop", {"start": 0.0, "end": 1.0, "interrupt": 2}, "mlp", follows_ranks=False
    ),
    Setting(
        "SeqLengthWarmup",
        {"duration": 1.0, "min_seq_length": 4, "max_seq_length": 16, "step_size": 4},
        "gpt2",
    ),
    Setting(
        "SeqLengthWarmup",
        {"duration": 1.0, "min_seq_length": 4, "max_seq_length": 16, "truncate": False},
        "mpt",
    ),
    Setting("SeqLengthCurriculum", {"min_seq_length": 4, "duration": 1.0}, "mpt"),
    Setting("ZLoss", {"coefficient": 0.1}, "mpt"),
    Setting("ZLoss", {"coefficient": 0.1}, "gpt2"),
    # what changes the model
    Setting("FP8", {"min_elements": 0, "emulate": True}, "mpt", follows_batches=False),
    Setting(
        "TokenDropping",
        {"initial_kept": 0.5, "multiple_of": 4, "num_whole": 0},
        "mpt",
        follows_batches=False,
    ),
    Setting("Alibi", {"max_sequence_length": 32, "train_sequence_length_scaling": 0.5}, "gpt2"),
    Setting("Alibi", {"max_sequence_length": 32, "train_sequence_length_scaling": 1}, "bert"),
    Setting("Alibi", {"max_sequence_length": 32}, "mpt"),
    Setting("BlurPool", {"min_channels": 4}, "cnn", follows_batches=False),
    Setting("ChannelsLast", {}, "cnn", shards=False, follows_batches=False),
    Setting("Factorize", {"min_features": 16, "latent_features": 4}, "gpt2", follows_ranks=False),
    Setting("Factorize", {"min_features": 8, "latent_features": 2}, "mpt"),
    Setting("GatedLinearUnits", {}, "bert"),
    Setting("GhostBatchNorm", {"ghost_batch_size": 1}, "cnn", follows_batches=False),
    Setting("GyroDropout", {"sigma": 4, "tau": 2}, "bert", follows_batches=False),
    Setting("LowPrecisionGroupNorm", {}, "groupnorm", follows_batches=False, precision="amp_bf16"),
    Setting("LowPrecisionLayerNorm", {}, "gpt2", follows_batches=False, precision="amp_bf16"),
    Setting("NoOpModel", {}, "mlp"),
    Setting(
        "SqueezeExcite", {"min_channels": 4, "latent_channels": 2}, "cnn", follows_batches=False
    ),
    Setting(
        "StochasticDepth",
        {"target_layer_name": "ResNetBottleneck", "drop_warmup": 0.5},
        "resnet",
        shards=False,
        follows_batches=False,
    ),
    Setting(
        "StochasticDepth",
        {"target_layer_name": "ResNetBottleneck", "stochastic_method": "sample"},
        "resnet",
        follows_batches=False,
    ),
    Setting("WeightStandardization", {"n_last_layers_ignore": 0}, "cnn", follows_batches=False),
]
