"""Writes docs/recipes.md: every key of a training recipe, from the fields of `TrainConfig`.

    python scripts/misc/recipe_reference.py            write the page python
    scripts/misc/recipe_reference.py --check    say whether the page is up to date

It reads the source and imports nothing of it.
"""

import argparse
import ast
import inspect
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = ROOT / "llmfoundry" / "config" / "schema.py"
PAGE = ROOT / "docs" / "recipes.md"
HEAD = """\
# The keys of a training recipe

Written by `scripts/misc/recipe_reference.py` from `llmfoundry/config/schema.py`; edit that file.

A key that is not listed is an error. `variables` is free-form: `${variables.name}` refers to it
from anywhere in the recipe. On the command line a key is set by `key=value`, a nested one by
`outer.inner=value`.

"""


def main() -> int:
    """Writes the page, or compares it with what would be written."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="only compare")
    page = render(SCHEMA.read_text("utf-8"))
    if not parser.parse_args().check:
        PAGE.write_text(page, encoding="utf-8")
        return 0
    if PAGE.is_file() and PAGE.read_text("utf-8") == page:
        return 0
    print(f"{PAGE.relative_to(ROOT)} is out of date: run {Path(__file__).name}", file=sys.stderr)
    return 1


def render(source: str) -> str:
    """The page for a schema's source: a section a key, with type, default and manual entry."""
    tree = ast.parse(source)
    schema = next(
        node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "TrainConfig"
    )
    sections = []
    for field, text in zip(schema.body, schema.body[1:], strict=False):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        default = "required" if field.value is None else f"default `{value_of(field.value)}`"
        head = f"### {field.target.id}\n\n`{ast.unparse(field.annotation)}`, {default}.\n"
        sections.append(f"{head}\n{entry(text)}\n")
    return HEAD + "\n".join(sections)


def value_of(node: ast.expr) -> str:
    """A default as a recipe would have it; `field(default_factory=dict)` is `{}`."""
    if isinstance(node, ast.Call):
        factory = next((ast.unparse(k.value) for k in node.keywords if k.arg), "")
        return {"dict": "{}", "list": "[]"}.get(factory, ast.unparse(node))
    return ast.unparse(node)


def entry(node: ast.stmt) -> str:
    """The string under a field, with double back-quotes made single."""
    value = node.value if isinstance(node, ast.Expr) else None
    if not isinstance(value, ast.Constant) or not isinstance(value.value, str):
        return ""
    return inspect.cleandoc(value.value).replace("``", "`")


if __name__ == "__main__":
    sys.exit(main())
