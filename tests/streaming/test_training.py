"""A run of the trainer over a streaming dataset, stopped and resumed."""

import json
import os
import signal
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.multiprocessing.spawn import ProcessExitedException
from torch.utils.data import DataLoader
from torchmetrics import MeanMetric

from composer.core.callback import Callback
from composer.core.logger import Logger
from composer.core.state import State
from composer.models.base import ComposerModel
from composer.trainer.trainer import Trainer
from composer.utils import dist
from streaming import Stream, StreamingDataLoader, StreamingDataset
from streaming.base.store import open_store
from tests.composer.utils.object_store.faults import Proxy
from tests.launch import run_ranks
from tests.streaming.shards import ids_of, write_ids


class Recorder(ComposerModel):
    """Remembers the ids of every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(1, 1)
        self.seen: list[list[int]] = []

    def forward(self, batch: Any) -> torch.Tensor:
        self.seen.append(ids_of(batch))
        return self.linear(batch["id"].float()[:, None] / 50)

    def loss(self, outputs: Any, batch: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        return outputs.square().mean()


def run(
    folder: str,
    duration: str,
    subset: int,
    remote: str | None = None,
    data: dict[str, Any] | None = None,
    **kwargs: Any,
) -> list[list[int]]:
    settings: dict[str, Any] = {"shuffle": True, "batch_size": 8} | (data or {})
    dataset = StreamingDataset(local=folder, remote=remote, **settings)
    model = Recorder()
    trainer = Trainer(
        model=model,
        train_dataloader=DataLoader(dataset, batch_size=8, num_workers=0 if remote is None else 2),
        optimizers=torch.optim.SGD(model.parameters(), 0.01),
        max_duration=duration,
        train_subset_num_batches=subset,
        device="cpu",
        progress_bar=False,
        seed=1,
        **kwargs,
    )
    trainer.fit()
    trainer.close()
    return model.seen


class Scored(Recorder):
    """Scores each id with itself, so that the mean says which were counted."""

    def get_metrics(self, is_train: bool = False) -> dict[str, Any]:
        return {} if is_train else {"Mean": MeanMetric()}

    def eval_forward(self, batch: Any, outputs: Any = None) -> torch.Tensor:
        return batch["id"].float()

    def update_metric(self, batch: Any, outputs: Any, metric: Any) -> None:
        metric.update(outputs)


def scores(folders: list[str]) -> list[tuple[float, int]]:
    trainer = Trainer(
        model=Scored(), optimizers=torch.optim.SGD(Recorder().parameters()), progress_bar=False
    )
    found = []
    for folder in folders:
        dataset = StreamingDataset(local=folder, batch_size=2)
        trainer.eval(StreamingDataLoader(dataset, batch_size=2))
        samples = int(trainer.state.eval_timestamp.sample)
        found.append((float(trainer.state.eval_metric_values["Mean"]), samples))
    trainer.close()
    return found


@pytest.mark.filterwarnings("ignore:.*are overwritten:UserWarning")
def test_b09_samples_that_are_repeated_for_a_rank_count_once(tmp_path: Path) -> None:
    sizes = (1, 3, 5, 6, 8)
    folders = [write_ids(tmp_path / str(size), size) for size in sizes]
    for found in run_ranks(scores, 2, folders):
        assert found == [((size - 1) / 2, size) for size in sizes]


@pytest.mark.parametrize("subset", [-1, 4])
@pytest.mark.parametrize("interval", ["1ep", "10ba"])
def test_resumed_runs_see_what_unbroken_ones_see(
    subset: int, interval: str, tmp_path: Path
) -> None:
    folder, saves = write_ids(tmp_path, 50), str(tmp_path / "saves")
    whole = run(folder, "3ep", subset)
    head = run(folder, interval, subset, save_folder=saves, save_interval=interval)
    tail = run(folder, "3ep", subset, load_path=f"{saves}/latest-rank0.pt")
    assert head + tail == whole


def test_a_changed_mixture_goes_on_only_if_asked_and_is_kept_in_checkpoints(
    tmp_path: Path,
) -> None:
    folder, saves = write_ids(tmp_path, 50), str(tmp_path / "saves")
    saving: dict[str, Any] = {"save_folder": saves, "save_interval": "1ba"}
    run(folder, "3ba", -1, **saving)
    latest = {"load_path": f"{saves}/latest-rank0.pt", "data": {"epoch_size": 40}}
    with pytest.raises(ValueError, match="stream 0: 50/50 -> 40/50"):
        run(folder, "2ep", -1, **latest)
    latest["data"] |= {"on_mixture_change": "record"}
    whole = run(folder, "2ep", -1, data={"epoch_size": 40})
    got = run(folder, "5ba", -1, **latest, **saving)
    del latest["data"]["on_mixture_change"]  # It has changed already.
    got += run(folder, "2ep", -1, **latest, **saving)
    assert got == whole[3:]
    kept = torch.load(f"{saves}/latest-rank0.pt", weights_only=False)["state"]["dataset_state"]
    assert [change[:2] for change in kept["train"]["changes"]] == [[0, 24]]


def test_data_and_checkpoints_in_a_store(s3: Proxy, tmp_path: Path) -> None:
    local, saves = write_ids(tmp_path, 50), "s3://bucket/saves"
    store = open_store("s3://bucket/data")
    for path in Path(local).iterdir():
        store.put(str(path), path.name)
    whole = run(local, "2ep", -1)
    data, cache = "s3://bucket/data", str(tmp_path / "cache")
    head = run(cache, "10ba", -1, data, save_folder=saves, save_interval="10ba")
    tail = run(cache, "2ep", -1, data, load_path=f"{saves}/latest-rank0.pt")
    assert head + tail == whole
    asked = [
        path for method, path, _headers in s3.seen if method == "GET" and "/data/shard" in path
    ]
    assert len(asked) == len(set(asked)) == len(list(Path(cache).glob("shard*")))


class Killed(Callback):
    """Notes the ids of each batch with the samples before it, and dies in the middle of one."""

    def __init__(self, file: str, at_batch: int) -> None:
        self.file, self.at_batch = Path(f"{file}-{dist.get_global_rank()}"), at_batch

    def before_forward(self, state: State, logger: Logger) -> None:
        with self.file.open("a") as lines:
            note = int(state.timestamp.sample_in_epoch), int(state.timestamp.epoch)
            lines.write(json.dumps([*note, ids_of(state.batch)]) + "\n")
        if int(state.timestamp.batch) == self.at_batch:
            os.kill(os.getpid(), signal.SIGKILL)


def _train_until_killed(
    folders: list[str], saves: str, size: int, workers: int, file: str, at_batch: int
) -> None:
    warnings.filterwarnings("ignore", message="The checkpoint has the random states of")
    size //= dist.get_world_size()
    streams = [Stream(local=folders[0], repeat=0.7), Stream(local=folders[1], repeat=1.6)]
    dataset = StreamingDataset(streams=streams, shuffle=True, batch_size=size)
    trainer = Trainer(
        model=(model := Recorder()),
        train_dataloader=StreamingDataLoader(dataset, batch_size=size, num_workers=workers),
        optimizers=torch.optim.SGD(model.parameters(), 0.01),
        max_duration="2ep",
        callbacks=Killed(file, at_batch),
        device="cpu",
        progress_bar=False,
        run_name="run",
        save_folder=saves,
        save_interval="2ba",
        autoresume=True,
    )
    trainer.fit()
    trainer.close()


def test_killed_runs_resume_themselves_on_other_ranks_and_batches(tmp_path: Path) -> None:
    folders = [write_ids(tmp_path, 60), write_ids(tmp_path, 30, first=1000)]
    seen: dict[tuple[int, int], list[int]] = {}
    never, attempts = 10**6, []
    for ranks, size, workers, at_batch in ((2, 16, 2, 3), (1, 8, 0, 9), (2, 16, 0, never)):
        file = str(tmp_path / f"{len(attempts)}")
        args = (folders, str(tmp_path / "saves"), size, workers, file, at_batch)
        if at_batch == never:
            run_ranks(_train_until_killed, ranks, *args)
        else:
            with pytest.raises(ProcessExitedException, match="SIGKILL"):
                run_ranks(_train_until_killed, ranks, *args)
        parts = [Path(f"{file}-{rank}").read_text().splitlines() for rank in range(ranks)]
        attempts.append(len(parts[0]))
        for lines in zip(*parts, strict=True):
            notes = [json.loads(line) for line in lines]
            seen[notes[0][1], notes[0][0]] = [number for note in notes for number in note[2]]
    streams = [Stream(local=folders[0], repeat=0.7), Stream(local=folders[1], repeat=1.6)]
    whole = StreamingDataset(streams=streams, shuffle=True, batch_size=16)
    expected = [ids_of(batch) for _ in range(2) for batch in DataLoader(whole, batch_size=16)]
    got: dict[tuple[int, int], int] = {}
    for (epoch, sample), ids in seen.items():
        got |= {(epoch, sample + place): number for place, number in enumerate(ids)}
    assert [got[place] for place in sorted(got)] == [n for batch in expected for n in batch]
    assert attempts[0] == 4 and attempts[1] == 8  # From the checkpoint of batch 2 to batch 9.
