"""Writes requirements.lock: every package of the base install, the tests and the tools, pinned.

    python scripts/misc/lock.py            resolve anew in a throw-away environment and write it
    python scripts/misc/lock.py --check    say whether it still answers pyproject.toml, offline

The CUDA packages that torch pulls on a GPU machine are left out, so that one file serves both kinds
of machine; the Makefile lets pip add them after the pinned install.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import tomllib  # pyright: ignore[reportMissingImports]  # from 3.11 on, as the lock is

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "requirements.lock"
EXTRAS = (
    "dev",
    "tensorboard",
    "wandb",
    "mlflow",
    "comet",
    "slack",
    "trackio",
    "onnx",
    "openai",
    "vision",
    "peft",
    "gguf",
    "deepspeed",
    "s3",
    "sftp",
)
"""What the tests use. `gpu` and `fp8` serve none on a CPU, and torchao complains there."""
TORCH = "2.13.0"
LEFT_OUT = re.compile(r"^(pip|wheel|llmfoundry|triton|nvidia-.*|cuda-.*)$")

HEADER = """\
# Every package that `make` installs, pinned. Written by `make lock`; do not edit by hand.
# Installed with `pip install --no-deps -r requirements.lock`, so that no resolver runs.
# Left out on purpose: the CUDA packages that torch itself pulls on a GPU machine.
"""

# Runs inside the throw-away environment: name -> version and what it needs there.
ASK = """
import json
from importlib.metadata import distributions
from pip._vendor.packaging.requirements import Requirement
rows = {}
for one in distributions():
    needs = [Requirement(line) for line in one.requires or []]
    here = [r.name for r in needs if r.marker is None or r.marker.evaluate({"extra": ""})]
    rows[one.metadata["Name"]] = [one.version, here]
print(json.dumps(rows))
"""


def main() -> int:
    """Parses the command line and either checks the lock or writes it."""
    parser = argparse.ArgumentParser(description="Write or check requirements.lock.")
    parser.add_argument("--check", action="store_true", help="only compare with pyproject.toml")
    if parser.parse_args().check:
        return check()
    LOCK.write_text(render(resolve(wanted())), encoding="utf-8")
    print(f"wrote {LOCK.name}: {len(pins())} packages")
    return 0


def wanted() -> list[str]:
    """The requirements of pyproject.toml: build system, base install, extras of the tests."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"].get("optional-dependencies", {})
    asked = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    for name in EXTRAS:
        asked += extras[name]
    return [line for line in asked if canonical(line) != "llmfoundry"]


def resolve(requirements: list[str]) -> dict[str, tuple[str, list[str]]]:
    """Lets pip choose versions in a fresh environment; package -> (version, what it needs)."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder) / ("Scripts" if sys.platform == "win32" else "bin") / "python"
        asked = Path(folder) / "asked.txt"
        asked.write_text("\n".join([*requirements, f"torch=={TORCH}"]) + "\n", encoding="utf-8")
        subprocess.run([python, "-m", "pip", "install", "--requirement", asked], check=True)
        answer = subprocess.run([python, "-c", ASK], check=True, capture_output=True, text=True)
    return {
        canonical(name): (version.partition("+")[0], [canonical(need) for need in needs])
        for name, (version, needs) in json.loads(answer.stdout).items()
    }


def render(found: dict[str, tuple[str, list[str]]]) -> str:
    """The text of the lock file: a pin a line, and above it who asked for the package."""
    asked = {canonical(line) for line in wanted()}
    rows = []
    for name in sorted(found):
        if LEFT_OUT.match(name):
            continue
        above = sorted(other for other, (_, needs) in found.items() if name in needs)
        reasons = (["pyproject.toml"] if name in asked else []) + above
        reason = f"  # for {', '.join(reasons)}" if reasons else ""
        rows.append(f"{name}=={found[name][0]}{reason}\n")
    return HEADER + "".join(rows)


def check() -> int:
    """Reports requirements of pyproject.toml that have no fitting pin; needs `packaging`."""
    from packaging.requirements import Requirement

    have = pins()
    faults = [f"{line}: no pin" for line in wanted() if canonical(line) not in have]
    for line in wanted():
        requirement, pin = Requirement(line), have.get(canonical(line))
        if pin is not None and not requirement.specifier.contains(pin, prereleases=True):
            faults.append(f"{line}: pinned at {pin}")
    for fault in faults:
        print(f"requirements.lock: {fault} (run `make lock`)", file=sys.stderr)
    return 1 if faults else 0


def pins() -> dict[str, str]:
    """Package -> version, as the lock file has them."""
    lines = (line.partition("#")[0].strip() for line in LOCK.read_text("utf-8").splitlines())
    return {canonical(line): line.partition("==")[2] for line in lines if "==" in line}


def canonical(requirement: str) -> str:
    """`Python_Snappy >= 0.7 ; marker` -> `python-snappy`."""
    name = re.match(r"[A-Za-z0-9._-]+", requirement.strip())
    if name is None:
        raise ValueError(f"{requirement!r} is no requirement: it must start with a package name.")
    return re.sub(r"[-_.]+", "-", name.group()).lower()


if __name__ == "__main__":
    sys.exit(main())
