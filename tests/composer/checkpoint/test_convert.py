"""One form of a checkpoint becomes the other and back, without a run."""

from pathlib import Path

import pytest
import torch

from composer.checkpoint.convert import convert_checkpoint, main
from composer.checkpoint.shard_index import is_whole_folder
from composer.checkpoint.whole_run import load_checkpoint, save_checkpoint
from composer.core.logger import Logger
from tests.composer.checkpoint.runs import make_state


def test_there_and_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = make_state(steps=3)
    file = save_checkpoint(state, str(tmp_path / "ba{batch}.pt"))
    assert file is not None
    folder, again = tmp_path / "shards", str(tmp_path / "again.pt.gz")
    main([file, str(folder)])
    assert is_whole_folder(folder)
    assert convert_checkpoint(f"file://{folder}", again) == again
    assert str(folder) in capsys.readouterr().out
    for path in (str(folder), again):
        fresh = make_state(steps=1)
        rng = load_checkpoint(path, fresh, Logger(fresh))
        assert rng is not None and len(rng) == 1
        assert fresh.timestamp == state.timestamp and fresh.callbacks[0].seen == 3
        for one, other in zip(fresh.model.parameters(), state.model.parameters(), strict=True):
            assert torch.equal(one, other)
            for name, moment in state.optimizers[0].state[other].items():
                assert torch.equal(fresh.optimizers[0].state[one][name], moment)
        assert (
            fresh.optimizers[0].param_groups[0]["lr"] == state.optimizers[0].param_groups[0]["lr"]
        )


def test_nothing_is_replaced_unasked(tmp_path: Path) -> None:
    file = save_checkpoint(make_state(steps=1), str(tmp_path / "one.pt"))
    assert file is not None
    (tmp_path / "there").mkdir()
    with pytest.raises(FileExistsError, match="overwrite"):
        convert_checkpoint(file, str(tmp_path / "there"))
    convert_checkpoint(file, str(tmp_path / "there"), overwrite=True)
    assert is_whole_folder(tmp_path / "there")
    assert not list(tmp_path.glob(".*"))
