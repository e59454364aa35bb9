"""Adapters: trained alone, saved alone, loaded back, continued as recorded, written and merged."""

import copy
import json
import logging
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from composer import Callback, Trainer
from composer.checkpoint.monolithic import safe_torch_load
from composer.models import (
    HuggingFaceModel,
    huggingface,
    write_huggingface_pretrained_from_composer_checkpoint,
)
from composer.models.huggingface import (
    filter_state_dict_peft,
    get_peft_config_from_composer_state_dict,
    maybe_get_underlying_model,
)
from composer.optim import DecoupledAdamW
from composer.utils import dist
from llmfoundry.registry import tp_strategies
from tests.launch import run_ranks

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")
GOLDEN = Path(__file__).parents[2] / "golden" / "checkpoints"
RECORD = json.loads((GOLDEN / "lora" / "record.json").read_text())

pytestmark = [
    # peft asks transformers for a name that is being replaced.
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning"),
    # peft cannot ask the hub whether a base model without a name has changed its vocabulary.
    pytest.mark.filterwarnings("ignore:Could not find a config file in:UserWarning"),
]


def _lora(**kwargs):
    settings = {"task_type": "CAUSAL_LM", "r": 2, "target_modules": ["q_proj", "v_proj"]}
    return peft.LoraConfig(**settings | kwargs)


@pytest.fixture
def model(make_model, make_tokenizer):
    return HuggingFaceModel(make_model("llama"), make_tokenizer(), peft_config=_lora())


def _shaken(model):
    """The same model with other adapter weights, so that the adapter says something."""
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.normal_()
    return model.eval()


def _checkpoint(model, tmp_path):
    integrations = {"huggingface": model.get_metadata()}
    state = {"state": {"model": model.state_dict(), "integrations": integrations}, "rng": []}
    torch.save(state, tmp_path / "checkpoint.pt")
    return state, str(tmp_path / "checkpoint.pt")


def test_only_adapters_are_trained_and_saved(model):
    assert model.using_peft and isinstance(model.model, peft.PeftModel)
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    assert list(model.state_dict()) == trained and all("lora_" in name for name in trained)
    assert isinstance(maybe_get_underlying_model(model.model), transformers.LlamaForCausalLM)
    assert model.shift_labels and {"input_ids", "labels"} <= model.model_forward_args
    model.should_save_peft_only = False
    assert len(model.state_dict()) > len(trained)


def test_what_is_not_saved_is_not_missed(model):
    other = _shaken(copy.deepcopy(model))
    for outer in (model, torch.nn.ModuleDict({"module": model})):
        prefix = "" if outer is model else "module."
        saved = {prefix + name: value for name, value in other.state_dict().items()}
        outer.load_state_dict(saved, strict=True)
        torch.testing.assert_close(outer.state_dict(), saved)
        saved.popitem()
        with pytest.raises(RuntimeError, match="Missing key"):
            outer.load_state_dict(saved, strict=True)
    model.should_save_peft_only = False
    with pytest.raises(RuntimeError, match="embed_tokens"):
        model.load_state_dict(saved, strict=True)


def test_what_is_refused(make_model, monkeypatch):
    with pytest.raises(ValueError, match="LORA"):
        HuggingFaceModel(make_model("llama"), peft_config=peft.IA3Config(task_type="CAUSAL_LM"))
    inside = make_model("llama")
    inside._hf_peft_config_loaded = True  # what add_adapter leaves behind
    with pytest.raises(ValueError, match="add_adapter"):
        HuggingFaceModel(inside)
    monkeypatch.setattr(huggingface, "peft_installed", False)
    with pytest.raises(ImportError, match="peft"):
        HuggingFaceModel(make_model("llama"), peft_config=_lora())


def test_a_model_with_adapters_keeps_its_own(make_model, caplog):
    wrapped = peft.get_peft_model(make_model("llama"), _lora())
    with caplog.at_level(logging.WARNING):
        model = HuggingFaceModel(wrapped, peft_config=_lora(r=7))
    assert model.model is wrapped and model.using_peft
    assert "peft_config is not used" in caplog.text


