"""A whole training run in one call."""

from typing import Any

import torch

from composer.trainer.trainer import Trainer


def train(
    model: Any, loader: Any, algorithms: Any, *callbacks: Any, duration: str = "1ep", **kwargs: Any
) -> Trainer:
    """Trains with plain SGD and closes the trainer, which is returned."""
    trainer = Trainer(
        model=model,
        optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
        algorithms=algorithms,
        train_dataloader=loader,
        max_duration=duration,
        callbacks=callbacks,
        seed=3,
        progress_bar=False,
        **kwargs,
    )
    try:
        trainer.fit()
    finally:
        trainer.close()
    return trainer
