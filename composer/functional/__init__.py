"""The mathematics of the algorithms as free functions, for use without a Trainer."""

from composer.algorithms.alibi.alibi import apply_alibi
from composer.algorithms.augmix.augmix import augmix_image
from composer.algorithms.blurpool.blurpool import apply_blurpool
from composer.algorithms.channels_last.channels_last import apply_channels_last
from composer.algorithms.colout.colout import colout_batch
from composer.algorithms.cutmix.cutmix import cutmix_batch
from composer.algorithms.cutout.cutout import cutout_batch
from composer.algorithms.ema.ema import compute_ema
from composer.algorithms.factorize.factorize import apply_factorization
from composer.algorithms.fp8.fp8 import apply_fp8
from composer.algorithms.gated_linear_units.gated_linear_units import apply_gated_linear_units
from composer.algorithms.ghost_batchnorm.ghost_batchnorm import apply_ghost_batchnorm
from composer.algorithms.gradient_clipping.gradient_clipping import apply_gradient_clipping
from composer.algorithms.gyro_dropout.gyro_dropout import apply_gyro_dropout
from composer.algorithms.label_smoothing.label_smoothing import smooth_labels
from composer.algorithms.layer_freezing.layer_freezing import freeze_layers
from composer.algorithms.low_precision_groupnorm.low_precision_groupnorm import (
    apply_low_precision_groupnorm,
)
from composer.algorithms.low_precision_layernorm.low_precision_layernorm import (
    apply_low_precision_layernorm,
)
from composer.algorithms.mixup.mixup import mixup_batch
from composer.algorithms.progressive_resizing.progressive_resizing import resize_batch
from composer.algorithms.randaugment.randaugment import randaugment_image
from composer.algorithms.selective_backprop.selective_backprop import (
    select_using_loss,
    should_selective_backprop,
)
from composer.algorithms.seq_length_curriculum.seq_length_curriculum import cut_sequences
from composer.algorithms.seq_length_warmup.seq_length_warmup import set_batch_sequence_length
from composer.algorithms.squeeze_excite.squeeze_excite import apply_squeeze_excite
from composer.algorithms.stochastic_depth.stochastic_depth import apply_stochastic_depth
from composer.algorithms.token_dropping.token_dropping import apply_token_dropping
from composer.algorithms.weight_standardization.weight_standardization import (
    apply_weight_standardization,
)
from composer.algorithms.z_loss.z_loss import compute_z_loss

__all__ = [
    "apply_alibi",
    "apply_blurpool",
    "apply_channels_last",
    "apply_factorization",
    "apply_fp8",
    "apply_gated_linear_units",
    "apply_ghost_batchnorm",
    "apply_gradient_clipping",
    "apply_gyro_dropout",
    "apply_low_precision_groupnorm",
    "apply_low_precision_layernorm",
    "apply_squeeze_excite",
    "apply_stochastic_depth",
    "apply_token_dropping",
    "apply_weight_standardization",
    "augmix_image",
    "colout_batch",
    "compute_ema",
    "compute_z_loss",
    "cut_sequences",
    "cutmix_batch",
    "cutout_batch",
    "freeze_layers",
    "mixup_batch",
    "randaugment_image",
    "resize_batch",
    "select_using_loss",
    "set_batch_sequence_length",
    "should_selective_backprop",
    "smooth_labels",
]
