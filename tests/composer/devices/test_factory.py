"""From a name to a device."""

import pytest
import torch

from composer.devices.device_cpu import DeviceCPU
from composer.devices.factory import get_device, is_hpu_installed, is_xla_installed


@pytest.fixture(autouse=True)
def no_accelerator(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


def test_by_name_and_by_default():
    assert isinstance(get_device("CPU"), DeviceCPU)
    assert isinstance(get_device(), DeviceCPU)
    device = DeviceCPU()
    assert get_device(device) is device


def test_an_unknown_name_is_named():
    with pytest.raises(ValueError, match="'magic'.*cpu, gpu"):
        get_device("magic")


def test_what_is_not_there_is_said():
    with pytest.raises(ValueError, match="torch.cuda is not available"):
        get_device("gpu")
    with pytest.raises(RuntimeError, match="Apple silicon"):
        get_device("mps")


@pytest.mark.skipif(is_xla_installed(), reason="torch_xla is installed")
@pytest.mark.parametrize("name", ["tpu", "neuron"])
def test_xla_is_optional(name, monkeypatch):
    for variable in ("PJRT_DEVICE", "NEURON_CC_FLAGS"):
        monkeypatch.setenv(variable, "kept")
    with pytest.raises(ImportError, match=f"{name!r} needs torch_xla"):
        get_device(name)


@pytest.mark.skipif(is_hpu_installed(), reason="habana_frameworks is installed")
def test_hpu_is_optional():
    with pytest.raises(ImportError, match="habana_frameworks"):
        get_device("hpu")
