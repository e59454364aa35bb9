"""Modern optimizers, schedules and averages of weights, each by its name in a recipe."""

from pathlib import Path

import pytest

from composer.algorithms import ScheduleFree
from composer.optim import DecoupledMuon
from llmfoundry.command_utils import train_from_yaml, validate_from_yaml
from llmfoundry.config.problems import ConfigError
from tests.llmfoundry.command_utils.test_train import (  # noqa: F401
    RECIPE,
    _logging_as_it_was,
    data,
    overrides,
)

OPTIMIZERS = {
    "decoupled_muon": "{name: decoupled_muon, lr: 0.01, cautious_weight_decay: true}",
    "decoupled_ademamix": "{name: decoupled_ademamix, betas: [0.9, 0.99, 0.999], warmup_steps: 6}",
    "schedule_free_adamw": "{name: schedule_free_adamw, lr: 0.01}",
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_recipe_trains_and_goes_on(name: str, data: Path, tmp_path: Path) -> None:  # noqa: F811
    averages = name != "schedule_free_adamw"
    arguments = overrides(
        data,
        tmp_path,
        optimizer=OPTIMIZERS[name],
        scheduler="{name: warmup_stable_decay, t_warmup: 2ba, t_cooldown: 2ba}",
        algorithms="{ema: {half_life: 2ba}}"
        if averages
        else "{gradient_clipping: {clipping_type: norm, clipping_threshold: 1.0}}",
    )
    first = train_from_yaml(
        str(RECIPE), [*arguments, "max_duration=4ba", "scheduler.t_cooldown=0ba"]
    )
    kinds = [type(each) for each in first.state.algorithms]
    assert (ScheduleFree in kinds) is not averages
    if name == "decoupled_muon":
        optimizer = first.state.optimizers[0]
        assert isinstance(optimizer, DecoupledMuon)
        assert {g["is_orthogonalised"] for g in optimizer.param_groups} == {True, False}
    first.close()
    longer = train_from_yaml(str(RECIPE), arguments)
    assert longer.state.timestamp.batch == 6
    longer.close()


def test_mup_and_keys_that_are_not_a_recipes(data: Path, tmp_path: Path) -> None:  # noqa: F811
    arguments = overrides(data, tmp_path, algorithms="{mup: {base: 8}}")
    trainer = train_from_yaml(str(RECIPE), [*arguments, "model.tie_word_embeddings=false"])
    rates = {group["initial_lr"] for group in trainer.state.optimizers[0].param_groups}
    assert rates == {0.004, 0.002}
    trainer.close()
    with pytest.raises(ConfigError, match="optimizer.model"):
        validate_from_yaml(
            str(RECIPE), overrides(data, tmp_path, optimizer="{name: decoupled_muon, model: x}")
        )
