"""StabilityMonitor judges a batch before its step; a step that is left out leaves no trace."""

import copy
import math
import os

import pytest
import torch

from composer.algorithms.gradient_clipping import GradientClipping
from composer.callbacks.stability_monitor import StabilityMonitor
from composer.core.callback import Callback
from composer.optim.decoupled_weight_decay import DecoupledAdamW
from composer.trainer._scaling import GradScaling
from tests.composer.callbacks.guarded import batches, make_trainer, memory_of

NAN = float("nan")


def guard(action="skip_step", **kwargs):
    return StabilityMonitor(action, **{"window_size": 8, **kwargs})


class Photos(Callback):
    """Keeps what a step can change, before and after each batch."""

    def __init__(self):
        self.before, self.after = [], []

    def _take(self, state):
        return copy.deepcopy(
            {
                "weights": [p.detach() for p in state.model.parameters()],
                "optimizer": state.optimizers[0].state_dict(),
                "schedulers": [s.state_dict() for s in state.schedulers],
            }
        )

    def batch_start(self, state, logger):
        self.before.append(self._take(state))

    def batch_end(self, state, logger):
        self.after.append(self._take(state))


def flat(value):
    """Every number within, so that two photos can be compared to the bit."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {str(key): flat(item) for key, item in value.items() if key != "lr_lambdas"}
    if isinstance(value, list | tuple):
        return [flat(item) for item in value]
    return value


def step_lr(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.9)


OPTIMIZERS = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    "adam": lambda p: DecoupledAdamW(p, lr=0.01, weight_decay=1e-3),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("poison", [{9: NAN}, {9: 50.0}, {9: float("inf"), 11: NAN}])
def test_a_skipped_step_is_as_if_its_batch_had_not_been_there(optimizer, poison):
    photos, monitor = Photos(), guard()
    settings = {"optimizer": optimizer, "scheduler": step_lr, "step_schedulers_every_batch": True}
    trainer = make_trainer(monitor, photos, data=batches(14, poison), **settings)
    trainer.fit()
    for index in poison:
        assert flat(photos.before[index]) == flat(photos.after[index])
    assert int(trainer.state.timestamp.batch) == 14
    assert monitor.num_skipped == len(poison)

    clean = [batch for index, batch in enumerate(batches(14)) if index not in poison]
    other = Photos()
    without = make_trainer(other, data=clean, **settings)
    without.fit()
    assert flat(photos.after[-1]) == flat(other.after[-1])
    for each in (trainer, without):
        each.close()


def test_the_first_step_can_be_skipped_with_a_schedule():
    trainer = make_trainer(
        guard(), data=batches(3, {0: NAN}), scheduler=step_lr, step_schedulers_every_batch=True
    )
    trainer.fit()  # torch would warn of a schedule that stepped before its optimizer
    trainer.close()


def test_it_logs_deviations_scores_and_counts():
    trainer = make_trainer(guard(threshold=4), data=batches(20, {12: 30.0}))
    trainer.fit()
    memory = memory_of(trainer)
    deviations = [value for _, value in memory.data["stability/loss_deviation"]]
    assert len(deviations) == 16  # once the window was half full
    assert max(deviations) == deviations[8] > 4
    assert memory.most_recent_values["stability/skipped_steps"] == 1
    assert memory.most_recent_values["stability/loss_spike_score"] == 1 / 20
    assert memory.most_recent_values["stability/grad_norm"] > 0
    trainer.close()


def test_a_spike_neither_hides_the_next_nor_lasts_for_ever():
    monitor = guard(window_size=10, max_skips_in_a_row=100)
    data = batches(60, {10: 100.0, 11: 100.0})
    for index in range(20, 60):
        data[index] = data[index] * 8
    trainer = make_trainer(monitor, data=data, max_duration="60ba")
    trainer.fit()
    skipped = monitor.num_skipped
    assert 3 <= skipped < 40  # both spikes, and a new level that it gets used to
    assert monitor._skips_in_a_row == 0
    trainer.close()


def test_log_takes_the_step(caplog):
    photos = Photos()
    trainer = make_trainer(guard("log"), photos, data=batches(12, {9: 50.0}))
    trainer.fit()
    assert flat(photos.before[9]) != flat(photos.after[9])
    assert "Batch 9: loss=" in caplog.text
    assert "standard deviations above the last 8 batches" in caplog.text
    trainer.close()


def test_stop_ends_with_the_weights_before():
    photos = Photos()
    trainer = make_trainer(guard("stop"), photos, data=batches(12, {9: 50.0}))
    trainer.fit()
    assert int(trainer.state.timestamp.batch) == 10
    assert flat(photos.before[9]) == flat(photos.after[9])
    trainer.close()


def test_raise_and_another_action_for_nan():
    photos = Photos()
    monitor = guard("log", nonfinite_action="raise")
    trainer = make_trainer(monitor, photos, data=batches(12, {8: 50.0, 9: NAN}))
    with pytest.raises(RuntimeError, match="Batch 9: loss=nan. The step was not taken."):
        trainer.fit()
    assert flat(photos.before[9]["weights"]) == flat(list(trainer.state.model.parameters()))
    trainer.close()


def test_a_run_that_does_not_recover_is_ended():
    poison = dict.fromkeys(range(4, 12), NAN)
    trainer = make_trainer(guard(max_skips_in_a_row=3), data=batches(12, poison))
    with pytest.raises(RuntimeError, match="max_skips_in_a_row=3 .* does not recover"):
        trainer.fit()
    assert int(trainer.state.timestamp.batch) == 7
    trainer.close()


def test_the_norm_is_that_before_clipping():
    clipped = make_trainer(
        guard("log"), data=batches(6), algorithms=[GradientClipping("norm", 1e-3)]
    )
    clipped.fit()
    plain = make_trainer(guard("log"), data=batches(6))
    plain.fit()
    first, second = (memory_of(t).data["stability/grad_norm"][0][1] for t in (clipped, plain))
    assert first == pytest.approx(second)
    clipped.close()
    plain.close()


def test_microbatches_do_not_change_the_loss_it_sees():
    seen = []
    for microbatch in (4, 1):
        monitor = guard()
        trainer = make_trainer(monitor, data=batches(5), microbatch=microbatch)
        trainer.fit()
        seen.append(list(monitor.windows["loss"]))
        logged = [value for _, value in memory_of(trainer).data["loss/train/total"]]
        assert seen[-1] == pytest.approx(logged)
        trainer.close()
    assert seen[0] == pytest.approx(seen[1])


def test_the_scale_of_fp16_shrinks_where_a_step_was_left_out(monkeypatch):
    monkeypatch.setattr("composer.trainer._run.scaling_of", GradScaling)
    photos, monitor = Photos(), guard()
    trainer = make_trainer(monitor, photos, data=batches(8, {3: NAN, 6: 50.0}))
    trainer.state.scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    trainer.fit()
    assert monitor.num_skipped == 2
    assert trainer.state.scaler.get_scale() == 8  # for the NaN, not for the spike
    for index in (3, 6):
        assert flat(photos.before[index]) == flat(photos.after[index])
    assert flat(photos.before[7]) != flat(photos.after[7])
    trainer.close()


def test_infinite_gradients_of_fp16_are_the_scalers():
    monitor = guard()
    monitor._values = {"loss": 1.0, "grad_norm": math.inf}
    assert monitor._judge(is_scaled=True) == (None, "")
    assert monitor._judge(is_scaled=False)[0] == "skip_step"
    monitor._values["loss"] = NAN
    assert monitor._judge(is_scaled=True)[0] == "skip_step"


def test_it_goes_on_comparing_after_a_resume():
    first = guard()
    trainer = make_trainer(first, data=batches(8, {6: NAN}))
    trainer.fit()
    second = guard()
    second.load_state_dict(first.state_dict())
    assert second.windows == first.windows
    assert second.state_dict() == first.state_dict()
    trainer.close()


class Closing(torch.optim.SGD):
    def step(self, closure):
        closure()
        return super().step()


def test_an_optimizer_with_a_closure_is_refused_before_training():
    trainer = make_trainer(guard(), data=batches(3), optimizer=lambda p: Closing(p, lr=0.1))
    with pytest.raises(ValueError, match="leaves steps out, which Closing cannot"):
        trainer.fit()
    trainer.close()
    trainer = make_trainer(guard("log"), data=batches(3), optimizer=lambda p: Closing(p, lr=0.1))
    trainer.fit()
    trainer.close()


class Skipping(Callback):
    """Leaves the step out in one of an optimizer's passes over a batch."""

    def __init__(self, number):
        self.passes_left = number

    def after_train_batch(self, state, logger):
        self.passes_left -= 1
        if self.passes_left == 0:
            state.skip_step()


