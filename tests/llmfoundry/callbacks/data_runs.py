"""Runs over small token shards, for the tests of callbacks that choose the data."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from composer.core.callback import Callback
from composer.core.logger import Logger
from composer.core.state import State
from composer.trainer.trainer import Trainer
from llmfoundry.builders.components import build_callback
from llmfoundry.builders.dataloaders import build_dataloader
from streaming.base.format.mds.writer import MDSWriter
from tests.llmfoundry.callbacks.small_runs import mpt
from tests.llmfoundry.tiny_tokenizer import train_tokenizer

LENGTH = 8


def write_rows(folder: Path, first: int, rows: int) -> str:
    """Writes rows whose first token tells which they are, in several shards."""
    with MDSWriter(columns={"tokens": "ndarray:int32"}, out=str(folder), size_limit=200) as out:
        for row in range(first, first + rows):
            out.write({"tokens": np.arange(row, row + LENGTH, dtype=np.int32)})
    return str(folder)


def loader_config(workers: int = 0, **dataset: Any) -> dict[str, Any]:
    """The loader's section of a recipe."""
    return {
        "name": "text",
        "dataset": {"max_seq_len": LENGTH, "shuffle": True, **dataset},
        "drop_last": True,
        "num_workers": workers,
    }


class Seen(Callback):
    """Keeps the rows of each batch, and its learning rate."""

    def __init__(self) -> None:
        self.rows: list[list[int]] = []
        self.rates: list[float] = []

    def batch_start(self, state: State, logger: Logger) -> None:
        """Keeps them."""
        self.rows.append(state.batch["input_ids"][:, 0].tolist())
        self.rates.append(state.optimizers[0].param_groups[0]["lr"])


def train(
    callback: str, settings: dict[str, Any], loader: dict[str, Any], end: str, **trainer: Any
) -> tuple[list[list[int]], torch.Tensor]:
    """Trains with dropout; returns the rows of this rank's batches, and the weights."""
    batch_size = trainer.pop("batch_size", 4)
    config = {"train_loader": loader, "device_train_batch_size": batch_size}
    model, seen = mpt(resid_pdrop=0.1), trainer.pop("seen", None) or Seen()
    run = Trainer(
        model=model,
        train_dataloader=build_dataloader(loader, train_tokenizer(), batch_size),
        optimizers=torch.optim.AdamW(model.parameters(), lr=1e-2),
        max_duration=end,
        callbacks=[build_callback(callback, settings, config), seen],
        run_name="run",
        seed=4,
        progress_bar=False,
        **trainer,
    )
    run.fit()
    weights = torch.cat([each.detach().flatten() for each in run.state.model.parameters()])
    run.close()
    return seen.rows, weights
