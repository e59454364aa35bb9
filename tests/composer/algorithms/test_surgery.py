"""What changes a model is made again from its text, and done again when a checkpoint needs it."""

from pathlib import Path
from typing import Any

import pytest
import torch

import composer.algorithms
from composer import Trainer
from composer.algorithms.utils.surgery import ModelSurgery
from composer.checkpoint.required_algorithms import parse_algorithm
from tests.composer.algorithms.settings import SETTINGS, Setting
from tests.cross.algorithm_models import build, trainer

SURGERY = [
    setting
    for setting in SETTINGS
    if issubclass(getattr(composer.algorithms, setting.algorithm), ModelSurgery)
]


def name_of(setting: Setting) -> str:
    return f"{setting.algorithm}-{setting.model}"


@pytest.mark.parametrize("setting", SURGERY, ids=name_of)
def test_text_makes_the_same_again(setting):
    made = build(setting)
    again = parse_algorithm(repr(made))
    assert type(again) is type(made) and repr(again) == repr(made)
    if setting.algorithm != "NoOpModel":
        warning: Any = {**setting.kwargs, "on_no_match": "warn"}
        again = parse_algorithm(repr(build(setting._replace(kwargs=warning))))
        assert again.on_no_match == "warn"


@pytest.mark.parametrize("setting", SURGERY, ids=name_of)
def test_a_model_that_was_changed_is_not_changed_again(setting):
    """As when one model goes to two Trainers, or an algorithm is named twice."""

    def changed(times: int) -> Trainer:
        return trainer(
            setting.model,
            [build(setting) for _ in range(times)],
            precision=setting.precision,
            max_duration="1ba",
        )

    once, twice = changed(1), changed(2)
    for run in (once, twice):
        run.fit()
        run.close()
    kinds = [
        [(name, type(m).__name__) for name, m in r.state.model.named_modules()]
        for r in (once, twice)
    ]
    assert kinds[0] == kinds[1]
    sizes = [[len(g["params"]) for g in r.state.optimizers[0].param_groups] for r in (once, twice)]
    assert sizes[0] == sizes[1]


def test_a_checkpoint_brings_what_its_weights_need(tmp_path: Path):
    algorithms = [build(s) for s in SURGERY if s.model == "cnn" and s.algorithm != "ChannelsLast"]
    first = trainer("cnn", algorithms, max_duration="2ba", save_folder=str(tmp_path))
    first.fit()
    first.close()
    expected = first.state.model.state_dict()
    with pytest.warns(UserWarning, match="Automatically adding required_on_load") as warned:
        # Weight standardization has never been one of them, so that a run names it itself.
        second = trainer(
            "cnn",
            [a for a in algorithms if not a.required_on_load()],
            load_path=str(tmp_path / "latest-rank0.pt"),
        )
    added = {name for name in ("BlurPool", "GhostBatchNorm", "SqueezeExcite")}
    assert added == {name for name in added if any(name in str(w.message) for w in warned)}
    weights = second.state.model.state_dict()
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], value) for name, value in expected.items())
    held = {id(p) for group in second.state.optimizers[0].param_groups for p in group["params"]}
    assert held == {id(parameter) for parameter in second.state.model.parameters()}
    second.close()
