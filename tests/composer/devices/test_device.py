"""Devices: moving batches and optimizers."""

from collections import OrderedDict, namedtuple

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from composer.devices.device import _map_batch
from composer.devices.device_cpu import DeviceCPU
from composer.devices.device_gpu import DeviceGPU

Pair = namedtuple("Pair", ["x", "y"])


class Marking(DeviceCPU):
    """Marks what it moves."""

    def tensor_to_device(self, tensor):
        return tensor + 1


class Elsewhere(DeviceCPU):
    """A device that every torch has."""

    _device = torch.device("meta")


def test_batches_are_moved_leaf_by_leaf():
    zero = torch.zeros(())
    batch = OrderedDict(a=zero, b=[zero, "text"], c=(zero, {"d": zero}), e=None, f=3, g=b"bytes")
    moved = Marking().batch_to_device(batch)
    assert type(moved) is dict
    assert moved == {"a": 1, "b": [1, "text"], "c": (1, {"d": 1}), "e": None, "f": 3, "g": b"bytes"}


def test_a_sequence_keeps_its_type_if_it_can():
    class Items(list):
        pass

    assert type(_map_batch(Items([1]), lambda x: x)) is Items
    assert _map_batch(Pair(1, 2), lambda x: x + 1) == [2, 3]
    assert _map_batch((1, (2,)), lambda x: x + 1) == (2, (3,))


def test_packed_sequences_are_moved_whole():
    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    (moved, plain) = Elsewhere().batch_to_device((packed, torch.ones(1)))
    assert type(moved) is PackedSequence
    assert moved.data.device.type == plain.device.type == "meta"
    assert moved.batch_sizes.tolist() == [2, 2, 1]


def test_modules_and_optimizers_are_moved():
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.zeros(1, 2)).sum().backward()
    optimizer.step()
    device = Marking()
    assert device.module_to_device(model) is model
    assert device.optimizer_to_device(optimizer) is optimizer
    assert optimizer.state[model.weight]["step"] == 2


def test_names_and_backends():
    device = DeviceCPU()
    assert (device.name, device.dist_backend, device._device) == (
        "cpu",
        "gloo",
        torch.device("cpu"),
    )


@pytest.mark.gpu
def test_gpu():
    device = DeviceGPU(0, allow_tf32=False)
    assert device.tensor_to_device(torch.zeros(1)).device == torch.device("cuda", 0)
    assert not torch.backends.cuda.matmul.allow_tf32
    assert next(device.module_to_device(torch.nn.Linear(1, 1)).parameters()).is_cuda
