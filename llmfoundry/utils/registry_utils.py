"""Registries: named tables of classes and functions, open to entry points and to user files."""

import contextlib
import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

__all__ = [
    "RegistryError",
    "TypedRegistry",
    "construct_from_registry",
    "create_registry",
    "import_file",
    "save_registry",
]

T = TypeVar("T")
S = TypeVar("S")

# One table for all registries, so that ``save_registry`` can put the whole of it back.
_ENTRIES: dict[tuple[str, ...], dict[str, Any]] = {}


class RegistryError(ValueError):
    """Says that a registry exists already, or that a name is not in it."""


@dataclass(frozen=True)
class _Deferred:
    """An object that is imported when somebody asks for it."""

    path: str
    package: str | None

    def load(self) -> Any:
        module, _, attribute = self.path.partition(":")
        return getattr(importlib.import_module(module, self.package), attribute)


@functools.cache
def _entry_points(group: str) -> dict[str, importlib.metadata.EntryPoint]:
    return {point.name: point for point in importlib.metadata.entry_points(group=group)}


class TypedRegistry(Generic[T]):
    """Holds classes or functions by name, together with what installed packages offer.

    Registering a name again replaces what it named. A look-up asks entry points first (group
    ``<namespace joined by _>``, such as ``llmfoundry_callbacks``), then what this process
    registered.

    Args:
        namespace: The registry's name in parts, such as ``("llmfoundry", "callbacks")``.
        entry_points: Whether installed packages may add to it.
        description: What belongs in it, for ``llmfoundry registry``.
    """

    def __init__(
        self, namespace: Sequence[str], entry_points: bool = False, description: str = ""
    ) -> None:
        self.namespace = tuple(namespace)
        self.entry_point_namespace = "_".join(self.namespace)
        self.entry_points = entry_points
        self.description = description
        _ENTRIES.setdefault(self.namespace, {})

    @property
    def _table(self) -> dict[str, Any]:
        return _ENTRIES.setdefault(self.namespace, {})

    def __contains__(self, name: str) -> bool:
        return name in self._table or (self.entry_points and name in self._points())

    def __call__(self, name: str, func: Any | None = None) -> Any:
        """Registers ``func`` under ``name``; without ``func``, returns a decorator."""
        return self.register(name, func=func)

    def register(self, name: str, *, func: Any | None = None) -> Any:
        """Registers ``func`` under ``name``; without ``func``, returns a decorator."""

        def do_registration(item: S) -> S:
            self._table[name] = item
            return item

        return do_registration if func is None else do_registration(func)

    def register_class(self, name: str, *, func: Any | None = None) -> Any:
        """Registers a class; the same as ``register``, kept for its name."""
        return self.register(name, func=func)

    def register_path(self, name: str, path: str, package: str | None = None) -> None:
        """Registers ``package.module:attribute``, which is imported at its first use.

        Args:
            name: The name.
            path: Where it is.
            package: What a path that begins with a dot starts from.
        """
        self._table[name] = _Deferred(path, package)

    def get(self, name: str) -> T:
        """Returns what ``name`` names.

        Raises:
            RegistryError: Nothing has that name; the message lists what there is.
        """
        if self.entry_points:
            from_package = self.get_entry_point(name)
            if from_package is not None:
                return from_package
        if name not in self._table:
            names = sorted({*self._table, *(self._points() if self.entry_points else ())})
            raise RegistryError(
                f"Cant't find {name!r} in registry {' -> '.join(self.namespace)}. Available names: "
                f"{', '.join(names) or 'none'}"
            )
        return self._load(name)

    def get_all(self) -> dict[str, T]:
        """Returns everything, in the order of registration, what packages offer first."""
        found = self.get_entry_points() if self.entry_points else {}
        return found | {name: self._load(name) for name in list(self._table)}

    def names(self) -> list[str]:
        """Returns every name without importing what it names."""
        return list(dict.fromkeys([*(self._points() if self.entry_points else ()), *self._table]))

    def get_entry_point(self, name: str, default: T | None = None) -> T | None:
        """Returns what an installed package offers under ``name``, or ``default``."""
        point = self._points().get(name)
        return default if point is None else point.load()

    def get_entry_points(self) -> dict[str, T]:
        """Returns all that installed packages offer."""
        return {name: point.load() for name, point in self._points().items()}

    def find(self, name: str) -> dict[str, str | int | None]:
        """Says where ``name`` is defined: module, file, line number and docstring."""
        item: Any = self.get(name)
        where: dict[str, str | int | None] = {
            "module": getattr(item, "__module__", None),
            "file": None,
            "line_no": None,
            "docstring": inspect.cleandoc(item.__doc__) if item.__doc__ else None,
        }
        with contextlib.suppress(TypeError, OSError):
            where["file"] = inspect.getfile(item)
            where["line_no"] = inspect.getsourcelines(item)[1]
        return where

    def remove(self, name: str) -> None:
        """Takes ``name`` out; what a package offers under it stays.

        Raises:
            RegistryError: Nothing of that name was registered.
        """
        if name not in self._table:
            raise RegistryError(f"Cant't find {name!r} in registry {' -> '.join(self.namespace)}.")
        del self._table[name]

    def _load(self, name: str) -> Any:
        item = self._table[name]
        if isinstance(item, _Deferred):
            item = self._table[name] = item.load()
        return item

    def _points(self) -> dict[str, importlib.metadata.EntryPoint]:
        return _entry_points(self.entry_point_namespace)


