"""Curriculum: what is trained on when, resuming in every phase, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from composer.checkpoint.monolithic import safe_torch_load
from composer.optim.scheduler import LinearScheduler
from llmfoundry.command_utils.train import train_from_yaml
from streaming.base.format.mds.writer import MDSWriter
from tests.launch import run_ranks
from tests.llmfoundry.callbacks.data_runs import Seen, loader_config, train, write_rows
from tests.llmfoundry.command_utils.test_train import RECIPE, overrides
from tests.llmfoundry.command_utils.test_train import write_rows as write_recipe_rows
from tests.llmfoundry.tiny_tokenizer import train_tokenizer


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_rows(folder / "a", 0, 16)
    write_rows(folder / "b", 100, 12)
    write_rows(folder / "c", 200, 8)
    return folder


def phases(data: Path, unit: str = "tok", lengths: tuple[int, int, int] = (96, 160, 64)) -> Any:
    mixed = {"a": {"local": str(data / "a")}, "c": {"local": str(data / "c"), "repeat": 2}}
    schedule = [
        {"duration": f"{lengths[1]}{unit}", "dataset": {"local": str(data / "b")}},
        {"duration": f"{lengths[2]}{unit}", "dataset": {"streams": mixed}},
    ]
    return {"duration": f"{lengths[0]}{unit}", "schedule": schedule}, f"{sum(lengths)}{unit}"


def curriculum(data: Path, workers: int = 0, unit: str = "tok", **trainer: Any) -> Any:
    lengths = {"tok": (96, 160, 64), "ep": (1, 2, 1)}[unit]
    settings, end = phases(data, unit, lengths)
    loader = loader_config(workers, local=str(data / "a"))
    return train("curriculum_learning", settings, loader, end, **trainer)


def test_each_phase_has_its_data_for_its_time(data: Path) -> None:
    """96 + 160 + 64 tokens in batches of 4 rows of 8: 3 + 5 + 2 batches; b has 3 an epoch."""
    rows, _ = curriculum(data)
    assert len(rows) == 10
    assert all(row < 100 for batch in rows[:3] for row in batch)
    assert sorted(sum(rows[3:6], [])) == list(range(100, 112))
    assert len(set(sum(rows[6:8], []))) == 8 and min(sum(rows[6:8], [])) >= 100
    assert {row // 100 for batch in rows[8:] for row in batch} == {0, 2}


@pytest.mark.parametrize(("unit", "interval"), [("tok", "1ba"), ("ep", "1ba"), ("ep", "1ep")])
def test_resuming_anywhere_is_exact(unit: str, interval: str, data: Path, tmp_path: Path) -> None:
    """After each batch of each phase, its last one included, and with other workers."""
    folder = str(tmp_path)
    rows, weights = curriculum(
        data, unit=unit, save_folder=folder, save_interval=interval, save_filename="{batch}.pt"
    )
    saved = sorted(int(path.stem) for path in tmp_path.glob("*.pt") if path.stem.isdigit())
    assert len(saved) == (len(rows) if interval == "1ba" else 4)
    for batch in saved[:-1]:
        workers = 2 if batch in (2, 5) else 0
        more, found = curriculum(data, workers, unit, load_path=f"{folder}/{batch}.pt")
        assert more == rows[batch:], batch
        assert torch.equal(found, weights), batch
    smaller, _ = curriculum(data, unit=unit, batch_size=2, load_path=f"{folder}/{saved[1]}.pt")
    assert sum(smaller, []) == sum(rows[saved[1] :], [])


def test_a_schedule_in_epochs_knows_that_they_differ_in_length(data: Path, tmp_path: Path) -> None:
    """Of 4, 3, 3 and 8 batches: the rate falls by a quarter in each."""
    save: dict[str, Any] = {
        "save_folder": str(tmp_path),
        "save_interval": "1ba",
        "save_filename": "{batch}.pt",
    }
    decay = LinearScheduler(alpha_f=0.0, t_max="1dur")
    whole = Seen()
    curriculum(data, unit="ep", seen=whole, schedulers=decay, **save)
    sizes = enumerate((4, 3, 3, 8))
    shares = [1 - (epoch + n / size) / 4 for epoch, size in sizes for n in range(size)]
    # The rate of a batch is set behind the one before, from where that began.
    assert whole.rates == pytest.approx([0.01 * each for each in [1, *shares[:-1]]])
    for batch in (4, 5, 10, 12):
        resumed = Seen()
        load = f"{tmp_path}/{batch}.pt"
        curriculum(data, unit="ep", seen=resumed, schedulers=decay, load_path=load)
        assert resumed.rates == whole.rates[batch:]


def on_ranks(data: Path, folder: str) -> Any:
    save: dict[str, Any] = {"save_interval": "1ba", "save_filename": "{batch}.pt"}
    rows, _ = curriculum(data, batch_size=2, save_folder=folder, **save)
    return rows, curriculum(data, batch_size=2, load_path=f"{folder}/5.pt")[0]


def test_two_ranks_see_what_one_sees(data: Path, tmp_path: Path) -> None:
    rows, _ = curriculum(data)
    (one, resumed_one), (two, resumed_two) = run_ranks(on_ranks, 2, data, str(tmp_path))
    assert [sorted(a + b) for a, b in zip(one, two, strict=True)] == list(map(sorted, rows))
    assert (resumed_one, resumed_two) == (one[5:], two[5:])


def changed(data: Path, number: int, **changes: Any) -> Any:
    settings, end = phases(data)
    settings["schedule"][number] |= changes
    return settings, end


def test_only_phases_to_come_may_change(data: Path, tmp_path: Path) -> None:
    """In phase 1, after four batches."""
    loader = loader_config(local=str(data / "a"))
    save: dict[str, Any] = {
        "save_folder": str(tmp_path),
        "save_interval": "1ba",
        "save_filename": "{batch}.pt",
    }
    curriculum(data, **save)
    state = safe_torch_load(str(tmp_path / "4.pt"))["state"]["callbacks"]["CurriculumLearning"][
        "state"
    ]
    assert state["schedule_index"] == 1 and len(state["schedule"]) == 3
    load = str(tmp_path / "4.pt")

    def resumed(settings: Any, end: str, loader: Any = loader) -> list[list[int]]:
        return train("curriculum_learning", settings, loader, end, load_path=load)[0]

    other = {"dataset": {"local": str(data / "c")}}
    settings, end = changed(data, 1, **other)
    rows = resumed(settings, end)
    assert all(row >= 200 for batch in rows[-2:] for row in batch)
    with pytest.raises(ValueError, match=r"Phase 1 .* has begun, and is another now: \['local'\]"):
        resumed(*changed(data, 0, **other))
    settings, _ = phases(data)
    settings["duration"] = "64tok"
    with pytest.raises(ValueError, match=r"Phase 0 .*\['duration'\]"):
        resumed(settings, "288tok")
    with pytest.raises(ValueError, match=r"Phase 0 .*\['shuffle_seed'\]"):
        settings, end = phases(data)
        resumed(settings, end, loader_config(local=str(data / "a"), shuffle_seed=1))
    longer, _ = phases(data)
    longer["schedule"].append({"duration": "32tok", **other})
    load = str(tmp_path / "10.pt")
    rows = resumed(longer, "352tok")
    assert len(rows) == 1 and min(rows[0]) >= 200


def test_a_source_replaces_all_of_the_one_before(tmp_path: Path) -> None:
    """Shards, a file whose columns have other names, and a file: each is followed by the others."""
    row = {"prompt": "b", "response": " a"}
    with MDSWriter(columns=dict.fromkeys(row, "str"), out=str(tmp_path / "train")) as out:
        for _ in range(4):
            out.write(row)
    (tmp_path / "plain.jsonl").write_text(4 * (json.dumps(row | {"prompt": "c"}) + "\n"))
    (tmp_path / "named.jsonl").write_text(4 * (json.dumps({"q": "d", "r": " a"}) + "\n"))
    sources: list[dict[str, Any]] = [
        {"local": str(tmp_path)},
        {"hf_name": str(tmp_path / "plain.jsonl")},
        {
            "hf_name": "json",
            "hf_kwargs": {"data_files": {"train": str(tmp_path / "named.jsonl")}},
            "preprocessing_fn": {"prompt": "q", "response": "r"},
            "safe_load": True,
        },
    ]
    for first in range(3):
        order = [first, (first + 1) % 3, (first + 2) % 3]
        phases = [{"duration": "1ep", "dataset": sources[each]} for each in order[1:]]
        loader = loader_config(
            split="train", decoder_only_format=True, shuffle=False, **sources[first]
        )
        loader["name"] = "finetuning"
        settings = {"duration": "1ep", "schedule": phases}
        rows, _ = train("curriculum_learning", settings, loader, "3ep")
        tokens = [train_tokenizer()("bcd"[each])["input_ids"] for each in order]
        assert rows == [4 * token for token in tokens]


def test_what_is_refused(data: Path) -> None:
    loader = loader_config(local=str(data / "a"))

    def start(settings: Any, end: str = "320tok", loader: Any = loader) -> Any:
        return train("curriculum_learning", settings, loader, end)

    with pytest.raises(ValueError, match="schedule of curriculum_learning is empty"):
        start({"duration": "1ep", "schedule": []})
    cases = {
        "Phase 1 .* has no duration": {"duration": None},
        "Phase 1 .* has no dataset": {"dataset": None},
        "Phase 1 .* lasts '-1tok'": {"duration": "-1tok"},
        "Phase 1 .* lasts '3ba'": {"duration": "3ba"},
        r"Phase 1 .* has \['lenght'\]": {"lenght": 1},
        "another unit than max_duration": {"duration": "1ep"},
        "sum up to 170, and max_duration is": {"duration": "10tok"},
        "Local directory .*|file .*index.json does not exist": {"dataset": {"local": "/nowhere"}},
    }
    for text, change in cases.items():
        with pytest.raises((ValueError, RuntimeError), match=text):
            start(*changed(data, 0, **change))
    with pytest.raises(TypeError, match="suffle: Did you mean 'shuffle'"):
        start(*changed(data, 1, dataset={"suffle": True}))


def test_from_a_recipe(tmp_path: Path) -> None:
    write_recipe_rows(tmp_path / "tokens" / "train", 64, 0)
    write_recipe_rows(tmp_path / "tokens" / "val", 10, 1)
    train_tokenizer().save_pretrained(tmp_path / "tokenizer")
    phase = "{duration: 384tok, dataset: {split: val}}"
    settings = {
        "callbacks": f"{{curriculum_learning: {{duration: 256tok, schedule: [{phase}]}}}}",
        "max_duration": "640tok",
        "scheduler.t_warmup": "128tok",
        "eval_interval": 0,
        "save_interval": "1ba",
        "save_num_checkpoints_to_keep": -1,
        "save_filename": "ba{batch}.pt",
    }

    def trained(name: str, **more: Any) -> torch.Tensor:
        arguments = overrides(tmp_path, tmp_path, run_name=name, **settings, **more)
        trainer = train_from_yaml(str(RECIPE), arguments)
        weights = torch.cat([each.detach().flatten() for each in trainer.state.model.parameters()])
        assert int(trainer.state.timestamp.batch) == 5
        trainer.close()
        return weights

    whole = trained("whole")
    for batch in (2, 4):  # The end of the first phase, and within the second.
        assert torch.equal(
            trained(f"from{batch}", load_path=tmp_path / "whole" / f"ba{batch}.pt"), whole
        )
    settings["callbacks"] = settings["callbacks"].replace("split:", "spilt:")
    with pytest.raises(TypeError, match="spilt: Did you mean 'split'"):
        trained("wrong")
