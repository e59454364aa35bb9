"""The mean of the last checkpoints is evaluated and saved, and training goes on without it."""

import pytest
import torch

from composer.algorithms import CheckpointAveraging
from tests.composer.algorithms.test_ema import Sees
from tests.cross.algorithm_models import trainer


def test_the_mean_of_the_window_is_evaluated() -> None:
    sees, plain = Sees(), Sees()
    trainer("mlp", [CheckpointAveraging("2ba", window=2)], callbacks=sees, max_duration="9ba").fit()
    trainer("mlp", [], callbacks=plain, max_duration="9ba").fit()
    for ours, theirs in zip(sees.stepped, plain.stepped, strict=True):
        assert torch.equal(ours, theirs), "training is the same to the bit"
    for step in range(1, 9):
        kept = [batch for batch in range(2, step + 2, 2)][-2:]
        expected = torch.stack([plain.stepped[batch - 1] for batch in kept]).mean(0)
        torch.testing.assert_close(sees.evaluated[step], expected, rtol=0, atol=1e-6)


def test_it_begins_when_it_is_told_to() -> None:
    sees = Sees()
    trainer("mlp", [CheckpointAveraging("1ba", start="4ba")], callbacks=sees).fit()
    assert torch.equal(sees.evaluated[2], sees.stepped[2])
    mean = (sees.stepped[3] + sees.stepped[4]) / 2
    torch.testing.assert_close(sees.evaluated[4], mean, rtol=0, atol=1e-6)


def test_wrong_settings() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        CheckpointAveraging(window=1)
    with pytest.raises(ValueError, match="batches or epochs"):
        CheckpointAveraging("5tok")
