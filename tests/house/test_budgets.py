"""Budgets of the house: files, functions, branches and parameters stay small, or say why not."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("composer", "llmfoundry", "streaming")
FILE_LINES = 500
BODY_LINES = 60
BRANCHES = 12
BRANCHING = (ast.If, ast.For, ast.While, ast.ExceptHandler, ast.IfExp, ast.match_case)


def waivers() -> dict[str, str]:
    """``path`` or ``path::function`` -> the reason why it may exceed a budget."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return config["tool"]["house"]["waivers"]


def files() -> Iterator[tuple[str, Path]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), path


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    body = function.body
    if ast.get_docstring(function) is not None:
        body = body[1:]
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function without those of functions defined inside it."""
    for child in ast.iter_child_nodes(function):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        yield child
        yield from own_nodes(child)


def excesses() -> dict[str, str]:
    found = {}
    for name, path in files():
        text = path.read_text()
        lines = text.count("\n")
        if lines > FILE_LINES:
            found[name] = f"{lines} lines, {FILE_LINES} allowed"
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            length = body_lines(node)
            branches = sum(isinstance(n, BRANCHING) for n in own_nodes(node))
            if length > BODY_LINES:
                found[f"{name}::{node.name}"] = f"{length} lines of body, {BODY_LINES} allowed"
            elif branches > BRANCHES:
                found[f"{name}::{node.name}"] = f"{branches} branches, {BRANCHES} allowed"
    return found


def test_budgets_are_kept() -> None:
    allowed = waivers()
    broken = {name: why for name, why in excesses().items() if name not in allowed}
    assert not broken, "\n".join(f"{name}: {why}" for name, why in broken.items())


def test_every_waiver_is_needed_and_has_a_reason() -> None:
    found = excesses()
    for name, reason in waivers().items():
        assert name in found, f"{name} keeps its budget; delete the waiver"
        assert len(reason) > 15, f"the waiver of {name} gives no reason"
