"""Precision: what each does on the CPU, and what it refuses."""

import pytest
import torch

from composer.core import precision as precision_module
from composer.core.precision import Precision, get_precision_context, validate_precision
from composer.devices.device_cpu import DeviceCPU


def product_dtype():
    return (torch.ones(2, 2) @ torch.ones(2, 2)).dtype


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_bf16_works_on_the_cpu():
    validate_precision(Precision.AMP_BF16, DeviceCPU())
    with get_precision_context("amp_bf16"):
        assert product_dtype() is torch.bfloat16
    assert product_dtype() is torch.float32


def test_fp32_is_fp32_even_inside_an_autocast():
    with torch.autocast("cpu", torch.bfloat16):
        with get_precision_context(Precision.FP32):
            assert product_dtype() is torch.float32
        assert product_dtype() is torch.bfloat16
    with get_precision_context("FP32"):
        assert product_dtype() is torch.float32


def test_fp16_is_refused_on_the_cpu():
    for precision in (Precision.AMP_FP16, Precision.AMP_FP8):
        with pytest.raises(ValueError, match="not supported for CPU training."):
            validate_precision(precision, DeviceCPU())
    with pytest.raises(ValueError, match="not supported for CPU training."):
        with get_precision_context("amp_fp16"):
            pass


def test_fp8_needs_its_library_and_device(monkeypatch):
    monkeypatch.setattr(precision_module, "te_installed", False)
    with pytest.raises(ImportError, match="TransformerEngine is not installed"):
        with get_precision_context("amp_fp8"):
            pass
    monkeypatch.setattr(precision_module, "te_installed", True)
    with pytest.raises(RuntimeError, match="current device does not support it"):
        with get_precision_context("amp_fp8"):
            pass


def test_errors_pass_through():
    with pytest.raises(KeyError):
        with get_precision_context("amp_bf16"):
            raise KeyError
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.gpu
def test_on_a_gpu():
    a = torch.ones(2, 2, device="cuda")
    for name, dtype in (("amp_fp16", torch.float16), ("amp_bf16", torch.bfloat16)):
        with get_precision_context(name, device_type="cuda"):
            assert (a @ a).dtype is dtype
