"""Videos in the shards and beside them."""

from pathlib import Path
from typing import Any

import pytest

from streaming import MDSWriter
from streaming.multimodal import (
    StreamingInsideWebVid,
    StreamingOutsideDTWebVid,
    StreamingOutsideGIWebVid,
)


def write(out: Path, rows: list[dict[str, Any]]) -> str:
    columns = {name: "bytes" if name == "content" else "str" for name in rows[0]}
    with MDSWriter(columns=columns, out=str(out)) as writer:
        for row in rows:
            writer.write(row)
    return str(out)


def test_videos_inside(tmp_path: Path) -> None:
    rows = [{"name": "a", "content": b"video"}]
    assert list(StreamingInsideWebVid(local=write(tmp_path, rows), batch_size=1)) == rows


@pytest.mark.parametrize("kind", [StreamingOutsideGIWebVid, StreamingOutsideDTWebVid])
def test_videos_outside_are_fetched_once(kind: Any, tmp_path: Path) -> None:
    local = write(tmp_path / "rows", [{"content_path": "of/a.mp4"}, {"content_path": "b.mp4"}])
    videos = tmp_path / "videos"
    (videos / "of").mkdir(parents=True)
    (videos / "of" / "a.mp4").write_bytes(b"one")
    kept = tmp_path / "kept"
    dataset = kind(local=local, extra_local=str(kept), extra_remote=str(videos), download_retry=0)
    assert dataset[0] == {"content_path": "of/a.mp4", "content": b"one"}
    (videos / "of" / "a.mp4").unlink()
    assert dataset[0]["content"] == b"one"
    with pytest.raises(FileNotFoundError, match=r"b\.mp4"):
        dataset[1]
    assert [path.name for path in kept.rglob("*") if path.is_file()] == ["a.mp4"]
    without = kind(local=local, extra_local=str(tmp_path / "none"))
    with pytest.raises(FileNotFoundError, match="no remote to fetch it from"):
        without[0]
    with pytest.raises(ValueError, match="`extra_local` is needed"):
        kind(local=local)


@pytest.mark.parametrize("name", ["../secret", "a/../../secret", "/secret"])
def test_a_path_stays_in_its_folder(name: str, tmp_path: Path) -> None:
    local = write(tmp_path / "rows", [{"content_path": name}])
    (tmp_path / "secret").write_bytes(b"secret")
    dataset = StreamingOutsideGIWebVid(local=local, extra_local=str(tmp_path / "videos"))
    with pytest.raises(ValueError, match="leaves the folder of the videos"):
        dataset[0]
