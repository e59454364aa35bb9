"""A sharded run saved by its ranks, each its part, goes on: as it was, or spread in another way."""

import os
import pickle
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemWriter

from composer.checkpoint.content import full_state
from composer.checkpoint.shard_index import INDEX_NAME, read_index
from composer.checkpoint.sharded import FileSystemReaderWithValidation, flatten, write_sharded
from composer.checkpoint.sharded_run import (
    DistCPObjectStoreReader,
    dist_cp_load,
    load_sharded_checkpoint,
    read_nested,
    writer_of_run,
)
from composer.core.logger import Logger
from composer.utils import dist
from composer.utils.checkpoint import save_checkpoint
from composer.utils.file_helpers import maybe_create_object_store_from_uri
from tests.composer.checkpoint.runs import make_state
from tests.composer.checkpoint.sharded_runs import make, names, train
from tests.launch import run_ranks

SHARDED = {"state_dict_type": "sharded"}
FULL = {"state_dict_type": "full"}
Told = dict[str, Any]


def _goes_on_exactly(folder: str) -> Told:
    """Saves a run to folders, keeps the last two, and resumes one in the middle."""
    whole, diary = train("8ba", SHARDED, save_folder=f"{folder}/a", save_num_checkpoints_to_keep=2)
    train("4ba", SHARDED, save_folder=f"{folder}/b")
    resumed, rest = train("8ba", SHARDED, save_folder=f"{folder}/b", autoresume=True)
    asynchronous, _ = train("8ba", SHARDED, save_folder=f"{folder}/c", save_async=True)
    pairs = zip(whole.state.model.parameters(), resumed.state.model.parameters(), strict=True)
    return {
        "kept": whole.saved_checkpoints,
        "kept_async": asynchronous.saved_checkpoints,
        "losses": diary.losses,
        "samples": diary.samples,
        "rest": rest.losses,
        "rest_samples": rest.samples,
        "loaded": resumed.state.load_path,
        "equal": all(torch.equal(one.to_local(), two.to_local()) for one, two in pairs),
    }


def _is_refused(folder: str) -> Told:
    """Loads what does not fit, or is not whole."""
    found: Told = {}
    path = f"{folder}/b/ep0-ba4"
    for name, change in (
        ("cut", lambda copy: Path(copy, "__1_0.distcp").write_bytes(b"")),
        ("no index", lambda copy: Path(copy, INDEX_NAME).unlink()),
        # Of another save, and as long: only the mark in it tells.
        ("mixed", lambda copy: shutil.copy(f"{folder}/c/ep0-ba4/__1_0.distcp", copy)),
    ):
        copy = f"{folder}/{name}"
        if dist.get_global_rank() == 0:
            shutil.copytree(path, copy)
            change(copy)
        dist.barrier()
        for prefix in ("", "file://"):
            try:
                train("6ba", SHARDED, load_path=prefix + copy)
            except Exception as error:
                found[prefix + name] = f"{type(error).__name__}: {error}"
    return found


def _fails_on_all_ranks(folder: str) -> Told:
    """Writes, while rank 1's disk is full, at once and in a thread."""
    found: Told = {}
    write = FileSystemWriter.write_data

    def write_or_fail(self: Any, plan: Any, planner: Any) -> Any:
        if dist.get_global_rank() == 1 and "ba4" in str(self.path):
            raise OSError("No space left on device")
        return write(self, plan, planner)

    with patch.object(FileSystemWriter, "write_data", write_or_fail):
        for save_async in (False, True):
            name = f"{folder}/full-{save_async}"
            trainer, _ = make("8ba", SHARDED, save_folder=name, save_async=save_async)
            try:
                trainer.fit()
            except (OSError, RuntimeError) as error:
                found[str(save_async)] = f"{error}", int(trainer.state.timestamp.batch)
            trainer.close()
            dist.barrier()
            latest = os.readlink(f"{name}/latest-rank0.pt")
            found[f"names {save_async}"] = (latest, names(name), trainer.saved_checkpoints)
    return found


