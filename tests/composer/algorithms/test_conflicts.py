"""What does not go together is refused by name, by one table that the docs can show."""

from pathlib import Path

import pytest
import torch

import composer.algorithms
import composer.optim
from composer.algorithms import EMA, SWA, CutMix, GradientClipping, MixUp
from composer.algorithms.conflicts import CONFLICTS, check_conflicts
from composer.core.event import Event
from composer.optim import ScheduleFreeAdamW
from tests.composer.plugins import HandRun
from tests.cross.algorithm_models import trainer


@pytest.mark.parametrize("row", CONFLICTS, ids=lambda row: f"{row.one}-{row.other}")
def test_every_pair_is_of_ours_and_refused(row) -> None:
    faces = (composer.algorithms, composer.optim)
    assert all(any(name in face.__all__ for face in faces) for name in (row.one, row.other))
    one, other = (type(name, (), {})() for name in (row.one, row.other))
    if row.only_interpolating:
        check_conflicts([one, other])
    for mixing in (one, other):
        one.interpolate_loss, other.interpolate_loss = mixing is one, mixing is other
        with pytest.raises(ValueError) as error:
            check_conflicts([other, one])
        assert str(error.value).startswith(f"{row.one} does not go together with {row.other}: ")
        check_conflicts([mixing, object()])


def test_the_docs_show_the_table() -> None:
    page = (Path(__file__).parents[3] / "docs" / "algorithms.md").read_text()
    for row in CONFLICTS:
        assert f"| {row.one} | {row.other} | {row.reason} |" in page


def test_targets_that_mixup_and_cutmix_have_mixed_are_the_composition() -> None:
    torch.manual_seed(0)
    mixup, cutmix = MixUp(alpha=1.0), CutMix(alpha=1.0)
    images, targets = torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 2, 0])
    run = HandRun(algorithms=[mixup, cutmix])
    run.state.batch = (images, targets)
    run.engine.run_event(Event.BEFORE_FORWARD)
    mixed = torch.lerp(images, images[mixup.indices], mixup.mixing)
    rows, columns = (slice(*cutmix._bbox[axis::2]) for axis in (0, 1))
    pasted = mixed.clone()
    pasted[..., rows, columns] = mixed[cutmix._indices][..., rows, columns]
    torch.testing.assert_close(run.state.batch[0], pasted)
    run.state.outputs = torch.zeros(4, 3)
    run.engine.run_event(Event.BEFORE_LOSS)
    share = (rows.stop - rows.start) * (columns.stop - columns.start) / 64
    assert 0 < share < 1 and 0 < mixup.mixing < 1
    one_hot = torch.eye(3)[targets]
    expected = torch.lerp(one_hot, one_hot[mixup.indices], mixup.mixing)
    expected = torch.lerp(expected, expected[cutmix._indices], share)
    torch.testing.assert_close(run.state.batch[1], expected)
    run.close()


def test_the_trainer_asks_the_table() -> None:
    with pytest.raises(ValueError, match="EMA does not go together with ScheduleFreeAdamW"):
        trainer("mlp", [EMA()], optimizer=lambda model: ScheduleFreeAdamW(model.parameters()))
    both = [EMA(), SWA(), GradientClipping("norm", 1.0)]
    trainer("mlp", both, optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1))
