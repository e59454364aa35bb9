"""What programs and tests of Composer read from a Trainer and its module, or replace there."""

from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from composer import Trainer
from composer.core import TimeUnit
from composer.distributed import DDPSyncStrategy
from composer.loggers import RemoteUploaderDownloader
from composer.trainer import trainer as module
from tests.composer.trainer.models import Classifier, rows_loader


def make(**kwargs: Any) -> Trainer:
    model = Classifier()
    settings: dict[str, Any] = {
        "model": model,
        "optimizers": torch.optim.SGD(model.parameters(), lr=0.1),
        "train_dataloader": rows_loader(4),
        "max_duration": "1ep",
        "progress_bar": False,
    }
    return Trainer(**(settings | kwargs))


def test_attributes_of_a_trainer() -> None:
    trainer = make()
    assert trainer.first_train_batch_complete is False
    trainer.fit()
    assert trainer.first_train_batch_complete is True
    assert trainer.cumulative_alloc_retries == trainer.num_consecutive_thrashes == 0
    assert trainer.num_consecutive_non_OOM_batches == 0
    assert trainer.saved_checkpoints == [] and trainer._checkpoint_saver is None
    assert trainer._scheduler_step_frequency is TimeUnit.BATCH
    assert trainer._ddp_sync_strategy is DDPSyncStrategy.SINGLE_AUTO_SYNC
    assert not trainer._find_unused_parameters and not trainer._backwards_create_graph
    assert trainer._original_model is trainer.state.model
    assert trainer._rng_state is None
    trainer.close()


def test_counts_over_ranks_are_whole() -> None:
    trainer = make()
    count = trainer._accumulate_time_across_ranks
    assert count(3, 4.0, timedelta(seconds=0.5)) == (3, 4, timedelta(seconds=0.5))
    with pytest.raises(ValueError, match="whole"):
        count(0.5, 4, timedelta())
    trainer.close()


def test_the_micro_batch_is_halved_down_to_one() -> None:
    trainer = make(device_train_microbatch_size=3)
    with pytest.warns(RuntimeWarning, match="3 samples a micro-batch"):
        module._adjust_device_train_microbatch_size(trainer.state)
    assert trainer.state.device_train_microbatch_size == 1
    with pytest.raises(RuntimeError, match="single sample"):
        module._adjust_device_train_microbatch_size(trainer.state)
    trainer.close()
    assert module._is_cuda_oom(RuntimeError(module.OOM_FOUND_ON_OTHER_RANK))
    assert not module._is_cuda_oom(RuntimeError("shapes differ"))


def test_autoresume_wins_over_every_load_argument(tmp_path: Path) -> None:
    trainer = make(save_folder=str(tmp_path), run_name="run")
    trainer.fit()
    trainer.close()
    with patch("composer.trainer.trainer.checkpoint.load_checkpoint", return_value=None) as load:
        make(
            save_folder=str(tmp_path),
            run_name="run",
            autoresume=True,
            load_path="elsewhere.pt",
            load_weights_only=True,
            load_ignore_keys=["*"],
            load_exclude_algorithms=["BlurPool"],
        ).close()
    given = load.call_args.kwargs
    assert str(tmp_path) in given["path"]
    assert not given["load_weights_only"] and given["strict_model_weights"]
    assert given["object_store"] is given["ignore_keys"] is given["exclude_algorithms"] is None


def test_uploads_that_a_latest_file_could_outrun_are_refused(tmp_path: Path) -> None:
    def uploader(**kwargs: Any) -> RemoteUploaderDownloader:
        return RemoteUploaderDownloader(f"file://{tmp_path}/store", **kwargs)

    settings = {"save_folder": str(tmp_path / "run"), "run_name": "run"}
    with pytest.raises(ValueError, match="Multiple concurrent uploads is not currently supported"):
        make(autoresume=True, loggers=uploader(num_concurrent_uploads=2), **settings)
    renamed = {"file_path_format_string": "older/{remote_file_name}"}
    with pytest.raises(
        ValueError,
        match="Specifying a `file_path_format_string` to a `RemoteUploaderDownloader` is not",
    ):
        make(loggers=uploader(**renamed), **settings)
    make(loggers=uploader(**renamed), save_latest_filename=None, **settings).close()