def _other_ways(folder: str) -> Told:
    """Loads shards into replicas, one file into a sharded model, and on rank 0 only."""
    path = f"{folder}/b/ep0-ba4"
    _, replicas = train("8ba", None, load_path=path)
    sharded, _ = make("8ba", SHARDED, load_path=path)
    sharded.state.fsdp_config.state_dict_type = "full"
    file = save_checkpoint(sharded.state, f"{folder}/one.pt")
    sharded.close()
    _, from_file = train("8ba", SHARDED, load_path=f"{folder}/one.pt")
    opened: list[str] = []
    sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
    two_nodes = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "NODE_RANK": os.environ["RANK"]}
    with patch.dict(os.environ, two_nodes):
        _, by_rank_zero = train(
            "8ba", {**FULL, "load_monolith_rank0_only": True}, load_path=f"file://{folder}/one.pt"
        )
    return {
        "opened": any("one.pt" in path for path in opened),
        "replicas": replicas.losses,
        "file": file,
        "from file": from_file.losses,
        "by rank 0": by_rank_zero.losses,
    }


def _in_a_store(folder: str) -> Told:
    """Saves to a store, and starts anew from there."""
    address = f"file://{folder}/store/run"
    train("4ba", SHARDED, save_folder=address)
    resumed, rest = train("8ba", SHARDED, save_folder=address, autoresume=True)
    return {"loaded": resumed.state.load_path, "rest": rest.losses}


def _keeps_few(folder: str) -> Told:
    """Keeps one folder or none, saved at once or in a thread; resumes through a link."""
    found: Told = {}
    for keep in (0, 1):
        for save_async in (False, True):
            name = f"{folder}/keep{keep}{save_async}"
            how: dict[str, Any] = {
                "save_num_checkpoints_to_keep": keep,
                "save_async": save_async,
                "save_interval": "1ba",
            }
            trainer, _ = train("3ba", SHARDED, save_folder=name, **how)
            dist.barrier()
            found[f"{keep} {save_async}"] = names(name), len(trainer.saved_checkpoints)
    link = Path(folder, "link")
    dist.from_rank_zero(lambda: link.symlink_to("keep1False"))
    train("5ba", SHARDED, save_folder=str(link), autoresume=True, **{**how, "save_async": False})
    dist.barrier()
    found["link"] = names(link)
    return found


def _goes_on_over_halves(folder: str) -> Told:
    """Resumes where the last folder is not whole, which stands at the name or in the store."""
    found: Told = {}
    for prefix in ("", "file://"):
        name = f"{folder}/half{len(prefix)}"
        train("4ba", SHARDED, save_folder=f"{prefix}{name}")

        def spoil() -> None:
            Path(name, "ep0-ba4", INDEX_NAME).unlink()
            Path(name, "ep0-ba4", "__1_0.distcp").unlink()
            pointer = Path(name, "latest-rank0.pt.symlink")
            if pointer.exists():  # it is moved last
                pointer.write_text(pointer.read_text().replace("ba4", "ba2"))

        dist.from_rank_zero(spoil)
        run, diary = train("6ba", SHARDED, save_folder=f"{prefix}{name}", autoresume=True)
        dist.barrier()
        found[prefix] = os.path.basename(str(run.state.load_path)), diary.losses
        found[f"{prefix} names"] = names(Path(name, "ep0-ba4"))
    return found


PARTS = (
    *(_goes_on_exactly, _is_refused, _other_ways, _in_a_store, _fails_on_all_ranks),
    *(_keeps_few, _goes_on_over_halves),
)


def _all(folder: str) -> list[Told]:
    return [part(folder) for part in PARTS]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[Told]]]:
    """Everything that two ranks do here is done by one pair of processes: they start slowly."""
    folder = tmp_path_factory.mktemp("sharded")
    return folder, run_ranks(_all, 2, str(folder))


def test_b33_resumed_is_bit_for_bit_the_unbroken_run(told: tuple[Path, list[list[Told]]]) -> None:
    folder, ranks = told
    for exact, *_ in ranks:
        assert exact["equal"] and exact["losses"][4:] == exact["rest"]
        assert exact["rest_samples"] == exact["samples"][4:]
        assert exact["loaded"] == str(folder / "b" / "ep0-ba4")
        assert [Path(path).name for path in exact["kept"]] == ["ep0-ba6", "ep0-ba8"]
        assert len(exact["kept_async"]) == 4


