"""Public paths and names, written down: they are added freely and leave only after a deprecation.

After adding names:  python tests/house/test_public_surface.py
"""

import importlib
import pkgutil
from pathlib import Path

import pytest

RECORD = Path(__file__).parent / "public_surface.txt"
PACKAGES = ("composer", "llmfoundry", "streaming")
RUNS_WHEN_IMPORTED = ("__main__",)


def public_modules() -> list[str]:
    """Every module whose path has no private part."""
    found = []
    for package in PACKAGES:
        top = importlib.import_module(package)
        found.append(package)
        for module in pkgutil.walk_packages(top.__path__, f"{package}."):
            parts = module.name.split(".")
            if not any(p.startswith("_") for p in parts) and parts[-1] not in RUNS_WHEN_IMPORTED:
                found.append(module.name)
    return sorted(found)


def public_names() -> list[str]:
    """``module: name`` for each name that a module says it exports."""
    rows = []
    for name in public_modules():
        module = importlib.import_module(name)
        rows.append(f"{name}:")
        rows += [f"{name}: {exported}" for exported in sorted(getattr(module, "__all__", ()))]
    return rows


def test_nothing_public_has_left() -> None:
    missing = set(RECORD.read_text(encoding="utf-8").splitlines()) - set(public_names())
    assert not missing, "public names are gone:\n" + "\n".join(sorted(missing))


def test_everything_public_is_written_down() -> None:
    new = set(public_names()) - set(RECORD.read_text(encoding="utf-8").splitlines())
    assert not new, "run this file to write down:\n" + "\n".join(sorted(new))


@pytest.mark.filterwarnings("ignore")
def test_every_exported_name_exists() -> None:
    broken = []
    for name in public_modules():
        module = importlib.import_module(name)
        for exported in getattr(module, "__all__", ()):
            try:
                getattr(module, exported)
            except ModuleNotFoundError:
                continue  # an optional package is not installed
            except AttributeError as error:
                broken.append(f"{name}.{exported}: {error}")
    assert not broken, "\n".join(broken)


if __name__ == "__main__":
    RECORD.write_text("\n".join(public_names()) + "\n", encoding="utf-8")
