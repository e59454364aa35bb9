"""The schedules against recorded multipliers of the last upstream release, and their edge cases."""

import datetime
import json
import types
import warnings
from pathlib import Path

import pytest
import torch

import composer.optim as optim
from composer.core.time import Time, Timestamp
from composer.optim.scheduler import _convert_time

GOLDEN = json.loads(
    (Path(__file__).parents[2] / "golden" / "schedulers" / "multipliers.json").read_text()
)
RECORDS = [
    # The inverse square root belongs to the language-model package.
    record
    for record in GOLDEN["records"]
    if record["class"] != "InverseSquareRootWithWarmupScheduler"
]


def _state(max_duration, batch=0, dataloader_len=GOLDEN["batches_per_epoch"], optimizers=()):
    epoch = batch // dataloader_len if dataloader_len else 0
    timestamp = Timestamp(
        epoch=epoch,
        batch=batch,
        sample=batch * GOLDEN["batch_size"],
        token=batch * GOLDEN["tokens_per_batch"],
        total_wct=datetime.timedelta(seconds=batch * GOLDEN["seconds_per_batch"]),
    )
    return types.SimpleNamespace(
        max_duration=None if max_duration is None else Time.from_input(max_duration),
        timestamp=timestamp,
        dataloader_len=None if dataloader_len is None else Time(dataloader_len, "ba"),
        surplus_batches=0,
        optimizers=list(optimizers),
    )


def _named(record):
    return "-".join(
        [record["class"], record["max_duration_given_to_trainer"], str(record["ssr"])]
        + [f"{k}={v}" for k, v in record["kwargs"].items()]
    )


@pytest.mark.filterwarnings("ignore:The warm-up:UserWarning", "ignore:The warmup:UserWarning")
@pytest.mark.parametrize("record", RECORDS, ids=_named)
def test_recorded_multipliers(record):
    scheduler = getattr(optim, record["class"])(**record["kwargs"])
    for batch, expected in enumerate(record["multipliers"]):
        state = _state(record["effective_max_duration"], batch)
        if isinstance(expected, str):
            error, message = expected.split(": ", 1)
            with pytest.raises(__builtins__[error]) as raised:
                scheduler(state, record["ssr"])
            assert message.split(". ")[0].rstrip(".") in str(raised.value)
        else:
            assert scheduler(state, record["ssr"]) == pytest.approx(expected, abs=1e-9)


WARMUPS = {
    "cosine": lambda t, **kw: optim.CosineAnnealingWithWarmupScheduler(t, **kw),
    "linear": lambda t, **kw: optim.LinearWithWarmupScheduler(t, **kw),
    "polynomial": lambda t, **kw: optim.PolynomialWithWarmupScheduler(t, **kw),
    "constant": lambda t, **kw: optim.ConstantWithWarmupScheduler(t, **kw),
}


@pytest.mark.parametrize("kind", WARMUPS)
def test_B17_warmup_as_long_as_the_run_finishes(kind):
    scheduler = WARMUPS[kind]("10ba")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        values = [scheduler(_state("10ba", batch)) for batch in range(11)]
    assert values[:10] == pytest.approx([i / 10 for i in range(10)])
    assert values[10] == pytest.approx(1.0)


