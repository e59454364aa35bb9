"""MixUp equals upstream's, mixes targets or losses alike, and takes batches of any shape."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from composer.algorithms.label_smoothing import LabelSmoothing
from composer.algorithms.mixup import MixUp, mixup_batch
from composer.algorithms.mixup.mixup import _gen_mixing_coef
from composer.core.callback import Callback
from tests.composer.algorithms.golden_runs import (
    LoaderDraw,
    assert_as_recorded,
    functional_record,
    run_as_recorded,
    seed_as,
)
from tests.composer.algorithms.training import train
from tests.composer.trainer.models import Classifier, rows_loader


def test_golden():
    record = functional_record("mixup")
    mixed, target, mixing = mixup_batch(
        record["x"], record["y"], float(record["mixing"]), indices=record["indices"]
    )
    torch.testing.assert_close(mixed, record["x_out"], atol=1e-6, rtol=0)
    assert torch.equal(target, record["y_perm"])
    assert mixing == record["mixing_out"]


def test_golden_draws():
    record, data = functional_record("mixup_rng"), functional_record("mixup")
    seed_as(record)
    mixed, target, mixing = mixup_batch(data["x"], data["y"], alpha=float(record["alpha"]))
    assert mixing == pytest.approx(float(record["mixing_out"]))
    assert torch.equal(target, record["y_perm"])
    torch.testing.assert_close(mixed, record["x_out"], atol=1e-6, rtol=0)


@pytest.mark.parametrize(("name", "interpolate"), [("mixup", False), ("mixup_interp", True)])
def test_golden_run(name, interpolate):
    trainer, note = run_as_recorded(name, MixUp(0.2, interpolate), LoaderDraw())
    assert_as_recorded(name, trainer, note)


def test_mixing_is_at_most_one_half_and_nothing_without_alpha():
    assert _gen_mixing_coef(0.0) == 0.0
    drawn = [_gen_mixing_coef(1.0) for _ in range(500)]
    assert 0.45 < max(drawn) <= 0.5
    assert np.mean(drawn) == pytest.approx(0.25, abs=0.03)


class Mixtures(Callback):
    """Checks each micro-batch's inputs and loss against those of its unmixed rows."""

    def __init__(self, algorithm, rows):
        self.algorithm = algorithm
        self.rows = rows
        self.mixed = []

    def after_backward(self, state, logger):
        share, others = self.algorithm.mixing, self.algorithm.indices
        x, y = self.rows.x[state.batch["id"]], self.rows.y[state.batch["id"]]
        torch.testing.assert_close(state.batch["x"], (1 - share) * x + share * x[others])
        logits = state.outputs.detach()
        expected = (1 - share) * F.cross_entropy(logits, y)
        expected += share * F.cross_entropy(logits, y[others])
        assert torch.isclose(state.loss, expected, atol=1e-6)
        assert torch.equal(self.algorithm.permuted_target, y[others])
        self.mixed.append(share > 0.05 and not torch.equal(others, torch.arange(len(others))))


@pytest.mark.parametrize("interpolate", [False, True])
@pytest.mark.parametrize("of_batch", ["name", "functions"])
def test_micro_batches_of_dicts_are_mixed_with_their_targets(interpolate, of_batch):
    keys = ("x", "y")
    if of_batch == "functions":
        keys = tuple((lambda b, k=k: b[k], lambda b, v, k=k: {**b, k: v}) for k in keys)
    algorithm, loader = MixUp(1.0, interpolate, *keys), rows_loader(12, 6)
    mixtures = Mixtures(algorithm, loader.dataset)
    train(Classifier(), loader, algorithm, mixtures, duration="2ep", device_train_microbatch_size=3)
    assert len(mixtures.mixed) == 8
    assert sum(mixtures.mixed) > 4


def test_named_losses_are_interpolated_each():
    class TwoLosses(Classifier):
        def loss(self, outputs, batch):
            return {"ce": super().loss(outputs, batch), "size": outputs.square().mean()}

    class Look(Callback):
        def after_backward(self, state, logger):
            y, share = state.batch["y"], algorithm.mixing
            ce = (1 - share) * F.cross_entropy(state.outputs, y)
            ce += share * F.cross_entropy(state.outputs, algorithm.permuted_target)
            assert torch.isclose(state.loss["ce"], ce)
            assert torch.isclose(state.loss["size"], state.outputs.square().mean())

    algorithm = MixUp(1.0, True, "x", "y")
    train(TwoLosses(), rows_loader(12, 6), algorithm, Look())


def test_the_second_loss_is_in_the_precision_of_the_first():
    seen = []

    class Look(Callback):
        def after_backward(self, state, logger):
            seen.append((state.outputs.dtype, state.loss.dtype))

    algorithm = MixUp(1.0, True, "x", "y")
    train(Classifier(), rows_loader(12, 6), algorithm, Look(), precision="amp_bf16")
    assert seen == [(torch.bfloat16, torch.float32)] * 2


def test_smoothed_targets_are_mixed_in_either_order():
    losses = []
    for order in (1, -1):

        class Look(Callback):
            def before_backward(self, state, logger):
                losses.append(float(state.loss.detach()))

        algorithms = [LabelSmoothing(0.2, "y"), MixUp(1.0, False, "x", "y")][::order]
        train(Classifier(), rows_loader(12, 6), algorithms, Look())
    assert losses[:2] == pytest.approx(losses[2:])


def test_what_is_no_tensor_is_refused():
    algorithm = MixUp(input_key=("x", "id"), target_key="y")
    with pytest.raises(NotImplementedError, match="MixUp mixes tensors, and the input is tuple"):
        train(Classifier(), rows_loader(), algorithm)
