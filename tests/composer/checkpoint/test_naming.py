"""What a checkpoint is called."""

from pathlib import Path

import pytest

from composer.checkpoint.naming import (
    PartialFilePath,
    format_name_of_rank_zero,
    get_save_filename,
)
from tests.composer.checkpoint.runs import make_state


def test_names_of_a_save() -> None:
    state = make_state(steps=2, run_name="mine")
    assert get_save_filename(state) == "ep0-ba2-rank0"
    assert get_save_filename(state, "{run_name}/{sample}.pt") == "mine/6.pt"


@pytest.mark.parametrize("folder", ["{run_name}/x", Path("{run_name}/x")])
def test_partial_file_path(folder: str | Path) -> None:
    state = make_state(steps=1, run_name="mine")
    path = PartialFilePath("/ep{epoch}-ba{batch}-{other}.pt", folder)
    assert path.format(state) == "mine/x/ep0-ba1-{other}.pt"
    assert (
        path.format(state, keep_placeholders=True) == "{run_name}/x/ep{epoch}-ba{batch}-{other}.pt"
    )
    assert PartialFilePath("/a/{rank}.pt").format(state) == "/a/0.pt"


def test_names_as_rank_zero_sees_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    name = "{run_name}-{rank}{local_rank}{node_rank}-ba{batch}"
    assert format_name_of_rank_zero(name, "mine") == "mine-000-ba{batch}"
