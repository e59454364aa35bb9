"""Which settings a component reads, where its signature alone does not say."""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

__all__ = ["KEYS_ATTRIBUTE", "declared_keys", "declares_keys"]

Component = TypeVar("Component", bound=Callable[..., object])

KEYS_ATTRIBUTE = "__config_keys__"


def declares_keys(table: Mapping[str, Iterable[str]]) -> Callable[[Component], Component]:
    """Says which keys a component's mappings may have, so that a recipe can be checked up front.

    Args:
        table: Dotted path below the component -> its keys. ``""`` is the component's own
            ``**kwargs``; ``*`` stands for any one name, as in ``dataset.streams.*``.
    """

    def declare(component: Component) -> Component:
        setattr(component, KEYS_ATTRIBUTE, {path: frozenset(keys) for path, keys in table.items()})
        return component

    return declare


def declared_keys(component: object) -> Mapping[str, frozenset[str]]:
    """What a component has declared; nothing if it has not."""
    return getattr(component, KEYS_ATTRIBUTE, {})
