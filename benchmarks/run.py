"""Runs every benchmark of this folder, one after the other, and prints what each says."""

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


def main() -> int:
    """Runs all scripts but this one; returns 1 if any of them failed."""
    failed = []
    for script in sorted(FOLDER.glob("*.py")):
        if script.name == Path(__file__).name:
            continue
        print(f"\n== {script.stem}", flush=True)
        if subprocess.run([sys.executable, str(script)], cwd=FOLDER.parent, check=False).returncode:
            failed.append(script.stem)
    if failed:
        print(f"\nfailed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
