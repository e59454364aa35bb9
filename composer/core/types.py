"""Names for what passes through training: batches, datasets, JSON, modes and memory formats."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch.utils.data

from composer.utils.string_enum import StringEnum

Batch: TypeAlias = Any
"""What a dataloader gives: any nesting of tensors and other objects."""

Dataset: TypeAlias = torch.utils.data.Dataset[Batch]

JSON: TypeAlias = "str | float | int | None | list[JSON] | dict[str, JSON]"


class TrainerMode(StringEnum):
    """What the trainer is doing."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "predict"


class MemoryFormat(StringEnum):
    """The memory formats of torch, by name."""

    CONTIGUOUS_FORMAT = "contiguous_format"
    CHANNELS_LAST = "channels_last"
    CHANNELS_LAST_3D = "channels_last_3d"
    PRESERVE_FORMAT = "preserve_format"
