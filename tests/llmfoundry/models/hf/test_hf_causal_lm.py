"""`hf_causal_lm` computes what the bare transformers classes do, and refuses what it cannot."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from composer import Trainer
from llmfoundry.models import ComposerHFCausalLM
from llmfoundry.models.hf import head_loss
from tests.launch import run_ranks
from tests.llmfoundry.models.hf.tiny import KINDS, build, rows, save
from tests.llmfoundry.tiny_tokenizer import train_tokenizer


def wrapped(folder: str, **settings: Any) -> ComposerHFCausalLM:
    settings = {"use_train_metrics": False, **settings}
    return ComposerHFCausalLM(None, folder, **settings)


@pytest.mark.parametrize("kind", KINDS)
def test_loss_and_gradients_are_those_of_the_class(kind: str, tmp_path: Path) -> None:
    bare, batch = build(kind), rows()
    model = wrapped(save(kind, tmp_path)).train()
    outputs = model(batch)
    assert outputs.logits is None  # the logits of all tokens were never there
    assert head_loss.computes_loss_in_chunks(model.model) and model.model.chunks_its_loss
    loss = model.loss(outputs, batch)
    expected = bare(**batch).loss
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    loss.backward()
    expected.backward()
    theirs = dict(bare.named_parameters())
    for name, parameter in model.model.named_parameters():
        wanted = theirs[name].grad
        assert wanted is not None
        torch.testing.assert_close(
            parameter.grad, wanted, rtol=1e-4, atol=1e-5 * wanted.abs().max()
        )


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


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("kind", ["gpt2", "llama", "qwen3"])
def test_packed_documents_are_as_if_alone(kind: str, attention: str, tmp_path: Path) -> None:
    model = wrapped(save(kind, tmp_path), attn_implementation=attention).eval()
    a, b = rows(1, 5, seed=1), rows(1, 7, seed=2)
    padding = torch.full((1, 3), 2)
    batch = {
        "input_ids": torch.cat([a["input_ids"], b["input_ids"], padding], dim=1),
        "attention_mask": torch.tensor([[1] * 12 + [0] * 3]),
        "sequence_id": torch.tensor([[0] * 5 + [1] * 7 + [-1] * 3]),
    }
    logits = model(batch).logits
    alone = [build(kind)(input_ids=each["input_ids"]).logits for each in (a, b)]
    torch.testing.assert_close(logits[:, :5], alone[0], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(logits[:, 5:12], alone[1], rtol=1e-4, atol=1e-6)
    batch["input_ids"][:, 0] += 1
    torch.testing.assert_close(model(batch).logits[:, 5:12], logits[:, 5:12], rtol=0, atol=1e-6)


def test_documents_that_cannot_be_kept_apart_are_refused(tmp_path: Path) -> None:
    batch = {**rows(), "sequence_id": torch.zeros(3, 12, dtype=torch.long)}
    model = wrapped(save("llama", tmp_path / "llama"), attn_implementation="flex_attention")
    with pytest.raises(ValueError, match="attn_implementation='flex_attention' cannot keep"):
        model(batch)
    model = wrapped(save("gemma2", tmp_path / "gemma2", sliding_window=8))
    with pytest.raises(ValueError, match="slides over 8 tokens.* rows of 12"):
        model(batch)


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


def test_embeddings_are_enlarged_only_if_allowed(tmp_path: Path) -> None:
    folder, tokenizer = save("llama_tied", tmp_path), train_tokenizer(size=300)
    with pytest.raises(ValueError, match="more than the model's vocabulary of 96"):
        ComposerHFCausalLM(tokenizer, folder)
    model = ComposerHFCausalLM(tokenizer, folder, allow_embedding_resizing=True)
    inner = model.model
    assert inner.get_input_embeddings().weight is inner.get_output_embeddings().weight
    assert inner.get_input_embeddings().weight.shape[0] == len(tokenizer)
    batch = rows()
    assert model.train()(batch).loss.isfinite()


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
