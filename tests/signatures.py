"""Holds our public signatures against a table of upstream's: names, parameters, kinds, defaults.

The tables (tests/golden/signatures/*.txt) list, under ``[module path]``, constants, functions and
classes; under a class its bases (after ``<``), attributes, dataclass or enum fields, properties
(``=`` marks a settable one), methods that take ``(state, logger)`` ("events") and other methods.
"""

import ast
import importlib
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

TABLES = Path(__file__).parent / "golden" / "signatures"
_UNKNOWN = object()


def unlike(table: str, not_yet: Sequence[str], differences: Mapping[str, str]) -> list[str]:
    """What differs from the table, a line each, and differences that are no longer there.

    Args:
        table: Name of the table's file.
        not_yet: Expressions for the beginning of ``path.name`` of what a later issue brings.
        differences: ``path.name`` of what differs on purpose, and why.
    """
    found: list[tuple[str, str]] = []
    for path, rows in _modules((TABLES / table).read_text(encoding="utf-8")):
        try:
            module = importlib.import_module(path)
        except ModuleNotFoundError:
            found.append((path, "no such module"))
            continue
        found += [(f"{path}.{name}", problem) for name, problem in _in_module(module, rows)]
    found = [row for row in found if not any(re.match(begin, row[0]) for begin in not_yet)]
    stale = differences.keys() - {name for name, _ in found}
    return [
        *(f"{name}: {problem}" for name, problem in found if name not in differences),
        *(f"{name}: is listed as different, but is not" for name in sorted(stale)),
    ]


def _modules(text: str) -> Iterator[tuple[str, list[str]]]:
    for section in re.split(r"^\[", text, flags=re.MULTILINE)[1:]:
        path, _, rows = section.partition("]\n")
        yield path, rows.splitlines()


def _in_module(module: ModuleType, rows: list[str]) -> Iterator[tuple[str, str]]:
    owner: Any = None
    for row in rows:
        inside = row.startswith("  ")
        kind, _, rest = row.strip().partition(" ")
        if kind in ("exports", "names"):
            yield from _named_rows(module, kind, rest)
            continue
        if inside and owner is None:
            continue
        if inside:
            yield from _in_class(module, owner, kind, rest)
            continue
        name = re.match(r"\w+", rest)
        assert name is not None, row
        try:
            owner = getattr(module, name[0], None)
        except ImportError as error:  # a name that is refused in words
            owner = None
            yield name[0], str(error)
            continue
        if owner is None:
            yield name[0], f"is missing ({row})"
        elif kind == "const":
            text = rest.partition("=")[2]
            # True and False say which optional packages there are.
            if text and not isinstance(owner, bool) and (expected := _value(text, module)) != owner:
                yield name[0], f"is {owner!r}, not {expected!r}"
        elif kind == "class":
            yield from _class_row(module, owner, rest)
        else:
            yield from _call_row(module, owner, name[0], rest, method=False)


def _named_rows(module: ModuleType, kind: str, rest: str) -> Iterator[tuple[str, str]]:
    """Names without signatures: a face's ``__all__``, private ones that others reach for."""
    for name in rest.split(", "):
        first, _, attribute = name.partition(".")
        try:
            found = getattr(module, first, None)
        except ImportError as error:  # a name that is refused in words
            yield name, str(error)
            continue
        if found is None or (attribute and _member(found, attribute) is None):
            yield name, f"is missing ({kind})"
        elif kind == "exports" and name not in module.__all__:
            yield name, "is not in __all__"


def _class_row(module: ModuleType, owner: Any, rest: str) -> Iterator[tuple[str, str]]:
    call, _, bases = rest.removesuffix(" @dataclass").partition(" < ")
    while "[" in bases:  # what a generic base is of
        bases = re.sub(r"\[[^\[\]]*\]", "", bases)
    ancestors = {base.__name__ for base in getattr(owner, "__mro__", ())}
    for base in re.findall(r"(\w+)(?=\s*(?:,|$))", bases):
        if not base.startswith("_") and base not in ancestors | {"TValue", "Module"}:
            yield owner.__name__, f"does not stand on {base}"
    if not call.endswith("()") and not issubclass(owner, Enum):
        yield from _call_row(module, owner, owner.__name__, call, method=False)


def _in_class(module: ModuleType, owner: Any, kind: str, rest: str) -> Iterator[tuple[str, str]]:
    title = owner.__name__
    if kind in ("attrs", "properties", "events"):
        for name in rest.split(", "):
            attribute = _member(owner, name.removesuffix("="))
            if attribute is None:
                yield f"{title}.{name.removesuffix('=')}", f"is missing ({kind})"
            elif name.endswith("=") and isinstance(attribute, property) and attribute.fset is None:
                yield f"{title}.{name[:-1]}", "cannot be set"
            elif kind == "events":
                call = f"{name}(state, logger)"
                yield from _call_row(module, attribute, f"{title}.{name}", call, method=True)
        return
    if kind == "fields":
        yield from _fields(module, owner, rest)
        return
    name = rest.partition("(")[0]
    method = inspect.getattr_static(owner, name, None)
    if method is None:
        yield f"{title}.{name}", f"is missing ({rest})"
        return
    bound = isinstance(method, staticmethod | classmethod)
    if bound != (kind in ("static", "classmethod")):
        yield f"{title}.{name}", f"should be a {kind}"
    yield from _call_row(module, getattr(owner, name), f"{title}.{name}", rest, method=not bound)


