"""The average is what its definition says, and stands in the model only where it is used."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from composer.algorithms import EMA, SWA, CheckpointAveraging
from composer.algorithms.ema import EMAParameters
from composer.callbacks import BestCheckpoints
from composer.checkpoint.monolithic import torch_load_with_validation
from composer.core.callback import Callback
from composer.core.duration import Time
from composer.core.event import Event
from composer.functional import compute_ema
from tests.composer.algorithms.golden_runs import GOLDEN, assert_as_recorded, run_as_recorded
from tests.composer.plugins import HandRun, Regression
from tests.cross.algorithm_models import tensors_of, trainer
from tests.launch import run_ranks


class Sees(Callback):
    """Notes the weights after each step, in evaluation, and when the next batch starts."""

    def __init__(self) -> None:
        self.stepped: list[torch.Tensor] = []
        self.evaluated: list[torch.Tensor] = []
        self.started: list[torch.Tensor] = []

    def batch_start(self, state: Any, logger: Any) -> None:
        self.started.append(flat(state.model))

    def batch_end(self, state: Any, logger: Any) -> None:
        self.stepped.append(flat(state.model))

    def eval_batch_start(self, state: Any, logger: Any) -> None:
        if state.eval_timestamp.batch == 0:
            self.evaluated.append(flat(state.model))


def flat(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten().double() for p in model.parameters()])


def test_the_recorded_average() -> None:
    record = np.load(GOLDEN / "functional.npz")

    def layer(name: str) -> torch.nn.Linear:
        made = torch.nn.Linear(3, 2)
        parts = {
            part: torch.from_numpy(record[f"ema|{name}.{part}"]) for part in ("weight", "bias")
        }
        made.load_state_dict(parts)
        return made

    model, average, expected = layer("model"), layer("ema_in"), layer("ema_out")
    copies = EMAParameters(average)
    smoothing = float(record["ema|smoothing"])
    compute_ema(model, average, smoothing)
    compute_ema(model, copies, smoothing)
    for name, value in expected.named_parameters():
        torch.testing.assert_close(average.get_parameter(name), value)
        torch.testing.assert_close(copies.named_parameters_dict[name], value.detach())
    with pytest.raises(ValueError, match=r"is a dict; give a torch\.nn\.Module or EMAParameters"):
        compute_ema(model, {})  # type: ignore[arg-type]


def test_the_recorded_run() -> None:
    ema = EMA(half_life=None, smoothing=0.9, update_interval="2ba")
    run, note = run_as_recorded("ema_smoothing", ema)
    assert_as_recorded("ema_smoothing", run, note)
    final = np.load(GOLDEN / "final_weights.npz")
    held = "ema_smoothing|EMA_OR_TRAIN_OTHER|"
    names = [key.removeprefix(held) for key in final.files if key.startswith(held)]
    assert len(names) == 6 and ema.ema_model is not None and not ema.ema_weights_active
    for name in names:
        found = ema.ema_model.named_parameters_dict[name].numpy()
        np.testing.assert_allclose(found, final[held + name], atol=1e-5, rtol=0)


def test_it_is_evaluated_and_training_does_not_notice() -> None:
    with_it, without = Sees(), Sees()
    trainer("mlp", [EMA(half_life="3ba")], callbacks=with_it).fit()
    trainer("mlp", [], callbacks=without).fit()
    smoothing, average = 2 ** -(1 / 3), with_it.stepped[0]
    for step, (ours, theirs) in enumerate(zip(with_it.stepped, without.stepped, strict=True)):
        assert torch.equal(ours, theirs), "training is the same to the bit"
        average = smoothing * average + (1 - smoothing) * ours
        torch.testing.assert_close(with_it.evaluated[step], average, rtol=0, atol=1e-6)
    for before, after in zip(with_it.stepped, with_it.started[1:], strict=False):
        assert torch.equal(before, after)


def test_it_starts_when_it_is_told_to_and_follows_at_its_interval() -> None:
    sees = Sees()
    ema = EMA(half_life="2ba", ema_start="3ba", update_interval="2ba")
    trainer("mlp", [ema], callbacks=sees).fit()
    for step in range(2):
        assert torch.equal(sees.evaluated[step], sees.stepped[step])
    assert ema.smoothing == 0.5
    first = sees.stepped[2]  # a copy at batch 3; it moves after batches 4 and 6
    second = (first + sees.stepped[3]) / 2
    third = (second + sees.stepped[5]) / 2
    for step, expected in ((2, first), (3, second), (4, second), (5, third)):
        torch.testing.assert_close(sees.evaluated[step], expected, rtol=0, atol=1e-6)


def test_a_checkpoint_holds_it_and_the_run_goes_on(tmp_path: Path) -> None:
    sees, ema = Sees(), EMA(half_life="2ba")
    run = trainer(
        "mlp", [ema], callbacks=sees, save_folder=str(tmp_path), save_interval="1ep", run_name="r"
    )
    run.fit()
    saved = torch_load_with_validation(tmp_path / "ep1-ba3-rank0.pt")["state"]
    kept = torch.cat([value.flatten().double() for value in saved["model"].values()])
    assert torch.equal(kept, sees.evaluated[2])
    [(name, state)] = saved["algorithms"]
    assert name == "EMA" and state["ema_weights_active"] and state["ema_started"]
    held = state["ema_model"]["named_parameters_dict"]
    assert held.keys() == saved["model"].keys()
    assert torch.equal(torch.cat([v.flatten().double() for v in held.values()]), sees.stepped[2])
    assert torch.equal(sees.started[3], sees.stepped[2])


def test_the_best_checkpoint_holds_the_weights_that_were_evaluated(tmp_path: Path) -> None:
    sees = Sees()
    best = BestCheckpoints(folder=str(tmp_path), num_to_keep=9, weights_only=True)
    trainer("mlp", [EMA(half_life="2ba")], callbacks=[sees, best], run_name="r").fit()
    assert len(best.best) == 6
    for path, evaluated in zip(best.best, sees.evaluated, strict=True):
        saved = torch_load_with_validation(path)["state"]["model"]
        kept = torch.cat([value.flatten().double() for value in saved.values()])
        assert torch.equal(kept, evaluated)


def test_per_epoch_it_follows_what_is_trained_not_what_was_saved(tmp_path: Path) -> None:
    sees, ema = Sees(), EMA(half_life="1ep")
    run = trainer(
        "mlp", [ema], callbacks=sees, save_folder=str(tmp_path), save_interval="1ba", run_name="r"
    )
    run.fit()
    expected = (sees.stepped[2] + sees.stepped[5]) / 2
    ema.get_ema_model(run.state.model)
    torch.testing.assert_close(flat(run.state.model), expected, rtol=0, atol=1e-6)


def test_buffers_follow_and_counters_are_copied() -> None:
    model = torch.nn.BatchNorm1d(2)
    copies = EMAParameters(model)
    model(torch.tensor([[1.0, 2.0], [3.0, 6.0]]))
    copies.move_towards(model, 0.25)
    assert model.running_mean is not None
    assert torch.allclose(copies.named_buffers_dict["running_mean"], model.running_mean / 4)
    assert int(copies.named_buffers_dict["num_batches_tracked"]) == 1
    copies.swap_params(model)
    assert torch.allclose(model.running_mean * 4, copies.named_buffers_dict["running_mean"])


def test_the_half_life_is_kept() -> None:
    assert EMA(half_life="5ba").half_life == Time(5, "ba")
    assert EMA(half_life=None, smoothing=0.5).half_life is None


def test_the_two_sets_by_hand() -> None:
    ema = EMA(half_life="1ba")
    run = HandRun(algorithms=[ema], max_duration="3ba").loaded().fit()
    model, trained = run.state.model, flat(run.state.model)
    with pytest.raises(ValueError, match="are in the model itself"):
        ema.get_training_model(model)
    ema.apply(Event.EVAL_START, run.state, run.logger)
    with pytest.raises(ValueError, match="nothing to copy"):
        ema.get_ema_model(model)
    average = flat(model)
    assert not torch.equal(average, trained)
    ema.apply(Event.EVAL_END, run.state, run.logger)
    assert torch.equal(flat(model), trained)
    assert torch.equal(flat(ema.get_ema_model(model)), average)
    run.close()


def test_weights_too_coarse_for_small_moves_are_remarked_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for dtype, half_life, is_said in (
        (torch.float32, "1000ba", False),
        (torch.bfloat16, "10ba", False),
        (torch.bfloat16, "1000ba", True),
    ):
        run = HandRun(model=Regression().to(dtype))
        EMA(half_life).apply(Event.INIT, run.state, run.logger)
        assert ("longer update_interval" in caplog.text) is is_said
        run.close()


def test_checkpoints_of_older_releases() -> None:
    def copies(value: float) -> dict[str, Any]:
        weights = {f"module.{n}": torch.full((1,), value) for n in ("weight", "bias")}
        return {"named_parameters_dict": weights, "named_buffers_dict": {}}

    model = torch.nn.Linear(1, 1)
    model.weight.data = torch.zeros(1)
    for is_active, expected in ((True, 2.0), (False, 1.0)):
        ema = EMA()
        ema.load_state_dict(
            {
                "ema_model": copies(1.0),
                "training_model": copies(2.0),
                "ema_weights_active": is_active,
                "ema_started": True,
            }
        )
        assert ema.ema_model is not None
        ema.ema_model.transfer_ema_params(model)
        assert (model.weight.item(), model.bias.item()) == (expected, expected)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"smoothing": 0.5}, "exactly one of them"),
        ({"half_life": None}, "exactly one of them"),
        ({"half_life": "10sp"}, "batches or epochs"),
        ({"half_life": "10ba", "update_interval": "1ep"}, "must match"),
        ({"half_life": None, "smoothing": 1.5}, "between 0 and 1"),
        ({"half_life": "0ba"}, "positive number"),
        ({"update_interval": "0ba"}, "so many batches"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EMA(**settings)


AVERAGES: dict[str, Any] = {
    "EMA": lambda: EMA(half_life="2ba"),
    "SWA": lambda: SWA("0.3dur", "0.9dur", "1ba"),
    "CheckpointAveraging": lambda: CheckpointAveraging("1ba", window=3),
}


def _sharded(
    folder: str, kind: str, name: str
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Trains sharded at once, and again with a save between; keeps what was evaluated."""
    settings: dict[str, Any] = {
        # Whole weights, which stay after a pass without gradients, must not hide the average.
        "parallelism_config": {"fsdp2": {"state_dict_type": kind, "reshard_after_forward": False}},
        "device_train_microbatch_size": 1,
        "save_folder": folder,
        "save_interval": "2ba",
        "save_overwrite": True,
        "run_name": "run",
    }
    values: list[dict[str, Any]] = []
    for load in (None, f"{folder}/ep1-ba4{'' if kind == 'sharded' else '-rank0.pt'}"):
        run = trainer("mlp", [AVERAGES[name]()], load_path=load, **settings)
        for module in run.state.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        run.fit()
        run.eval()
        values.append(tensors_of(run.state))
        metrics = {k: float(v) for k, v in run.state.eval_metric_values.items()}
        run.close()
    return values[0], values[1], metrics


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind"),
    [("EMA", "full"), ("EMA", "sharded"), ("SWA", "sharded"), ("CheckpointAveraging", "sharded")],
)
def test_sharded_it_is_that_of_one_process(name: str, kind: str, tmp_path: Path) -> None:
    (at_once, resumed, metrics), _ = run_ranks(_sharded, 2, str(tmp_path / "shards"), kind, name)
    alone, _, expected = _sharded(str(tmp_path / "alone"), "full", name)
    assert metrics == pytest.approx(expected, abs=1e-5)
    assert at_once.keys() == alone.keys()
    for part, value in alone.items():
        assert torch.allclose(at_once[part], value, atol=1e-5), part
        assert torch.equal(at_once[part], resumed[part]), part
