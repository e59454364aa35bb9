"""Blurred layers equal those of the last upstream releases and do not alias."""

import pytest
import torch
from torch import nn

from composer.algorithms import BlurPool, ChannelsLast, GhostBatchNorm, NoMatchError
from composer.algorithms.blurpool import (
    BlurConv2d,
    BlurMaxPool2d,
    BlurPool2d,
    apply_blurpool,
    blur_2d,
    blurmax_pool2d,
)
from composer.algorithms.warnings import NoEffectWarning
from tests.composer.algorithms.golden_runs import assert_as_recorded, run_as_recorded
from tests.composer.algorithms.surgery import Golden, apply_at, golden_fact


def strided() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 16, 3, padding=1),
    )


def test_functions_equal_the_record():
    golden = Golden("blur")
    x = golden["x"]
    for name, out in {
        "blur": blur_2d(x),
        "blur_s2": blur_2d(x, stride=2),
        "blurmax": blurmax_pool2d(x),
        "blurmax_k3": blurmax_pool2d(x, kernel_size=3, padding=1),
    }.items():
        torch.testing.assert_close(out, golden[name], atol=1e-6, rtol=0)
    torch.testing.assert_close(BlurPool2d()(x), golden["blur_s2"], atol=1e-6, rtol=0)
    torch.testing.assert_close(BlurPool2d(3)(x), golden["blur_s2"], atol=1e-6, rtol=0)


@pytest.mark.parametrize("blur_first", [True, False])
def test_model_equals_the_record(blur_first):
    golden = Golden("blurpool_model")
    model = strided()
    model.load_state_dict(golden.weights())
    apply_blurpool(model, blur_first=blur_first, min_channels=1)
    assert [type(layer).__name__ for layer in model] == golden_fact(
        f"blurpool_classes_{blur_first}"
    )
    assert sorted(model.state_dict()) == golden_fact(f"blurpool_state_keys_{blur_first}")
    out = model(Golden("blur")["x"])
    torch.testing.assert_close(out, golden[f"out_blur_first_{blur_first}"], atol=1e-5, rtol=0)


def test_run_equals_the_record():
    name = "cnn_blurpool_ghostbn_channelslast"
    algorithms = [BlurPool(min_channels=4), GhostBatchNorm(ghost_batch_size=4), ChannelsLast()]
    assert_as_recorded(name, *run_as_recorded(name, algorithms))


def test_shifts_by_a_pixel_change_little():
    image = torch.zeros(1, 1, 16, 16)
    image[..., ::2] = 1  # the finest stripes, which a plain max pool sees as all or nothing
    pool, blurred = nn.MaxPool2d(1, stride=2), BlurMaxPool2d(1, stride=2)
    shifted = image.roll(1, dims=-1)
    assert (pool(image) - pool(shifted)).abs().max() == 1
    assert (blurred(image) - blurred(shifted))[..., 1:-1].abs().max() == 0


def test_edges():
    small = torch.randn(1, 2, 0, 4)
    assert blur_2d(small) is small
    with pytest.raises(IndexError, match="odd"):
        blur_2d(torch.randn(1, 1, 8, 8), filter=torch.ones(1, 1, 2, 2))
    with pytest.raises(ValueError, match="padding"):
        BlurPool2d(padding=2)
    conv = BlurConv2d(4, 6, 3, padding=1, blur_first=False)
    assert conv(torch.randn(2, 4, 9, 9)).shape == (2, 6, 3, 3)


def test_parameters_and_settings_stay():
    model = strided()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = [id(parameter) for parameter in model.parameters()]
    algorithm = BlurPool(min_channels=3)
    _, logger = apply_at(algorithm, model.eval(), optimizers=[optimizer])
    assert [id(parameter) for parameter in optimizer.param_groups[0]["params"]] == before
    assert [id(parameter) for parameter in model.parameters()] == before
    assert logger.hparams == {
        "blurpool/num_blurpool_layers": 1,
        "blurpool/num_blurconv_layers": 1,
    }
    assert not model[0].training
    blurred = list(model.modules())
    apply_blurpool(model, min_channels=3)  # what blurs already is left alone
    assert list(model.modules()) == blurred
    assert repr(algorithm) == (
        "BlurPool(replace_convs=True,replace_maxpools=True,blur_first=True,min_channels=3)"
    )


def test_what_is_left_alone():
    class Indexed(nn.Conv2d):
        def forward(self, input):
            return super().forward(input) + 1

    with pytest.raises(NoMatchError, match="min_channels=16"):
        apply_blurpool(nn.Sequential(nn.Conv2d(3, 16, 3, stride=2), nn.Conv2d(32, 8, 3)))
    with pytest.raises(NoMatchError):
        apply_blurpool(nn.Sequential(Indexed(16, 16, 3, stride=2)))
    with pytest.raises(NoMatchError):
        apply_blurpool(nn.Sequential(nn.MaxPool2d(2, return_indices=True)))
    with pytest.warns(NoEffectWarning):
        apply_blurpool(nn.Sequential(nn.Linear(2, 2)), on_no_match="warn")
    for make in (BlurPool, lambda **kwargs: apply_blurpool(strided(), **kwargs)):
        with pytest.raises(ValueError, match="both False"):
            make(replace_convs=False, replace_maxpools=False)
    assert "on_no_match='warn'" in repr(BlurPool(on_no_match="warn"))
    with pytest.raises(ValueError, match="on_no_match"):
        BlurPool(on_no_match="ignore")  # type: ignore[arg-type]


@pytest.mark.parametrize("blur_first", [True, False])
def test_a_blurred_model_can_be_traced(blur_first):
    model = apply_blurpool(strided(), blur_first=blur_first, min_channels=1)
    traced = torch.fx.symbolic_trace(model)
    for size in (16, 4):
        x = torch.rand(2, 3, 16, size)
        assert torch.equal(traced(x), model(x))
