"""EarlyStopper and ThresholdStopper watch a metric of one dataloader and end the run."""

import pytest

from composer.callbacks.early_stopper import EarlyStopper
from composer.callbacks.threshold_stopper import ThresholdStopper
from tests.composer.plugins import Evaluation, HandRun, Value


def run_with(stopper, values, max_duration="8ep"):
    run = HandRun(stopper, evaluation=Evaluation("eval", values), max_duration=max_duration)
    run.loaded().fit().close()
    return run


@pytest.mark.parametrize(
    ("kwargs", "values", "epochs"),
    [
        ({"patience": 1}, [1, 2, 2, 2, 2, 2, 2, 2], 4),  # best at 2; more than one epoch without
        ({"patience": "2ep"}, [1, 2, 2, 2, 2, 2, 2, 2], 5),
        ({"patience": 1, "min_delta": 0.5}, [1, 1.4, 1.6, 1.7, 1.8, 9, 9, 9], 5),
        ({"patience": 1, "comp": "less"}, [1, 2, 3, 4, 5, 6, 7, 8], 3),
        ({"patience": "100ep"}, [1] * 8, 8),
        ({"patience": "4ba"}, [2, 1, 1, 1, 1, 1, 1, 1], 3),
        ({"patience": 1, "comp": lambda value, best: value < best}, [3, 2, 2, 2, 0, 0, 0, 0], 4),
    ],
)
def test_early_stopper(kwargs, values, epochs):
    run = run_with(EarlyStopper("m", "eval", **kwargs), values)
    assert run.state.timestamp.epoch == epochs


def test_early_stopper_goes_on_waiting_after_a_resume():
    first = EarlyStopper("m", "eval", patience=2)
    run_with(first, [5, 1], max_duration="2ep")
    second = EarlyStopper("m", "eval", patience=2)
    second.load_state_dict(first.state_dict())
    assert second.best.item() == 5
    assert second.best_occurred.epoch == 1
    EarlyStopper("m", "eval").load_state_dict({})  # a checkpoint of upstream has nothing


@pytest.mark.parametrize("name", ["val_loss", "Error", "LanguagePerplexity"])
def test_lower_is_better_for_some_names(name):
    stopper = ThresholdStopper(name, "eval", 1.0)
    assert stopper.comp_func(Value(0.5).compute(), stopper.threshold)


@pytest.mark.parametrize(
    ("kwargs", "epochs"), [({}, 3), ({"comp": "lt"}, 1), ({"comp": "greater"}, 3)]
)
def test_threshold_stopper(kwargs, epochs):
    run = run_with(ThresholdStopper("m", "eval", 2.5, **kwargs), [1, 2, 3, 4, 5, 6, 7, 8])
    assert run.state.timestamp.epoch == epochs


def test_threshold_on_a_training_metric_of_a_batch():
    run = HandRun(ThresholdStopper("m", "train", 0.5, stop_on_batch=True), max_duration="9ba")
    run.state.train_metrics = {"m": Value(1.0)}
    run.loaded().fit().close()
    assert run.state.timestamp.batch == 1


@pytest.mark.parametrize("make", [lambda **kw: EarlyStopper("m", "eval", **kw)])
@pytest.mark.parametrize("kwargs", [{"comp": "bigger"}, {"patience": "10sp"}])
def test_wrong_settings(make, kwargs):
    with pytest.raises(ValueError, match=next(iter(kwargs))):
        make(**kwargs)


def test_a_label_that_no_dataloader_has_is_refused_before_training():
    run = HandRun(EarlyStopper("m", "evil"), evaluation=Evaluation("eval", [1])).loaded()
    with pytest.raises(ValueError, match="'evil' is none of the run's: train, eval"):
        run.fit()


def test_a_metric_that_does_not_exist():
    with pytest.raises(ValueError, match="Couldn't find the metric 'n'.*this label has: m"):
        run_with(ThresholdStopper("n", "eval", 1.0), [1] * 8)
