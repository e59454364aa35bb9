"""Algorithms: plug-ins that change training."""

from composer.algorithms.alibi.alibi import Alibi
from composer.algorithms.augmix.augmix import AugmentAndMixTransform, AugMix
from composer.algorithms.batch_size_warmup.batch_size_warmup import BatchSizeWarmup
from composer.algorithms.blurpool.blurpool import BlurPool
from composer.algorithms.channels_last.channels_last import ChannelsLast
from composer.algorithms.checkpoint_averaging.checkpoint_averaging import CheckpointAveraging
from composer.algorithms.colout.colout import ColOut, ColOutTransform
from composer.algorithms.cutmix.cutmix import CutMix
from composer.algorithms.cutout.cutout import CutOut
from composer.algorithms.ema.ema import EMA
from composer.algorithms.factorize.factorize import Factorize
from composer.algorithms.fp8.fp8 import FP8
from composer.algorithms.gated_linear_units.gated_linear_units import GatedLinearUnits
from composer.algorithms.ghost_batchnorm.ghost_batchnorm import GhostBatchNorm
from composer.algorithms.gradient_clipping.gradient_clipping import GradientClipping
from composer.algorithms.gyro_dropout.gyro_dropout import GyroDropout
from composer.algorithms.label_smoothing.label_smoothing import LabelSmoothing
from composer.algorithms.layer_freezing.layer_freezing import LayerFreezing
from composer.algorithms.low_precision_groupnorm.low_precision_groupnorm import (
    LowPrecisionGroupNorm,
)
from composer.algorithms.low_precision_layernorm.low_precision_layernorm import (
    LowPrecisionLayerNorm,
)
from composer.algorithms.mixup.mixup import MixUp
from composer.algorithms.mup.mup import MuP
from composer.algorithms.no_op_model.no_op_model import NoOpModel
from composer.algorithms.presets import PRESETS, preset
from composer.algorithms.progressive_resizing.progressive_resizing import ProgressiveResizing
from composer.algorithms.randaugment.randaugment import RandAugment, RandAugmentTransform
from composer.algorithms.sam.sam import SAM
from composer.algorithms.schedule_free.schedule_free import ScheduleFree
from composer.algorithms.selective_backprop.selective_backprop import SelectiveBackprop
from composer.algorithms.seq_length_curriculum.seq_length_curriculum import SeqLengthCurriculum
from composer.algorithms.seq_length_warmup.seq_length_warmup import SeqLengthWarmup
from composer.algorithms.squeeze_excite.squeeze_excite import (
    SqueezeExcite,
    SqueezeExcite2d,
    SqueezeExciteConv2d,
)
from composer.algorithms.stochastic_depth.stochastic_depth import StochasticDepth
from composer.algorithms.swa.swa import SWA
from composer.algorithms.token_dropping.token_dropping import TokenDropping
from composer.algorithms.utils.surgery import NoMatchError
from composer.algorithms.weight_standardization.weight_standardization import WeightStandardization
from composer.algorithms.z_loss.z_loss import ZLoss

__all__ = [
    "Alibi",
    "AugMix",
    "AugmentAndMixTransform",
    "BatchSizeWarmup",
    "BlurPool",
    "ChannelsLast",
    "CheckpointAveraging",
    "ColOut",
    "ColOutTransform",
    "CutMix",
    "CutOut",
    "EMA",
    "FP8",
    "Factorize",
    "GatedLinearUnits",
    "GhostBatchNorm",
    "GradientClipping",
    "GyroDropout",
    "LabelSmoothing",
    "LayerFreezing",
    "LowPrecisionGroupNorm",
    "LowPrecisionLayerNorm",
    "MixUp",
    "MuP",
    "NoMatchError",
    "NoOpModel",
    "PRESETS",
    "ProgressiveResizing",
    "RandAugment",
    "RandAugmentTransform",
    "SAM",
    "SWA",
    "ScheduleFree",
    "SelectiveBackprop",
    "SeqLengthCurriculum",
    "SeqLengthWarmup",
    "SqueezeExcite",
    "SqueezeExcite2d",
    "SqueezeExciteConv2d",
    "StochasticDepth",
    "TokenDropping",
    "WeightStandardization",
    "ZLoss",
    "preset",
]
