"""From a recipe to a checked :class:`TrainConfig`, or to one error that lists all faults."""

import copy
import dataclasses
from typing import Any, TypeVar

from omegaconf import DictConfig

from llmfoundry.config.components import check_components
from llmfoundry.config.deprecated import check_retired, translate_deprecated
from llmfoundry.config.loading import to_dict_container
from llmfoundry.config.no_effect import check_no_effect
from llmfoundry.config.presets import expand_preset
from llmfoundry.config.problems import Problems
from llmfoundry.config.schema import TrainConfig
from llmfoundry.config.settings_sections import check_sections
from llmfoundry.config.transforms import Transform, collect_transforms
from llmfoundry.config.values import check_values

__all__ = ["make_dataclass_and_log_config", "parse_train_config"]

Schema = TypeVar("Schema")


def parse_train_config(cfg: DictConfig | dict[str, Any]) -> TrainConfig:
    """Checks a training recipe and fills it in.

    Raises:
        ConfigError: The recipe has faults; the text lists all of them.
    """
    return make_dataclass_and_log_config(cfg, TrainConfig, transforms="all")[1]


def make_dataclass_and_log_config(
    cfg: DictConfig | dict[str, Any],
    dataclass_constructor: type[Schema],
    dataclass_fields: set[str] | None = None,
    transforms: list[str | Transform] | str | None = None,
    icl_tasks_required: bool = False,
) -> tuple[dict[str, Any], Schema]:
    """Turns a recipe into its dataclass.

    Args:
        cfg: The recipe, which is left as it is.
        dataclass_constructor: The dataclass whose fields are the known keys.
        dataclass_fields: The known keys, if not just the dataclass's.
        transforms: Registered names or functions that change the recipe before it is checked.
        icl_tasks_required: Refuses a recipe without ``icl_tasks``.

    Returns:
        The recipe as it is logged: resolved, transformed and with every default; and the dataclass.
    """
    # Interpolation is resolved first, so that old names may still be referred to.
    schema: Any = dataclass_constructor
    recipe = translate_deprecated(copy.deepcopy(to_dict_container(cfg)))
    problems = Problems()
    for transform in [expand_preset, *collect_transforms(transforms)]:
        try:
            recipe = transform(recipe)
        except ValueError as error:
            problems.add("", str(error))
    check_retired(recipe, problems)
    known = dataclass_fields or {each.name for each in dataclasses.fields(schema)}
    for key in recipe.keys() - known:
        problems.add_unknown(key, known)
        del recipe[key]
    if icl_tasks_required and recipe.get("icl_tasks") is None:
        problems.add("icl_tasks", "missing; this command needs it.")
    if recipe.get("variables", {}) is None:
        recipe["variables"] = {}
    check_values(recipe, schema, problems)
    check_components(recipe, problems)
    check_sections(recipe, problems)
    check_no_effect(recipe, problems)
    problems.raise_if_any()
    config = schema(**recipe)
    return dataclasses.asdict(config), config
