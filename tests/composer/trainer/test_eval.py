"""Evaluation counts each sample once, whatever the batches and ranks."""

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from composer import Evaluator, Trainer
from composer.loggers import InMemoryLogger
from composer.metrics import LanguageCrossEntropy
from composer.utils import dist
from tests.composer.trainer.models import Classifier, Rows, rows_loader
from tests.launch import run_ranks


def accuracy(rows: Rows, model: Classifier) -> float:
    model.eval()
    with torch.no_grad():
        return (model.net(rows.x).argmax(-1) == rows.y).float().mean().item()


@pytest.mark.parametrize("batch_size", [1, 2, 5])
@pytest.mark.parametrize("microbatch", [None, 1, 3])
def test_metric_does_not_depend_on_batches(batch_size: int, microbatch: int | None) -> None:
    model, rows = Classifier(), Rows(5)
    trainer = Trainer(
        model=model, progress_bar=False, optimizers=torch.optim.SGD(model.parameters(), lr=0.1)
    )
    evaluator = Evaluator(
        label="five",
        dataloader=DataLoader(rows, batch_size=batch_size),
        device_eval_microbatch_size=microbatch,
    )
    trainer.eval(evaluator)
    value = trainer.state.eval_metrics["five"]["MulticlassAccuracy"].compute().item()
    assert value == pytest.approx(accuracy(rows, model))
    assert int(trainer.state.eval_timestamp.sample) == 5
    assert trainer.state.evaluators == []
    trainer.close()


def padded_eval(drop_last: bool) -> tuple[float, int, float]:
    model, rows = Classifier(), Rows(5)
    sampler = dist.get_sampler(rows, shuffle=False, drop_last=drop_last)
    trainer = Trainer(
        model=model,
        optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
        eval_dataloader=DataLoader(rows, batch_size=2, sampler=sampler),
        progress_bar=False,
    )
    trainer.eval()
    metric = trainer.state.eval_metrics["eval"]["MulticlassAccuracy"].compute().item()
    samples = int(trainer.state.eval_timestamp.sample)
    trainer.close()
    return metric, samples, accuracy(rows, model)


def test_b09_padded_samples_are_not_counted() -> None:
    for metric, samples, expected in run_ranks(padded_eval, 2, False):
        assert samples == 5
        assert metric == pytest.approx(expected)


@pytest.mark.parametrize(
    ("interval", "duration", "size", "batches"),
    [
        ("0.25dur", "8ba", 2, [2, 4, 6, 8]),
        ("0.3dur", "10ba", 2, [3, 6, 9, 10]),
        ("0.3dur", "1ep", 2, [3, 6, 9, 10]),
        ("10sp", "30sp", 6, [2, 4, 5]),  # after 12, 24 and 30 samples
    ],
)
def test_b26_b27_evaluations_in_training(
    interval: str, duration: str, size: int, batches: list[int]
) -> None:
    model, memory = Classifier(), InMemoryLogger()
    trainer = Trainer(
        model=model,
        optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
        train_dataloader=rows_loader(size * 10 if size == 2 else 30, size),
        eval_dataloader=rows_loader(4),
        eval_interval=interval,
        max_duration=duration,
        loggers=memory,
        progress_bar=False,
    )
    trainer.fit()
    trainer.close()
    assert [int(t.batch) for t, _ in memory.data["metrics/eval/MulticlassAccuracy"]] == batches


def test_b03_evaluating_without_a_target_is_said() -> None:
    class Unlabelled(Classifier):
        def update_metric(self, batch: Any, outputs: Any, metric: Any) -> None:
            metric.update(outputs[:, None], torch.full_like(batch["y"], -100)[:, None])

        def get_metrics(self, is_train: bool = False) -> dict[str, Any]:
            return {} if is_train else {"LanguageCrossEntropy": LanguageCrossEntropy()}

    model = Unlabelled()
    trainer = Trainer(
        model=model, progress_bar=False, optimizers=torch.optim.SGD(model.parameters(), lr=0.1)
    )
    with pytest.warns(UserWarning, match="LanguageCrossEntropy of evaluator 'eval' is NaN"):
        trainer.eval(rows_loader(4))
    trainer.close()


