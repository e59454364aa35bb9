"""What saving and loading shards needs in memory beyond what a rank holds anyway."""

import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from composer import Trainer
from composer.checkpoint.content import tensors_of_run
from composer.checkpoint.whole_run import load_checkpoint, save_checkpoint
from composer.models import ComposerModel
from composer.utils import dist
from tests.launch import run_ranks

BAR = 1.3
# The halves of these are above the size from which freed memory goes back to the system at once.
WIDTH = 4096


class Wide(ComposerModel):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            *(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        )

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.layers(batch)

    def loss(self, outputs: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        return outputs.square().mean()

    def fsdp_wrap_fn(self, module: torch.nn.Module) -> bool:
        return isinstance(module, torch.nn.Linear)


class _Peak:
    """The most memory of its own that this process holds while it is entered."""

    def __enter__(self) -> "_Peak":
        self._stop = threading.Event()
        self.before = self.most = self._held()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _held(self) -> int:
        info = psutil.Process().memory_info()
        return info.rss - info.shared

    def _watch(self) -> None:
        while not self._stop.wait(0.001):
            self.most = max(self.most, self._held())

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def _trainer() -> Trainer:
    model, rows = Wide(), torch.randn(4, WIDTH)
    return Trainer(
        model=model,
        optimizers=torch.optim.Adam(model.parameters(), foreach=False),
        train_dataloader=torch.utils.data.DataLoader(
            rows, batch_size=1, sampler=dist.get_sampler(rows)
        ),
        max_duration="1ba",
        parallelism_config={"fsdp2": {"state_dict_type": "sharded"}},
        progress_bar=False,
    )


def _size(trainer: Trainer) -> int:
    return sum(tensor.nbytes for tensor in tensors_of_run(trainer.state))


def _save(path: str) -> tuple[int, int]:
    trainer = _trainer()
    trainer.fit()
    trainer.state.optimizers[0].zero_grad(set_to_none=True)
    with _Peak() as peak:
        save_checkpoint(trainer.state, path)
    return _size(trainer), _size(trainer) + peak.most - peak.before


def _load(path: str) -> tuple[int, int]:
    trainer = _trainer()
    weights = _size(trainer)
    with _Peak() as peak:
        load_checkpoint(path, trainer.state, trainer.logger)
    return _size(trainer), weights + peak.most - peak.before


def _measure(action: Any, path: Path) -> None:
    for own, most in run_ranks(action, 2, str(path)):
        print(f"{action.__name__}: {own / 2**20:.0f} MiB of state, {most / own:.2f} times at most")
        assert own == 3 * 2 * WIDTH * WIDTH * 4 + 4 * 4 and most <= BAR * own


@pytest.mark.slow
def test_a_save_and_a_load_need_little_more_than_the_state(tmp_path: Path) -> None:
    _measure(_save, tmp_path / "ba.pt")
    _measure(_load, tmp_path / "ep0-ba1")
