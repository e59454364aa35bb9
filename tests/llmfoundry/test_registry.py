"""What a recipe can name leads somewhere, and looking it up costs nothing before."""

import subprocess
import sys

import pytest

from llmfoundry import registry
from llmfoundry.utils.registry_utils import TypedRegistry

NAMES = [(kind, name) for kind in registry.__all__ for name in getattr(registry, kind).names()]


def test_the_registries_are_those_that_are_promised() -> None:
    present = {name for name, value in vars(registry).items() if isinstance(value, TypedRegistry)}
    assert present == set(registry.__all__)


@pytest.mark.parametrize(("kind", "name"), NAMES, ids=lambda value: value)
def test_every_name_leads_somewhere(kind: str, name: str) -> None:
    if (kind, name) == ("tokenizers", "tiktoken"):
        pytest.importorskip("tiktoken")
    assert callable(getattr(registry, kind).get(name))


def test_importing_the_registry_imports_no_component() -> None:
    code = (
        "import sys, llmfoundry.registry; "
        "heavy = ['transformers', 'torchmetrics', 'llmfoundry.models', "
        "'llmfoundry.data.text_data', 'llmfoundry.optim.lion']; "
        "print([name for name in heavy if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]", out.stdout
