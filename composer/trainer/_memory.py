"""Running out of device memory: how it is told from other errors, and agreed on by all ranks."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from composer.core.state import State
from composer.distributed.ddp import average_gradients
from composer.utils import dist

_OUT_OF_MEMORY = ("CUDA out of memory", "CUDA error: out of memory")
_CUDNN = (
    "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a "
    "non-contiguous input."
)


OOM_FOUND_ON_OTHER_RANK = "CUDA out of memory encountered on a different rank"


class OutOfMemoryOnSomeRank(RuntimeError):
    """Raised on every rank when the micro-batches of a step did not fit on one of them."""


def is_out_of_memory(error: BaseException) -> bool:
    """Tells whether an error says that the device's memory is full.

    cuDNN reports some full memories as an unsupported layout; such an error counts, with a warning.
    """
    if isinstance(error, torch.OutOfMemoryError):
        return True
    if not isinstance(error, RuntimeError):
        return False
    text = str(error)
    if _CUDNN in text:
        warnings.warn(
            f"this error is taken as memory running out, since cuDNN may report it so: {text}"
        )
        return True
    return any(words in text for words in _OUT_OF_MEMORY)


def supports_finding_a_size(device_name: str) -> bool:
    """Tells whether a device reports running out of memory as an error that can be caught."""
    return device_name == "gpu"


def allocation_retries(state: State) -> int:
    """Returns how often CUDA's allocator had to flush its cache, the most of all ranks; else 0."""
    if state.device.name != "gpu":
        return 0
    retries = torch.tensor(torch.cuda.memory_stats()["num_alloc_retries"])
    retries = state.device.tensor_to_device(retries)
    dist.all_reduce(retries, "MAX")
    return int(retries.item())


class AgreedAttempt:
    """Lets all ranks learn whether a step's passes fitted everywhere, before their gradients meet.

    While it is in force no rank may exchange gradients by itself (``no_sync``), or a rank whose
    memory ran out would leave the others waiting; they are averaged here once all ranks are
    through. So they are not exchanged while backward runs: that is the price of ``auto``.
    """

    def __init__(self, state: State):
        self.state = state

    @contextmanager
    def __call__(self, ddp_sync: bool) -> Iterator[None]:
        """Runs the passes of a step; without ``ddp_sync`` gradients stay on their ranks.

        Raises:
            OutOfMemoryOnSomeRank: on all ranks, if memory ran out on one.
            RuntimeError: for a CUDA error that leaves nothing to retry with.
        """
        failure: BaseException | None = None
        try:
            yield
        except Exception as error:
            if not is_out_of_memory(error):
                if isinstance(error, RuntimeError) and _is_of_cuda(error):
                    raise RuntimeError(
                        "Encountered non-addressable cuda error while using auto microbatching. If "
                        "this repeats, set device_train_microbatch_size to a number of samples."
                    ) from error
                raise
            failure = error
        if self._anywhere(failure is not None):
            raise OutOfMemoryOnSomeRank(
                OOM_FOUND_ON_OTHER_RANK if failure is None else "CUDA out of memory"
            ) from failure
        if ddp_sync:
            average_gradients(self.state.model)

    def _anywhere(self, here: bool) -> bool:
        flag = self.state.device.tensor_to_device(torch.tensor(int(here)))
        dist.all_reduce(flag, "MAX")
        return bool(flag.item())


def _is_of_cuda(error: RuntimeError) -> bool:
    text = str(error).lower()
    return "cuda" in text or "c10" in text
