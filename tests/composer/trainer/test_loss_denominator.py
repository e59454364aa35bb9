"""One denominator a step: a batch's update does not depend on how it is cut (B01-B06, C11)."""

import warnings
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torchmetrics import MeanMetric

from composer import Callback, DataSpec, Trainer
from composer.loggers import InMemoryLogger
from composer.models.base import ComposerModel
from composer.optim import ConstantScheduler
from composer.utils import dist
from tests.composer.trainer.models import (
    Classifier,
    PlainTokenLosses,
    TokenLosses,
    rows_loader,
    token_batches,
)
from tests.launch import run_ranks


class GradientNote(Callback):
    def __init__(self) -> None:
        self.values: list[float] = []

    def after_train_batch(self, state: Any, logger: Any) -> None:
        gradient = state.optimizers[0].param_groups[0]["params"][0].grad
        self.values.append(float("nan") if gradient is None else float(gradient))


def train_on(
    batch: dict[str, torch.Tensor],
    microbatch: int,
    model_class: type[ComposerModel] = TokenLosses,
    **kwargs: Any,
) -> tuple[float, float]:
    """The logged loss and the gradient of one step."""
    model, note, memory = model_class(), GradientNote(), InMemoryLogger()
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
TWO_AND_EIGHT = token_batches([[0] * 8 + [1] * 2, [0] * 2 + [1] * 8], [1.0, 2.0])


@pytest.mark.parametrize("microbatch", [1, 2, 3])
def test_b01_loss_is_the_token_mean(microbatch: int) -> None:
    loss, gradient = train_on(NINE_AND_ONE, microbatch)
    assert loss == pytest.approx(1.1, abs=1e-6)
    assert gradient == pytest.approx(1.1, abs=1e-6)


@pytest.mark.parametrize("microbatch", [1, 2])
@pytest.mark.parametrize("on_tokens", [None, True])
def test_b01_b02_c11_labels_are_counted_for_a_model_that_says_nothing(
    on_tokens: bool | None, microbatch: int
) -> None:
    for batch, mean in ((NINE_AND_ONE, 1.1), (TWO_AND_EIGHT, 1.8)):
        settings = {"model_class": PlainTokenLosses, "accumulate_train_batch_on_tokens": on_tokens}
        assert train_on(batch, microbatch, **settings) == pytest.approx((mean, mean), abs=1e-6)


class RowLosses(PlainTokenLosses):
    """Its loss is a mean over rows, as that of a classifier of texts."""

    num_loss_tokens = None

    def loss(self, outputs: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return outputs.mean()


def test_a_model_may_say_that_it_counts_rows() -> None:
    assert train_on(NINE_AND_ONE, 1, RowLosses) == pytest.approx((1.5, 1.5), abs=1e-6)


def a_row_a_rank() -> list[tuple[float, float]]:
    rows: Any = [{key: value[i] for key, value in NINE_AND_ONE.items()} for i in range(2)]
    sampler = dist.get_sampler(rows, shuffle=False)
    return [
        train_on({}, 1, model_class, loader=DataLoader(rows, batch_size=1, sampler=sampler))
        for model_class in (TokenLosses, PlainTokenLosses)
    ]


def test_b01_ranks_weigh_as_microbatches_do() -> None:
    for results in run_ranks(a_row_a_rank, 2):
        for result in results:
            assert result == pytest.approx((1.1, 1.1), abs=1e-6)


def test_samples_weigh_alike_when_asked() -> None:
    loss, _ = train_on(NINE_AND_ONE, 1, accumulate_train_batch_on_tokens=False)
    assert loss == pytest.approx(1.5, abs=1e-6)


def test_b02_prompt_tokens_carry_no_weight() -> None:
    loss, gradient = train_on(TWO_AND_EIGHT, 1)
    assert loss == pytest.approx((2 * 1 + 8 * 2) / 10, abs=1e-6)
    assert gradient == pytest.approx(loss, abs=1e-6)


@pytest.mark.parametrize("model_class", [TokenLosses, PlainTokenLosses])
def test_b02_a_count_of_all_tokens_is_no_weight(model_class: type[ComposerModel]) -> None:
    counted = DataSpec([NINE_AND_ONE], get_num_tokens_in_batch=lambda b: b["labels"].numel())
    settings = {"loader": counted, "accumulate_train_batch_on_tokens": True}
    loss, _ = train_on(NINE_AND_ONE, 1, model_class, **settings)
    assert loss == pytest.approx(1.1, abs=1e-6)


@pytest.mark.parametrize("on_tokens", [None, True])
def test_token_counts_of_the_data_spec_are_used(on_tokens: bool | None) -> None:
    def count(batch: dict[str, torch.Tensor]) -> dict[str, int]:
        return {"total": 10, "loss_generating": int((batch["targets"] != -100).sum())}

    class Renamed(PlainTokenLosses):
        def loss(self, outputs: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            return super().loss(outputs, {"labels": batch["targets"]})

    batch = dict(NINE_AND_ONE)
    batch["targets"] = batch.pop("labels")
    settings = {"accumulate_train_batch_on_tokens": on_tokens}
    counted = DataSpec([batch], get_num_tokens_in_batch=count)
    loss, _ = train_on(batch, 1, Renamed, loader=counted, **settings)
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


class Measured(TokenLosses):
    """Measures its mean loss in training."""

    def __init__(self) -> None:
        super().__init__()
        self.metric = MeanMetric()

    def get_metrics(self, is_train: bool = False) -> dict[str, Any]:
        return {"Mean": self.metric} if is_train else {}

    def update_metric(self, batch: Any, outputs: Any, metric: Any) -> None:
        metric.update(outputs[batch["labels"] != -100])


def test_b03_batch_without_targets_is_passed_over_and_counted() -> None:
    """Nor does it log the metrics of the batch before (B11), or warn of its schedule (B19)."""
    empty = token_batches([[0, 0], [0, 0]], [1.0, 1.0])
    full = token_batches([[1, 1], [1, 0]], [2.0, 2.0])
    model, memory = Measured(), InMemoryLogger()
    trainer = Trainer(
        model=model,
        train_dataloader=[empty, full, empty],
        optimizers=torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.5),
        schedulers=ConstantScheduler(),
        max_duration="3ba",
        device_train_microbatch_size=2,
        loggers=memory,
        progress_bar=False,
    )
    with pytest.warns(UserWarning, match="batch 0 has no target"):
        trainer.fit()
    assert int(trainer.state.timestamp.batch) == 3
    assert memory.data["trainer/batches_without_targets"][-1][1] == 2
    assert len(memory.data["loss/train/total"]) == len(memory.data["metrics/train/Mean"]) == 1
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
