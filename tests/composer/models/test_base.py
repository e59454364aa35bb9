"""What every model of the trainer has."""

import copy
import pickle

import pytest
import torch

from composer.models import ComposerModel


class Doubling(ComposerModel):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)

    def forward(self, batch):
        return self.layer(batch)

    def loss(self, outputs, batch):
        return (outputs - 2 * batch).square().mean()


def test_both_methods_must_be_written():
    with pytest.raises(TypeError, match="abstract"):
        type("Half", (ComposerModel,), {"forward": lambda self, batch: batch})()


def test_defaults():
    model, batch = Doubling(), torch.ones(1, 2)
    torch.testing.assert_close(model.eval_forward(batch), model(batch))
    assert model.eval_forward(batch, outputs="given") == "given"
    assert model.get_metrics(is_train=True) == {}
    with pytest.raises(NotImplementedError, match="Doubling has metrics but no update_metric"):
        model.update_metric(batch, batch, None)


def test_the_logger_is_shared_by_copies_and_never_pickled():
    model = Doubling()
    assert model.logger is None
    model.logger = logger = object()
    deep = copy.deepcopy(model)
    assert deep.logger is logger
    assert deep.layer is not model.layer
    torch.testing.assert_close(deep.state_dict(), model.state_dict())
    shallow = copy.copy(model)
    assert shallow.logger is logger and shallow.layer is model.layer
    loaded = pickle.loads(pickle.dumps(model))
    assert loaded.logger is None and model.logger is logger
    torch.testing.assert_close(loaded.state_dict(), model.state_dict())


def test_copies_of_a_compiled_model_run_their_own_weights():
    model = Doubling()
    model.compile(backend="eager")
    for copied in (copy.deepcopy(model), copy.copy(model)):
        assert copied._compiled_call_impl is None
    assert model._compiled_call_impl is not None


def test_shared_parts_stay_shared_in_a_deep_copy():
    model = Doubling()
    model.same = model.layer
    copied = copy.deepcopy([model, model])
    assert copied[0] is copied[1]
    assert copied[0].same is copied[0].layer
