"""Files of checkpoints, fetched once a node."""

import pickle
from pathlib import Path

import pytest

from composer.checkpoint.download import (
    download_and_extract_symlink,
    download_file,
    download_folder,
    download_monolithic_checkpoint,
)
from tests.launch import run_ranks


@pytest.mark.parametrize("prefix", ["", "file://"])
def test_files_and_links(tmp_path: Path, prefix: str) -> None:
    (tmp_path / "a.pt").write_text("payload")
    (tmp_path / "latest.symlink").write_text(str(tmp_path / "a.pt"))
    target = str(tmp_path / "copies" / "it.pt")
    for name in ("a.pt", "latest.symlink", "latest"):
        assert download_file(f"{prefix}{tmp_path}/{name}", target) == target
        assert Path(target).read_text() == "payload"
    read = download_and_extract_symlink(f"{prefix}{tmp_path}/latest.symlink")
    assert read == str(tmp_path / "a.pt")
    with pytest.raises(FileNotFoundError):
        download_monolithic_checkpoint(f"{prefix}{tmp_path}/nothing.pt", target)


def test_folders(tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "a").write_text("a")
    assert download_folder(str(tmp_path / "shards"), "unused") == str(tmp_path / "shards")
    target = str(tmp_path / "copy")
    assert download_folder(f"file://{tmp_path}/shards", target) == target
    assert (tmp_path / "copy" / "a").read_text() == "a"
    with pytest.raises(FileNotFoundError, match="no objects"):
        download_folder(f"file://{tmp_path}/nothing", target)


def _fetch(source: str, target: str) -> str:
    return pickle.loads(Path(download_monolithic_checkpoint(source, target)).read_bytes())


def test_all_ranks_see_it(tmp_path: Path) -> None:
    (tmp_path / "a.pkl").write_bytes(pickle.dumps("payload"))
    read = run_ranks(_fetch, 2, f"file://{tmp_path}/a.pkl", str(tmp_path / "b.pkl"))
    assert read == ["payload", "payload"]
