"""The mean that SWA makes, when it makes it, and the learning rate meanwhile."""

from pathlib import Path
from typing import Any

import pytest
import torch

from composer import Trainer
from composer.algorithms import EMA, SWA
from composer.core.callback import Callback
from composer.optim import ConstantScheduler
from tests.composer.algorithms.golden_runs import RECORDS, assert_as_recorded, run_as_recorded
from tests.cross.algorithm_models import trainer


class Steps(Callback):
    """Notes the weights after each step, before algorithms of the batch's end, and the rates."""

    def __init__(self) -> None:
        self.weights: list[dict[str, torch.Tensor]] = []
        self.rates: list[float] = []

    def batch_start(self, state: Any, logger: Any) -> None:
        self.rates.append(state.optimizers[0].param_groups[0]["lr"])

    def batch_end(self, state: Any, logger: Any) -> None:
        self.weights.append({n: p.detach().clone() for n, p in state.model.named_parameters()})


def mean(weights: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {name: sum(each[name] for each in weights) / len(weights) for name in weights[0]}  # type: ignore[misc]


def assert_holds(run: Trainer, expected: dict[str, torch.Tensor]) -> None:
    for name, parameter in run.state.model.named_parameters():
        torch.testing.assert_close(parameter.detach(), expected[name], rtol=0, atol=1e-6)


def test_the_recorded_run() -> None:
    swa = SWA(swa_start="1ep", swa_end="3ep")
    run, note = run_as_recorded("swa", swa)
    assert_as_recorded("swa", run, note)
    assert swa.swa_completed is RECORDS["swa"]["swa_completed"]


def test_the_recorded_rates(caplog: pytest.LogCaptureFixture) -> None:
    swa = SWA(
        swa_start="0.5dur",
        update_interval="1ba",
        schedule_swa_lr=True,
        anneal_strategy="cos",
        anneal_steps=3,
        swa_lr=0.01,
    )
    run, note = run_as_recorded("swa_lr", swa)
    assert_as_recorded("swa_lr", run, note)
    record = RECORDS["swa_lr"]
    assert note.lrs == pytest.approx([lr for (lr,) in record["lr_used"]], abs=1e-12)
    assert (swa.swa_completed, swa.swa_lr) == (record["swa_completed"], record["swa_lr"])
    assert "swa_lr=0.01 has no effect" in caplog.text


def test_the_mean_of_every_second_step_becomes_the_model_and_training_goes_on() -> None:
    steps, swa = Steps(), SWA("0.3dur", "0.8dur", "2ba")
    run = trainer("mlp", [swa], callbacks=steps, max_duration="6ba", eval_interval=0)
    run.fit()
    plain = Steps()
    trainer("mlp", [], callbacks=plain, max_duration="6ba", eval_interval=0).fit()
    # It begins with batch 2 (0.3 of 6) and adds that one and batch 4; batch 5 passes 0.8.
    expected = mean([plain.weights[1], plain.weights[3]])
    for name, value in steps.weights[4].items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-6)
    assert swa.swa_completed
    assert any(
        not torch.equal(p.detach(), expected[n]) for n, p in run.state.model.named_parameters()
    )
    assert swa.swa_model is not None
    assert {p.device.type for _, p in swa.swa_model.named_parameters()} == {"cpu"}


def test_it_holds_the_rate_of_the_scheduler() -> None:
    steps = Steps()
    swa = SWA("0.3dur", "1dur", "1ba", schedule_swa_lr=True, anneal_steps=1)
    trainer("mlp", [swa], callbacks=steps, schedulers=ConstantScheduler(alpha=0.5)).fit()
    assert steps.rates == pytest.approx([0.005] * 6)
    assert swa.swa_lr == pytest.approx(0.005)


def test_beside_a_saved_average_it_takes_the_trained_weights(tmp_path: Path) -> None:
    means = []
    for others, settings in (
        ([], {}),
        ([EMA("2ba")], {"save_folder": str(tmp_path), "save_interval": "1ba", "run_name": "r"}),
    ):
        swa = SWA("1ep", "3ep", "1ep")
        trainer("mlp", [swa, *others], **settings).fit()
        assert swa.swa_model is not None
        means.append(swa.swa_model.named_parameters_dict)
    assert all(torch.equal(means[1][name], value) for name, value in means[0].items())


def test_it_wants_one_rate() -> None:
    def two(model: torch.nn.Module) -> torch.optim.Optimizer:
        first, *rest = model.parameters()
        return torch.optim.SGD([{"params": [first], "lr": 0.1}, {"params": rest, "lr": 0.2}])

    swa = SWA("0.3dur", "1dur", "1ba", schedule_swa_lr=True)
    run = trainer("mlp", [swa], optimizer=two, schedulers=ConstantScheduler())
    with pytest.raises(RuntimeError, match="one learning rate"):
        run.fit()


def test_batch_norms_at_the_very_end_are_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    trainer("mlp", [SWA(swa_end="1dur")])
    assert "batch norms" not in caplog.text
    trainer("cnn", [SWA(swa_end="1dur")])
    assert "batch norms keep the statistics" in caplog.text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"swa_start": "1ep"}, "same units"),
        ({"swa_start": "1ba", "swa_end": "2ba"}, "in dur or ep"),
        ({"swa_start": "0.5dur", "swa_end": "1.5dur"}, "between 0dur and 1dur"),
        ({"swa_start": "0.98dur"}, "after swa_start"),
        ({"update_interval": "1sp"}, "number of ba or ep"),
        ({"anneal_strategy": "exp"}, "'linear' or 'cos'"),
        ({"anneal_steps": 0}, "greater than 0"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SWA(**settings)
