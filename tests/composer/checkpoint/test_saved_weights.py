"""Weights one by one: of files and folders the same, with little memory, and never of two saves."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from composer.checkpoint import saved_weights
from composer.checkpoint.convert import convert_checkpoint
from composer.checkpoint.monolithic import write_checkpoint_file
from composer.checkpoint.saved_weights import opened_weights
from composer.checkpoint.sharded import FolderWriter
from composer.utils.object_store.s3_object_store import S3ObjectStore
from tests.composer.utils.object_store.faults import Proxy

GOLDEN = Path(__file__).parents[2] / "golden" / "checkpoints"


def _content() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    weights = {f"model.{i}.weight": torch.randn(50, i + 1, generator=generator) for i in range(9)}
    weights["model.half"] = torch.randn(7, generator=generator).bfloat16()
    weights["model.count"] = torch.tensor(3)
    moments = {name: {"exp_avg": weight.clone()} for name, weight in weights.items()}
    optimizers = {"Adam": {"state": moments, "param_groups": [{"params": list(weights)}]}}
    labels = {"id2label": {0: "no", 1: "yes"}}  # keys that are numbers are no places in a list
    integrations = {"huggingface": {"tokenizer": {"a.txt": {"content": ["x"]}}, "model": labels}}
    return {
        "state": {"model": weights, "optimizers": optimizers, "integrations": integrations},
        "rng": [{"python": 1}],
    }


@pytest.mark.parametrize("name", ["c.pt", "c.tar.gz", "c.pt.gz", "folder"])
def test_every_form_gives_the_same(name: str, tmp_path: Path) -> None:
    content, path = _content(), str(tmp_path / name)
    write_checkpoint_file(content, str(tmp_path / "whole.pt"))
    if name == "folder":
        convert_checkpoint(str(tmp_path / "whole.pt"), path)
    else:
        write_checkpoint_file(content, path)
    with opened_weights(path, tmp_path / f"kept-{name}") as saved:
        expected = content["state"].pop("model")
        del content["state"]["optimizers"]
        assert saved.content["state"]["integrations"] == content["state"]["integrations"]
        assert saved.content["rng"] == content["rng"]
        assert saved.kinds == {n: (w.size(), w.dtype) for n, w in expected.items()}
        assert all(torch.equal(saved.read(n), w) for n, w in expected.items())
    with opened_weights(str(tmp_path / f"kept-{name}")) as saved:
        assert torch.equal(saved.read("model.half"), expected["model.half"])


def test_a_file_is_opened_again_before_much_of_it_is_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, path = _content(), str(tmp_path / "c.pt")
    write_checkpoint_file(content, path)
    opened = []
    read = saved_weights.torch_load_with_validation
    monkeypatch.setattr(saved_weights, "_MAPPED_BYTES", 2000)
    monkeypatch.setattr(
        saved_weights,
        "torch_load_with_validation",
        lambda *args, **kwargs: opened.append(args) or read(*args, **kwargs),
    )
    with opened_weights(path) as saved:
        for name, weight in content["state"]["model"].items():
            assert torch.equal(saved.read(name), weight)
    assert len(opened) > 3


def test_torchs_oldest_form(tmp_path: Path) -> None:
    torch.save(_content(), tmp_path / "c.pt", _use_new_zipfile_serialization=False)
    with opened_weights(str(tmp_path / "c.pt")) as saved:
        assert saved.read("model.count") == 3


@pytest.mark.parametrize("kind", ["sharded_2rank", "sharded_2rank_fsdp1"])
def test_shards_of_upstream(kind: str, tmp_path: Path) -> None:
    folder = str(GOLDEN / kind / "ep1-ba5")
    convert_checkpoint(folder, str(tmp_path / "whole.pt"))
    with opened_weights(folder) as shards, opened_weights(str(tmp_path / "whole.pt")) as file:
        assert shards.kinds == file.kinds and len(shards.kinds) > 10
        assert all(torch.equal(shards.read(name), file.read(name)) for name in file.kinds)


def test_shards_of_different_saves_are_refused(tmp_path: Path) -> None:
    folder = str(tmp_path / "folder")
    FolderWriter({**_content(), "save_id": {"rank0": "one", "rank1": "another"}}, folder).write()
    with pytest.raises(RuntimeError, match="of different saves"):
        with opened_weights(folder):
            pass


def test_shards_that_are_missing_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    FolderWriter(_content(), str(folder)).write()
    (folder / "__0_0.distcp").unlink()
    with pytest.raises(FileNotFoundError, match="__0_0.distcp is missing or cut short"):
        with opened_weights(str(folder)):
            pass


def test_in_a_store(s3: Proxy, tmp_path: Path) -> None:
    content = _content()
    write_checkpoint_file(content, str(tmp_path / "c.pt"))
    convert_checkpoint(str(tmp_path / "c.pt"), str(tmp_path / "folder"))
    store = S3ObjectStore("bucket")
    store.upload_object("run/c.pt", tmp_path / "c.pt")
    for path in (tmp_path / "folder").iterdir():
        store.upload_object(f"run/folder/{path.name}", path)
    (tmp_path / "link").write_text("run/folder")
    store.upload_object("run/latest.symlink", tmp_path / "link")
    for name in ("c.pt", "folder", "latest.symlink"):
        for kept in (None, tmp_path / f"kept-{name}"):
            with opened_weights(f"s3://bucket/run/{name}", kept) as saved:
                for each, weight in content["state"]["model"].items():
                    assert torch.equal(saved.read(each), weight)
    assert (tmp_path / "kept-c.pt").read_bytes() == (tmp_path / "c.pt").read_bytes()
    shutil.rmtree(tmp_path / "folder")
    with opened_weights(str(tmp_path / "kept-folder")) as saved:
        assert saved.read("model.count") == 3
    with pytest.raises(FileNotFoundError):
        with opened_weights("s3://bucket/run/nothing"):
            pass
