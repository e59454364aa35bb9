"""Uploads and downloads of single files, by the names of earlier versions."""

from pathlib import Path

import fsspec
import pytest

from streaming.base.storage import CloudDownloader, CloudUploader


@pytest.mark.parametrize("scheme", ["", "memory://"])
def test_files_go_there_and_come_back(scheme: str, tmp_path: Path) -> None:
    remote = f"{scheme}{tmp_path}/remote"
    uploader = CloudUploader.get((str(tmp_path / "local"), remote))
    for name in ("a.bin", "sub/b.bin"):
        path = Path(uploader.local) / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(name.encode())
        uploader.upload_file(name)
        assert not path.exists(), "it stays with keep_local only"
    assert uploader.list_objects() == ["a.bin", "sub/b.bin"]
    assert uploader.list_objects("sub/") == ["sub/b.bin"]
    uploader.clear_local()
    assert not Path(uploader.local).exists()

    downloader = CloudDownloader.get(remote)
    target = tmp_path / "back" / "b.bin"
    downloader.download(f"{remote}/sub/b.bin", str(target))
    assert target.read_bytes() == b"sub/b.bin"
    target.write_bytes(b"changed")
    downloader.download(f"{remote}/sub/b.bin", str(target))
    assert target.read_bytes() == b"changed", "what is there stays"
    downloader.direct_download(f"{remote}/sub/b.bin", str(target))
    assert target.read_bytes() == b"sub/b.bin"
    with pytest.raises(FileNotFoundError):
        downloader.download(f"{remote}/none.bin", str(tmp_path / "none.bin"))
    assert not (tmp_path / "none.bin").exists()
    downloader.clean_up()
    if scheme:
        fsspec.filesystem("memory").rm(str(tmp_path), recursive=True)


def test_a_local_folder_stays(tmp_path: Path) -> None:
    kept = CloudUploader.get((str(tmp_path / "local"), str(tmp_path / "there")), keep_local=True)
    (tmp_path / "local" / "a").write_bytes(b"a")
    kept.upload_file("a")
    kept.clear_local()
    assert (tmp_path / "local" / "a").exists() and (tmp_path / "there" / "a").exists()
    only = CloudUploader.get(str(tmp_path / "only"))
    (tmp_path / "only" / "a").write_bytes(b"a")
    only.upload_file("a")
    only.clear_local()
    assert only.remote is None and only.list_objects() == ["a"]


def test_wrong_arguments(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").touch()
    with pytest.raises(FileExistsError, match="not empty"):
        CloudUploader.get(str(tmp_path / "full"))
    CloudUploader.get(str(tmp_path / "full"), exist_ok=True)
    assert list((tmp_path / "full").iterdir()) == []
    with pytest.raises(ValueError, match="pass it to the writer"):
        CloudUploader.get(str(tmp_path / "new"), progress_bar=True)
    for wrong in ("gcs://bucket/a", "oci://bucket/a"):
        with pytest.raises(ValueError, match="Unsupported remote path"):
            CloudDownloader.get(wrong)
        with pytest.raises(ValueError, match="Unsupported remote path"):
            CloudUploader.get(wrong)
