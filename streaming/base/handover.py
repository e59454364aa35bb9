"""Batches from loader workers to the process that trains, through memory that is shared once.

Torch shares every tensor of every batch anew, by a file and messages over a socket, which takes
longer than to read its rows. Here a worker keeps a few pieces of shared memory, without names, and
takes one again as soon as the receiver has copied the batch out of it.
"""

import functools
import io
import multiprocessing
import os
import pickle
import threading
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.utils.data import default_collate, get_worker_info

_ALIGNMENT = 64
"""Tensors begin at its multiples; the first byte of a piece says that a batch is on its way."""

_received: dict[tuple[int, int], torch.Tensor] = {}
"""The pieces that workers have sent to this process, by process and number."""


class HandOver:
    """Wraps a collator; its batches take this way if a loader worker makes them.

    Args:
        collate: Makes a batch of samples, of any form; its ordinary CPU tensors are handed over.
    """

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self._collate = _stack if collate is default_collate else collate
        self._pieces: list[torch.Tensor] = []

    def __call__(self, samples: list[Any]) -> Any:
        """The batch, or in a worker what becomes the batch when it arrives."""
        batch = self._collate(samples)
        if get_worker_info() is None:
            return batch
        _end_with_main(os.getpid())
        out = io.BytesIO()
        packer = _Packer(out)
        packer.dump(batch)
        if not packer.tensors:
            return batch
        number, is_new = self._free_piece(packer.size)
        piece = self._pieces[number]
        piece[0] = 1
        for start, tensor in packer.tensors:
            _place(piece, start, tensor.dtype, tensor.shape).copy_(tensor)
        return _Parcel(os.getpid(), number, piece if is_new else None, out.getvalue())

    def _free_piece(self, size: int) -> tuple[int, bool]:
        """Number of a piece of so many bytes that is not on its way, and whether it is new."""
        numbers = range(len(self._pieces))
        number = next((n for n in numbers if not self._pieces[n][0]), len(self._pieces))
        if number < len(self._pieces) and len(self._pieces[number]) >= size:
            return number, False
        # Some more, as batches may differ in length.
        self._pieces[number:] = [
            torch.zeros(size + size // 4, dtype=torch.uint8).share_memory_(),
            *self._pieces[number + 1 :],
        ]
        return number, True


@functools.cache
def _end_with_main(worker: int) -> None:
    """Ends a worker whose main process was killed, where torch's own guard does not see it.

    Torch watches the process that forked the worker. A fork server is another one, and lives as
    long as its workers do.
    """
    del worker  # The key: a process that is forked from a worker begins anew.
    main = multiprocessing.parent_process()
    if main is None or main.pid == os.getppid():
        return

    def wait() -> None:
        main.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _stack(samples: list[Any]) -> Any:
    """Torch's default collation, less the shared memory that it asks for in a worker."""
    first = samples[0]
    if type(first) is torch.Tensor:
        return torch.stack(samples)
    if type(first) is dict:
        return {key: _stack([sample[key] for sample in samples]) for key in first}
    return default_collate(samples)


class _Packer(ForkingPickler):
    """Pickles all but the tensors, which it lists with the places that they shall have."""

    def __init__(self, out: io.BytesIO) -> None:
        super().__init__(out, pickle.HIGHEST_PROTOCOL)
        self.size = _ALIGNMENT
        self.tensors: list[tuple[int, torch.Tensor]] = []

    def persistent_id(self, obj: Any) -> Any:
        """Place, kind and shape of a tensor; None for everything else."""
        if type(obj) is not torch.Tensor or not _is_plain(obj):
            return None
        start = self.size
        self.tensors.append((start, obj))
        self.size += -(-obj.nbytes // _ALIGNMENT) * _ALIGNMENT
        return start, obj.dtype, tuple(obj.shape)


def _is_plain(tensor: torch.Tensor) -> bool:
    is_dense = tensor.layout == torch.strided and not tensor.is_quantized
    return (
        is_dense and tensor.device.type == "cpu" and not tensor.requires_grad and tensor.nbytes > 0
    )


class _Parcel:
    """A batch on its way: pickled in the worker, it arrives as the batch."""

    def __init__(self, *contents: Any) -> None:
        self._contents = contents

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpack, self._contents


class _Unpacker(pickle.Unpickler):
    def __init__(self, payload: bytes, piece: torch.Tensor) -> None:
        super().__init__(io.BytesIO(payload))
        self._piece = piece

    def persistent_load(self, pid: Any) -> torch.Tensor:
        """A copy of the tensor that lies at a place."""
        return _place(self._piece, *pid).clone()


def _unpack(sender: int, number: int, piece: torch.Tensor | None, payload: bytes) -> Any:
    if piece is None:
        piece = _received[sender, number]
    else:
        forget_ended()
        _received[sender, number] = piece
    batch = _Unpacker(payload, piece).load()
    piece[0] = 0
    return batch


def _place(piece: torch.Tensor, start: int, dtype: torch.dtype, shape: Any) -> torch.Tensor:
    size = dtype.itemsize
    for length in shape:
        size *= length
    return piece[start : start + size].view(dtype).view(shape)


def forget_ended() -> None:
    """Gives the memory of workers back that have ended."""
    for sender, number in list(_received):
        try:
            os.kill(sender, 0)
        except ProcessLookupError:
            _received.pop((sender, number), None)
