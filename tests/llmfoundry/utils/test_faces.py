"""Every public name of a lazy face leads somewhere, and old paths lead to the same."""

import importlib

import pytest

FACES = [
    "llmfoundry",
    "llmfoundry.algorithms",
    "llmfoundry.builders",
    "llmfoundry.callbacks",
    "llmfoundry.command_utils",
    "llmfoundry.config",
    "llmfoundry.data",
    "llmfoundry.data.dataloader",
    "llmfoundry.loggers",
    "llmfoundry.metrics",
    "llmfoundry.optim",
    "llmfoundry.utils",
    "llmfoundry.utils.builders",
    "llmfoundry.utils.config_utils",
    "llmfoundry.utils.warnings",
]


@pytest.mark.parametrize("face", FACES)
def test_names(face: str) -> None:
    module = importlib.import_module(face)
    missing = [name for name in module.__all__ if not hasattr(module, name)]
    assert not missing