@pytest.mark.parametrize("kind", WARMUPS)
def test_B18_warmup_in_a_foreign_unit_is_refused_before_the_first_step(kind):
    optimizer = optim.DecoupledSGDW([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    state = _state("2ep", optimizers=[optimizer])
    with pytest.raises(ValueError, match="Cannot use warmup scheduler.*100tok.*2ep"):
        optim.compile_composer_scheduler(WARMUPS[kind]("100tok"), state)


def test_B18_a_multi_step_warmup_longer_than_the_run_warns():
    scheduler = optim.MultiStepWithWarmupScheduler("20ba", ["5ba"])
    for duration in ("10ba", "2ep"):
        with pytest.warns(UserWarning, match="t_warmup=20ba is longer than the schedule"):
            values = [scheduler(_state(duration, batch)) for batch in range(11)]
        assert values == pytest.approx([i / 20 for i in range(11)])


@pytest.mark.parametrize("kind", WARMUPS)
def test_B18_warmup_longer_than_the_run_warns_and_stays_low(kind):
    scheduler = WARMUPS[kind]("20ba")
    with pytest.warns(UserWarning, match="longer than the schedule"):
        values = [scheduler(_state("10ba", batch)) for batch in range(11)]
    assert values == pytest.approx([i / 20 for i in range(11)])


def test_B19_no_needless_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for scheduler in (optim.CosineAnnealingScheduler(), WARMUPS["cosine"]("1ba")):
            for batch in range(11):
                scheduler(_state("2ep", batch))


def test_zero_warmup_warns():
    with pytest.warns(UserWarning, match="warmup duration is 0"):
        optim.MultiStepWithWarmupScheduler("0.01dur", ["5ba"])(_state("10ba"))


@pytest.mark.parametrize(
    "scheduler",
    [
        optim.CosineAnnealingScheduler("10ba", 0.1),
        optim.LinearScheduler(1.0, 0.1, "10ba"),
        optim.PolynomialScheduler(2.0, "10ba", 0.1),
        optim.CosineAnnealingWithWarmupScheduler("2ba", "15ba", 0.1),
        optim.LinearWithWarmupScheduler("2ba", 1.0, 0.1, "15ba"),
        optim.PolynomialWithWarmupScheduler("2ba", 2.0, "15ba", 0.1),
    ],
    ids=lambda s: type(s).__name__,
)
def test_B23_stays_at_the_floor_after_the_end(scheduler):
    values = [scheduler(_state("15ba", batch)) for batch in range(2, 30)]
    assert values == sorted(values, reverse=True)
    assert values[-1] == pytest.approx(0.1)


def test_convert_time():
    state = _state("4ep")
    assert _convert_time("2ep", state) == Time(10, "ba")
    assert _convert_time("2ep", state, 0.25) == Time(2, "ba")
    assert _convert_time("0.5dur", state, 0.25) == Time(10, "ba")
    assert _convert_time(Time(7, "tok"), state, 2.0) == Time(14, "tok")
    assert _convert_time("0.5dur", _state("64tok")) == Time(32, "tok")
    with pytest.raises(ValueError, match="wall-clock"):
        _convert_time("10sec", state)
    with pytest.raises(RuntimeError, match="no length"):
        _convert_time("1ep", _state("4ep", dataloader_len=None))
    with pytest.raises(ValueError, match="max_duration"):
        _convert_time("1dur", _state(None))
    assert _convert_time("1dur", _state(Time(100, "sec"))) == Time(100, "sec")


@pytest.mark.parametrize(
    "scheduler", [optim.StepScheduler("0.01dur"), optim.ExponentialScheduler(0.5, "0.01dur")]
)
def test_periods_of_nothing_are_refused(scheduler):
    with pytest.raises(ValueError, match="no time at all"):
        scheduler(_state("10ba"))


@pytest.mark.parametrize("duration", ["40ba", "160sp"])
def test_times_in_epochs_count_batches_of_the_present_size(duration):
    def at(batch, scheduler):
        state = _state(duration, batch)
        state.surplus_batches = 10  # as if 3 epochs had taken 25 batches
        return scheduler(state)

    step, milestone = optim.StepScheduler("1ep", 0.5), optim.MultiStepScheduler(["1ep"], 0.5)
    assert [at(batch, step) for batch in (14, 15, 20)] == [1, 0.5, 0.25]
    assert [at(batch, milestone) for batch in (14, 15, 20)] == [1, 0.5, 0.5]
    assert at(14, optim.MultiStepScheduler(["14ba"], 0.5)) == 0.5
    if duration == "40ba":
        warmup = optim.LinearWithWarmupScheduler("1ep")
        assert [at(batch, warmup) for batch in (12, 15, 20, 40)] == [0.4, 1, 0.8, 0]


def test_a_schedule_is_a_composer_scheduler():
    assert isinstance(optim.ConstantScheduler(), optim.ComposerScheduler)
    assert optim.ConstantScheduler(0.3, "5ba")(_state("10ba", 4)) == 0.3
    assert optim.ConstantScheduler(0.3, "5ba")(_state("10ba", 5)) == 1.0
