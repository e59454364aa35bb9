"""SelectiveBackprop equals upstream's: when it selects, what, and what it trains on."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from composer.algorithms.mixup import MixUp
from composer.algorithms.selective_backprop import (
    SelectiveBackprop,
    select_using_loss,
    should_selective_backprop,
)
from composer.core.callback import Callback
from composer.core.event import Event
from tests.composer.algorithms.golden_runs import (
    Shapes,
    assert_as_recorded,
    functional_record,
    run_as_recorded,
    seed_as,
)
from tests.composer.algorithms.training import train
from tests.composer.plugins import HandRun
from tests.composer.trainer.models import Classifier, rows_loader
from tests.composer.trainer.test_golden_runs import GOLDEN, RECORDS


def test_golden_schedule():
    recorded = json.loads((GOLDEN / "functional.json").read_text())["should_selective_backprop"]
    assert len(recorded) > 20
    for duration, batch, expected, interrupt in recorded:
        selects = should_selective_backprop(duration, batch, interrupt=interrupt)
        assert selects == expected, (duration, batch, interrupt)


def test_golden_selection():
    record = functional_record("select_using_loss")
    seed_as(record)
    inputs, targets = select_using_loss(
        record["x"],
        record["y"],
        lambda x: F.linear(x, record["w.weight"], record["w.bias"]),
        F.cross_entropy,
    )
    assert torch.equal(inputs, record["x_out"])
    assert torch.equal(targets, record["y_out"])


def test_golden_run():
    algorithm, shapes = SelectiveBackprop(start=0.0, end=0.8, keep=0.5, interrupt=3), Shapes()
    trainer, note = run_as_recorded("selective_backprop", algorithm, shapes)
    assert shapes.seen == RECORDS["selective_backprop"]["input_shapes_per_forward"]
    assert_as_recorded("selective_backprop", trainer, note)


def losses_as_given(outputs, target, reduction):
    assert reduction == "none"
    return outputs


def test_large_losses_are_likelier_the_smaller_the_part_that_is_kept():
    losses = torch.tensor([3.0, 0.0, 2.0, 1.0])
    for keep in (0.25, 0.5):
        counts = np.zeros(4)
        for _ in range(2000):
            chosen, _ = select_using_loss(losses, losses, lambda x: x, losses_as_given, keep)
            assert len(set(chosen.tolist())) == int(keep * 4)
            if len(chosen) == 1:
                counts[int(chosen)] += 1
        if keep == 0.25:
            chances = (np.arange(4) + 0.5) ** 3
            np.testing.assert_allclose(counts / 2000, chances / chances.sum(), atol=0.03)


def test_losses_of_pixels_are_averaged_and_one_sample_stays():
    images = torch.randn(3, 2, 4, 4)
    images[1] += 100
    chosen, _ = select_using_loss(images, torch.arange(3), lambda x: x, losses_as_given, keep=0.05)
    assert chosen.shape == (1, 2, 4, 4)
    assert chosen.mean() > 50


@pytest.mark.parametrize("shape", [(2, 3, 8), (2, 3, 8, 8), (2, 3, 8, 8, 8)])
def test_inputs_are_made_smaller_for_the_losses_only(shape):
    def model(inputs):
        assert inputs.shape == shape[:2] + (4,) * (len(shape) - 2)
        return inputs

    chosen, _ = select_using_loss(
        torch.randn(shape), torch.arange(2), model, losses_as_given, scale_factor=0.5
    )
    assert chosen.shape == (1, *shape[1:])


@pytest.mark.parametrize(
    ("error", "loss", "scale", "message"),
    [
        (ValueError, losses_as_given, 1.5, "scale_factor=1.5"),
        (ValueError, losses_as_given, 0.5, r"not of shape \(2, 3\)"),
        (TypeError, lambda outputs, target: outputs, 1, "takes no `reduction`"),
        (TypeError, "mse", 1, "must be a function, not str"),
    ],
)
def test_wrong_arguments(error, loss, scale, message):
    with pytest.raises(error, match=message):
        select_using_loss(torch.randn(2, 3), torch.arange(2), lambda x: x, loss, scale_factor=scale)


@pytest.mark.parametrize(
    "kwargs", [{"keep": 0.0}, {"start": 0.8, "end": 0.2}, {"scale_factor": 2.0}]
)
def test_wrong_settings(kwargs):
    with pytest.raises(ValueError, match=next(iter(kwargs))):
        SelectiveBackprop(**kwargs)


class Hard(Classifier):
    """Notes the rows of every pass; its loss can be one for each row."""

    def loss(self, outputs, batch, reduction="mean"):
        return F.cross_entropy(outputs, batch["y"], reduction=reduction)


def test_dicts_keep_all_of_a_selected_row_together():
    class Look(Callback):
        sizes = []

        def before_forward(self, state, logger):
            batch = state.batch
            assert torch.equal(batch["x"], rows.x[batch["id"]])
            assert torch.equal(batch["y"], rows.y[batch["id"]])
            self.sizes.append(len(batch["id"]))

    loader, look, model = rows_loader(12, 6), Look(), Hard()
    rows = loader.dataset
    algorithm = SelectiveBackprop(0.0, 1.0, 0.5, interrupt=0, input_key="x", target_key="y")
    train(model, loader, algorithm, look, device_train_microbatch_size=2)
    assert look.sizes == [2, 1] * 2
    # The passes that find losses are no larger than those that train.
    assert [len(ids) for ids in model.seen] == [2, 2, 2, 2, 1] * 2


def test_losses_are_found_in_the_precision_of_the_run_and_without_gradients():
    seen = []

    class Look(Hard):
        def loss(self, outputs, batch, reduction="mean"):
            seen.append((outputs.dtype, outputs.requires_grad))
            return super().loss(outputs, batch, reduction)

    algorithm = SelectiveBackprop(0.0, 1.0, 0.5, interrupt=0, input_key="x", target_key="y")
    train(Look(), rows_loader(4, 4), algorithm, precision="amp_bf16")
    assert seen == [(torch.bfloat16, False), (torch.bfloat16, True)]


def test_it_runs_before_those_that_mix():
    mixup = MixUp(1.0, input_key="x", target_key="y")
    algorithm = SelectiveBackprop(0.0, 1.0, 0.5, interrupt=0, input_key="x", target_key="y")
    trainer = train(Hard(), rows_loader(12, 6), [mixup, algorithm])
    assert len(mixup.indices) == 3
    assert algorithm.run_order == "first"
    assert not SelectiveBackprop(keep=1.0, start=0.0).match(Event.AFTER_DATALOADER, trainer.state)


def test_models_that_cannot_tell_the_loss_of_a_row_are_refused_at_once():
    with pytest.raises(RuntimeError, match="needs a ComposerModel.*Regression"):
        HandRun(algorithms=[SelectiveBackprop()])
    with pytest.raises(TypeError, match="Classifier.loss takes no `reduction`"):
        train(Classifier(), rows_loader(), SelectiveBackprop())
