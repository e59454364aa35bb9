"""``llmfoundry registry``: what a recipe can name, and where it lives."""

import importlib
from typing import Annotated, Any

import typer

__all__ = ["app"]

app = typer.Typer(pretty_exceptions_show_locals=False, no_args_is_help=True)


def _registries(group: str | None) -> dict[str, Any]:
    registry = importlib.import_module("llmfoundry.registry")
    present = {name: getattr(registry, name) for name in registry.__all__}
    if group is None:
        return present
    if group not in present:
        typer.echo(
            f"Group {group} not found in registry. Run `llmfoundry registry get` to see available "
            "groups."
        )
        return {}
    return {group: present[group]}


def _print(title: str, columns: list[str], rows: list[list[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*columns, title=title, show_lines=True)
    for row in rows:
        table.add_row(*row)
    Console().print(table)


@app.command(name="get")
def get(
    group: Annotated[str | None, typer.Option(help="Show one registry only.")] = None,
) -> None:
    """List the registries and the names in them."""
    rows = [
        [".".join(each.namespace), each.description, ", ".join(each.names())]
        for each in _registries(group).values()
    ]
    _print("Registries", ["Registry", "Description", "Options"], rows)


@app.command(name="find")
def find(
    group: Annotated[str, typer.Argument(help="The registry, such as callbacks.")],
    name: Annotated[str, typer.Argument(help="A name in it, such as speed_monitor.")],
) -> None:
    """Say where a name leads: module, file, line and documentation."""
    for registry in _registries(group).values():
        if name not in registry:
            typer.echo(f"{name} not found in {group}: it has {', '.join(registry.names())}.")
            raise typer.Exit(1)
        found = registry.find(name)
        values = [str(found[key] or "") for key in ("module", "file", "line_no", "docstring")]
        _print(f"{group}.{name}", ["Module", "File", "Line number", "Docstring"], [values])
