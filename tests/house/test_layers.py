"""The law of the house, held against the code: imports go down, and never round.

Copy to ``tests/house/test_layers.py``. It reads source only; nothing is imported or run.
Every import counts: at the top of a file, inside a function, and under ``TYPE_CHECKING``.
"""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# From the ground up. A row may import the rows above it in this list (lower floors), never a later
# row (a higher floor), and never another name of its own row (wings do not know each other).
FLOORS = {
    "streaming": [
        {"_version"},
        {"base", "text", "vision"},
        {""},
    ],
    "composer": [
        {"_version"},
        {"utils", "loss"},
        {"devices"},
        {"core"},
        {"metrics", "optim"},
        {"models", "distributed"},
        {"checkpoint"},
        {"loggers", "callbacks", "profiler", "algorithms"},
        {"trainer"},
        {"functional", "cli"},
        {"", "__main__"},
    ],
    "llmfoundry": [
        {"_version"},
        {"utils"},
        {"interfaces"},
        {"layers_registry"},
        {"registry"},
        {"builders"},
        {"config"},
        {"tokenizers", "optim", "loggers", "algorithms", "tp", "eval"},
        {"metrics"},
        {"models", "data"},
        {"callbacks"},
        {"command_utils"},
        {"cli"},
        {""},
    ],
}


def wing(module: str) -> tuple[str, str]:
    """``composer.core.state`` -> ``('composer', 'core')``; a package's face has the wing ``''``."""
    parts = module.split(".")
    return parts[0], parts[1] if len(parts) > 1 else ""


def floor(module: str) -> int:
    package, name = wing(module)
    base = (
        list(FLOORS).index(package) * 100
    )  # streaming on the ground, composer beside it, llmfoundry on both
    for height, names in enumerate(FLOORS[package]):
        if name in names:
            return base + height
    raise AssertionError(f"{module} stands on no floor: add {name!r} to FLOORS[{package!r}]")


def sources(root: Path = ROOT) -> dict[str, Path]:
    """Every module of the house by its dotted name."""
    found = {}
    for package in FLOORS:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(modules: dict[str, Path]) -> dict[str, set[str]]:
    """Module -> the modules of the house that it imports, wherever the import stands."""
    edges: dict[str, set[str]] = {}
    for module, path in modules.items():
        named = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                named |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    named.add(full if full in modules else str(node.module))
        edges[module] = (named & modules.keys()) - {module}
    return edges


def is_shim(path: Path) -> bool:
    """A public path that moved: its docstring starts with "shim", the rest is imports."""
    tree = ast.parse(path.read_text())
    if not (ast.get_docstring(tree) or "").startswith("shim"):
        return False
    plain = (ast.Import, ast.ImportFrom, ast.Assign)
    assert all(isinstance(node, plain) for node in tree.body[1:]), (
        f"{path}: a shim holds imports and __all__ only"
    )
    return True


def test_imports_go_down(root: Path = ROOT) -> None:
    modules = sources(root)
    shims = {module for module, path in modules.items() if is_shim(path)}
    broken = []
    for module, targets in imports(modules).items():
        for target in sorted(targets):
            if target in shims:
                broken.append(f"{module} -> {target}: a shim is for users; import the new home")
            elif module in shims or wing(module) == wing(target):
                continue
            elif floor(target) >= floor(module):
                broken.append(
                    f"{module} (floor {floor(module)}) -> {target} (floor {floor(target)})"
                )
    assert not broken, "\n".join(broken)


def test_no_circles(root: Path = ROOT) -> None:
    edges = imports(sources(root))
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, "circle: " + " -> ".join(path[path.index(module) :] + (module,))
        if module not in done:
            for target in sorted(edges[module]):
                visit(target, path + (module,))
            done.add(module)

    for module in edges:
        visit(module, ())
