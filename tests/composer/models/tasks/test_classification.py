"""Any module as a classifier."""

import pytest
import torch
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from composer.loss import soft_cross_entropy
from composer.metrics import CrossEntropy
from composer.models import ComposerClassifier


def _batch():
    torch.manual_seed(0)
    return torch.randn(6, 4), torch.randint(0, 3, (6,))


def test_forward_loss_and_default_metrics():
    model, batch = ComposerClassifier(torch.nn.Linear(4, 3), num_classes=3), _batch()
    outputs = model(batch)
    torch.testing.assert_close(outputs, model.module(batch[0]))
    torch.testing.assert_close(model.loss(outputs, batch), soft_cross_entropy(outputs, batch[1]))
    assert list(model.get_metrics(is_train=True)) == ["MulticlassAccuracy"]
    assert sorted(model.get_metrics(is_train=False)) == ["CrossEntropy", "MulticlassAccuracy"]
    for metric in model.get_metrics(is_train=False).values():
        model.update_metric(batch, outputs, metric)
    values = {name: m.compute() for name, m in model.get_metrics(is_train=False).items()}
    torch.testing.assert_close(values["CrossEntropy"], model.loss(outputs, batch).detach())
    right = (outputs.argmax(1) == batch[1]).float().mean()
    torch.testing.assert_close(values["MulticlassAccuracy"], right)


def test_number_of_classes():
    module = torch.nn.Linear(4, 3)
    with pytest.raises(ValueError, match="num_classes is needed"):
        ComposerClassifier(module)
    given = ComposerClassifier(
        module, train_metrics=CrossEntropy(), val_metrics=MetricCollection([CrossEntropy()])
    )
    assert given.num_classes is None
    assert list(given.get_metrics(True)) == list(given.get_metrics(False)) == ["CrossEntropy"]
    module.num_classes = 3
    assert ComposerClassifier(module).num_classes == 3
    with pytest.warns(UserWarning, match="num_classes=5"):
        assert ComposerClassifier(module, num_classes=5).num_classes == 3


def test_another_loss():
    model = ComposerClassifier(
        torch.nn.Linear(4, 3), num_classes=3, loss_fn=lambda out, target, scale=1: scale * out.sum()
    )
    outputs = model(_batch())
    torch.testing.assert_close(model.loss(outputs, _batch(), scale=2), 2 * outputs.sum())
    assert isinstance(model.get_metrics(True)["MulticlassAccuracy"], MulticlassAccuracy)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_torchscript_takes_it():
    model = ComposerClassifier(torch.nn.Linear(2, 3), num_classes=3)
    batch = torch.rand(4, 2), torch.zeros(4, dtype=torch.long)
    torch.testing.assert_close(torch.jit.script(model)(batch), model(batch))