def test_metadata_brings_model_and_settings_back(model, tmp_path):
    state, path = _checkpoint(model, tmp_path)
    described = state["state"]["integrations"]["huggingface"]["model"]
    assert described["config"]["class"].endswith("LlamaForCausalLM")
    assert described["peft_config"]["file_extension"] == ".json"
    assert json.loads(json.dumps(described["peft_config"])) == described["peft_config"]
    config = get_peft_config_from_composer_state_dict(state)
    assert config.to_dict() == model.model.peft_config["default"].to_dict()
    built, _ = HuggingFaceModel.hf_from_composer_checkpoint(path)
    assert type(built) is type(model.model)
    # What Composer wrote as the class was the wrapper.
    described["config"]["class"] = "peft.peft_model.PeftModelForCausalLM"
    torch.save(state, path)
    again, _ = HuggingFaceModel.hf_from_composer_checkpoint(path)
    assert type(maybe_get_underlying_model(again)) is transformers.LlamaForCausalLM
    del described["peft_config"]
    assert get_peft_config_from_composer_state_dict(state) is None


def test_B97_a_folder_holds_the_adapter_and_it_merges(model, text_batch, tmp_path):
    base = tmp_path / "base"
    maybe_get_underlying_model(copy.deepcopy(model).model.unload()).save_pretrained(base)
    model.model.peft_config["default"].base_model_name_or_path = str(base)
    of_base = model.eval()(text_batch).logits
    expected = _shaken(model)(text_batch).logits
    assert not torch.allclose(expected, of_base, atol=1e-2)
    _, path = _checkpoint(model, tmp_path)
    folder = tmp_path / "folder"
    write_huggingface_pretrained_from_composer_checkpoint(path, folder)
    names = {file.name for file in folder.iterdir()}
    assert {"adapter_config.json", "adapter_model.bin", "tokenizer.json"} <= names
    assert not names & {"config.json", "pytorch_model.bin"}
    loaded = peft.AutoPeftModelForCausalLM.from_pretrained(folder)
    torch.testing.assert_close(loaded(**text_batch).logits, expected)
    merged = HuggingFaceModel(model.model.merge_and_unload(), model.tokenizer)
    assert not merged.using_peft
    torch.testing.assert_close(merged(text_batch).logits, expected, atol=1e-5, rtol=1e-4)


def test_generates(model):
    ids = torch.tensor([[5, 6], [7, 8]])
    settings = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 3, "do_sample": False}
    torch.testing.assert_close(
        _shaken(model).generate(ids, **settings),
        model.model.generate(input_ids=ids, pad_token_id=1, **settings),
    )


def test_filtering():
    names = [
        "base_model.model.q.base_layer.weight",
        "base_model.model.q.base_layer.bias",
        "base_model.model.q.lora_A.default.weight",
        "base_model.model.q.lora_B.other.weight",
        "base_model.model.k.bias",
        "base_model.model.head.modules_to_save.default.weight",
        "base_model.model.head.original_module.weight",
    ]
    state = dict.fromkeys(names, 0)
    kept = [names[2], names[5]]
    assert list(filter_state_dict_peft(state, _lora(), remove_adapter_names=False)) == kept
    assert list(filter_state_dict_peft(state, _lora())) == [
        "base_model.model.q.lora_A.weight",
        "base_model.model.head.weight",
    ]
    assert list(filter_state_dict_peft(state, _lora(), "other")) == [
        "base_model.model.q.lora_B.weight"
    ]
    biased = filter_state_dict_peft(state, _lora(bias="lora_only"), remove_adapter_names=False)
    assert set(biased) == {*kept, names[1]}
    biased = filter_state_dict_peft(state, _lora(bias="all"), remove_adapter_names=False)
    assert set(biased) == {*kept, names[1], names[4]}
    strange = _lora()
    strange.bias = "some"
    with pytest.raises(NotImplementedError, match="some"):
        filter_state_dict_peft(state, strange)


class _Losses(Callback):
    def __init__(self):
        self.losses = []

    def batch_end(self, state, logger):
        self.losses.append(state.total_loss_dict["loss/train/total"])


def _recorded_model(save_only_adapters):
    from safetensors.torch import load_file

    folder = GOLDEN / "lora" / "base_llama"
    model = HuggingFaceModel(
        transformers.AutoModelForCausalLM.from_pretrained(folder),
        transformers.AutoTokenizer.from_pretrained(folder),
        peft_config=peft.LoraConfig(**RECORD["peft_config"]),
        should_save_peft_only=save_only_adapters,
    )
    start = load_file(GOLDEN / "lora" / "initial_lora_weights.safetensors")
    assert model.load_state_dict(start, strict=False).unexpected_keys == []
    return model