def test_the_folder_is_as_upstream_has_it(told: tuple[Path, list[list[Told]]]) -> None:
    folder, _ = told
    assert names(folder / "a") == ["ep0-ba6", "ep0-ba8", "latest-rank0.pt"]
    assert os.readlink(folder / "a" / "latest-rank0.pt") == "ep0-ba8"
    assert names(folder / "a" / "ep0-ba8") == [INDEX_NAME, "__0_0.distcp", "__1_0.distcp"]
    index = read_index(folder / "a" / "ep0-ba8" / INDEX_NAME)
    for name, path in {
        "state.model.module.first.weight": ("state", "model", "module.first.weight"),
        "state.optimizers.AdamW.param_groups.0.lr": (
            *("state", "optimizers", "AdamW", "param_groups"),
            *(0, "lr"),
        ),
        "state.timestamp.Timestamp.batch": ("state", "timestamp", "Timestamp", "batch"),
        "rng.1.torch": ("rng", 1, "torch"),
    }.items():
        assert index.planner_data[name] == path and name in index.state_dict_metadata


def test_asynchronous_saves_are_the_same(told: tuple[Path, list[list[Told]]]) -> None:
    folder, _ = told
    for name in ("ep0-ba6", "ep0-ba8"):
        one, two = (
            flatten(read_nested(FileSystemReaderWithValidation(str(folder / kind / name))))[0]
            for kind in ("a", "c")
        )
        tensors = [key for key, value in one.items() if isinstance(value, torch.Tensor)]
        assert len(tensors) > 20 and all(torch.equal(one[key], two[key]) for key in tensors)
    assert os.readlink(folder / "c" / "latest-rank0.pt") == "ep0-ba8"


@pytest.mark.filterwarnings("ignore:The checkpoint has the random states of 2 ranks")
def test_one_process_goes_on_with_the_same_samples(told: tuple[Path, list[list[Told]]]) -> None:
    folder, ranks = told
    _, diary = train("8ba", None, load_path=str(folder / "b" / "ep0-ba4"))
    assert diary.losses == pytest.approx(ranks[0][0]["rest"], abs=1e-5)
    both = [sorted(one + two) for one, two in zip(*(r[0]["rest_samples"] for r in ranks))]
    assert [sorted(batch) for batch in diary.samples] == both


def test_replicas_and_files(told: tuple[Path, list[list[Told]]]) -> None:
    _, ranks = told
    for exact, _, ways, *_ in ranks:
        for way in ("replicas", "from file", "by rank 0"):
            assert ways[way] == pytest.approx(exact["rest"], abs=1e-5), way
    assert [ways["opened"] for _, _, ways, *_ in ranks] == [True, False]


def test_b53_what_is_not_whole_is_refused_on_all_ranks(
    told: tuple[Path, list[list[Told]]],
) -> None:
    for _, refused, *_ in told[1]:
        assert "__1_0.distcp is missing or cut short" in refused["cut"]
        assert "its save did not end" in refused["no index"]
        assert "are of different saves" in refused["mixed"]
        assert "__1_0.distcp is cut short" in refused["file://cut"]
        assert "not found" in refused["file://no index"]
        assert "are of different saves" in refused["file://mixed"]


def test_b45_b46_the_newest_folders_are_kept(told: tuple[Path, list[list[Told]]]) -> None:
    for *_, few, _ in told[1]:
        for save_async in (False, True):
            assert few[f"0 {save_async}"] == ([], 0)
            assert few[f"1 {save_async}"] == (["ep0-ba3", "latest-rank0.pt"], 1)
        assert few["link"] == ["ep0-ba5", "latest-rank0.pt"]


def test_b42_b43_a_half_folder_is_passed_over_and_replaced(
    told: tuple[Path, list[list[Told]]],
) -> None:
    for exact, *_, halves in told[1]:
        for prefix in ("", "file://"):
            assert halves[prefix] == ("ep0-ba2", exact["losses"][2:6])
            assert halves[f"{prefix} names"] == [INDEX_NAME, "__0_0.distcp", "__1_0.distcp"]


