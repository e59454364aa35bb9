"""Names with placeholders, there and back."""

import datetime
import os
from pathlib import Path

import pytest

from composer.core.time import Timestamp
from composer.utils.file_names import (
    counters_in_name,
    ensure_folder_has_no_conflicting_files,
    ensure_folder_is_empty,
    files_of_template,
    format_name_with_dist,
    format_name_with_dist_and_time,
    is_tar,
    step_of_name,
)


def test_placeholders_are_filled_and_strangers_stay() -> None:
    name = "{run_name}/{rank}{local_rank}{node_rank}-{world_size}{local_world_size}-{x}-{other}"
    assert format_name_with_dist(name, "run", x=7) == "run/000-11-7-{other}"


def test_counters_are_filled() -> None:
    timestamp = Timestamp(
        epoch=1,
        batch=20,
        sample=40,
        token=80,
        batch_in_epoch=3,
        sample_in_epoch=6,
        token_in_epoch=12,
        total_wct=datetime.timedelta(seconds=90),
        epoch_wct=datetime.timedelta(seconds=1.5),
        batch_wct=datetime.timedelta(seconds=1),
    )
    name = (
        "{epoch}-{batch}-{sample}-{token}-{batch_in_epoch}-{sample_in_epoch}-{token_in_epoch}"
        "-{total_wct}-{epoch_wct}-{batch_wct}-{run_name}"
    )
    filled = format_name_with_dist_and_time(name, "run", timestamp)
    assert filled == "1-20-40-80-3-6-12-90.0-1.5-1.0-run"


@pytest.mark.parametrize(
    ("name", "template", "counters"),
    [
        ("ep1-ba20-rank0.pt", "ep{epoch}-ba{batch}-rank{rank}.pt", {"epoch": 1, "batch": 20}),
        ("ep1-ba20-rank0xpt", "ep{epoch}-ba{batch}-rank{rank}.pt", None),
        (".ep1-ba20-rank0.pt.partial", "ep{epoch}-ba{batch}-rank{rank}.pt", None),
        ("ep01-ba00020", "ep{epoch:02d}-ba{batch:05d}", {"epoch": 1, "batch": 20}),
        ("a/ba3/3.pt", "{run_name}/ba{batch}/{batch}.pt", {"batch": 3}),
        ("a/ba3/4.pt", "{run_name}/ba{batch}/{batch}.pt", None),
        ("t12.5.pt", "t{total_wct}.pt", {"total_wct": 12.5}),
        ("model.pt", "model.pt", {}),
    ],
)
def test_counters_are_read_back(
    name: str, template: str, counters: dict[str, float] | None
) -> None:
    assert counters_in_name(name, template) == counters


def test_order_is_by_step() -> None:
    template = "ep{epoch}-ba{batch}.pt"
    names = ["ep1-ba100.pt", "ep0-ba9.pt", "ep1-ba99.pt", "ep0-ba10.pt"]
    assert sorted(names, key=lambda name: step_of_name(name, template) or ()) == [
        "ep0-ba9.pt",
        "ep0-ba10.pt",
        "ep1-ba99.pt",
        "ep1-ba100.pt",
    ]
    within = "b{batch_in_epoch}-e{epoch}"
    assert (step_of_name("b1-e2", within) or ()) > (step_of_name("b9-e1", within) or ())
    assert step_of_name("stranger", template) is None


def test_files_of_a_template_with_folders(tmp_path: Path) -> None:
    for name in ("ep1/ba3.pt", "ep2/ba4.pt", "ep2/other.pt", "ba5.pt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = dict(files_of_template(tmp_path, "/ep{epoch}/ba{batch}.pt"))
    assert found == {
        "ep1/ba3.pt": {"epoch": 1, "batch": 3},
        "ep2/ba4.pt": {"epoch": 2, "batch": 4},
    }


@pytest.mark.parametrize(
    ("name", "tar"),
    [("x.tar", True), ("x.tar.gz", True), ("x.tgz", True), ("x.pt", False), ("tar/x.pt", False)],
)
def test_is_tar(name: str, tar: bool) -> None:
    assert is_tar(name) is tar


def test_empty_means_nothing_visible(tmp_path: Path) -> None:
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "x").touch()
    (tmp_path / ".x").touch()
    ensure_folder_is_empty(tmp_path)
    ensure_folder_is_empty(tmp_path / "nowhere")
    (tmp_path / "x").touch()
    with pytest.raises(FileExistsError, match="holds 'x'"):
        ensure_folder_is_empty(tmp_path)


@pytest.mark.parametrize(
    ("template", "name", "conflict"),
    [
        ("ep{epoch}-ba{batch}-rank{rank}.pt", "ep3-ba21-rank0.pt", True),
        ("ep{epoch}-ba{batch}-rank{rank}.pt", "ep2-ba20-rank0.pt", False),
        ("ep{epoch}-ba{batch}-rank{rank}.pt", "ep9-other.pt", False),
        ("ba{batch}.pt", "ba700.pt", True),
        ("ba{batch}.pt", ".ba700.pt.partial", False),
        ("ep{epoch}-b{batch_in_epoch}", "ep1-b9", False),
        ("ep{epoch}-b{batch_in_epoch}", "ep2-b9", True),
        ("ep{epoch}-b{batch_in_epoch}", "ep2-b5", False),
        ("{total_wct}.pt", "11.5.pt", True),
        ("model.pt", "model.pt", False),
    ],
)
def test_a_file_of_a_longer_run_is_a_conflict(
    tmp_path: Path, template: str, name: str, conflict: bool
) -> None:
    timestamp = Timestamp(
        epoch=2, batch=20, batch_in_epoch=5, total_wct=datetime.timedelta(seconds=11)
    )
    (tmp_path / name).touch()
    if not conflict:
        ensure_folder_has_no_conflicting_files(tmp_path, template, timestamp)
        return
    with pytest.raises(FileExistsError, match=f"{os.path.basename(name)} is later than this run"):
        ensure_folder_has_no_conflicting_files(tmp_path, template, timestamp)
