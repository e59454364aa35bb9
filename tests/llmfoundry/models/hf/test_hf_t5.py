"""`hf_t5` computes what the bare class does."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import T5Config, T5ForConditionalGeneration

from llmfoundry.models import ComposerHFT5
from llmfoundry.utils.warnings import ExperimentalWarning
from tests.llmfoundry.models.hf.tiny import rows, save


def test_loss_is_that_of_the_class(tmp_path: Path) -> None:
    torch.manual_seed(1)
    sizes: dict[str, Any] = {
        "decoder_start_token_id": 0,
        "d_model": 16,
        "d_ff": 16,
        "num_heads": 2,
        "d_kv": 8,
        "num_layers": 1,
    }
    config = T5Config(vocab_size=96, dropout_rate=0.0, **sizes)
    bare: Any = T5ForConditionalGeneration(config)
    bare.save_pretrained(tmp_path)
    with pytest.warns(ExperimentalWarning):
        model = ComposerHFT5(None, str(tmp_path))
    batch = rows()
    outputs = model(batch)
    loss = model.loss(outputs, batch)
    expected = bare(**batch).loss
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
    loss.backward()
    expected.backward()
    theirs = dict(bare.named_parameters())
    for name, parameter in model.model.named_parameters():
        torch.testing.assert_close(parameter.grad, theirs[name].grad, rtol=1e-5, atol=1e-8)
    assert set(model.get_metrics(is_train=True)) == {"LanguageCrossEntropy", "MaskedAccuracy"}
    model.train()
    for metric in model.get_metrics(is_train=True).values():
        model.update_metric(batch, model.eval_forward(batch, outputs), metric)
    fitted = model.get_metrics(is_train=True)["LanguageCrossEntropy"].compute()
    assert float(fitted) == pytest.approx(loss.item(), rel=1e-5)


@pytest.mark.filterwarnings("ignore::llmfoundry.utils.warnings.ExperimentalWarning")
def test_a_decoder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is a llama; use hf_causal_lm"):
        ComposerHFT5(None, save("llama", tmp_path))
