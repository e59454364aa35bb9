"""A run whose checkpoints are in S3, while the server has its moods."""

import contextlib

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from composer.models import ComposerClassifier
from composer.trainer import Trainer
from composer.utils.file_helpers import list_remote_objects
from composer.utils.object_store.s3_object_store import S3ObjectStore
from tests.composer.utils.object_store.faults import SECRET, Proxy


def trainer(**kwargs) -> Trainer:
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(8, 4), torch.randint(0, 2, (8,)))
    return Trainer(
        model=ComposerClassifier(torch.nn.Linear(4, 2), num_classes=2),
        train_dataloader=DataLoader(data, batch_size=4),
        progress_bar=False,
        **{"max_duration": "2ep", "run_name": "run", **kwargs},
    )


@pytest.mark.filterwarnings("ignore:.*optimizer:UserWarning")
def test_a_run_saves_and_resumes_through_passing_trouble(s3: Proxy) -> None:
    saving = {"save_folder": "s3://bucket/{run_name}/", "save_interval": "1ep"}
    s3.faults += [("PUT", "503"), ("HEAD", "reset"), ("PUT", "500"), ("PUT", "reset")]
    run = trainer(**saving)
    run.fit()
    run.close()
    assert s3.faults == []
    assert list_remote_objects("s3://bucket/") == [
        "run/ep1-ba2-rank0.pt",
        "run/ep2-ba4-rank0.pt",
        "run/latest-rank0.pt.symlink",
    ]
    s3.faults += [("GET", "truncated"), ("HEAD", "503"), ("GET", "503")]
    resumed = trainer(load_path="s3://bucket/run/latest-rank0.pt", max_duration="3ep")
    assert resumed.state.timestamp.epoch == 2
    assert torch.equal(
        resumed.state.model.module.weight.detach(), run.state.model.module.weight.detach()
    )
    resumed.close()
    again = trainer(**saving, autoresume=True)
    assert again.state.timestamp.epoch == 2
    again.close()


@pytest.mark.filterwarnings("ignore:.*optimizer:UserWarning")
def test_a_refusal_ends_the_run_and_keeps_what_was_there(s3: Proxy) -> None:
    run = trainer(save_folder="s3://bucket/run", save_interval="1ep", max_duration="1ep")
    run.fit()
    run.close()
    kept = list_remote_objects("s3://bucket/")
    s3.faults += [("PUT", "403")] * 20
    resumed = trainer(
        save_folder="s3://bucket/run",
        save_interval="1ep",
        load_path="s3://bucket/run/latest-rank0.pt",
    )
    with pytest.raises(PermissionError, match="No access to s3://bucket/run/ep2") as error:
        resumed.fit()
    assert SECRET not in str(error.value)
    with contextlib.suppress(PermissionError):
        resumed.close()
    s3.faults.clear()
    assert list_remote_objects("s3://bucket/") == kept
    assert S3ObjectStore("bucket").get_object_size("run/ep1-ba2-rank0.pt") > 0