def _is_killed(folder: str, save_async: bool) -> None:
    write = FileSystemWriter.write_data

    def write_half(self: Any, plan: Any, planner: Any) -> Any:
        done = write(self, plan, planner)
        if "ba4" in str(self.path):
            rank = dist.get_global_rank()
            os.truncate(Path(self.path, f"__{rank}_0.distcp"), 99)
            # Both at once: one that outlived the other would tidy up behind its failed save.
            Path(f"{folder}-{rank}").touch()
            while not Path(f"{folder}-{1 - rank}").exists():
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    with patch.object(FileSystemWriter, "write_data", write_half):
        train("8ba", SHARDED, save_folder=folder, save_async=save_async)


def _is_restarted(folder: str, save_async: bool) -> tuple[str | None, list[float], list[str]]:
    how: dict[str, Any] = {"save_async": save_async, "autoresume": True}
    trainer, diary = train("6ba", SHARDED, save_folder=folder, **how)
    dist.barrier()
    return trainer.state.load_path, diary.losses, names(folder)


@pytest.mark.parametrize("save_async", [False, True])
def test_b42_b43_ranks_killed_in_a_save_save_again_over_what_is_left(
    save_async: bool, told: tuple[Path, list[list[Told]]], tmp_path: Path
) -> None:
    with pytest.raises(torch.multiprocessing.ProcessExitedException, match="SIGKILL"):
        run_ranks(_is_killed, 2, str(tmp_path), save_async)
    assert names(tmp_path) == [".ep0-ba4.partial", "ep0-ba2", "latest-rank0.pt"]
    ends = run_ranks(_is_restarted, 2, str(tmp_path), save_async)
    for (loaded, losses, there), (exact, *_) in zip(ends, told[1], strict=True):
        assert loaded == str(tmp_path / "ep0-ba2") and losses == exact["losses"][2:6]
        assert there == ["ep0-ba2", "ep0-ba4", "ep0-ba6", "latest-rank0.pt"]


def test_an_optimizer_without_moments_comes_back(tmp_path: Path) -> None:
    for kind in (torch.optim.SGD, torch.optim.Adam):  # the one keeps none, the other has none yet
        states = [make_state(), make_state()]
        for state in states:
            state.optimizers = kind(state.model.parameters(), lr=0.1)
            state.schedulers = torch.optim.lr_scheduler.StepLR(state.optimizers[0], 2)
        folder = str(tmp_path / kind.__name__)
        writer_of_run(full_state(states[0]), folder).write()
        load_sharded_checkpoint(folder, states[1], Logger(states[1]))
        assert torch.equal(states[0].model[0].weight, states[1].model[0].weight)
        assert not states[1].optimizers[0].state


def test_a_full_disk_of_one_rank_stops_all(told: tuple[Path, list[list[Told]]]) -> None:
    folder, ranks = told
    for _, _, _, _, failed, *_ in ranks:
        assert "No space left" in failed["False"][0] and failed["False"][1] == 4
        assert "rank 1" in failed["True"][0] or "Rank 1" in failed["True"][0]
        assert failed["True"][1] == 6  # when the next one was due
        for kind in (False, True):
            latest, there, kept = failed[f"names {kind}"]
            assert latest == "ep0-ba2" and [Path(path).name for path in kept] == ["ep0-ba2"]
            assert there == ["ep0-ba2", "latest-rank0.pt"]


def test_a_store_holds_whole_folders(told: tuple[Path, list[list[Told]]]) -> None:
    folder, ranks = told
    for exact, _, _, stored, *_ in ranks:
        assert stored["loaded"].endswith("ep0-ba4") and stored["rest"] == exact["rest"]
    store = folder / "store" / "run"
    assert names(store) == ["ep0-ba2", "ep0-ba4", "ep0-ba6", "ep0-ba8", "latest-rank0.pt.symlink"]
    assert (store / "latest-rank0.pt.symlink").read_text().endswith("run/ep0-ba8")
    assert names(store / "ep0-ba8") == [INDEX_NAME, "__0_0.distcp", "__1_0.distcp"]


