"""Z-loss is a mean over targets, whoever computes it."""

import math
from typing import Any

import pytest
import torch

from composer import Trainer
from composer.algorithms import ZLoss
from composer.functional import compute_z_loss
from composer.models.base import ComposerModel
from composer.models.huggingface import HuggingFaceModel
from llmfoundry.models.mpt.composer_mpt import ComposerMPTCausalLM
from tests.composer.models.conftest import KINDS

pytestmark = pytest.mark.filterwarnings("ignore:.*okenizer was not provided")


class GivenLogits(ComposerModel):
    """Logits that are the same for all 4 classes: each row of the batch says which."""

    def __init__(self, kind: type) -> None:
        super().__init__()
        self.kind = kind
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def forward(self, batch: dict[str, torch.Tensor]) -> Any:
        logits = (batch["level"][..., None] + self.weight).expand(-1, -1, 4)
        return logits if self.kind is torch.Tensor else {"logits": logits}

    def loss(self, outputs: Any, batch: dict[str, torch.Tensor]) -> Any:
        zero = 0 * self.weight
        return {dict: {"a": zero, "b": zero}, list: [zero, zero]}.get(self.kind, zero)

    def num_loss_tokens(self, batch: dict[str, torch.Tensor]) -> int:
        return int((batch["labels"] != -100).sum())


LEVELS = torch.tensor([[1.0], [3.0]]).expand(2, 6).clone()
LABELS = torch.tensor([[1, 2, -100, -100, -100, -100], [0, 1, 2, 3, 0, 1]])


def step(model: Any, batch: Any, microbatch: int = 2, **kwargs: Any) -> Trainer:
    """Trains one step of a rate of 1."""
    trainer = Trainer(
        model=model,
        train_dataloader=[batch],
        optimizers=torch.optim.SGD(model.parameters(), lr=1.0),
        max_duration="1ba",
        device_train_microbatch_size=microbatch,
        progress_bar=False,
        **kwargs,
    )
    trainer.fit()
    trainer.close()
    return trainer


@pytest.mark.parametrize("kind", [torch.Tensor, dict, list])
@pytest.mark.parametrize("microbatch", [1, 2])
def test_rows_of_two_and_of_six_targets_in_one_mean(kind: type, microbatch: int) -> None:
    """Field case B14: the token mean, not the mean of the rows' means, 1.2467."""
    model = GivenLogits(kind)
    batch = {"level": LEVELS, "labels": LABELS}
    trainer = step(model, batch, microbatch, algorithms=ZLoss(0.1))
    first, second = 1 + math.log(4), 3 + math.log(4)
    expected = 0.1 * (2 * first**2 + 6 * second**2) / 8
    assert expected == pytest.approx(1.5853, abs=1e-4)
    assert trainer.state.total_loss_dict["loss/train/total"] == pytest.approx(expected, rel=1e-6)
    slope = 0.1 * 2 * (2 * first + 6 * second) / 8
    assert model.weight.item() == pytest.approx(-slope, rel=1e-6)


def _mpt(kind: type[ComposerMPTCausalLM] = ComposerMPTCausalLM) -> ComposerMPTCausalLM:
    torch.manual_seed(3)
    settings = {"d_model": 16, "n_heads": 2, "n_layers": 1, "max_seq_len": 8, "vocab_size": 64}
    capped = {"final_logit_softcapping": 2.0, "logit_scale": 3.0}
    return kind(**settings, **capped, use_train_metrics=False)


class OwnLoss(ComposerMPTCausalLM):
    """Computes its loss outside of ``forward``, where nothing is fused."""

    def loss(self, outputs: Any, batch: Any) -> torch.Tensor:
        return super().loss(outputs, batch)


def _texts() -> dict[str, torch.Tensor]:
    tokens = torch.randint(3, 60, (2, 7), generator=torch.Generator().manual_seed(2))
    labels = tokens.clone()
    labels[0, 3:] = -100  # rows of two and of six targets
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": labels}


@pytest.mark.parametrize("microbatch", [1, 2])
def test_fused_into_the_loss_of_an_mpt_it_is_what_logits_give(microbatch: int) -> None:
    batch, plain, fused = _texts(), _mpt(), _mpt()
    logits = plain.eval()(batch).logits[:, :-1].double()
    is_target = batch["labels"][:, 1:] != -100
    z = 0.1 * logits.logsumexp(-1).square()[is_target].mean()
    without = step(plain, batch, microbatch).state.total_loss_dict["loss/train/total"]
    trainer = step(fused, batch, microbatch, algorithms=ZLoss(0.1))
    assert trainer.state.outputs.logits is None
    total = trainer.state.total_loss_dict["loss/train/total"]
    assert total - without == pytest.approx(z.item(), rel=1e-4)
    from_logits = _mpt(OwnLoss)
    step(from_logits, batch, microbatch, algorithms=ZLoss(0.1))
    for name, value in from_logits.state_dict().items():
        torch.testing.assert_close(fused.state_dict()[name], value, rtol=1e-4, atol=1e-6)
    assert fused.model.z_loss == 0.0, "a run after it is one without"
    fused.fuse_z_loss(0.1)
    evaluated = fused.eval()(batch)
    assert evaluated.loss is None, "in evaluation nothing is added"
    torch.testing.assert_close(fused.model(**batch).loss, fused.loss(evaluated, batch))


def test_of_a_transformers_model_it_reads_shifted_labels() -> None:
    import transformers

    def model() -> HuggingFaceModel:
        torch.manual_seed(4)
        return HuggingFaceModel(KINDS["gpt2"](transformers), None, use_logits=True)

    batch = _texts()
    logits = model().eval()(batch).logits[:, :-1]
    z = 0.1 * logits.double().logsumexp(-1).square()[batch["labels"][:, 1:] != -100].mean()
    totals = []
    for algorithms in ([], [ZLoss(0.1)]):
        trainer = step(model(), batch, 1, algorithms=algorithms)
        totals.append(trainer.state.total_loss_dict["loss/train/total"])
    assert totals[1] - totals[0] == pytest.approx(z.item(), rel=1e-4)


def test_refusals_and_nothing_to_count() -> None:
    with pytest.raises(ValueError, match="must be positive"):
        ZLoss(0.0)
    logits, targets = torch.randn(3, 4), torch.full((3,), -100)
    assert compute_z_loss(logits, targets) == 0
    with pytest.raises(ValueError, match="do not fit"):
        compute_z_loss(logits, targets[:2])
