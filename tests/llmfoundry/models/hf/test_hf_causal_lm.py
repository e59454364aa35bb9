"""`hf_causal_lm` computes what the bare transformers classes do, and refuses what it cannot."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from composer import Trainer
from llmfoundry.models import ComposerHFCausalLM
from llmfoundry.models.hf import head_loss
from tests.launch import run_ranks
from tests.llmfoundry.models.hf.tiny import KINDS, build, rows, save


def wrapped(folder: str, **settings: Any) -> ComposerHFCausalLM:
    settings = {"use_train_metrics": False, **settings}
    return ComposerHFCausalLM(None, folder, **settings)


@pytest.mark.parametrize("in_chunks", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_loss_and_gradients_are_those_of_the_class(
    kind: str, in_chunks: bool, tmp_path: Path
) -> None:
    bare, batch = build(kind), rows()
    model = wrapped(save(kind, tmp_path)).train()
    assert head_loss.computes_loss_in_chunks(model.model) and model.model.chunks_its_loss
    model.model.chunks_its_loss = in_chunks
    outputs = model(batch)
    assert (outputs.logits is None) == in_chunks  # the logits of all tokens were never there
    loss = model.loss(outputs, batch)
    expected = bare(**batch).loss
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    loss.backward()
    expected.backward()
    theirs = dict(bare.named_parameters())
    for name, parameter in model.model.named_parameters():
        wanted = theirs[name].grad
        assert wanted is not None
        torch.testing.assert_close(parameter.grad, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["llama", "gemma2", "granite"])
def test_metrics_get_the_logits_of_the_class(kind: str, tmp_path: Path) -> None:
    model, batch = wrapped(save(kind, tmp_path), use_train_metrics=True).train(), rows()
    outputs = model(batch)
    expected = build(kind)(**batch).logits
    torch.testing.assert_close(outputs.logits, expected, rtol=1e-4, atol=1e-5)
    assert not outputs.logits.requires_grad and outputs.loss.requires_grad
    model.eval()
    torch.testing.assert_close(model.eval_forward(batch), expected, rtol=1e-4, atol=1e-5)
    for metric in model.get_metrics().values():
        model.update_metric(batch, expected, metric)
    perplexity = model.get_metrics()["LanguagePerplexity"].compute()
    # Targets of all rows count the same, as in the model's own mean.
    assert float(perplexity) == pytest.approx(build(kind)(**batch).loss.exp().item(), rel=1e-4)


class DoublesItsLogits(LlamaForCausalLM):
    """A head that does what no configuration tells."""

    def forward(self, *args: Any, labels: Any = None, **kwargs: Any) -> Any:
        outputs: Any = super().forward(*args, **kwargs)
        outputs.logits = 2 * outputs.logits
        if labels is not None:
            outputs.loss = self.loss_function(outputs.logits, labels, self.config.vocab_size)
        return outputs


def test_a_head_of_its_own_kind_keeps_its_own_loss() -> None:
    bare = build("llama")
    model = DoublesItsLogits(bare.config)
    model.load_state_dict(bare.state_dict())
    batch = rows()
    expected = model(**batch)
    assert head_loss.with_chunked_loss(model)
    with pytest.warns(UserWarning, match="its own forward is used"):
        outputs = model(**batch)
    assert torch.equal(outputs.loss, expected.loss) and outputs.logits is not None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(model(**batch).loss, expected.loss)


def test_the_first_loss_leaves_each_part_in_its_mode(tmp_path: Path) -> None:
    model = wrapped(save("llama", tmp_path)).train()
    model.model.model.norm.eval()  # as somebody froze it
    modes = [module.training for module in model.modules()]
    model(rows())
    assert [module.training for module in model.modules()] == modes


def test_a_changed_class_is_saved_and_loaded_as_its_own(tmp_path: Path) -> None:
    folder = save("llama", tmp_path / "before")
    model = wrapped(folder)
    model.model.save_pretrained(tmp_path / "after")
    loaded: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "after")
    assert type(loaded) is LlamaForCausalLM
    for name, value in loaded.state_dict().items():
        assert torch.equal(value, build("llama").state_dict()[name])
    described = model.get_metadata()["model"]["config"]["class"]
    assert described == "transformers.models.llama.modeling_llama.LlamaForCausalLM"


def test_overrides_reach_the_model(tmp_path: Path) -> None:
    folder = save("qwen3", tmp_path)
    overrides = {"num_hidden_layers": 1, "rope_parameters": {"rope_theta": 77.0}}
    model = wrapped(folder, pretrained=False, config_overrides=overrides)
    assert len(model.model.model.layers) == 1 and len(model.config.layer_types) == 1
    assert model.config.rope_parameters == {"rope_type": "default", "rope_theta": 77.0}
    assert next(model.parameters()).dtype == torch.float32
    with pytest.raises(ValueError, match="'num_hidden_layers'"):
        wrapped(folder, config_overrides={"num_hiden_layers": 1})


def test_weights_are_fp32_whatever_was_saved(tmp_path: Path) -> None:
    build("llama").to(torch.bfloat16).save_pretrained(tmp_path)
    assert {each.dtype for each in wrapped(str(tmp_path)).parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"init_device": "meta"}, "pretrained=True is not supported when init_device=\"meta\""),
        ({"init_device": "cuda"}, "init_device='cuda' must be one of"),
        ({"use_flash_attention_2": True}, "use_flash_attention_2 is set to True"),
        (
            {"use_flash_attention_2": True, "attn_implementation": "sdpa"},
            "two answers to one question",
        ),
        ({"peft_config": {"task_type": "CAUSAL_LM"}}, "peft_config.peft_type=None"),
        (
            {"peft_config": {"peft_type": "LORA", "task_type": "CAUSAL_LM", "rank": 4}},
            "does not fit peft.LoraConfig",
        ),
        (
            {"peft_config": {"peft_type": "lora", "task_type": "causal_lm", "r": 2}
             | {"target_modules": ["no_such_layer"]}},
            "no_such_layer",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(settings: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=words):
        wrapped(save("llama", tmp_path), **settings)


def test_a_model_that_cannot_be_loaded_is_an_error_of_both_kinds(tmp_path: Path) -> None:
    folder = Path(save("llama", tmp_path))
    (folder / "model.safetensors").unlink()
    for kind in (RuntimeError, ValueError):
        with pytest.raises(kind, match=r"Error initializing model on ranks \[0\]"):
            wrapped(str(folder))
    with pytest.raises(ValueError, match="The MPT series of models on the Hugging Face Hub"):
        wrapped("mosaicml/mpt-7b")


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # peft
def test_adapters_alone_are_trained_and_fused_names_match(tmp_path: Path) -> None:
    lora = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 2, "target_modules": ["c_attn"]}
    lora["fan_in_fan_out"] = True  # as GPT-2 stores its matrices
    model = wrapped(save("gpt2", tmp_path), peft_config=lora).train()
    batch = rows()
    model.loss(model(batch), batch).backward()
    trained = {name for name, each in model.named_parameters() if each.grad is not None}
    assert trained and all("lora_" in name for name in trained)
    assert all("lora_" in name for name in model.state_dict())


def _trained_from_rank_zero(folder: str) -> tuple[list[float], bool]:
    from composer.utils import dist

    device = "mixed" if dist.get_world_size() > 1 else "cpu"
    model = wrapped(folder, init_device=device)
    is_meta = next(model.parameters()).is_meta
    data: Any = [{key: each[0] for key, each in rows(1, 12, seed=s).items()} for s in range(8)]
    sampler = dist.get_sampler(data, shuffle=False)
    trainer = Trainer(
        model=model,
        train_dataloader=DataLoader(data, batch_size=4 // dist.get_world_size(), sampler=sampler),
        optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
        max_duration="4ba",
        parallelism_config={"fsdp": {}} if dist.get_world_size() > 1 else None,
        progress_bar=False,
        device="cpu",
    )
    trainer.fit()
    state = trainer.state.get_model_state_dict() if device == "cpu" else model.state_dict()
    norms = [
        float((each.full_tensor() if hasattr(each, "full_tensor") else each).norm())
        for each in state.values()
    ]
    return norms, is_meta


def test_weights_of_rank_zero_are_sent_to_the_others(tmp_path: Path) -> None:
    folder = save("llama", tmp_path)
    alone = run_ranks(_trained_from_rank_zero, 1, folder)[0][0]
    first, second = run_ranks(_trained_from_rank_zero, 2, folder)
    assert (first[1], second[1]) == (False, True)
    assert first[0] == pytest.approx(alone, rel=1e-5) and second[0] == pytest.approx(
        alone, rel=1e-5
    )


GETTYSBURG = (
    "Four score and seven years ago our fathers brought forth on this continent, a new nation, "
    "conceived in Liberty, and dedicated to the proposition that all men are created equal. Now we "
    "are engaged in a great civil war, testing whether that nation, or any nation so conceived and "
    "so dedicated, can long endure. We are met on a great battle-field of that war. We have come "
    "to dedicate a portion of that field, as a final resting place for those who here gave their "
    "lives that that nation might live. It is altogether fitting and proper that we should do this."
)


@pytest.mark.slow
def test_a_real_model_has_the_perplexity_of_its_class(smollm2: Path) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(smollm2)
    batch = dict(tokenizer(GETTYSBURG, return_tensors="pt"))
    batch["labels"] = batch["input_ids"]
    bare: Any = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    with torch.no_grad():
        expected = bare(**batch).loss.exp().item()
        model = ComposerHFCausalLM(tokenizer, str(smollm2)).train()
        assert head_loss.computes_loss_in_chunks(model.model)
        found = model.loss(model(batch), batch).exp().item()
        metric = model.eval().get_metrics()["LanguagePerplexity"]
        model.update_metric(batch, model.eval_forward(batch), metric)
    print(f"perplexity {found:.4f}, of the class {expected:.4f}")
    assert found == pytest.approx(expected, rel=1e-4)
    assert float(metric.compute()) == pytest.approx(expected, rel=1e-4)
    assert 2 < expected < 20
