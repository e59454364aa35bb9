"""Importing by name, and saying how to install what is not there."""

from __future__ import annotations

import importlib
from typing import Any


class MissingConditionalImportError(ImportError):
    """Says which extra to install when an optional package is missing.

    Args:
        extra_deps_group: The extra of this distribution that installs the package.
        conda_package: The package's name on conda; empty if it is not there.
        conda_channel: The conda channel that has it.
    """

    def __init__(
        self,
        extra_deps_group: str,
        conda_package: str,
        conda_channel: str | None = "conda-forge",
    ) -> None:
        message = (
            f"This needs the optional extra {extra_deps_group!r}, which is not installed. "
            f'Install it with `pip install "llmfoundry[{extra_deps_group}]"`'
        )
        if conda_package:
            channel = f"-c {conda_channel} " if conda_channel else ""
            message += f", or `conda install {channel}{conda_package}`"
        super().__init__(message + ".")


def import_object(name: str) -> Any:
    """Imports and returns the object that ``"package.module:attribute"`` names.

    >>> import_object("math:pi") > 3
    True
    """
    module_name, separator, attribute_path = name.partition(":")
    if not separator or not module_name or not attribute_path:
        raise ValueError(
            f"{name!r} does not name an object: write it as 'package.module:attribute'"
        )
    found: Any = importlib.import_module(module_name)
    for attribute in attribute_path.split("."):
        found = getattr(found, attribute)
    return found
