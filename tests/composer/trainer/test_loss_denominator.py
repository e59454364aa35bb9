"""One denominator a step: a batch's update does not depend on how it is cut (B01-B06)."""

import warnings
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from composer import Callback, DataSpec, Trainer
from composer.loggers import InMemoryLogger
from tests.composer.trainer.models import Classifier, TokenLosses, rows_loader, token_batches


class GradientNote(Callback):
    def __init__(self) -> None:
        self.values: list[float] = []

    def after_train_batch(self, state: Any, logger: Any) -> None:
        gradient = state.model.weight.grad
        self.values.append(float("nan") if gradient is None else float(gradient))


def train_on(batch: dict[str, torch.Tensor], microbatch: int, **kwargs: Any) -> tuple[float, float]:
    """The logged loss and the gradient of one step."""
    model, note, memory = TokenLosses(), GradientNote(), InMemoryLogger()
    trainer = Trainer(
        model=model,
        train_dataloader=kwargs.pop("loader", [batch]),
        optimizers=torch.optim.SGD(model.parameters(), lr=0.0),
        max_duration="1ba",
        device_train_microbatch_size=microbatch,
        callbacks=note,
        loggers=memory,
        progress_bar=False,
        **kwargs,
    )
    trainer.fit()
    trainer.close()
    return trainer.state.total_loss_dict["loss/train/total"], note.values[0]


NINE_AND_ONE = token_batches([[1] * 9 + [0], [1] + [0] * 9], [1.0, 2.0])


@pytest.mark.parametrize("microbatch", [1, 2, 3])
def test_b01_loss_is_the_token_mean(microbatch: int) -> None:
    loss, gradient = train_on(NINE_AND_ONE, microbatch)
    assert loss == pytest.approx(1.1, abs=1e-6)
    assert gradient == pytest.approx(1.1, abs=1e-6)


def test_samples_weigh_alike_when_asked() -> None:
    loss, _ = train_on(NINE_AND_ONE, 1, accumulate_train_batch_on_tokens=False)
    assert loss == pytest.approx(1.5, abs=1e-6)


def test_b02_prompt_tokens_carry_no_weight() -> None:
    batch = token_batches([[0] * 8 + [1] * 2, [0] * 2 + [1] * 8], [1.0, 2.0])
    loss, gradient = train_on(batch, 1)
    assert loss == pytest.approx((2 * 1 + 8 * 2) / 10, abs=1e-6)
    assert gradient == pytest.approx(loss, abs=1e-6)


def test_token_counts_of_the_data_spec_are_used() -> None:
    counted = DataSpec(
        [NINE_AND_ONE],
        get_num_tokens_in_batch=lambda batch: {
            "total": batch["labels"].numel(),
            "loss_generating": int((batch["labels"] != -100).sum()),
        },
    )
    loss, _ = train_on(NINE_AND_ONE, 1, loader=counted, accumulate_train_batch_on_tokens=True)
    assert loss == pytest.approx(1.1, abs=1e-6)


def test_weighing_by_tokens_that_nobody_counts_is_refused() -> None:
    model = Classifier()
    trainer = Trainer(
        model=model,
        optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
        train_dataloader=rows_loader(),
        max_duration="1ba",
        accumulate_train_batch_on_tokens=True,
        progress_bar=False,
    )
    with pytest.raises(ValueError, match="no tokens are found in a batch"):
        trainer.fit()
    trainer.close()


def test_b03_microbatch_without_targets_counts_nothing() -> None:
    batch = token_batches([[1, 1, 0], [0, 0, 0]], [1.5, 7.0])
    loss, gradient = train_on(batch, 1)
    assert loss == gradient == pytest.approx(1.5)


def test_b03_batch_without_targets_is_passed_over_and_counted() -> None:
    empty = token_batches([[0, 0], [0, 0]], [1.0, 1.0])
    model, memory = TokenLosses(), InMemoryLogger()
    trainer = Trainer(
        model=model,
        train_dataloader=[empty, token_batches([[1, 1], [1, 0]], [2.0, 2.0])],
        optimizers=torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.5),
        max_duration="2ba",
        device_train_microbatch_size=2,
        loggers=memory,
        progress_bar=False,
    )
    with pytest.warns(UserWarning, match="batch 0 has no target"):
        trainer.fit()
    assert int(trainer.state.timestamp.batch) == 2
    assert memory.data["trainer/batches_without_targets"][-1][1] == 1
    assert len(memory.data["loss/train/total"]) == 1
    assert model.weight.item() == pytest.approx(1 - 0.1 * (2.0 + 0.5))
    trainer.close()


def test_b05_epoch_shorter_than_a_batch() -> None:
    model = Classifier()
    trainer = Trainer(
        model=model,
        train_dataloader=rows_loader(3, batch_size=8),
        optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
        max_duration="2ep",
        device_train_microbatch_size=1,
        progress_bar=False,
    )
    trainer.fit()
    assert int(trainer.state.timestamp.batch) == 2
    assert model.seen == [[0], [1], [2]] * 2
    trainer.close()


@pytest.mark.parametrize("microbatch", [1, 2, 3, 5, 9])
def test_b06_any_microbatch_size_gives_the_same_update(microbatch: int) -> None:
    def weights(size: int) -> torch.Tensor:
        model = Classifier()
        trainer = Trainer(
            model=model,
            train_dataloader=rows_loader(5, batch_size=5),
            optimizers=torch.optim.SGD(model.parameters(), lr=0.5),
            max_duration="3ba",
            device_train_microbatch_size=size,
            progress_bar=False,
        )
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Cannot split")
            trainer.fit()
        trainer.close()
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    torch.testing.assert_close(weights(microbatch), weights(5), atol=1e-6, rtol=0)


def test_uneven_last_batch_weighs_by_samples() -> None:
    model = Classifier()
    loader = DataLoader(rows_loader(5).dataset, batch_size=4)
    trainer = Trainer(
        model=model,
        train_dataloader=loader,
        optimizers=torch.optim.SGD(model.parameters(), lr=0.0),
        max_duration="1ep",
        device_train_microbatch_size=3,
        progress_bar=False,
    )
    trainer.fit()
    assert [len(ids) for ids in model.seen] == [3, 1, 1]
    trainer.close()
