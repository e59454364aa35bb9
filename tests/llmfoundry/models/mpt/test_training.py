"""The MPT through the trainer: losses and metrics are token means, however a batch is cut."""

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from composer import Evaluator, Trainer
from composer.core.data_spec import DataSpec
from composer.utils import dist
from llmfoundry.config.schema import TrainConfig
from llmfoundry.models.mpt.composer_mpt import ComposerMPTCausalLM
from tests.launch import run_ranks

LENGTHS = (2, 3, 5, 8, 13, 4)


def texts() -> Any:
    generator = torch.Generator().manual_seed(0)
    rows = []
    for length in LENGTHS:
        ids = torch.zeros(16, dtype=torch.long)
        ids[:length] = torch.randint(1, 64, (length,), generator=generator)
        mask = torch.arange(16) < length
        labels = ids.masked_fill(~mask, -100)
        rows.append({"input_ids": ids, "attention_mask": mask.long(), "labels": labels})
    rows[2]["labels"][:] = -100  # B03: a row of nothing but prompt
    return rows


def without_padding(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Cuts a batch to its longest row."""
    longest = int(batch["attention_mask"].sum(1).max())
    return {key: value[:, :longest] for key, value in batch.items()}


def trained(microbatch: int, **kwargs: Any) -> dict[str, list[float]]:
    """Trains a step on the texts; returns losses, metrics and some weights."""
    torch.manual_seed(0)
    model = ComposerMPTCausalLM(
        d_model=32,
        n_heads=4,
        n_layers=2,
        max_seq_len=16,
        vocab_size=64,
        attn_config={"alibi": True, "attn_impl": "torch"},
    )
    rows, size = texts(), len(LENGTHS) // dist.get_world_size()
    sampler = dist.get_sampler(rows, shuffle=False)
    trainer = Trainer(
        model=model,
        train_dataloader=DataLoader(rows, batch_size=size, sampler=sampler),
        optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
        max_duration="1ba",
        device_train_microbatch_size=microbatch,
        progress_bar=False,
        **kwargs,
    )
    trainer.fit()
    loss = trainer.state.total_loss_dict["loss/train/total"]
    metric = trainer.state.train_metric_values["LanguageCrossEntropy"]
    loader = DataLoader(rows, batch_size=microbatch, sampler=sampler)
    evaluator = Evaluator(
        label="texts", dataloader=DataSpec(loader, batch_transforms=without_padding)
    )
    trainer.eval(evaluator)
    trainer.close()
    values = trainer.state.eval_metric_values
    names = ("LanguageCrossEntropy", "LanguagePerplexity")
    return {
        "loss": [float(loss), float(metric)],
        "eval": [float(values[name]) for name in names],
        "weights": [float(p.detach().norm()) for p in model.parameters()],
    }


@pytest.fixture(scope="module")
def whole() -> dict[str, list[float]]:
    return trained(len(LENGTHS))


def test_b10_train_metric_is_the_logged_loss(whole: dict[str, list[float]]) -> None:
    assert whole["loss"][0] == pytest.approx(whole["loss"][1], rel=1e-6)


@pytest.mark.parametrize("microbatch", [1, 2, 4])
def test_b01_b03_b07_b10_any_batch_size(whole: dict[str, list[float]], microbatch: int) -> None:
    cut = trained(microbatch)
    for name, values in whole.items():
        assert cut[name] == pytest.approx(values, rel=1e-5), name


def test_c11_trainer_and_recipes_weigh_alike(whole: dict[str, list[float]]) -> None:
    recipes = TrainConfig.__dataclass_fields__["accumulate_train_batch_on_tokens"].default
    assert trained(2, accumulate_train_batch_on_tokens=recipes) == trained(2)
    by_rows = trained(2, accumulate_train_batch_on_tokens=False)
    assert by_rows["loss"][0] != pytest.approx(whole["loss"][0], rel=1e-3)


def test_b01_b07_two_ranks(whole: dict[str, list[float]]) -> None:
    for cut in run_ranks(trained, 2, 2):
        for name, values in whole.items():
            assert cut[name] == pytest.approx(values, rel=1e-5), name
