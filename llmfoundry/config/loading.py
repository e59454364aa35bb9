"""From a YAML file and ``key=value`` overrides to plain containers."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from llmfoundry.config.problems import ConfigError, RecipeNotFoundError

__all__ = [
    "apply_overrides",
    "forbid_config_key",
    "load_recipe",
    "pop_config",
    "to_container",
    "to_dict_container",
    "to_list_container",
]


def load_recipe(yaml_path: str | Path, overrides: Iterable[str] | None = None) -> DictConfig:
    """Reads a recipe and lays ``key=value`` overrides over it.

    Args:
        yaml_path: The recipe, relative to the working folder.
        overrides: Dotted settings such as ``optimizer.lr=1e-4``, ``eval_loader=null`` or
            ``callbacks.speed_monitor={window_size: 5}``. A mapping is merged into the recipe's, a
            list replaces it.
    """
    path = Path(yaml_path)
    if not path.is_file():
        raise RecipeNotFoundError(
            f"Recipe {str(yaml_path)!r} does not exist (looked in {Path.cwd()})."
        )
    # A recipe must not carry secrets of the environment into logs and checkpoints.
    OmegaConf.clear_resolver("oc.env")
    recipe = OmegaConf.load(path)
    if not isinstance(recipe, DictConfig):
        raise ConfigError(f"Recipe {str(yaml_path)!r} must be a mapping of settings at its top.")
    return apply_overrides(recipe, overrides or ())


def apply_overrides(recipe: DictConfig, overrides: Iterable[str]) -> DictConfig:
    """Lays ``key=value`` settings over a recipe, later ones over earlier ones."""
    for text in overrides:
        key, equals, _ = text.partition("=")
        if not equals or not key or key.startswith("-"):
            raise ConfigError(
                f"Override {text!r} is not of the form key=value. Write for example "
                "max_duration=10ba, or key=null to unset a key; options begin with no dashes."
            )
        value = OmegaConf.select(OmegaConf.from_dotlist([f"value={text[len(key) + 1 :]}"]), "value")
        _make_way(recipe, key)
        try:
            OmegaConf.update(recipe, key, value, merge=True, force_add=True)
        except (OmegaConfBaseException, IndexError, ValueError) as error:
            raise ConfigError(f"Override {text!r} does not fit the recipe: {error}") from error
    return recipe


def _make_way(recipe: DictConfig, key: str) -> None:
    """Turns unset parents of a dotted key into mappings, so that a key can be put below them."""
    parts = key.split(".")
    for length in range(1, len(parts)):
        parent = ".".join(parts[:length])
        node = OmegaConf.select(recipe, parent, throw_on_missing=False)
        if node is None:
            OmegaConf.update(recipe, parent, {}, merge=False, force_add=True)
        elif not isinstance(node, (DictConfig, ListConfig)):
            raise ConfigError(
                f"Override {key!r} goes below {parent!r}, which is the value {node!r} and has no "
                "keys of its own."
            )


def to_container(cfg: Any) -> Any:
    """Turns OmegaConf nodes into plain, resolved containers and leaves the rest as it is."""
    if isinstance(cfg, (DictConfig, ListConfig)):
        return OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    return cfg


def to_dict_container(cfg: DictConfig | dict[str, Any]) -> dict[str, Any]:
    """Like :func:`to_container`, for a mapping whose keys are all text."""
    container = to_container(cfg)
    if not isinstance(container, dict):
        raise ValueError(f"Expected a mapping, got {type(container).__name__}: {container!r}.")
    odd = [key for key in container if not isinstance(key, str)]
    if odd:
        raise ConfigError(f"Keys must be text; put quotes around {odd}.")
    return container


def to_list_container(cfg: ListConfig | list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Like :func:`to_container`, for a list."""
    container = to_container(cfg)
    if not isinstance(container, list):
        raise ValueError(f"Expected a list, got {type(container).__name__}: {container!r}.")
    return container


def pop_config(
    cfg: Any, key: str, must_exist: bool = True, default_value: Any = None, convert: bool = False
) -> Any:
    """Takes a setting out of a mapping and returns it.

    Args:
        cfg: The mapping.
        key: The setting's name.
        must_exist: Whether a setting that is missing or null is an error.
        default_value: What it is then, if that is no error.
        convert: Whether an OmegaConf node is turned into plain, resolved containers.

    Raises:
        NameError: It must exist, and does not.
        ValueError: It is to be converted, and is no OmegaConf node.
    """
    value = cfg.pop(key, None)
    if value is None:
        if must_exist:
            raise NameError(f"The setting {key} is missing; there are {sorted(map(str, cfg))}.")
        return default_value
    if not convert:
        return value
    if not isinstance(value, (DictConfig, ListConfig)):
        raise ValueError(
            f"The setting {key} is {value!r}, no OmegaConf node, so there is nothing to convert; "
            "leave out convert."
        )
    return to_container(value)


def forbid_config_key(cfg_dict: dict[str, Any], key: str) -> None:
    """Refuses a setting that follows from others.

    Raises:
        ValueError: It is there.
    """
    if key in cfg_dict:
        raise ValueError(f"Config key `{key}` is set for you: take it out of {sorted(cfg_dict)}.")
