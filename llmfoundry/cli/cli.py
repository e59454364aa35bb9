"""The ``llmfoundry`` command; what a command needs is imported when it runs."""

import sys
from typing import Annotated

import typer

from llmfoundry import command_utils
from llmfoundry.cli import convert_cli, data_prep_cli, registry_cli
from llmfoundry.config.problems import ConfigError
from llmfoundry.utils.exceptions import UserError

__all__ = ["app", "main"]

app = typer.Typer(
    pretty_exceptions_show_locals=False,
    no_args_is_help=True,
    help="Train, evaluate and export language models from YAML recipes.",
)
app.add_typer(registry_cli.app, name="registry", help="What a recipe can name.")
app.add_typer(data_prep_cli.app, name="data_prep", help="Turn text into MDS shards.")

Recipe = Annotated[str, typer.Argument(help="The recipe, a YAML file.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Settings laid over the recipe, such as max_duration=10ba."),
]


@app.command(name="train")
def train(yaml_path: Recipe, args_list: Overrides = None) -> None:
    """Train by a recipe."""
    command_utils.train_from_yaml(yaml_path, args_list)


app.command(name="convert")(convert_cli.convert)


@app.command(name="validate")
def validate(yaml_path: Recipe, args_list: Overrides = None) -> None:
    """Check a recipe without training: settings, data, parameters, memory and steps."""
    command_utils.validate_from_yaml(yaml_path, args_list)


def main() -> None:
    """Runs the command line; a fault of the user's is told without a traceback."""
    try:
        app()
    except (ConfigError, UserError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