def _train(kind, batch_size=4, **kwargs):
    """Trains as recorded; returns the model, its losses and its logits for the recorded rows."""
    rows = torch.from_numpy(np.load(GOLDEN / "data.npz")["train_input_ids"]).long()
    batches = DataLoader(
        [{"input_ids": r, "attention_mask": torch.ones_like(r), "labels": r} for r in rows],
        batch_size=batch_size,
        sampler=dist.get_sampler(rows),
    )
    model, note = _recorded_model(kind == "adapter_only"), _Losses()
    trainer = Trainer(
        model=model,
        optimizers=DecoupledAdamW(model.parameters(), lr=1e-2, weight_decay=0),
        train_dataloader=batches,
        max_duration="4ba",
        callbacks=note,
        progress_bar=False,
        seed=17,
        **kwargs,
    )
    trainer.fit()
    trainer.close()
    recorded = np.load(GOLDEN / "lora" / "logits_after_4ba.npz")
    with torch.no_grad():
        logits = model.eval()({"input_ids": torch.from_numpy(recorded["input_ids"])}).logits
    np.testing.assert_allclose(logits.numpy(), recorded["logits"], atol=2e-4)
    return model, note.losses


@pytest.mark.filterwarnings("ignore:callbacks. _Losses:UserWarning")
@pytest.mark.parametrize("kind", ["adapter_only", "full"])
def test_B98_recorded_run_and_its_continuation(kind, tmp_path):
    record, folder = RECORD[kind], tmp_path / "saved"
    model, losses = _train(kind, save_folder=str(folder), save_interval="2ba")
    assert losses == pytest.approx(record["losses"]["loss"], rel=1e-5)
    shapes = {key: list(value.shape) for key, value in model.state_dict().items()}
    assert shapes == record["state_dict_keys"] and list(shapes) == list(record["state_dict_keys"])
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    assert trained == record["trainable"]
    saved = safe_torch_load(str(folder / "ep0-ba2-rank0.pt"))["state"]
    assert list(saved["model"]) == list(shapes)
    assert list(saved["optimizers"]["DecoupledAdamW"]["state"]) == trained  # B99
    for path in (GOLDEN / "lora" / record["file"], folder / "ep0-ba2-rank0.pt"):
        model, losses = _train(kind, load_path=str(path))
        assert losses == pytest.approx(record["continued_from_ba2"]["loss"], rel=1e-5)
        base = _recorded_model(True).model.unload().state_dict()
        torch.testing.assert_close(model.model.unload().state_dict(), base, rtol=0, atol=0)


SHARDED = {"parallelism_config": {"fsdp2": {"state_dict_type": "full"}}}


def _train_and_continue(folder, settings):
    model, losses = _train("adapter_only", 2, save_folder=folder, save_interval="2ba", **settings)
    saved = f"{folder}/ep0-ba2-rank0.pt"
    is_sharded = all(hasattr(p, "device_mesh") for p in model.parameters())
    return losses, list(safe_torch_load(saved)["state"]["model"]), is_sharded


@pytest.mark.parametrize("settings", [pytest.param({}, marks=pytest.mark.slow), SHARDED])
def test_B101_ranks_train_adapters_as_one_does(settings, tmp_path):
    record = RECORD["adapter_only"]
    ranks = run_ranks(_train_and_continue, 2, str(tmp_path / "saved"), settings)
    for losses, names, is_sharded in ranks:
        assert losses == pytest.approx(record["losses"]["loss"], rel=1e-5)
        assert names == list(record["state_dict_keys"])
        assert is_sharded == bool(settings)
    # A wrapped model takes a checkpoint of adapters alone as the plain one does.
    run_ranks(_continue, 2, str(tmp_path / "saved" / "ep0-ba2-rank0.pt"), settings)


def _split():
    model = _recorded_model(True)
    plan = tp_strategies.get("llama")(model)
    with pytest.raises(ValueError, match=r"does not combine with adapters \(LoRA\)"):
        Trainer(
            model=model,
            optimizers=DecoupledAdamW(model.parameters(), lr=1e-2),
            parallelism_config={
                "fsdp2": {},
                "tp": {"tensor_parallel_degree": 2, "layer_plan": plan},
            },
            progress_bar=False,
        )


def test_layers_with_adapters_are_not_split():
    run_ranks(_split, 2)


def _continue(path, settings):
    warnings.filterwarnings("ignore", message="callbacks: _Losses")
    _train("adapter_only", 2, load_path=path, **settings)
