"""`algorithms: {preset: NAME}` in recipes: what it changes, what it leaves, what it refuses."""

from collections.abc import Iterator
from typing import Any

import pytest
from omegaconf import OmegaConf

from composer.algorithms import PRESETS
from llmfoundry import registry
from llmfoundry.config.loading import apply_overrides
from llmfoundry.config.parse import parse_train_config
from llmfoundry.config.problems import ConfigError
from llmfoundry.utils.registry_utils import save_registry
from tests.llmfoundry.config.recipes import RECIPE, TinyModel

PRESET = PRESETS["llm-fast"]


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    with save_registry():
        registry.models.register("tiny_test_model", func=TinyModel)
        yield


def parse(*overrides: str) -> Any:
    return parse_train_config(apply_overrides(OmegaConf.create(RECIPE), overrides))


def test_a_preset_is_its_algorithms_and_its_optimizer(capsys: pytest.CaptureFixture[str]) -> None:
    config = parse("algorithms.preset=llm-fast")
    assert config.algorithms == PRESET.algorithms
    assert config.optimizer == {"lr": 1e-5, **PRESET.optimizer}
    said = capsys.readouterr().out
    assert said.startswith("preset llm-fast:\n")
    for name, settings in PRESET.algorithms.items():
        assert f"algorithms.{name}: {dict(settings)}\n" in said
    for name, value in PRESET.optimizer.items():
        assert f"optimizer.{name}: {value}\n" in said


def test_what_the_recipe_says_itself_stays(capsys: pytest.CaptureFixture[str]) -> None:
    own = next(iter(PRESET.algorithms))
    config = parse(
        "algorithms.preset=llm-fast",
        f"algorithms.{own}={{schedule: {{0dur: 2}}}}",
        "algorithms.gradient_clipping={clipping_type: norm, clipping_threshold: 1.0}",
        "optimizer.name=decoupled_muon",
    )
    assert config.algorithms[own] == {"schedule": {"0dur": 2}}
    assert config.algorithms["gradient_clipping"]["clipping_threshold"] == 1.0
    said = capsys.readouterr().out
    assert f"algorithms.{own}: stays {{'schedule': {{'0dur': 2}}}}, as the recipe says" in said
    assert "optimizer.name" not in said


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["algorithms.preset=llm-fsat"], "there is no preset 'llm-fsat'. Did you mean 'llm-fast'?"),
        (["algorithms.preset=7"], "there is no preset 7. Known: llm-fast, vision-fast."),
        (["algorithms.preset=vision-fast"], "Trainer(algorithms=composer.algorithms.preset('vis"),
        (
            ["algorithms.preset=llm-fast", "optimizer.name=decoupled_lionw"],
            "but optimizer.name is 'decoupled_lionw'. Set it to 'decoupled_adamw'",
        ),
    ],
)
def test_a_preset_that_does_not_fit(overrides: list[str], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(*overrides)
    assert "algorithms.preset: " in str(caught.value)
    assert words in str(caught.value)
    assert "there is no algorithm 'preset'" not in str(caught.value)


def test_presets_are_made_of_what_recipes_know() -> None:
    assert PRESET.algorithms.keys() <= set(registry.algorithms.names())
    assert PRESET.optimizer["name"] in registry.optimizers
