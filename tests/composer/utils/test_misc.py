"""Questions about models and the process."""

import socket
import string
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from composer.utils.misc import (
    add_vision_dataset_transform,
    get_free_tcp_port,
    is_model_ddp,
    is_model_fsdp,
    is_model_fsdp2,
    is_notebook,
    model_eval_mode,
    partial_format,
    unwrap_model,
    warning_on_one_line,
)


def test_eval_mode_gives_every_module_its_own_mode_back():
    model = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.BatchNorm1d(2))
    model[1].eval()  # frozen statistics
    with pytest.raises(KeyError), model_eval_mode(model):
        assert not any(module.training for module in model.modules())
        raise KeyError
    assert model.training and model[0].training and not model[1].training


def test_wrappers():
    model = torch.nn.Linear(1, 1)
    assert not (is_model_ddp(model) or is_model_fsdp(model) or is_model_fsdp2(model))
    compiled = torch.compile(model, backend="eager")
    assert unwrap_model(compiled) is model
    assert unwrap_model(model) is model
    assert not is_notebook()


def test_a_free_port_can_be_taken():
    with socket.socket() as listener:
        listener.bind(("", get_free_tcp_port()))


def test_a_warning_on_one_line():
    text = warning_on_one_line("careful", UserWarning, "file.py", 3)
    assert text == "UserWarning: careful (source: file.py:3)\n"


@pytest.mark.parametrize(
    "template, args, values, expected",
    [
        ("{run_name}/ep{epoch}", (), {"run_name": "x"}, "x/ep{epoch}"),
        ("{a:03d} {b:03d}", (), {"a": 5}, "005 {b:03d}"),
        ("{} {} {c}", (1,), {}, "1 {} {c}"),
        ("{}", (), {}, "{}"),
        ("{x.y} {x[0]}", (), {}, "{x.y} {x[0]}"),
        ("{a!r} {b!r}", (), {"a": "s"}, "'s' {b!r}"),
        ("plain", (), {"a": 1}, "plain"),
    ],
)
def test_partial_format(template, args, values, expected):
    assert partial_format(template, *args, **values) == expected


@given(st.dictionaries(st.sampled_from("abcd"), st.text(string.ascii_letters, max_size=5)))
def test_formatting_in_two_steps_is_formatting_at_once(values):
    template = "{a}/{b}-{c}{d}"
    everything = {**dict.fromkeys("abcd", "?"), **values}
    assert partial_format(partial_format(template, **values), **everything) == template.format(
        **everything
    )


class ToTensor:
    """As torchvision's of that name."""

    def __call__(self, image):
        return [image]


class Compose:
    """As torchvision's of that name."""

    def __init__(self, transforms):
        self.transforms = transforms


def test_vision_transform():
    dataset = SimpleNamespace(transform=None)
    with pytest.warns(UserWarning, match="SimpleNamespace was None, so .* is now its only one"):
        add_vision_dataset_transform(dataset, len)
    assert dataset.transform is len
    to_tensor = ToTensor()
    dataset.transform = Compose([to_tensor])
    add_vision_dataset_transform(dataset, "before")
    add_vision_dataset_transform(dataset, "after", is_tensor_transform=True)
    assert dataset.transform.transforms == ["before", to_tensor, "after"]
    dataset.transform = Compose(["other"])
    add_vision_dataset_transform(dataset, "last")
    assert dataset.transform.transforms == ["other", "last"]


def test_vision_transform_beside_a_single_one():
    present = ToTensor()
    # Torchvision keeps the transform twice.
    dataset = SimpleNamespace(transform=present, transforms=SimpleNamespace(transform=present))
    add_vision_dataset_transform(dataset, lambda image: image + 1)
    add_vision_dataset_transform(dataset, lambda images: images * 2, is_tensor_transform=True)
    assert dataset.transform(1) == [2, 2]
    assert dataset.transforms.transform is dataset.transform
