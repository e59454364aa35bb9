"""Every algorithm trains in micro-batches, resumes, and stands beside averages of the weights."""

from pathlib import Path
from typing import Any

import pytest
import torch

import composer.algorithms
from composer import Algorithm
from composer.algorithms import EMA, SWA
from composer.algorithms.conflicts import check_conflicts
from tests.composer.algorithms.settings import SETTINGS, Setting
from tests.cross.algorithm_models import build, tensors_of, trainer
from tests.launch import run_ranks

AVERAGES = {"EMA", "SWA", "CheckpointAveraging"}
NOT_ALGORITHMS = {"ScheduleFree", "MuP"}  # tried with their optimizers, beside their tests


def name_of(setting: Setting) -> str:
    return f"{setting.algorithm}-{setting.model}"


def beside(setting: Setting) -> list[Algorithm]:
    """The algorithm with an EMA and a SWA beside it, if it is none itself."""
    others: list[Algorithm] = []
    if setting.algorithm not in AVERAGES:
        others = [
            EMA(half_life="2ba"),
            SWA(swa_start="0.3dur", swa_end="0.9dur", update_interval="1ba"),
        ]
    return [build(setting), *others]


def assert_equal(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


def without_statistics(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    kept = ("running_", "num_batches_tracked")
    return {name: value for name, value in tensors.items() if not any(k in name for k in kept)}


def test_every_algorithm_has_a_row() -> None:
    classes = (getattr(composer.algorithms, name) for name in composer.algorithms.__all__)
    names = {c.__name__ for c in classes if isinstance(c, type) and issubclass(c, Algorithm)}
    assert names - NOT_ALGORITHMS == {setting.algorithm for setting in SETTINGS}


@pytest.mark.parametrize("setting", SETTINGS, ids=name_of)
def test_it_resumes_amid_an_epoch_beside_averages(setting: Setting, tmp_path: Path) -> None:
    saving: dict[str, Any] = {
        "device_train_microbatch_size": 2,
        "precision": setting.precision,
        "save_folder": str(tmp_path),
        "save_filename": "ba{batch}.pt",
        "save_interval": "2ba",
        "run_name": "run",
        "save_overwrite": True,
    }
    whole = trainer(setting.model, beside(setting), **saving)
    before = {name: value.clone() for name, value in whole.state.model.state_dict().items()}
    whole.fit()
    expected = tensors_of(whole.state)
    whole.close()
    after = whole.state.model.state_dict()
    assert any(not torch.equal(after[name], value) for name, value in before.items()), "it trains"
    resumed = trainer(setting.model, beside(setting), load_path=str(tmp_path / "ba4.pt"), **saving)
    assert resumed.state.timestamp.batch == 4
    resumed.fit()
    assert_equal(tensors_of(resumed.state), expected)
    resumed.close()


def trained(setting: Setting, size: int, **settings: Any) -> dict[str, torch.Tensor]:
    """Trains four batches, without what depends on how they are cut."""
    one = trainer(
        setting.model,
        [build(setting)],
        device_train_microbatch_size=size,
        precision=setting.precision,
        max_duration="4ba",
        eval_interval=0,
        **settings,
    )
    for module in one.state.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    one.fit()
    found = tensors_of(one.state)
    one.close()
    return found


def assert_close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    for name, value in expected.items():
        assert torch.allclose(found[name], value, atol=1e-4), name


@pytest.mark.parametrize("setting", SETTINGS, ids=name_of)
def test_micro_batches_of_one_and_of_two(setting: Setting) -> None:
    found = [trained(setting, size) for size in (1, 2)]
    assert all(bool(value.float().isfinite().all()) for value in found[0].values())
    if setting.follows_batches:
        assert_close(*found)


def _on_ranks() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for setting in SETTINGS:
        found.append({})
        for way, parallelism in (("replicas", None), ("shards", {"fsdp2": {}})):
            try:
                found[-1][way] = trained(setting, 1, parallelism_config=parallelism)
            except ValueError as error:
                found[-1][way] = str(error)
    return found


@pytest.mark.slow
def test_on_two_ranks() -> None:
    for setting, first, second in zip(SETTINGS, *run_ranks(_on_ranks, 2), strict=True):
        for way, found in first.items():
            if way == "shards" and not setting.shards:
                assert "does not combine with" in found, setting
                continue
            assert not isinstance(found, str), (setting, way, found)
            # Batch norms of replicas keep the statistics of their own rows.
            assert_equal(*(without_statistics(each) for each in (second[way], found)))
            if setting.follows_batches and setting.follows_ranks:
                assert_close(found, trained(setting, 2))


ON_ANY_MODEL = {"EMA", "SWA", "SAM", "LayerFreezing", "GradientClipping"}


def fitting(kind: str) -> list[Setting]:
    """The rows of a model, and those that fit any, that go together."""
    rows = [s for s in SETTINGS if s.algorithm in ON_ANY_MODEL and s.model == "mlp"]
    rows += [s for s in SETTINGS if s.model == kind and s.algorithm != "NoOpModel"]
    chosen: dict[str, Setting] = {}
    for row in rows:
        try:
            check_conflicts([build(each) for each in [*chosen.values(), row]])
        except ValueError:
            continue
        chosen.setdefault(row.algorithm, row)
    if "FP8" in chosen:
        chosen.pop("Factorize", None)  # leaves nothing as large as fp8 needs, at this size
    return list(chosen.values())


@pytest.mark.parametrize("kind", sorted({setting.model for setting in SETTINGS}))
def test_all_that_fit_a_model_stack_and_resume(kind: str, tmp_path: Path) -> None:
    rows = fitting(kind)
    assert len(rows) >= 6
    saving: dict[str, Any] = {"save_folder": str(tmp_path), "save_interval": "2ba"}
    saving |= {"save_overwrite": True, "run_name": "run", "device_train_microbatch_size": 2}
    saving["precision"] = min(setting.precision for setting in rows)  # amp_bf16, if any needs it
    found = []
    for load in (None, str(tmp_path / "ep1-ba4-rank0.pt")):
        run = trainer(kind, [build(setting) for setting in rows], load_path=load, **saving)
        run.fit()
        found.append(tensors_of(run.state))
        run.close()
    assert_equal(found[1], found[0])