def test_evaluators_keep_their_own_intervals() -> None:
    model, memory = Classifier(), InMemoryLogger()
    evaluators = [
        Evaluator(label="often", dataloader=DataLoader(Rows(4), batch_size=2), eval_interval="2ba"),
        Evaluator(label="rarely", dataloader=DataLoader(Rows(4), batch_size=2)),
        Evaluator(label="cut", dataloader=DataLoader(Rows(9), batch_size=2), subset_num_batches=1),
    ]
    trainer = Trainer(
        model=model,
        optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
        train_dataloader=DataLoader(Rows(12), batch_size=2),
        eval_dataloader=evaluators,
        eval_interval="1ep",
        max_duration="6ba",
        loggers=memory,
        progress_bar=False,
    )
    trainer.fit()
    steps = {
        label: [int(t.batch) for t, _ in memory.data[f"metrics/{label}/MulticlassAccuracy"]]
        for label in ("often", "rarely", "cut")
    }
    assert steps == {"often": [2, 4, 6], "rarely": [6], "cut": [6]}
    trainer.close()


def test_metric_names_are_patterns() -> None:
    model = Classifier()
    evaluator = Evaluator(label="a", dataloader=DataLoader(Rows(4)), metric_names=["accuracy"])
    none = Evaluator(label="b", dataloader=DataLoader(Rows(4)), metric_names=["nothing"])
    trainer = Trainer(
        model=model,
        optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
        eval_dataloader=[evaluator, none],
        progress_bar=False,
    )
    assert list(trainer.state.eval_metrics["a"]) == ["MulticlassAccuracy"]
    assert list(trainer.state.eval_metrics["b"]) == []
    trainer.close()


def test_evaluators_do_not_mix_with_loaders() -> None:
    model = Classifier()
    loader = DataLoader(Rows(4))
    with pytest.raises(ValueError, match="Mixing Evaluator with other classes is not allowed"):
        Trainer(
            model=model,
            optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
            eval_dataloader=[Evaluator(label="a", dataloader=loader), loader],
            progress_bar=False,
        )


def test_endless_loader_needs_a_subset() -> None:
    def endless() -> Any:
        while True:
            yield {
                "x": torch.zeros(1, 4),
                "y": torch.zeros(1, dtype=torch.long),
                "id": torch.zeros(1),
            }

    class Endless(torch.utils.data.IterableDataset):
        def __iter__(self) -> Any:
            return endless()

    model = Classifier()
    trainer = Trainer(
        model=model, optimizers=torch.optim.SGD(model.parameters(), lr=0.1), progress_bar=False
    )
    with pytest.raises(ValueError, match="no length"):
        trainer.eval(DataLoader(Endless(), batch_size=1))
    trainer.close()


class Some:
    """Two batches on rank 0, three on rank 1."""

    batch_size = 2

    def __iter__(self) -> Any:
        return iter([next(iter(rows_loader()))] * len(self))

    def __len__(self) -> int:
        return 2 + dist.get_global_rank()


def evaluate_and_predict() -> tuple[Any, ...]:
    trainer = Trainer(model=Classifier(), progress_bar=False)
    trainer.eval(Some())
    outputs = trainer.predict(Some())
    evaluated, predicted = trainer.state.eval_timestamp, trainer.state.predict_timestamp
    trainer.close()
    return (
        [(int(t.batch), int(t.sample), t.total_wct) for t in (evaluated, predicted)],
        len(outputs),
    )


def test_ranks_may_hold_different_numbers_of_batches() -> None:
    (first, own_first), (second, own_second) = run_ranks(evaluate_and_predict, 2)
    assert first == second  # counted over ranks, timed by rank 0
    assert [t[:2] for t in first] == [(3, 10), (3, 10)]
    assert (own_first, own_second) == (2, 3)


def test_predict_returns_outputs_in_order() -> None:
    model, rows = Classifier(), Rows(5)
    trainer = Trainer(
        model=model, optimizers=torch.optim.SGD(model.parameters(), lr=0.1), progress_bar=False
    )
    outputs = trainer.predict(DataLoader(rows, batch_size=2))
    model.eval()
    torch.testing.assert_close(torch.cat(outputs), model.net(rows.x))
    assert len(trainer.predict(DataLoader(rows, batch_size=2), subset_num_batches=1)) == 1
    assert trainer.predict(DataLoader(rows, batch_size=2), return_outputs=False) == []
    trainer.close()