def create_registry(
    *namespace: str, generic_type: Any, entry_points: bool = False, description: str = ""
) -> TypedRegistry[Any]:
    """Creates a registry of ``generic_type`` elements under ``namespace``.

    Raises:
        RegistryError: The namespace is in use.
    """
    if namespace in _ENTRIES:
        raise RegistryError(f"Namespace already exists: {namespace}")
    return TypedRegistry[generic_type](namespace, entry_points, description)


def construct_from_registry(
    name: str,
    registry: TypedRegistry[Any],
    partial_function: bool = True,
    pre_validation_function: Callable[[Any], None] | type | None = None,
    post_validation_function: Callable[[Any], None] | None = None,
    kwargs: dict[str, Any] | None = None,
) -> Any:
    """Builds what ``name`` names with ``kwargs``.

    Args:
        name: A name in the registry.
        registry: Where to look.
        partial_function: Whether a function is returned with ``kwargs`` bound instead of called.
        pre_validation_function: A type that the registered class must derive from, or a check that
            is called with the registered object.
        post_validation_function: A check that is called with the result.
        kwargs: The constructor's arguments.

    Raises:
        ValueError: The object is no class or function, or not of the type asked for.
    """
    kwargs = kwargs or {}
    constructor = registry.get(name)
    if isinstance(pre_validation_function, type):
        if not (inspect.isclass(constructor) and issubclass(constructor, pre_validation_function)):
            raise ValueError(
                f"Expected {name} to be of type {pre_validation_function}, but got "
                f"{type(constructor)}"
            )
    elif callable(pre_validation_function):
        pre_validation_function(constructor)
    elif pre_validation_function is not None:
        raise ValueError(
            "Expected pre_validation_function to be a callable or a type, but got "
            f"{type(pre_validation_function)}"
        )
    if inspect.isclass(constructor) or (callable(constructor) and not partial_function):
        item = constructor(**kwargs)
    elif callable(constructor):
        item = functools.partial(constructor, **kwargs)
    else:
        raise ValueError(f"Expected {name} to be a class or function, but got {type(constructor)}")
    if post_validation_function is not None:
        post_validation_function(item)
    return item


def import_file(loc: str | Path) -> ModuleType:
    """Runs a Python file (one of ``code_paths``), so that it can register what it defines.

    Raises:
        FileNotFoundError: There is no such file.
        RuntimeError: The file raised.
    """
    if not Path(loc).exists():
        raise FileNotFoundError(f"File {loc} does not exist.")
    spec = importlib.util.spec_from_file_location("python_code", str(loc))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise RuntimeError(f"Error executing {loc}") from error
    return module


@contextlib.contextmanager
def save_registry() -> Iterator[None]:
    """Puts every registry back as it was when the block ends, also after an error."""
    saved = {namespace: dict(table) for namespace, table in _ENTRIES.items()}
    try:
        yield
    finally:
        _ENTRIES.clear()
        _ENTRIES.update(saved)
