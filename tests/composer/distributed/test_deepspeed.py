"""The Trainer under DeepSpeed's ZeRO does on two ranks what it does without on one."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from composer import Callback, Trainer
from composer.algorithms import GradientClipping
from composer.core import Evaluator
from composer.core.precision import Precision
from composer.distributed.deepspeed_settings import engine_settings, threshold_of_clipping
from composer.optim import CosineAnnealingScheduler, DecoupledAdamW
from composer.utils import dist
from composer.utils.import_helpers import MissingConditionalImportError
from tests.composer.distributed.sharded_models import batch, classifier
from tests.launch import run_ranks

IS_INSTALLED = importlib.util.find_spec("deepspeed") is not None
with_deepspeed = pytest.mark.skipif(not IS_INSTALLED, reason="deepspeed is not installed")
STEPS = 20
STAGES = (1, 2, 3)
ACCUMULATION: dict[str, Any] = {"whole": {}, "accumulated": {"device_train_microbatch_size": 3}}


class Losses(Callback):
    """Keeps the losses, and leaves out the steps that it is told to."""

    def __init__(self, skipped: tuple[int, ...] = ()) -> None:
        self.losses: list[float] = []
        self.skipped = skipped

    def after_train_batch(self, state: Any, logger: Any) -> None:
        if int(state.timestamp.batch) in self.skipped:
            state.skip_step()

    def batch_end(self, state: Any, logger: Any) -> None:
        self.losses.append(float(state.total_loss_dict["loss/train/total"]))


def _loader(rows: int = 64, batch_size: int = 16) -> DataLoader[Any]:
    data = TensorDataset(*batch(rows, seed=1))
    return DataLoader(
        data,
        batch_size=batch_size // dist.get_world_size(),
        sampler=dist.get_sampler(data, drop_last=True),
    )


def _trainer(stage: int | None, zero: Any = None, **settings: Any) -> Trainer:
    model = classifier()
    model.module.blocks[0].requires_grad_(False)  # type: ignore[index, union-attr]
    decayed = [model.module.first.weight, model.module.last.weight]  # type: ignore[union-attr]
    groups = [
        {"params": decayed, "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if all(p is not q for q in decayed)]},
    ]
    settings = {
        "train_dataloader": _loader(),
        "max_duration": f"{STEPS}ba",
        "optimizers": DecoupledAdamW(groups, lr=1e-2),
        "schedulers": CosineAnnealingScheduler(),
        "seed": 3,
        "device": "cpu",
        "progress_bar": False,
        "callbacks": Losses(),
        **settings,
    }
    if stage is not None:
        settings["deepspeed_config"] = {"zero_optimization": {"stage": stage, **(zero or {})}}
    return Trainer(model=model, **settings)


def _losses(stage: int | None, zero: Any = None, **settings: Any) -> list[float]:
    trainer = _trainer(stage, zero, **settings)
    trainer.fit()
    trainer.close()
    return next(c for c in trainer.state.callbacks if isinstance(c, Losses)).losses


def _clipped() -> dict[str, Any]:
    return {"algorithms": GradientClipping("norm", 0.05)}


def _left_out() -> dict[str, Any]:
    return {"callbacks": Losses(skipped=(1, 4)), "device_train_microbatch_size": 4}


def _uneven(stage: int | None) -> list[float]:
    inputs, targets = batch(7, seed=2)
    rank, world_size = dist.get_global_rank(), dist.get_world_size()
    # One rank has two micro-batches more than the other, and batches to evaluate.
    share = slice(0, 7) if world_size == 1 else (slice(0, 5) if rank == 0 else slice(5, 7))
    mine = inputs[share], targets[share]
    return _losses(
        stage,
        train_dataloader=[mine],
        eval_dataloader=Evaluator(
            label="eval",
            dataloader=list(zip(mine[0].split(2), mine[1].split(2), strict=True)),
            device_eval_microbatch_size=2,
        ),
        eval_interval="2ba",
        device_train_microbatch_size=2,
        max_duration="6ba",
    )


def _every_stage(stages: tuple[int, ...]) -> dict[str, list[float]]:
    found = {}
    for stage in stages:
        for name, settings in ACCUMULATION.items():
            found[f"{stage} {name}"] = _losses(stage, **settings)
        found[f"{stage} clipped"] = _losses(stage, **_clipped())
        found[f"{stage} left out"] = _losses(stage, **_left_out())
        found[f"{stage} uneven"] = _uneven(stage)
    if len(stages) == 1:
        return found
    found["2 autocast"] = _losses(2, precision="amp_bf16")
    found["2 offloaded"] = _losses(2, {"offload_optimizer": {"device": "cpu"}})
    found["3 offloaded"] = _losses(3, {"offload_optimizer": {"device": "cpu"}})
    found["3 many pieces"] = _losses(
        3, {"sub_group_size": 100, "stage3_param_persistence_threshold": 10}
    )
    return found


@pytest.mark.parametrize("stages", [(2,), pytest.param(STAGES, marks=pytest.mark.slow)])
@with_deepspeed
def test_two_ranks_equal_one_without_deepspeed(stages: tuple[int, ...]) -> None:
    expected = {name: _losses(None, **settings) for name, settings in ACCUMULATION.items()}
    expected |= {"clipped": _losses(None, **_clipped()), "left out": _losses(None, **_left_out())}
    expected |= {"autocast": _losses(None, precision="amp_bf16"), "uneven": _uneven(None)}
    found = run_ranks(_every_stage, 2, stages)[0]
    assert len(found) == (5 if len(stages) == 1 else 19)
    for name, losses in found.items():
        one = expected.get(name[2:], expected["whole"])
        tolerance = 2e-3 if "autocast" in name else 1e-5
        assert len(losses) == (6 if "uneven" in name else STEPS), name
        assert losses == pytest.approx(one, abs=tolerance), name
    assert expected["clipped"] != pytest.approx(expected["whole"], abs=1e-3)
    assert expected["left out"] != pytest.approx(expected["whole"], abs=1e-3)


def _saved(folder: str, name: str, stage: int | None, **settings: Any) -> list[float]:
    saving = {"save_folder": f"{folder}/{name}", "save_interval": "10ba"}
    saving["save_filename"] = "ba{batch}.pt"
    return _losses(stage, **saving, **settings)


def _path(folder: str, name: str) -> str:
    return f"{folder}/{name}/ba10.pt"  # in the middle of an epoch


def _save_and_resume(folder: str) -> dict[str, list[float]]:
    found = {}
    for stage in STAGES:
        found[f"{stage} unbroken"] = _saved(folder, f"zero{stage}", stage)
        loaded = _path(folder, f"zero{stage}")
        found[f"{stage} under itself"] = _losses(stage, load_path=loaded)
        found[f"{stage} from ddp"] = _losses(stage, load_path=_path(folder, "plain"))
        weights = _path(folder, "plain")
        found[f"{stage} weights"] = _losses(stage, load_path=weights, load_weights_only=True)
    for stage in STAGES:
        config = {"zero_optimization": {"stage": stage}, "bf16": {"enabled": True}}
        low = {"precision": "amp_bf16", "deepspeed_config": config}
        found[f"{stage} bf16"] = _saved(folder, f"low{stage}", None, **low)
        loaded = _path(folder, f"low{stage}")
        found[f"{stage} bf16 again"] = _losses(None, load_path=loaded, **low)
    return found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The checkpoint has the random states")
@with_deepspeed
def test_checkpoints_move_between_backends(tmp_path: Path) -> None:
    folder = str(tmp_path)
    whole = _saved(folder, "plain", None)
    weights = _losses(None, load_path=_path(folder, "plain"), load_weights_only=True)
    found = run_ranks(_save_and_resume, 2, folder)[0]
    plain = torch.load(_path(folder, "plain"), weights_only=False)["state"]
    for stage in STAGES:
        assert found[f"{stage} under itself"] == found[f"{stage} unbroken"][10:]
        assert found[f"{stage} from ddp"] == pytest.approx(whole[10:], abs=1e-5)
        assert found[f"{stage} weights"] == pytest.approx(weights, abs=1e-5)
        assert found[f"{stage} bf16"] == pytest.approx(whole, abs=0.02)
        assert found[f"{stage} bf16 again"] == found[f"{stage} bf16"][10:]
        loaded = _losses(None, load_path=_path(folder, f"zero{stage}"))
        assert loaded == pytest.approx(whole[10:], abs=1e-5)
        _check_layout(plain, torch.load(_path(folder, f"zero{stage}"), weights_only=False)["state"])


def _check_layout(plain: dict[str, Any], ours: dict[str, Any]) -> None:
    assert ours.keys() == plain.keys()
    assert list(ours["model"]) == list(plain["model"])
    for name, value in plain["model"].items():
        torch.testing.assert_close(ours["model"][name], value, atol=1e-5, rtol=1e-5)
    (have,), (want,) = ours["optimizers"].values(), plain["optimizers"].values()
    assert have["state"].keys() == want["state"].keys()
    for name, moments in want["state"].items():
        assert have["state"][name].keys() == moments.keys()
        for key, value in moments.items():
            torch.testing.assert_close(have["state"][name][key], value, atol=1e-5, rtol=1e-5)
    for group, expected in zip(have["param_groups"], want["param_groups"], strict=True):
        assert sorted(group["params"]) == sorted(expected["params"])
        assert group["lr"] == pytest.approx(expected["lr"])


def _alone() -> list[float]:
    return _losses(3)


@pytest.mark.slow
@with_deepspeed
def test_one_process_trains_as_well() -> None:
    assert run_ranks(_alone, 1)[0] == pytest.approx(_losses(None), abs=1e-5)


# What the settings become


ZERO = {"zero_optimization": {"stage": 2}}


def _settings(given: Any = None, precision: str = "fp32", **trainer: Any) -> dict[str, Any]:
    return engine_settings({**ZERO, **(given or {})}, precision=Precision(precision), **trainer)


def test_the_trainers_settings_are_filled_in() -> None:
    given = {**ZERO, "train_batch_size": "auto", "gradient_clipping": "auto"}
    config = engine_settings(given, precision=Precision.AMP_FP16, clipping=1.0, batch_size=8)
    assert config["fp16"]["enabled"] and not config["bf16"]["enabled"]
    assert config["gradient_clipping"] == 1.0
    # The Trainer divides losses: DeepSpeed must not.
    assert config["gradient_accumulation_steps"] == config["train_micro_batch_size_per_gpu"] == 1
    assert "train_batch_size" not in config
    assert given == {**ZERO, "train_batch_size": "auto", "gradient_clipping": "auto"}
    assert not _settings(precision="amp_bf16")["bf16"]["enabled"]
    assert _settings({"bf16": {"enabled": True}}, "amp_bf16")["bf16"]["enabled"]
    agreeing = {
        "train_batch_size": 8,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 4,
    }
    assert _settings(agreeing, microbatch_size=2, batch_size=8)["gradient_accumulation_steps"] == 1


@pytest.mark.parametrize(
    ("given", "precision", "trainer", "words"),
    [
        ({"train_batch_size": 16}, "fp32", {"batch_size": 8}, "train_batch_size is 16.*has 8"),
        ({"gradient_accumulation_steps": 2}, "fp32", {}, "the Trainer has None"),
        ({"optimizer": {"type": "Adam"}}, "fp32", {}, "give the Trainer's optimizers"),
        ({"elasticity": {}}, "fp32", {}, "'elasticity' is not supported"),
        ({"zero_optimization": {"stage": 0}}, "fp32", {}, "must be 1, 2 or 3"),
        (
            {"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}},
            "fp32",
            {},
            "offload_param.device is 'nvme'",
        ),
        ({"fp16": {"enabled": True}}, "fp32", {}, "fp16 goes with amp_fp16"),
        ({"fp16": {"enabled": False}}, "amp_fp16", {}, "fp16 goes with amp_fp16"),
        ({"bf16": {"enabled": True}}, "amp_fp16", {}, "bf16 goes with amp_bf16"),
        ({}, "amp_fp8", {}, "amp_fp8 is not supported"),
        ({"gradient_clipping": 0.5}, "fp32", {"clipping": 1.0}, "clips to 1.0"),
    ],
)
def test_contradictions_are_refused(given: Any, precision: str, trainer: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        _settings(given, precision, **trainer)


def test_only_clipping_by_norm_is_handed_over() -> None:
    assert threshold_of_clipping([]) is None
    assert threshold_of_clipping([GradientClipping("norm", 2.0)]) == 2.0
    with pytest.raises(ValueError, match="of type 'value'"):
        threshold_of_clipping([GradientClipping("value", 2.0)])


def test_what_does_not_combine_is_refused_at_start() -> None:
    with pytest.raises(ValueError, match="give one of them"):
        _trainer(2, parallelism_config={"fsdp2": {}})
    with pytest.raises(ValueError, match="compile_config"):
        _trainer(2, compile_config={})
    with pytest.raises(ValueError, match="ddp_sync_strategy"):
        _trainer(2, ddp_sync_strategy="forced_sync")


@pytest.mark.skipif(IS_INSTALLED, reason="deepspeed is installed")
def test_a_missing_package_is_named_with_its_extra() -> None:
    with pytest.raises(MissingConditionalImportError, match=r"llmfoundry\[deepspeed\]"):
        _trainer(2)
