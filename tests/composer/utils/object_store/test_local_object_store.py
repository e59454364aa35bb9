"""The folder as an object store, held to the interface's promises."""

from pathlib import Path

import pytest

from composer.utils.object_store import LocalObjectStore, ObjectStore, build_remote_backend


@pytest.fixture
def store(tmp_path: Path) -> LocalObjectStore:
    (tmp_path / "x").write_text("content")
    store = LocalObjectStore(tmp_path / "store")
    store.upload_object("a/b.pt", tmp_path / "x")
    return store


def test_round_trip(store: LocalObjectStore, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    with store:
        store.download_object(
            "a/b.pt", tmp_path / "y", callback=lambda *counts: seen.append(counts)
        )
    assert (tmp_path / "y").read_text() == "content"
    assert seen == [(7, 7)]
    assert store.get_object_size("a/b.pt") == 7
    assert store.get_uri("a/b.pt") == (tmp_path / "store/a/b.pt").as_uri()
    assert store.list_objects("a/") == store.list_objects("a/b") == ["a/b.pt"]
    assert store.list_objects("b") == store.list_objects("c/d") == []


def test_refusals(store: LocalObjectStore, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="not found"):
        store.get_object_size("nothing")
    with pytest.raises(FileNotFoundError, match="not found"):
        store.download_object("nothing", tmp_path / "y")
    with pytest.raises(FileExistsError, match="overwrite is set to False"):
        store.download_object("a/b.pt", tmp_path / "x")
    store.download_object("a/b.pt", tmp_path / "x", overwrite=True)
    with pytest.raises(ValueError, match="leads out of the store"):
        store.get_object_size("../x")
    with pytest.raises(ValueError, match="takes no"):
        store.upload_object("y", tmp_path / "x", ExtraArgs={})
    with pytest.raises(FileNotFoundError):
        store.upload_object("y", tmp_path / "nothing")


def test_backend_by_name(tmp_path: Path) -> None:
    assert isinstance(build_remote_backend("file", {"root": tmp_path}), LocalObjectStore)
    with pytest.raises(ValueError, match="no object store for ftp://"):
        build_remote_backend("ftp", {})


def test_a_store_may_leave_things_out() -> None:
    class Empty(ObjectStore):
        pass

    with pytest.raises(NotImplementedError, match="Empty.list_objects"):
        Empty().list_objects(None)
