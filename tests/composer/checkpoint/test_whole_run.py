"""A run saved and loaded: all of it, its weights, and less."""

import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from composer.checkpoint.monolithic import safe_torch_load, write_checkpoint_file
from composer.checkpoint.whole_run import (
    download_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from composer.core.logger import Logger
from composer.core.state import State
from composer.utils import dist
from composer.utils.object_store import LocalObjectStore
from tests.composer.checkpoint.runs import make_state
from tests.launch import run_ranks

NAME = "ep{epoch}-ba{batch}-rank{rank}.pt"


def weights(state: State) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in state.model.state_dict().items()}


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[key], right[key]) for key in left)


def load(path: str, state: State, **kwargs: Any) -> Any:
    return load_checkpoint(path, state, Logger(state), **kwargs)


@pytest.fixture
def saved(tmp_path: Path) -> tuple[str, State]:
    state = make_state(steps=3)
    path = save_checkpoint(state, str(tmp_path / NAME))
    assert path == str(tmp_path / "ep0-ba3-rank0.pt")
    return path, state


def test_all_comes_back(saved: tuple[str, State]) -> None:
    path, old = saved
    new = make_state()
    rng = load(path, new)
    assert same(weights(new), weights(old))
    assert new.timestamp == old.timestamp
    assert new.callbacks[0].seen == 3
    assert new.schedulers[0].last_epoch == 3
    assert new.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.01)
    moments = [state.optimizers[0].state_dict()["state"] for state in (old, new)]
    for number, moment in moments[0].items():
        assert all(torch.equal(moment[key], moments[1][number][key]) for key in moment)
    assert len(rng) == 1 and {"python", "numpy", "torch"} <= set(rng[0])


def test_the_layout_is_upstreams(saved: tuple[str, State]) -> None:
    content = safe_torch_load(saved[0])
    assert set(content) == {"state", "rng"}
    assert list(content["state"]) == [
        "model",
        "optimizers",
        "schedulers",
        "algorithms",
        "callbacks",
        "scaler",
        "timestamp",
        "rank_zero_seed",
        "run_name",
        "dataset_state",
        "integrations",
        "metadata",
    ]


