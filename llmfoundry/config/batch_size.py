"""How the samples of one optimizer step divide over ranks and micro-batches."""

import logging
import math
from collections.abc import Mapping
from typing import Any

from composer.utils import dist

__all__ = [
    "calculate_batch_size_info",
    "copies_of_a_batch",
    "update_batch_size_info",
    "update_config_with_batch_size_info",
]

log = logging.getLogger(__name__)


def calculate_batch_size_info(
    global_batch_size: int,
    device_microbatch_size: int | float | str,
    data_replication_degree: int = 1,
) -> tuple[int | float, int | float | str, int | str]:
    """Divides a global batch over the ranks.

    Args:
        global_batch_size: Samples of one optimizer step over all ranks.
        device_microbatch_size: Samples that one device computes at once, or ``'auto'``.
        data_replication_degree: How many ranks see the same samples.

    Returns:
        Samples of a step on one device (fractional where ranks share a sample), the micro-batch
        size, which is never larger, and the number of micro-batches (``'auto'`` with ``'auto'``).
    """
    world_size = dist.get_world_size()
    if world_size % data_replication_degree != 0:
        raise ValueError(
            f"World size {world_size} is not divisible by data replication degree "
            f"{data_replication_degree}."
        )
    data_ranks = world_size // data_replication_degree
    if global_batch_size % data_ranks != 0:
        below = global_batch_size // data_ranks * data_ranks
        fitting = [size for size in (below, below + data_ranks) if size > 0]
        raise ValueError(
            f"Global batchsize {global_batch_size} is not divisible by (world size {world_size} / "
            f"data replication degree {data_replication_degree} = {data_ranks}). As a result, the "
            "batch would be truncated. Set global_train_batch_size to "
            f"{' or '.join(str(size) for size in fitting)}, or change the number of ranks."
        )
    device_batch_size: int | float = global_batch_size / world_size
    if device_batch_size == round(device_batch_size):
        device_batch_size = int(device_batch_size)
    if device_microbatch_size == "auto":
        return device_batch_size, "auto", "auto"
    if isinstance(device_microbatch_size, bool) or not isinstance(
        device_microbatch_size, (int, float)
    ):
        raise ValueError(
            f"Not sure how to parse device_train_microbatch_size={device_microbatch_size!r}: it is "
            "a number of samples or 'auto'."
        )
    if device_microbatch_size <= 0:
        raise ValueError(
            f"device_train_microbatch_size={device_microbatch_size} must be positive or 'auto'."
        )
    if device_microbatch_size > device_batch_size:
        log.warning(
            "device_train_microbatch_size %s > device_batch_size %s: it is reduced to %s.",
            device_microbatch_size,
            device_batch_size,
            device_batch_size,
        )
        device_microbatch_size = device_batch_size
    return (
        device_batch_size,
        device_microbatch_size,
        math.ceil(device_batch_size / device_microbatch_size),
    )


def update_config_with_batch_size_info(
    cfg: dict[str, Any],
    device_train_batch_size: int | float,
    device_train_microbatch_size: int | float | str,
    device_train_grad_accum: int | str,
) -> dict[str, Any]:
    """Writes what the batch-size maths found into a recipe."""
    asked = cfg.get("device_train_batch_size")
    if asked is not None and asked != device_train_batch_size:
        raise ValueError(
            f"device_train_batch_size={asked} has no effect: it follows from "
            f"global_train_batch_size={cfg['global_train_batch_size']} and {dist.get_world_size()} "
            f"ranks, and is {device_train_batch_size}. Remove it."
        )
    cfg["n_gpus"] = dist.get_world_size()
    cfg["device_train_batch_size"] = device_train_batch_size
    cfg["device_train_microbatch_size"] = device_train_microbatch_size
    cfg["device_train_grad_accum"] = device_train_grad_accum
    # Evaluation keeps no activations, but where memory has to be found out nothing is safe but 1.
    if cfg.get("device_eval_batch_size") is None:
        automatic = device_train_microbatch_size == "auto"
        cfg["device_eval_batch_size"] = 1 if automatic else device_train_microbatch_size
    return cfg


def update_batch_size_info(cfg: dict[str, Any]) -> dict[str, Any]:
    """Fills in the batch sizes of a recipe for the present world size."""
    global_batch_size = cfg.get("global_train_batch_size")
    if isinstance(global_batch_size, bool) or not isinstance(global_batch_size, int):
        return cfg  # Missing or of another type: reported with everything else, as such.
    if global_batch_size <= 0:
        raise ValueError(f"global_train_batch_size={global_batch_size} must be positive.")
    loader = cfg.get("train_loader")
    dataset = loader.get("dataset") if isinstance(loader, dict) else None
    replication = dataset.get("seq_parallel_replication") if isinstance(dataset, dict) else None
    microbatch_size = cfg.get("device_train_microbatch_size", "auto")
    copies = copies_of_a_batch(cfg)
    if copies > 1:  # Each of these ranks works on the whole batch of its group.
        calculate_batch_size_info(global_batch_size, "auto", data_replication_degree=copies)
        sizes = calculate_batch_size_info(global_batch_size * copies, microbatch_size)
    else:
        sizes = calculate_batch_size_info(
            global_batch_size, microbatch_size, data_replication_degree=replication or 1
        )
    return update_config_with_batch_size_info(cfg, *sizes)


def copies_of_a_batch(cfg: Mapping[str, Any]) -> int:
    """Returns how many ranks work on one and the same batch: those that split it otherwise."""
    copies = 1
    if dist.get_world_size() > 1:
        for section, key in (
            ("tp_config", "tensor_parallel_degree"),
            ("cp_config", "context_parallel_degree"),
        ):
            degree = (cfg.get(section) or {}).get(key)
            copies *= degree if isinstance(degree, int) and degree > 0 else 1
    return copies
