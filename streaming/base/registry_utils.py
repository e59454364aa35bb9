"""Names for classes that a configuration may ask for, open to other packages by entry points."""

import importlib.util
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

T = TypeVar("T")

__all__ = [
    "TypedRegistry",
    "construct_from_registry",
    "create_registry",
    "import_file",
    "save_registry",
]


class TypedRegistry(Generic[T]):
    """A table from names to objects of one type.

    Args:
        namespace: Where it belongs; joined with ``_`` it is the entry-point group.
        entry_points: Whether other packages may add to it by entry points.
        description: What is in it, for people.
    """

    def __init__(
        self, namespace: tuple[str, ...], entry_points: bool = False, description: str = ""
    ) -> None:
        self.namespace = namespace
        self.entry_points = entry_points
        self.description = description
        self._entries: dict[str, T] = {}
        _registries[namespace] = self

    def register(self, name: str, *, func: T | None = None) -> Callable[[T], T]:
        """Adds an object: given as ``func``, or as what the returned decorator stands over."""

        def add(entry: T) -> T:
            self._entries[name] = entry
            return entry

        if func is not None:
            add(func)
        return add

    def _foreign(self) -> dict[str, Any]:
        if not self.entry_points:
            return {}
        return {entry.name: entry for entry in entry_points(group="_".join(self.namespace))}

    def get(self, name: str) -> T:
        """The object of this name; entry points are loaded when they are asked for.

        Raises:
            ValueError: if there is none.
        """
        if name not in self._entries:
            foreign = self._foreign().get(name)
            if foreign is None:
                raise ValueError(
                    f"{name!r} is not in the registry {'.'.join(self.namespace)}. Known: "
                    f"{sorted({*self._entries, *self._foreign()})}."
                )
            self._entries[name] = foreign.load()
        return self._entries[name]

    def get_all(self) -> dict[str, T]:
        """All objects by name."""
        return {name: self.get(name) for name in {**self._foreign(), **self._entries}}

    def __contains__(self, name: str) -> bool:
        return name in self._entries or name in self._foreign()


_registries: dict[tuple[str, ...], Any] = {}


def create_registry(
    *namespace: str, generic_type: Any = None, entry_points: bool = False, description: str = ""
) -> TypedRegistry[Any]:
    """A new registry. ``generic_type`` says to readers what it holds."""
    return TypedRegistry(namespace, entry_points=entry_points, description=description)


def construct_from_registry(
    name: str, registry: TypedRegistry[Any], kwargs: dict[str, Any] | None = None
) -> Any:
    """Calls the object of this name with the arguments."""
    return registry.get(name)(**(kwargs or {}))


def import_file(loc: str | Path) -> ModuleType:
    """Runs a Python file as a module, for what it registers."""
    path = Path(loc)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError(f"No Python file at {path}.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class save_registry:
    """Context in which registrations are undone at the end."""

    def __init__(self) -> None:
        self._saved: dict[tuple[str, ...], dict[str, Any]] = {}

    def __enter__(self) -> None:
        self._saved = {key: dict(registry._entries) for key, registry in _registries.items()}

    def __exit__(self, *exc: object) -> None:
        for key, registry in _registries.items():
            registry._entries = self._saved.get(key, {})