def _member(owner: type, name: str) -> Any:
    """The class's member of this name, or True if a method of its own line sets it."""
    if (member := inspect.getattr_static(owner, name, None)) is not None:
        return member
    for base in owner.__mro__:
        if name in base.__dict__ or name in base.__dict__.get("__annotations__", {}):
            return True
        own = base.__module__.partition(".")[0] not in ("builtins", "abc", "typing")
        if own and re.search(rf"\bself\.{name}\b", _source(base)):
            return True
    return None


def _source(base: type) -> str:
    try:
        return inspect.getsource(base)
    except (OSError, TypeError):
        return ""


def _fields(module: ModuleType, owner: Any, rest: str) -> Iterator[tuple[str, str]]:
    parameters = _parameters(f"f(*, {rest})")
    ours = inspect.signature(owner).parameters
    for name, (_, text) in parameters.items():
        expected = _value(text, module) if text else _UNKNOWN
        actual = inspect.getattr_static(owner, name, _UNKNOWN)
        if actual is _UNKNOWN and name in ours:
            actual = ours[name].default
        if isinstance(actual, Enum):
            actual = actual.value
        if actual is _UNKNOWN and _member(owner, name) is None:
            yield f"{owner.__name__}.{name}", "is missing (fields)"
        elif expected is not _UNKNOWN and actual is not _UNKNOWN and actual != expected:
            yield f"{owner.__name__}.{name}", f"is {actual!r}, not {expected!r}"


def _call_row(
    module: ModuleType, ours: Any, title: str, call: str, *, method: bool
) -> Iterator[tuple[str, str]]:
    try:
        found = dict(inspect.signature(ours).parameters)
    except (TypeError, ValueError):
        yield title, "is not callable"
        return
    if method:
        found.pop("self", None)
    problem = _unlike_parameters(_parameters(call), found, module)
    if problem:
        yield title, f"{problem}; upstream: {call}; here: {inspect.signature(ours)}"


def _parameters(call: str) -> dict[str, tuple[str, str]]:
    """Name -> (kind, text of the default, empty if it has none)."""
    function = ast.parse(f"def {call}: ...").body[0]
    assert isinstance(function, ast.FunctionDef)
    spec = function.args
    texts = [""] * (len(spec.args) - len(spec.defaults)) + [ast.unparse(d) for d in spec.defaults]
    found = {arg.arg: ("positional", text) for arg, text in zip(spec.args, texts, strict=True)}
    if spec.vararg:
        found[spec.vararg.arg] = ("*", "")
    for arg, default in zip(spec.kwonlyargs, spec.kw_defaults, strict=True):
        found[arg.arg] = ("keyword", ast.unparse(default) if default else "")
    if spec.kwarg:
        found[spec.kwarg.arg] = ("**", "")
    return found


def _unlike_parameters(
    upstream: dict[str, tuple[str, str]], ours: dict[str, inspect.Parameter], module: ModuleType
) -> str:
    kinds = {p.kind for p in ours.values()}
    positional = [n for n, p in ours.items() if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    wanted = [n for n, (kind, _) in upstream.items() if kind == "positional"]
    if positional[: len(wanted)] != wanted:
        return f"positional parameters are {positional}"
    for name, (kind, text) in upstream.items():
        if kind in ("*", "**"):
            variadic = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
            if variadic[len(kind) - 1] not in kinds:
                return f"takes no {kind}{name}"
        elif name not in ours:
            return f"{name} is missing"
        elif text and ours[name].default is inspect.Parameter.empty:
            return f"{name} has no default"
        elif text and not _same(_value(text, module), ours[name].default):
            return f"{name} is {ours[name].default!r}, not {text}"
    for name, parameter in ours.items():
        needed = parameter.default is inspect.Parameter.empty
        plain = parameter.kind.name in ("POSITIONAL_OR_KEYWORD", "KEYWORD_ONLY", "POSITIONAL_ONLY")
        if needed and plain and name not in upstream and not name.startswith("_"):
            return f"{name} is new and required"
    return ""


def _value(text: str, module: ModuleType) -> Any:
    """The value of a default's text; unknown if it names what our module does not have."""
    if text.startswith("lambda"):
        return _UNKNOWN
    try:
        return eval(text, dict(vars(module)))
    except (NameError, AttributeError, KeyError):
        return _UNKNOWN


def _same(expected: Any, actual: Any) -> bool:
    return expected is _UNKNOWN or bool(expected == actual)