class Trying(Closing):
    def step(self, closure):
        closure()
        return super().step(closure)


def test_a_closure_may_be_told_to_skip_before_it_has_moved_anything():
    trainer = make_trainer(Skipping(1), data=batches(1), optimizer=lambda p: Trying(p, lr=0.1))
    before = flat(trainer.state.model.state_dict())
    trainer.fit()
    assert flat(trainer.state.model.state_dict()) == before
    trainer.close()


def test_a_closure_that_is_told_to_skip_later_says_why_it_cannot():
    trainer = make_trainer(Skipping(2), data=batches(3), optimizer=lambda p: Trying(p, lr=0.1))
    with pytest.raises(RuntimeError, match="SAM, LBFGS"):
        trainer.fit()
    trainer.close()


@pytest.mark.parametrize(
    "kwargs",
    [
        {"action": "skip"},
        {"nonfinite_action": "x"},
        {"threshold": 0},
        {"window_size": 1},
        {"max_skips_in_a_row": 0},
    ],
)
def test_wrong_settings(kwargs):
    with pytest.raises(ValueError, match=next(iter(kwargs))):
        StabilityMonitor(**kwargs)


def train_on_two(folder: str) -> dict:
    """Only rank 1's loss spikes; both must leave the step out."""
    rank = int(os.environ["RANK"])
    photos, monitor = Photos(), guard()
    data = batches(12, {9: 50.0} if rank == 1 else None, rank)
    trainer = make_trainer(monitor, photos, data=data)
    trainer.fit()
    result = {
        "same": flat(photos.before[9]) == flat(photos.after[9]),
        "skipped": monitor.num_skipped,
        "windows": monitor.state_dict()["windows"],
        "weights": flat(photos.after[-1]["weights"]),
    }
    trainer.close()
    return result
