"""Label smoothing equals upstream's and torch's own, and leaves ignored targets out."""

import pytest
import torch
import torch.nn.functional as F

from composer.algorithms.label_smoothing import LabelSmoothing, smooth_labels
from composer.core.callback import Callback
from composer.loss import soft_cross_entropy
from tests.composer.algorithms.golden_runs import (
    assert_as_recorded,
    functional_record,
    run_as_recorded,
)
from tests.composer.algorithms.training import train
from tests.composer.trainer.models import Classifier, rows_loader


@pytest.mark.parametrize(
    ("smoothing", "target", "out"),
    [(0.1, "target", "out0_1"), (0.3, "target", "out0_3"), (0.1, "soft_target", "out_soft")],
)
def test_golden(smoothing, target, out):
    record = functional_record("label_smoothing")
    smoothed = smooth_labels(record["logits"], record[target], smoothing)
    torch.testing.assert_close(smoothed, record[out], atol=1e-6, rtol=0)


def test_golden_run():
    trainer, note = run_as_recorded("label_smoothing", LabelSmoothing(0.1))
    assert_as_recorded("label_smoothing", trainer, note)


def test_b13_ignored_targets_get_nothing():
    logits, labels = torch.randn(4, 7), torch.tensor([3, -100, 0, -1])
    smoothed = smooth_labels(logits, labels, 0.2)
    kept = labels >= 0
    assert torch.equal(smoothed[kept], smooth_labels(logits[kept], labels[kept], 0.2))
    assert not smoothed[~kept].any()
    expected = F.cross_entropy(logits[kept], labels[kept], label_smoothing=0.2)
    with pytest.warns(UserWarning, match="less than 1 total probability"):
        assert torch.isclose(soft_cross_entropy(logits, smoothed), expected)
    # Rows of zeros are ignored targets, made one-hot before.
    one_hot = F.one_hot(labels.clamp(min=0), 7) * kept[:, None]
    assert torch.equal(smooth_labels(logits, one_hot, 0.2), smoothed)


@pytest.mark.parametrize("vocabulary", [3, 5, 11])  # fewer than, as many as, and more than tokens
def test_c3_the_vocabulary_is_the_last_axis_of_language_models(vocabulary):
    logits, labels = torch.randn(2, 6, vocabulary), torch.randint(0, vocabulary, (2, 6))
    labels[0, :2] = -100
    smoothed = smooth_labels(logits, labels, 0.1)
    flat = smooth_labels(logits.flatten(0, 1), labels.flatten(), 0.1)
    assert torch.equal(smoothed, flat.view_as(logits))


def test_classes_are_on_axis_1_of_images():
    logits, labels = torch.randn(2, 3, 4, 5), torch.randint(0, 3, (2, 4, 5))
    labels[0, 0] = -100
    smoothed = smooth_labels(logits, labels, 0.25)
    expected = F.cross_entropy(logits, labels, label_smoothing=0.25)
    losses = -(smoothed * logits.log_softmax(1)).sum() / (labels >= 0).sum()
    assert torch.isclose(losses, expected)


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"Targets of shape \(2, 4\) do not fit logits"):
        smooth_labels(torch.randn(2, 3, 5), torch.zeros(2, 4, dtype=torch.long))


class Sequences(torch.utils.data.Dataset):
    def __init__(self):
        self.x, self.y = torch.randn(8, 5, 4), torch.randint(0, 3, (8, 5))
        self.y[:, :2] = -100

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return {"x": self.x[index], "y": self.y[index], "id": index}


def test_c3_a_language_model_trains_on_the_smoothed_labels_and_keeps_its_own():
    class Tokens(Classifier):
        def loss(self, outputs, batch):
            losses = F.cross_entropy(
                outputs.flatten(0, 1), batch["y"].flatten(0, 1), reduction="sum"
            )
            return losses / batch["y"].sum()

    class Labels(Callback):
        seen = []

        def before_backward(self, state, logger):
            self.seen.append((float(state.loss.detach()), state.outputs.detach(), state.batch["y"]))

    labels = Labels()
    loader = torch.utils.data.DataLoader(Sequences(), batch_size=4)
    algorithm = LabelSmoothing(0.3, target_key="y")
    train(Tokens(), loader, algorithm, labels, device_train_microbatch_size=2)
    assert len(labels.seen) == 4
    for loss, logits, target in labels.seen:
        assert (target[:, :2] == -100).all()
        expected = F.cross_entropy(logits.flatten(0, 1), target.flatten(), label_smoothing=0.3)
        assert loss == pytest.approx(float(expected), rel=1e-5)


def test_a_model_that_computes_its_own_loss_is_refused():
    class Whole(Classifier):
        def forward(self, batch):
            logits = super().forward(batch)
            return {"logits": logits, "loss": super().loss(logits, batch)}

        def loss(self, outputs, batch):
            return outputs["loss"]

    with pytest.raises(TypeError, match="LabelSmoothing needs logits, and the model returns dict"):
        train(Whole(), rows_loader(), LabelSmoothing(target_key="y"))


def test_wrong_settings():
    with pytest.raises(ValueError, match="smoothing=1.5"):
        LabelSmoothing(1.5)
