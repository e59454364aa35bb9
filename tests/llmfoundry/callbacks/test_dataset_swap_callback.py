"""Swapping the data set at a resumption: what is trained on then, and after a second one."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.llmfoundry.callbacks.data_runs import loader_config, train, write_rows

pytestmark = pytest.mark.filterwarnings("ignore::llmfoundry.utils.warnings.ExperimentalWarning")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_rows(folder / "a", 0, 16)
    write_rows(folder / "b", 100, 16)
    return folder


def swapped(data: Path, name: str, index: int, end: str, workers: int = 0, **more: Any) -> Any:
    loader = loader_config(workers, local=str(data / name))
    save = {"save_interval": "1ba", "save_filename": "{batch}.pt", "save_overwrite": True}
    if "save_folder" not in more:
        save = {}
    return train("dataset_swap", {"dataset_index": index}, loader, end, **save, **more)


def test_other_data_begins_where_the_run_is_resumed(data: Path, tmp_path: Path) -> None:
    first, second = str(tmp_path / "1"), str(tmp_path / "2")
    whole, _ = swapped(data, "a", 0, "6ba", save_folder=first)
    same, _ = swapped(data, "a", 0, "6ba", load_path=f"{first}/2.pt", workers=2)
    assert same == whole[2:]
    rows, weights = swapped(data, "b", 1, "8ba", load_path=f"{first}/2.pt", save_folder=second)
    assert len(rows) == 6 and sorted(sum(rows[:4], [])) == list(range(100, 116))
    for batch in (4, 6, 7):
        more, found = swapped(data, "b", 1, "8ba", load_path=f"{second}/{batch}.pt")
        assert more == rows[batch - 2 :] and torch.equal(found, weights)
    # The first epoch of new data is that of a run that begins with it.
    assert rows[:4] == swapped(data, "b", 0, "4ba")[0]


def test_a_swap_between_epochs_skips_none(data: Path, tmp_path: Path) -> None:
    swapped(data, "a", 0, "1ep", save_folder=str(tmp_path))
    rows, _ = swapped(data, "b", 3, "2ep", load_path=f"{tmp_path}/4.pt")
    assert len(rows) == 4


def test_a_run_without_the_callback_goes_on_with_other_data(data: Path, tmp_path: Path) -> None:
    train(
        "speed_monitor",
        {},
        loader_config(local=str(data / "a")),
        "2ba",
        save_folder=str(tmp_path),
        save_filename="{batch}.pt",
    )
    load = f"{tmp_path}/2.pt"
    with pytest.warns(UserWarning, match="DatasetSwap is not in the state_dict"):
        rows, _ = swapped(data, "b", 1, "6ba", load_path=load)
        assert sorted(sum(rows, [])) == list(range(100, 116))
        rows, _ = swapped(data, "a", 0, "4ba", load_path=load)
    assert rows == swapped(data, "a", 0, "4ba")[0][2:]


def test_what_is_refused(data: Path, tmp_path: Path) -> None:
    swapped(data, "b", 1, "2ba", save_folder=str(tmp_path))
    load = f"{tmp_path}/1.pt"
    with pytest.raises(ValueError, match="dataset_index=0 is less than the checkpoint's, 1"):
        swapped(data, "a", 0, "2ba", load_path=load)
    with pytest.raises(ValueError, match=r"\['local'\] of train_loader.dataset changed"):
        swapped(data, "a", 1, "2ba", load_path=load)
    with pytest.raises(ValueError, match="must be 0 or more"):
        swapped(data, "a", -1, "2ba")
