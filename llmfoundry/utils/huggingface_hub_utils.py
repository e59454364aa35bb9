"""Makes a folder with a model's code that loads where this project is not installed."""

import ast
import importlib.util
import re
from collections.abc import Sequence
from pathlib import Path

__all__ = ["edit_files_for_hf_compatibility"]

FLATTENED = ("llmfoundry",)
DEFERRED = re.compile(r'"([\w.]+):(\w+)"')
REMOVED = (
    "composer",
    "omegaconf",
    "llmfoundry.metrics",
    "llmfoundry.eval",
    "llmfoundry.builders",
    "llmfoundry.utils.builders",
    "llmfoundry.models.mpt.composer_mpt",
)


def edit_files_for_hf_compatibility(
    folder: str | Path,
    flatten_imports_prefix: Sequence[str] = FLATTENED,
    remove_imports_prefix: Sequence[str] = REMOVED,
) -> None:
    """Makes the modules in a folder import each other from that folder, and nothing of ours.

    Imports of this project become relative, and the modules that they name are copied beside; what
    only training needs is taken out. Every module's file name must be its own.

    Args:
        folder: The folder with the modules, which are rewritten.
        flatten_imports_prefix: Packages whose modules are copied into the folder.
        remove_imports_prefix: Packages whose imports are removed; this goes first.

    Raises:
        ValueError: Two modules would have the same file name.
    """
    folder = Path(folder)
    homes: dict[str, str] = {}
    waiting = sorted(folder.glob("*.py"))
    while waiting:
        path = waiting.pop()
        text, wanted = _flatten(path.read_text(), flatten_imports_prefix, remove_imports_prefix)
        path.write_text(text)
        for module in wanted:
            name = _flat_name(module)
            if homes.setdefault(name, module) != module:
                raise ValueError(
                    f"{module} and {homes[name]} would both become {name}.py in {folder}."
                )
            copy = folder / f"{name}.py"
            if not copy.exists():
                copy.write_text(_source(module))
                waiting.append(copy)


def _flat_name(module: str) -> str:
    return module.rpartition(".")[2]


def _source(module: str) -> str:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ValueError(f"The module {module}, which a model's code imports, is not there.")
    return Path(spec.origin).read_text()


def _has_prefix(module: str, prefixes: Sequence[str]) -> bool:
    return any(module == prefix or module.startswith(f"{prefix}.") for prefix in prefixes)


def _is_left_out(node: ast.stmt, removed: Sequence[str]) -> bool:
    """Says whether a statement is an import to remove, a trainer's class, or ``__all__``."""
    if isinstance(node, ast.ImportFrom):
        return node.level == 0 and _has_prefix(node.module or "", removed)
    if isinstance(node, ast.ClassDef):
        return node.name.startswith("Composer")
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets)


def _flatten(text: str, flattened: Sequence[str], removed: Sequence[str]) -> tuple[str, list[str]]:
    """Returns a module's text as it stands in the folder, and the modules that it needs there."""
    lines = text.splitlines()
    edits: list[tuple[int, int, str]] = []
    wanted: list[str] = []
    for node in ast.parse(text).body:
        start, end = node.lineno - 1, node.end_lineno or node.lineno
        if _is_left_out(node, removed):
            edits.append((start, end, ""))
        elif isinstance(node, ast.ImportFrom) and _has_prefix(node.module or "", flattened):
            module = node.module or ""
            wanted.append(module)
            names = ", ".join(a.name + (f" as {a.asname}" if a.asname else "") for a in node.names)
            edits.append((start, end, f"from .{_flat_name(module)} import {names}"))
    for start, end, replacement in reversed(edits):
        lines[start:end] = [replacement] if replacement else []
    text = "\n".join(lines) + "\n"
    for module, attribute in DEFERRED.findall(text):  # what a registry imports at its first use
        if _has_prefix(module, flattened):
            wanted.append(module)
            text = text.replace(f'"{module}:{attribute}"', f'".{_flat_name(module)}:{attribute}"')
    return text, wanted
