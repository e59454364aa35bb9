"""Registries: registration, look-up, construction, files, restoring."""

import importlib.metadata
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from llmfoundry.utils import registry_utils
from llmfoundry.utils.registry_utils import (
    RegistryError,
    TypedRegistry,
    construct_from_registry,
    create_registry,
    import_file,
    save_registry,
)


@pytest.fixture
def registry() -> Iterator[TypedRegistry[type]]:
    with save_registry():
        yield create_registry("tests", "things", generic_type=type, entry_points=True)


class Thing:
    """A thing."""

    def __init__(self, size: int = 1) -> None:
        self.size = size


def test_register_and_get(registry: TypedRegistry[type]) -> None:
    registry.register("a", func=Thing)
    registry("b", func=int)

    @registry.register("c")
    class Other:
        pass

    registry.register_class("d")(str)
    registry.register_path("e", "collections:OrderedDict")
    assert list(registry.get_all()) == registry.names() == ["a", "b", "c", "d", "e"]
    assert registry.get("c") is Other and registry.get("e").__name__ == "OrderedDict"
    assert "a" in registry and "x" not in registry
    registry.register("a", func=float)
    assert registry.get("a") is float
    registry.remove("a")
    with pytest.raises(RegistryError, match="Cant't find 'a' in registry tests -> things.*b, c"):
        registry.get("a")
    with pytest.raises(RegistryError, match="already exists"):
        create_registry("tests", "things", generic_type=type)


def test_find(registry: TypedRegistry[type]) -> None:
    registry.register("a", func=Thing)
    found = registry.find("a")
    assert found["file"] == __file__ and found["docstring"] == "A thing."
    assert found["module"] == Thing.__module__ and isinstance(found["line_no"], int)


def test_entry_points_go_first(
    registry: TypedRegistry[type], monkeypatch: pytest.MonkeyPatch
) -> None:
    point = importlib.metadata.EntryPoint("a", "collections:Counter", "tests_things")
    groups = {"tests_things": [point]}
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: groups.get(group, []))
    registry_utils._entry_points.cache_clear()
    registry.register("a", func=Thing)
    registry.register("b", func=Thing)
    assert registry.get("a").__name__ == "Counter"
    assert registry.get("b") is Thing and registry.names() == ["a", "b"]
    registry_utils._entry_points.cache_clear()


def test_construct(registry: TypedRegistry[type]) -> None:
    registry.register("class", func=Thing)
    registry.register("function", func=lambda size: size + 1)
    registry.register("number", func=3)
    assert construct_from_registry("class", registry, kwargs={"size": 2}).size == 2
    assert isinstance(construct_from_registry("function", registry, kwargs={"size": 2}), partial)
    assert construct_from_registry("function", registry, False, kwargs={"size": 2}) == 3
    with pytest.raises(ValueError, match="Expected class to be of type"):
        construct_from_registry("class", registry, pre_validation_function=int)
    with pytest.raises(ValueError, match="a callable or a type"):
        construct_from_registry("class", registry, pre_validation_function=3)
    with pytest.raises(ValueError, match="Expected number to be a class or function"):
        construct_from_registry("number", registry)

    def refuse(item: object) -> None:
        raise ValueError("Invalid")

    for when in ("pre_validation_function", "post_validation_function"):
        with pytest.raises(ValueError, match="Invalid"):
            construct_from_registry("class", registry, **{when: refuse})


def test_files_are_run(registry: TypedRegistry[type], tmp_path: Path) -> None:
    path = tmp_path / "code.py"
    path.write_text("answer = 42")
    assert import_file(path).answer == 42
    path.write_text("1 / 0")
    with pytest.raises(RuntimeError, match=r"Error executing .*code\.py"):
        import_file(str(path))
    with pytest.raises(FileNotFoundError, match="does not exist"):
        import_file(tmp_path / "none.py")


def test_registries_are_put_back_even_after_an_error(registry: TypedRegistry[type]) -> None:
    registry.register("a", func=Thing)
    with pytest.raises(KeyError), save_registry():
        registry.register("b", func=Thing)
        registry.remove("a")
        create_registry("tests", "more", generic_type=type)
        raise KeyError
    assert registry.names() == ["a"]
    create_registry("tests", "more", generic_type=type)