def test_saving_and_loading_are_quiet(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        path = save_checkpoint(make_state(steps=1), str(tmp_path / NAME))
        assert path is not None
        load(path, make_state())


def test_weights_only_file(tmp_path: Path) -> None:
    old, new = make_state(steps=2), make_state()
    path = save_checkpoint(old, str(tmp_path / "{run_name}.pt"), weights_only=True)
    assert path == str(tmp_path / "run.pt")
    content = safe_torch_load(path)
    assert set(content) == {"state"}
    assert set(content["state"]) == {"model", "integrations", "metadata"}
    assert load(path, new, load_weights_only=True) is None
    assert same(weights(new), weights(old))
    assert int(new.timestamp.batch) == 0


def test_weights_only_load_touches_nothing_else(saved: tuple[str, State]) -> None:
    path, old = saved
    new = make_state()
    assert load(path, new, load_weights_only=True) is None
    assert same(weights(new), weights(old))
    assert int(new.timestamp.batch) == 0 and new.callbacks[0].seen == 0
    assert not new.optimizers[0].state_dict()["state"]


@pytest.mark.parametrize("weights_only", [True, False])
def test_b54_weights_that_do_not_fit(saved: tuple[str, State], weights_only: bool) -> None:
    path, old = saved
    content = safe_torch_load(path)
    model = content["state"]["model"]
    model["stranger"] = model.pop("1.bias")
    del content["state"]["optimizers"]
    write_checkpoint_file(content, path)
    new = make_state()
    message = r"(?s)Error\(s\) in loading state_dict.*1\.bias.*stranger"
    with pytest.raises(RuntimeError, match=message):
        load(path, new, load_weights_only=weights_only)
    new = make_state()
    before = weights(new)
    with pytest.warns(UserWarning, match=r"1\.bias.*stranger"):
        load(path, new, load_weights_only=weights_only, strict_model_weights=False)
    after = weights(new)
    assert torch.equal(after["0.weight"], weights(old)["0.weight"])
    assert not torch.equal(after["0.weight"], before["0.weight"])
    assert torch.equal(after["1.bias"], before["1.bias"])


def test_ignored_weights_need_not_be_there(saved: tuple[str, State]) -> None:
    path, old = saved
    new = make_state()
    before = weights(new)
    with pytest.warns(UserWarning, match="1.weight"):
        load(path, new, load_weights_only=True, ignore_keys=["state/model/1.*"])
    after = weights(new)
    assert torch.equal(after["0.weight"], weights(old)["0.weight"])
    assert torch.equal(after["1.weight"], before["1.weight"])


@pytest.mark.filterwarnings("ignore:.*is not in the state_dict")
def test_ignored_parts_stay_as_they_were(saved: tuple[str, State]) -> None:
    path, old = saved
    new = make_state()
    ignored = ["state/optimizers", "rng", "state/timestamp", "state/callbacks/Counter"]
    assert load(path, new, ignore_keys=ignored) is None
    assert same(weights(new), weights(old))
    assert int(new.timestamp.batch) == 0 and new.callbacks[0].seen == 0


def test_ignoring_everything_loads_nothing(saved: tuple[str, State]) -> None:
    new = make_state()
    before = weights(new)
    assert load(saved[0], new, ignore_keys=["*"]) is None
    assert same(weights(new), before)


def test_ignoring_by_function(saved: tuple[str, State]) -> None:
    def forget(content: dict[str, Any]) -> None:
        content["state"]["model"]["0.bias"].zero_()
        del content["rng"]

    new = make_state()
    assert load(saved[0], new, ignore_keys=forget) is None
    assert not new.model[0].bias.any()


def test_ignore_keys_at_save(tmp_path: Path) -> None:
    path = save_checkpoint(make_state(), str(tmp_path / NAME), ignore_keys=["state/optimizers"])
    assert path is not None
    assert "optimizers" not in safe_torch_load(path)["state"]


def test_loading_again_and_again_saves_the_same(saved: tuple[str, State], tmp_path: Path) -> None:
    path, _ = saved
    new = make_state()
    load(path, new)
    again = save_checkpoint(new, str(tmp_path / "again.pt"))
    assert again is not None
    one, other = safe_torch_load(path)["state"], safe_torch_load(again)["state"]
    for part in ("timestamp", "callbacks", "schedulers", "run_name", "metadata", "algorithms"):
        assert one[part] == other[part]


def test_sources(saved: tuple[str, State], tmp_path: Path) -> None:
    path, old = saved
    store = LocalObjectStore(tmp_path / "store")
    store.upload_object("run/x.pt", path)
    (tmp_path / "link").write_text("run/x.pt")
    store.upload_object("run/latest-rank0.pt.symlink", tmp_path / "link")
    (tmp_path / "local.pt.symlink").write_text(path)
    (tmp_path / "link-rank0.pt").symlink_to(path)
    for source, kwargs in [
        ("{run_name}/x.pt", {"object_store": store}),
        ("run/latest-rank{rank}.pt", {"object_store": store, "progress_bar": False}),
        (Path(path).as_uri(), {}),
        (str(tmp_path / "local.pt.symlink"), {}),
        (str(tmp_path / "link-rank{rank}.pt"), {}),
    ]:
        new = make_state()
        load(source, new, **kwargs)
        assert same(weights(new), weights(old)), source
    with pytest.raises(FileNotFoundError, match=r"nowhere\.pt"):
        load(str(tmp_path / "nowhere.pt"), make_state())
    with pytest.raises(FileNotFoundError, match=r"nowhere\.pt"):
        load("nowhere.pt", make_state(), object_store=store)


def test_compressed_and_tar(tmp_path: Path) -> None:
    old = make_state(steps=1)
    for name in ("x.tar.gz", "x.pt.gz"):
        if name == "x.pt.gz" and not shutil.which("gzip"):
            continue
        path = save_checkpoint(old, str(tmp_path / name))
        assert path is not None
        new = make_state()
        load(path, new)
        assert same(weights(new), weights(old))


def _two_ranks(folder: str) -> dict[str, Any]:
    """Saves and loads together, fails to save, and loads what only this rank has."""
    rank = dist.get_global_rank()
    state = make_state(steps=2)
    path = save_checkpoint(state, f"{folder}/{NAME}")
    loaded = make_state()
    rng = load_checkpoint(f"{folder}/ep0-ba2-rank{{rank}}.pt", loaded, Logger(loaded))
    answer = {"path": path, "rng": len(rng or []), "weight": loaded.model[0].weight.tolist()}
    parts = safe_torch_load(f"{folder}/ep0-ba2-rank0.pt", load_monolith_rank0_only=True)["state"]
    answer["left out"] = [name for name, part in parts.items() if part is None]
    answer["batch"] = parts["timestamp"]["Timestamp"]["batch"]
    try:
        save_checkpoint(state, "/proc/nowhere/x.pt")
    except Exception as error:
        answer["failed save"] = str(error)
    own = make_state(steps=rank + 1)
    write_checkpoint_file({"state": own.state_dict()}, f"{folder}/{rank}-alone.pt")
    try:
        load_checkpoint(f"{folder}/{rank}-alone.pt", make_state(), Logger(own))
    except RuntimeError as error:
        answer["different times"] = str(error)
    return answer


def test_b53_two_ranks(tmp_path: Path) -> None:
    first, second = run_ranks(_two_ranks, 2, str(tmp_path))
    assert first["path"] == f"{tmp_path}/ep0-ba2-rank0.pt"
    assert second["path"] is None, "only rank 0 writes"
    assert first["weight"] == second["weight"], "all ranks load the one file"
    assert first["rng"] == second["rng"] == 2
    assert (first["left out"], second["left out"]) == ([], ["model", "optimizers"])
    assert first["batch"] == second["batch"] == 2
    assert "proc" in first["failed save"]
    assert "Rank 0 failed" in second["failed save"] and "proc" in second["failed save"]
    for answer in (first, second):
        assert "Timestamp mismatch error" in answer["different times"]
        assert "[1, 2]" in answer["different times"]


@pytest.mark.parametrize("name", ["a.pt", "a.tar.gz", "a.pt.gz"])
@pytest.mark.parametrize("prefix", ["", "file://"])
def test_a_checkpoint_is_made_available(tmp_path: Path, name: str, prefix: str) -> None:
    write_checkpoint_file({"state": {"run_name": "r"}}, str(tmp_path / name))
    folder = tmp_path / "node"
    folder.mkdir()
    plain, unpacked, _ = download_checkpoint(f"{prefix}{tmp_path}/{name}", str(folder), None, False)
    assert safe_torch_load(plain) == {"state": {"run_name": "r"}}
    assert (unpacked is not None) == (name == "a.tar.gz")
    assert (Path(plain).parent == folder) == (bool(prefix) or name != "a.pt")
