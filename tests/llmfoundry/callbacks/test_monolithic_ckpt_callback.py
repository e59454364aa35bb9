"""One whole file beside sharded checkpoints."""

from pathlib import Path
from typing import Any

import pytest
import torch

from composer.algorithms import EMA
from composer.utils.object_store.s3_object_store import S3ObjectStore
from llmfoundry.callbacks.monolithic_ckpt_callback import MonolithicCheckpointSaver
from tests.composer.checkpoint.sharded_runs import Diary, names, train
from tests.composer.utils.object_store.faults import Proxy
from tests.launch import run_ranks

SHARDED = {"state_dict_type": "sharded"}


def _save_and_resume(folder: Path) -> tuple[list[float], dict[str, torch.Tensor], list[float]]:
    """Trains six batches of shards; returns the losses and the whole weights at the fourth.

    Those of the average go by "ema." and their names.

    The last losses are those of a run that was resumed from there.
    """
    savers: list[Any] = [
        MonolithicCheckpointSaver(f"{folder}/{{run_name}}", 4, "whole-ba{batch}.pt"),
        MonolithicCheckpointSaver(str(folder), 4, "all-ba{batch}.pt", keep_optimizers=True),
    ]
    whole: dict[str, torch.Tensor] = {}

    class Look(Diary):
        def batch_end(self, state: Any, logger: Any) -> None:
            super().batch_end(state, logger)
            if int(state.timestamp.batch) == 4:
                for name, each in state.model.named_parameters():
                    whole[name] = each.detach().full_tensor().clone()
                for name, each in state.algorithms[0].ema_model.named_parameters_dict.items():
                    whole[f"ema.{name}"] = each.detach().full_tensor().clone()

    look = Look()
    how: dict[str, Any] = {"save_folder": str(folder / "shards"), "callbacks": [look, *savers]}
    train("6ba", SHARDED, algorithms=[EMA(half_life="2ba")], **how)
    how = {"algorithms": [EMA(half_life="2ba")], "load_path": str(folder / "all-ba4.pt")}
    _, diary = train("6ba", SHARDED, **how)
    return look.losses, whole, diary.losses


def test_the_file_is_the_run(tmp_path: Path) -> None:
    losses, weights, resumed = run_ranks(_save_and_resume, 2, tmp_path)[0]
    assert names(tmp_path) == ["all-ba4.pt", "all-ba6.pt", "run", "shards"]
    assert names(tmp_path / "run") == ["whole-ba4.pt", "whole-ba6.pt"]
    content = torch.load(tmp_path / "run" / "whole-ba4.pt", weights_only=False)
    assert "optimizers" not in content["state"] and len(content["rng"]) == 2
    ((name, ema),) = content["state"]["algorithms"]
    assert name == "EMA" and ema["ema_weights_active"], "the average stands in the model"
    averages, held = content["state"]["model"], ema["ema_model"]["named_parameters_dict"]
    assert averages.keys() == held.keys() and len(weights) == 2 * len(held)
    for name in held:
        assert torch.equal(held[name], weights[name])
        assert torch.equal(averages[name], weights[f"ema.{name}"])
    assert resumed == losses[4:], "with moments the run goes on as it was"


def test_when_and_where_it_saves(tmp_path: Path, s3: Proxy) -> None:
    saver = MonolithicCheckpointSaver("s3://bucket/{run_name}", 2)
    train("5ba", None, callbacks=[saver])
    expected = ["run/ep0-ba2.pt", "run/ep0-ba4.pt", "run/ep0-ba5.pt"]
    store = S3ObjectStore("bucket")
    assert store.list_objects("run/") == expected
    store.download_object("run/ep0-ba5.pt", tmp_path / "copy.pt")
    assert torch.load(tmp_path / "copy.pt", weights_only=False)["state"]["model"]
    with pytest.raises(FileExistsError, match="already exists"):
        train("5ba", None, callbacks=[MonolithicCheckpointSaver("s3://bucket/{run_name}", 2)])
    train("5ba", None, callbacks=[MonolithicCheckpointSaver("s3://bucket/run", 9, overwrite=True)])


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one batch"):
        MonolithicCheckpointSaver(str(tmp_path), 0)
    for overwrite in (True, False):
        saver = MonolithicCheckpointSaver(str(tmp_path), 2, "a.pt", overwrite=overwrite)
        if overwrite:
            train("4ba", None, callbacks=[saver])
        else:
            with pytest.raises(FileExistsError, match="overwrite is off"):
                train("2ba", None, callbacks=[saver])
    assert names(tmp_path) == ["a.pt"]
