"""A training program that writes down what each rank sees, and can kill one rank: for tests.

Run by the launcher, never imported. Its arguments: the data, the folder for records and
checkpoints, the duration and, as "rank:batch", who kills itself before which batch, in its first
try only.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from composer import Callback, Trainer
from composer.models import ComposerModel
from composer.utils import dist
from streaming import StreamingDataset

GLOBAL_BATCH = 8


class Line(ComposerModel):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, batch):
        return self.layer(torch.sin(batch["id"].float()[:, None] * torch.arange(1, 5)))

    def loss(self, outputs, batch):
        return (outputs - torch.cos(batch["id"].float()[:, None])).square().mean()


class Recorder(Callback):
    def __init__(self, path: Path, killed: str | None) -> None:
        self.path, self.killed = path, killed

    def before_forward(self, state, logger):
        time.sleep(float(os.environ.get("SECONDS_PER_BATCH", "0")))
        first_try = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
        if first_try and self.killed == f"{dist.get_global_rank()}:{state.timestamp.batch.value}":
            os.kill(os.getpid(), signal.SIGKILL)

    def after_loss(self, state, logger):
        line = {
            "batch": state.timestamp.batch.value,
            "world": dist.get_world_size(),
            "ids": state.batch["id"].tolist(),
            "loss": state.loss.item(),
        }
        with open(self.path, "a") as file:
            file.write(json.dumps(line) + "\n")


def main() -> None:
    data, out, duration, *killed = sys.argv[1:]
    timeout = float(os.environ.get("DIST_TIMEOUT", "60"))
    dist.initialize_dist("cpu", timeout=timeout)
    size = GLOBAL_BATCH // dist.get_world_size()
    dataset = StreamingDataset(local=data, shuffle=True, batch_size=size)
    record = Path(out) / f"record-{os.getpid()}-{dist.get_global_rank()}.jsonl"
    model = Line()
    trainer = Trainer(
        model=model,
        optimizers=torch.optim.Adam(model.parameters(), lr=0.01),
        train_dataloader=DataLoader(dataset, batch_size=size),
        max_duration=duration,
        seed=7,
        run_name="restarted",
        save_folder=f"{out}/checkpoints",
        save_interval=os.environ.get("SAVE_INTERVAL", "2ba"),
        autoresume=True,
        callbacks=[Recorder(record, killed[0] if killed else None)],
        progress_bar=False,
        device="cpu",
        dist_timeout=timeout,
    )
    trainer.fit()
    trainer.close()


if __name__ == "__main__":
    main()
