"""The recipe as it is printed and logged."""

from pathlib import Path

import pytest
import yaml

from composer.core.logger import Logger
from composer.loggers.in_memory_logger import InMemoryLogger
from llmfoundry.config.logged import log_config, recipe_text


def test_it_is_printed_and_logged(capsys: pytest.CaptureFixture[str]) -> None:
    memory, cfg = InMemoryLogger(), {"a": {"b": [1, None]}, "folder": "{run_name}/${x}"}
    log_config(Logger(state=None, destinations=[memory]), cfg)  # type: ignore[arg-type]
    assert yaml.safe_load(capsys.readouterr().out) == cfg
    assert memory.hyperparameters == cfg


def test_what_yaml_cannot_hold_is_text() -> None:
    with pytest.warns(UserWarning, match="is written to the recipe as text"):
        assert yaml.safe_load(recipe_text({"path": Path("x")})) == {"path": "x"}
