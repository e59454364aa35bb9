"""The wrappers through the trainer: metrics agree with the loss however a batch is cut."""

import pytest
import torch
from torch.utils.data import DataLoader

from composer import Trainer
from composer.loggers import InMemoryLogger
from composer.metrics import LanguageCrossEntropy, LanguagePerplexity
from composer.models import ComposerClassifier, HuggingFaceModel


def _logged(model, rows, batch_size, microbatch, **kwargs):
    logger = InMemoryLogger()
    trainer = Trainer(
        model=model,
        train_dataloader=DataLoader(rows, batch_size=batch_size),
        eval_dataloader=DataLoader(rows, batch_size=microbatch),
        device_train_microbatch_size=microbatch,
        loggers=logger,
        progress_bar=False,
        **kwargs,
    )
    trainer.fit()
    trainer.close()
    return {
        name: [float(value) for _, value in rows]
        for name, rows in logger.data.items()
        if name.startswith(("loss", "metrics"))
    }


def _texts():
    torch.manual_seed(0)
    rows = []
    for length in (2, 3, 5, 8, 13):
        ids = torch.ones(16, dtype=torch.long)
        ids[:length] = torch.randint(3, 64, (length,))
        mask = (torch.arange(16) < length).long()
        labels = ids.masked_fill(mask == 0, -100)
        rows.append({"input_ids": ids, "attention_mask": mask, "labels": labels})
    return rows


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_B07_B10_texts_of_unequal_length(kind, make_model, make_tokenizer):
    def run(microbatch):
        metrics = [LanguageCrossEntropy(), LanguagePerplexity()]
        model = HuggingFaceModel(
            make_model(kind), make_tokenizer(), use_logits=True, metrics=metrics
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return _logged(model, _texts(), 5, microbatch, optimizers=optimizer, max_duration="2ba")

    whole = run(5)
    assert whole["metrics/train/LanguageCrossEntropy"] == pytest.approx(whole["loss/train/total"])
    for microbatch in (1, 2):
        cut = run(microbatch)
        assert cut.keys() == whole.keys()
        for name, values in cut.items():
            assert values == pytest.approx(whole[name], rel=1e-5), name


def test_B11_train_accuracy_counts_a_whole_batch_and_only_that():
    inputs = torch.eye(2)[[0, 0, 0, 1, 1, 1, 1, 1]]  # the class that is guessed
    targets = torch.tensor([0, 0, 0, 0, 1, 1, 1, 0])
    model = ComposerClassifier(torch.nn.Linear(2, 2, bias=False), num_classes=2)
    with torch.no_grad():
        model.module.weight.copy_(torch.eye(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    rows = list(zip(inputs, targets, strict=True))
    found = _logged(model, rows, 4, 1, optimizers=optimizer, max_duration="2ba")
    assert found["metrics/train/MulticlassAccuracy"] == [0.75, 0.75]
    assert found["metrics/eval/MulticlassAccuracy"] == [0.75]
