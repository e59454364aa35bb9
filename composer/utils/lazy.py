"""The lazy row of a face: names that a module offers but that are imported at first use."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def handed_on(table: Mapping[str, str]) -> Callable[[str], Any]:
    """Makes a module-level ``__getattr__`` that imports names from their homes at first use.

    Write ``__getattr__ = handed_on({"load_checkpoint": "composer.checkpoint.load"})`` at the end of
    a face. A home may be ``"module"`` (the attribute has the same name), ``"module:attribute"``, or
    ``"module:"`` for the module itself.

    Args:
        table: The public name and where it lives.
    """
    found: dict[str, Any] = {}

    def __getattr__(name: str) -> Any:
        if name in found:
            return found[name]
        home = table.get(name)
        if home is None:
            raise AttributeError(f"no attribute {name!r}")
        module_name, separator, attribute = home.partition(":")
        module = importlib.import_module(module_name)
        found[name] = module if separator and not attribute else getattr(module, attribute or name)
        return found[name]

    return __getattr__