@pytest.mark.filterwarnings("ignore:The checkpoint has the random states of 2 ranks")
@pytest.mark.filterwarnings("ignore:callbacks. Diary")
def test_b54_what_is_ignored_and_what_does_not_fit(told: tuple[Path, list[list[Told]]]) -> None:
    path = str(told[0] / "b" / "ep0-ba4")
    trainer, _ = make("8ba", None)
    state, logger = trainer.state, trainer.logger
    before = state.model.module.last.weight.clone()
    globs = ["state/model/module.last.*", "rng", "state/timestamp"]
    with pytest.warns(UserWarning, match="Missing.*last.weight, module.last.bias"):
        load_sharded_checkpoint(path, state, logger, ignore_keys=globs)
    assert torch.equal(before, state.model.module.last.weight) and state.timestamp.batch == 0

    def only_weights(tree: dict[str, Any]) -> None:
        del tree["rng"], tree["state"]["timestamp"]

    assert load_sharded_checkpoint(path, state, logger, ignore_keys=only_weights) is None
    assert not torch.equal(before, state.model.module.last.weight) and state.timestamp.batch == 0
    state.model.module.add_module("extra", torch.nn.Linear(2, 2))
    del state.model.module.second
    for weights_only in (True, False):
        with pytest.raises(RuntimeError, match="(?s)Missing.*extra.weight.*Unexpected.*second"):
            load_sharded_checkpoint(
                path, state, logger, None, weights_only, strict_model_weights=True
            )
    with pytest.warns(UserWarning, match="does not fit the model"):
        load_sharded_checkpoint(path, state, logger, None, True, strict_model_weights=False)
    state.model.module.last = torch.nn.Linear(5, 4)
    with pytest.raises(RuntimeError, match="Size mismatch.*last.weight"):
        load_sharded_checkpoint(path, state, logger, None, True, strict_model_weights=False)
    trainer.close()


def test_only_wanted_files_are_fetched(told: tuple[Path, list[list[Told]]], tmp_path: Path) -> None:
    folder, _ = told
    store = maybe_create_object_store_from_uri(f"file://{folder}/store")
    reader = DistCPObjectStoreReader(
        str(folder / "b" / "ep0-ba4").lstrip("/"), str(tmp_path), store
    )
    assert reader.read_metadata().state_dict_metadata
    assert names(tmp_path) == [INDEX_NAME]
    with pytest.raises(ValueError, match="object_store is needed"):
        DistCPObjectStoreReader(str(folder), str(tmp_path))


class _Runs:
    def __reduce__(self) -> Any:
        return os.system, ("true",)


def test_an_index_that_would_run_something_is_not_run(tmp_path: Path) -> None:
    (tmp_path / INDEX_NAME).write_bytes(pickle.dumps(_Runs()))
    with pytest.raises(pickle.UnpicklingError, match="not in allowlist"):
        read_index(tmp_path / INDEX_NAME)
    (tmp_path / INDEX_NAME).write_bytes(b"\x80\x04cut")
    with pytest.raises(ValueError, match="damaged"):
        read_index(tmp_path / INDEX_NAME)


def test_dist_cp_load_tolerates_what_older_releases_lack(tmp_path: Path) -> None:
    write_sharded(
        {"a": torch.ones(3), "rng": [{"cuda": torch.zeros(816)}], "n": {"m": 5}},
        str(tmp_path / "x"),
    )
    into = {
        "a": torch.zeros(3),
        "rng": [{"cuda": torch.ones(16)}],
        "n": {"m": 0, "decoupled_weight_decay": True},
    }
    dist_cp_load(into, FileSystemReaderWithValidation(str(tmp_path / "x")))
    assert into["a"].tolist() == [1, 1, 1] and into["n"] == {"m": 5}
    assert into["rng"][0]["cuda"].tolist() == [0] * 816
    with pytest.raises(RuntimeError, match="Missing key"):
        dist_cp_load({"b": torch.zeros(3)}, FileSystemReaderWithValidation(str(tmp_path / "x")))
