"""Targets become probabilities on the axis that the classes are on."""

import pytest
import torch

from composer.algorithms.utils.targets import as_probabilities, class_axis


@pytest.mark.parametrize(
    ("logits", "targets", "axis"),
    [
        ((4, 3), (4,), 1),
        ((4, 3), (4, 3), 1),
        ((4, 3, 5, 6), (4, 5, 6), 1),
        ((4, 3, 5), (4, 5), 1),
        ((4, 5, 3), (4, 5), 2),
        ((4, 5, 5), (4, 5), 1),  # torch's convention, where both fit
    ],
)
def test_axis(logits, targets, axis):
    assert class_axis(torch.zeros(logits), torch.zeros(targets)) == axis


@pytest.mark.parametrize(("logits", "targets"), [((4,), (4,)), ((4, 3), (5,)), ((4, 3), (3, 4))])
def test_shapes_that_fit_no_axis(logits, targets):
    with pytest.raises(ValueError, match="do not fit logits"):
        class_axis(torch.zeros(logits), torch.zeros(targets))


def test_probabilities():
    made = as_probabilities(torch.zeros(2, 2, 3), torch.tensor([[0, 2], [-100, 1]]))
    expected = [[[1, 0, 0], [0, 0, 1]], [[0, 0, 0], [0, 1, 0]]]
    assert made.tolist() == expected
    given = torch.rand(2, 3, dtype=torch.float64)
    assert torch.equal(as_probabilities(torch.zeros(2, 3), given), given.float())


def test_indices_are_integers():
    with pytest.raises(ValueError, match="must be integers, and these are torch.float32"):
        as_probabilities(torch.zeros(2, 3), torch.zeros(2))
