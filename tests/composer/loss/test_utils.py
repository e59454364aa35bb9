"""Targets told apart and made one-hot."""

import pytest
import torch

from composer.loss.utils import (
    _one_hot,
    check_for_index_targets,
    ensure_targets_one_hot,
    infer_target_type,
)


def test_kinds_are_told_apart_by_shape():
    logits = torch.randn(4, 3, 2)
    assert infer_target_type(logits, torch.zeros(4, 2)) == "indices"
    assert infer_target_type(logits, torch.zeros(4, 3, 2)) == "one_hot"
    with pytest.raises(RuntimeError, match="Unable to infer"):
        infer_target_type(logits, torch.zeros(4))


def test_index_targets_are_integers():
    assert check_for_index_targets(torch.tensor([1]))
    assert check_for_index_targets(torch.tensor([1], dtype=torch.int32))
    assert not check_for_index_targets(torch.tensor([1.0]))


def test_one_hot_places_the_dimension_and_zeroes_negatives():
    one_hot = _one_hot(torch.tensor([[0, -1], [2, 1]]), num_classes=3, dim=1)
    assert one_hot.shape == (2, 3, 2)
    assert one_hot[:, :, 0].tolist() == [[1, 0, 0], [0, 0, 1]]
    assert one_hot[:, :, 1].tolist() == [[0, 0, 0], [0, 1, 0]]
    assert _one_hot(torch.tensor([0, 2])).tolist() == [[1, 0, 0], [0, 0, 1]]
    with pytest.raises(ValueError, match="must be integers"):
        _one_hot(torch.tensor([0.5]))


def test_probabilities_pass_through_as_floats():
    target = torch.tensor([[0, 1], [1, 0]])
    assert ensure_targets_one_hot(torch.randn(2, 2), target).dtype == torch.float
    assert ensure_targets_one_hot(torch.randn(2, 2), torch.tensor([0, 1]), 4).shape == (2, 4)
