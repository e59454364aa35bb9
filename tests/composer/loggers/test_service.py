import sys

import numpy as np
import pytest
import torch

import composer.loggers
from composer.loggers import _service as service
from composer.utils.import_helpers import MissingConditionalImportError


@pytest.mark.parametrize(
    ("name", "package", "extra", "arguments"),
    [
        ("CometMLLogger", "comet_ml", "comet", {}),
        ("MLFlowLogger", "mlflow", "mlflow", {}),
        ("SlackLogger", "slack_sdk", "slack", {}),
        ("TensorboardLogger", "tensorboard", "tensorboard", {}),
        ("TrackioLogger", "trackio", "trackio", {}),
        ("WandBLogger", "wandb", "wandb", {}),
    ],
)
def test_a_missing_package_names_the_extra(monkeypatch, name, package, extra, arguments):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingConditionalImportError, match=rf"llmfoundry\[{extra}\]"):
        getattr(composer.loggers, name)(**arguments)


@pytest.mark.parametrize("name", ["NeptuneLogger", "MosaicMLLogger"])
def test_what_is_gone_names_its_replacement(name):
    kind = getattr(composer.loggers, name)
    assert issubclass(kind, composer.loggers.LoggerDestination)
    with pytest.raises(MissingConditionalImportError, match=f"{name} is not part.*use WandBLogger"):
        kind()


def test_shapes_of_images():
    def shapes(images, channels_last=False):
        return [array.shape for array in service.to_arrays(images, channels_last)]

    assert shapes(torch.ones(4, 5)) == [(4, 5)]
    assert shapes(torch.ones(3, 4, 5, dtype=torch.bfloat16)) == [(4, 5, 3)]
    assert shapes(np.ones((4, 5, 3)), True) == [(4, 5, 3)]
    assert shapes(torch.ones(2, 3, 4, 5)) == [(4, 5, 3)] * 2
    assert shapes([torch.ones(4, 5), torch.ones(1, 4, 5)]) == [(4, 5), (4, 5, 1)]
    with pytest.raises(ValueError, match=r"\(5,\) cannot be shown"):
        shapes(torch.ones(5))


def test_shapes_of_masks():
    mask = torch.ones(4, 5)
    for given in (mask, mask[None], mask[None, None], [mask], [mask[None]]):
        (found,) = service.to_masks({"a": given}, 1)
        assert found["a"].shape == (4, 5)
    assert [set(found) for found in service.to_masks({"a": torch.ones(2, 4, 5)}, 2)] == [{"a"}] * 2
    assert service.to_masks(None, 2) == [{}, {}]
    with pytest.raises(ValueError, match="1 masks 'a' were given for 2 images"):
        service.to_masks({"a": mask}, 2)


def test_values():
    numbers = service.to_numbers(
        {
            "a": 1,
            "b": torch.tensor([2.0]),
            "c": "x",
            "d": torch.ones(2),
            "e": np.float32(3),
            "f": None,
        }
    )
    assert numbers == {"a": 1.0, "b": 2.0, "e": 3.0}
    stretched = service.to_unit_range(np.array([[-1.0, 3.0]]))
    assert stretched.tolist() == [[0.0, 1.0]]
    assert service.to_unit_range(np.array([[0.25]])).tolist() == [[0.25]]
    assert service.to_unit_range(np.array([[200]])).dtype == np.uint8
    assert service.to_unit_range(np.array([[5.0]])).tolist() == [[0.0]]
    assert [service.to_plain(x) for x in (1, None, torch.tensor(2), {1})] == [1, None, 2, "{1}"]
