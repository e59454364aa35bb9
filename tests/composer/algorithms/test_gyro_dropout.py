"""Gyro dropout goes through its masks as the method says, and goes on with them after a stop."""

import pytest
import torch
from torch import nn

from composer import Trainer
from composer.algorithms import GyroDropout, NoMatchError
from composer.algorithms.gyro_dropout import GyroDropoutLayer, apply_gyro_dropout
from composer.core.duration import Time
from composer.core.event import Event
from tests.composer.algorithms.surgery import Golden, apply_at, golden_fact
from tests.composer.trainer.models import Classifier, rows_loader


def masks_of(layer: GyroDropoutLayer, steps: int, batch: int = 4, features: int = 64):
    return [layer(torch.ones(batch, features)) for _ in range(steps)]


def test_masks_are_chosen_anew_every_iter_num_forwards():
    layer = GyroDropoutLayer(iters_per_epoch=6, max_epoch=2, p=0.25, sigma=6, tau=2, seed=3)
    assert layer.iter_num == 4  # int(6 * 2 / 6) * 2
    outs = masks_of(layer, 12)
    for turn in range(3):
        first = outs[4 * turn]
        assert all(torch.equal(out, first) for out in outs[4 * turn : 4 * turn + 4])
        # tau masks, each for an equal part of the batch, one after the other
        assert torch.equal(first[0], first[1]) and torch.equal(first[2], first[3])
        assert not torch.equal(first[0], first[2])
    assert not torch.equal(outs[0], outs[4])
    rows = {tuple(row.tolist()) for out in outs for row in out}
    assert len(rows) <= 6
    kept = torch.stack(outs)
    assert kept.unique().tolist() == pytest.approx([0, 1 / 0.75])
    assert 0.6 < (kept > 0).float().mean() < 0.9


def test_form_of_the_record():
    golden = Golden("gyro")
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 4))
    apply_gyro_dropout(model, iters_per_epoch=4, max_epoch=1, p=0.5, sigma=2, tau=1)
    assert repr(model) == golden_fact("gyro")
    layer = model[0]
    torch.manual_seed(0)
    outs = [layer(golden["x"]) for _ in range(2)]
    # Which features are left out is drawn; that rows and steps agree, and 1 / (1 - p), is not.
    assert all(torch.equal(out, outs[0]) and torch.equal(out[0], out[1]) for out in outs)
    recorded = [golden[f"out{i}"] for i in range(2)]
    assert torch.equal(recorded[0], recorded[1])
    assert set(outs[0].unique().tolist()) <= set(recorded[0].unique().tolist()) == {0.0, 2.0}


def test_shapes_and_evaluation():
    layer = GyroDropoutLayer(10, 1, 0.5, 4, 3, seed=1)
    out = layer(torch.ones(5, 7, 16))
    assert torch.equal(out, out[:, :1].expand_as(out))  # alike at all positions
    assert len(out[:, 0].unique(dim=0)) == 3
    assert layer(torch.ones(2, 16)).shape == (2, 16)  # fewer samples than masks
    assert layer(torch.ones(4, 8)).shape == (4, 8)
    x = torch.randn(3, 16)
    assert layer.eval()(x) is x
    steps = layer.steps
    layer(x)
    assert layer.steps == steps


def test_settings():
    for wrong in ({"p": 1.0}, {"p": -0.1}, {"tau": 300}, {"tau": 0}):
        with pytest.raises(ValueError, match="p=|tau="):
            GyroDropout(**wrong)
    assert repr(GyroDropout()) == "GyroDropout(p=0.5,sigma=256,tau=16)"
    known = {"dataloader_len": Time(6, "ba")}
    with pytest.raises(NoMatchError, match="Dropout"):
        apply_at(
            GyroDropout(), nn.Linear(2, 2), Event.FIT_START, max_duration=Time(2, "ep"), **known
        )
    with pytest.raises(ValueError, match="max_duration in epochs"):
        apply_at(
            GyroDropout(), nn.Linear(2, 2), Event.FIT_START, max_duration=Time(9, "sp"), **known
        )
    for duration in (Time(2, "ep"), Time(12, "ba")):
        model = nn.Sequential(nn.Dropout(), nn.Dropout())
        algorithm = GyroDropout(sigma=6, tau=2)
        apply_at(algorithm, model, Event.FIT_START, max_duration=duration, **known)
        assert [layer.iter_num for layer in model] == [4, 4]
        assert not torch.equal(model[0](torch.ones(4, 64)), model[1](torch.ones(4, 64)))
        assert not algorithm.match(Event.FIT_START, None)


@pytest.mark.parametrize("microbatch", [4, 2])
def test_a_stopped_run_goes_on_with_its_masks(tmp_path, microbatch):
    def run(**kwargs) -> dict[str, torch.Tensor]:
        model = Classifier(dropout=0.5)
        trainer = Trainer(
            model=model,
            train_dataloader=rows_loader(16, 4),
            optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
            algorithms=GyroDropout(sigma=4, tau=2),
            max_duration="3ep",
            device_train_microbatch_size=microbatch,
            seed=5,
            progress_bar=False,
            **kwargs,
        )
        trainer.fit()
        trainer.close()
        return {name: value.clone() for name, value in trainer.state.model.state_dict().items()}

    whole = run(save_folder=str(tmp_path), save_interval="6ba", save_filename="ba{batch}.pt")
    resumed = run(load_path=str(tmp_path / "ba6.pt"))
    for name, value in whole.items():
        assert torch.equal(value, resumed[name])
