"""Adapters on MPT and on transformers models: settings, training, checkpoints, merging."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM

from composer import Callback, Trainer
from composer.checkpoint.monolithic import safe_torch_load
from composer.models.hf_metadata import get_peft_config_from_composer_state_dict
from composer.utils import dist
from llmfoundry.models import ComposerHFCausalLM, ComposerMPTCausalLM
from llmfoundry.models.hf.adapters import (
    merge_adapters,
    restore_adapters,
    write_adapter_folder,
)
from llmfoundry.models.hf.hf_export import write_hf_folder
from tests.llmfoundry.models.hf.tiny import build, rows, save

peft = pytest.importorskip("peft")

pytestmark = [
    # peft asks transformers for a name that is being replaced.
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:callbacks. _Losses:UserWarning"),
]

LORA = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 3, "lora_alpha": 6}
METHODS: dict[str, dict[str, Any]] = {
    "lora": {},
    "dora": {"use_dora": True},
    "rslora": {"use_rslora": True},
}
MPT = {"d_model": 16, "n_heads": 2, "n_layers": 2, "max_seq_len": 64, "vocab_size": 96}
SEED = 5


def _mpt(**settings: Any) -> ComposerMPTCausalLM:
    torch.manual_seed(SEED)
    settings = {"attn_config": {"alibi": True}, "no_bias": True, **settings}
    return ComposerMPTCausalLM(None, **{"use_train_metrics": False, **MPT, **settings})


def _hf(folder: str, **settings: Any) -> ComposerHFCausalLM:
    torch.manual_seed(SEED)
    return ComposerHFCausalLM(None, folder, **{"use_train_metrics": False, **settings})


def _model(kind: str, folder: Path, **settings: Any) -> Any:
    if kind == "mpt_causal_lm":
        return _mpt(**settings)
    return _hf(str(folder) if (folder / "config.json").exists() else save(kind, folder), **settings)


def _shaken(model: Any) -> Any:
    """The same model with other adapter weights, so that the adapters say something."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def _logits(model: Any, batch: dict[str, Any] | None = None) -> torch.Tensor:
    batch = batch or rows()
    inputs = {key: batch[key] for key in ("input_ids", "attention_mask")}
    with torch.no_grad():
        return model(**inputs).logits


def _equal(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal to 1e-5 of the largest logit."""
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["mpt_causal_lm", "llama", "gpt2"])
def test_B97_merged_and_written_adapters_give_the_adapted_logits(
    kind: str, method: str, tmp_path: Path
) -> None:
    model = _model(kind, tmp_path / "base", peft_config=LORA | METHODS[method])
    trained = [name for name, each in model.named_parameters() if each.requires_grad]
    assert trained and all("lora_" in name for name in trained)
    assert any(name.endswith(("Wqkv.lora_A.default.weight", "q_proj.lora_A.default.weight"))
               or "c_attn" in name for name in trained)  # fmt: skip
    base = {k: v.clone() for k, v in model.model.get_base_model().state_dict().items()}
    of_base = _logits(model.eval().model)
    adapted = _logits(_shaken(model).model)
    assert (adapted - of_base).abs().max() > 1e-2
    scaling = next(m.scaling["default"] for m in model.model.modules() if hasattr(m, "lora_A"))
    assert scaling == pytest.approx(6 / 3**0.5 if method == "rslora" else 2)

    config, weights = model.model.peft_config["default"], model.state_dict()
    write_adapter_folder(tmp_path / "adapters", config, weights, base_name="some/base")
    written = json.loads((tmp_path / "adapters" / "adapter_config.json").read_text())
    assert written["base_model_name_or_path"] == "some/base" and written["inference_mode"]
    model.model.save_pretrained(tmp_path / "theirs")
    ours, theirs = (
        peft.utils.load_peft_weights(str(tmp_path / name)) for name in ("adapters", "theirs")
    )
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)

    merged = merge_adapters(model.model)
    _equal(_logits(merged), adapted)
    assert merged.state_dict().keys() == _plain(base).keys()

    plain = _model(kind, tmp_path / "base").model
    loaded = peft.PeftModel.from_pretrained(plain, str(tmp_path / "adapters"))
    _equal(_logits(loaded.eval()), adapted)


def _plain(state: dict[str, Any]) -> dict[str, Any]:
    return {k.replace("base_layer.", ""): v for k, v in state.items() if "lora_" not in k}


@pytest.mark.parametrize("tied", [False, True])
def test_an_adapted_mpt_becomes_a_folder_of_transformers(tied: bool, tmp_path: Path) -> None:
    named = LORA | {"base_model_name_or_path": str(tmp_path / "base")}
    model = _shaken(_mpt(peft_config=named, tie_word_embeddings=tied))
    adapted = _logits(model.model)
    write_adapter_folder(
        tmp_path / "adapters", model.model.peft_config["default"], model.state_dict()
    )
    base = _mpt(tie_word_embeddings=tied)
    folders = {"base": base.model, "merged": merge_adapters(model.model)}
    for name, each in folders.items():
        (tmp_path / name).mkdir()
        write_hf_folder(each, None, tmp_path / name, torch.float32)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    _equal(_logits(merged), adapted)
    # transformers' own MPT takes the adapters of ours: the layers have the same names.
    theirs = peft.AutoPeftModelForCausalLM.from_pretrained(str(tmp_path / "adapters"))
    _equal(_logits(theirs.eval()), adapted)


HEADS = [{"target_modules": ["lm_head"]}, {"target_modules": ["lm_head"], "use_dora": True},
         {"target_modules": ["v_proj", "Wqkv"], "modules_to_save": ["lm_head"]}]  # fmt: skip


@pytest.mark.parametrize("settings", HEADS, ids=["lora", "dora", "whole"])
@pytest.mark.parametrize("kind", ["mpt_causal_lm", "llama"])
def test_the_loss_in_chunks_knows_the_adapters_of_the_head(
    kind: str, settings: Any, tmp_path: Path
) -> None:
    own = {"v_proj": "llama", "Wqkv": "mpt_causal_lm"}
    targets = [name for name in settings["target_modules"] if own.get(name, kind) == kind]
    settings = settings | {"target_modules": targets}
    extra = {"tie_word_embeddings": False} if kind == "mpt_causal_lm" else {}
    model = _model(kind, tmp_path, peft_config=LORA | settings, **extra)
    _shaken(model).train()
    batch = rows()
    outputs = model(batch)
    assert outputs.logits is None
    loss = model.loss(outputs, batch)
    loss.backward()
    found = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    logits = model.model(
        input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]
    ).logits
    expected = torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten()
    )
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    wanted = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    assert found.keys() == wanted.keys() and any("lm_head" in name for name in found)
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-6, rtol=1e-3)


REFUSED = [
    (
        {"target_modules": ["Wqkvv"]},
        r"'Wqkvv' matches no layer.*Wqkv, down_proj, out_proj, up_proj",
    ),
    ({"target_modules": ["Wqkv", "nothing"]}, "'nothing' matches no layer"),
    ({"target_modules": r".*\.attn\.no"}, "matches no layer"),
    ({"lora_aplha": 4}, r"may not have 'lora_aplha'. Did you mean 'lora_alpha'\?"),
    ({"loftq_config": {"loftq_bits": 4}}, "may not have 'loftq_config'"),
    ({"init_lora_weights": "pissa"}, "init_lora_weights='pissa' changes the base"),
    ({"layers_pattern": "blocks"}, "no effect without layers_to_transform"),
    ({"exclude_modules": ["nothing"]}, "exclude_modules has 'nothing'"),
    ({"modules_to_save": ["nothing"]}, "modules_to_save has 'nothing'"),
    ({"rank_pattern": {"nothing": 4}}, "rank_pattern has 'nothing'"),
    ({"target_modules": ["Wqkv"], "layers_to_transform": [0, 7]}, "layers_to_transform has 7"),
    ({"target_modules": ["wte"]}, "names 'transformer.wte', whose weight is the embedding's and"),
    ({"peft_type": "IA3"}, "peft_config.peft_type='IA3'"),
    ({"task_type": "SEQ_CLS"}, "peft_config.task_type='SEQ_CLS'"),
]


@pytest.mark.parametrize(("settings", "words"), REFUSED)
def test_what_does_not_fit_is_refused(settings: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        _mpt(peft_config=LORA | settings)


def test_what_has_no_effect_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no effect without adapters"):
        _mpt(should_save_peft_only=False)
    with pytest.raises(ValueError, match="two answers to one question"):
        _mpt(peft_config=LORA, pretrained_lora_id_or_path="some/adapters")
    untied = {"tie_word_embeddings": False}
    with pytest.raises(ValueError, match="lora_dropout=0.1 is not possible on an MPT's lm_head"):
        _mpt(peft_config=LORA | {"target_modules": ["lm_head"], "lora_dropout": 0.1}, **untied)
    tokenizer = _tokenizer()
    with pytest.raises(ValueError, match="would stay as they were drawn"):
        ComposerMPTCausalLM(tokenizer, **MPT, peft_config=LORA)
    whole = LORA | {"modules_to_save": ["wte"]}
    model = ComposerMPTCausalLM(tokenizer, **MPT, peft_config=whole)
    assert model.model.get_input_embeddings().weight.shape[0] == len(tokenizer)


def _tokenizer() -> Any:
    from tests.llmfoundry.tiny_tokenizer import train_tokenizer

    return train_tokenizer()


@pytest.mark.parametrize(
    ("kind", "targets"),
    [
        ("mpt_causal_lm", {"Wqkv", "out_proj", "up_proj", "down_proj"}),
        ("llama", {"q_proj", "v_proj"}),  # as peft has it
        ("granite", {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}),
    ],
)
def test_where_adapters_stand_by_default(kind: str, targets: set[str], tmp_path: Path) -> None:
    model = _model(kind, tmp_path, peft_config=LORA)
    found = {name.split(".lora_")[0].rpartition(".")[2] for name in model.state_dict()}
    assert found == targets


def test_frozen_weights_cost_no_gradient_of_theirs() -> None:
    batch = rows()
    tokens, widths = batch["input_ids"].numel(), [3 * 16, 16, 4 * 16, 4 * 16]
    frozen, whole = _mpt(peft_config=LORA), _mpt()
    matrices = 2 * 16 * sum(widths) + 96 * 16 + 5 * 16  # blocks, the shared embedding, norms
    adapters = 2 * 3 * sum(16 + each for each in widths)
    difference = whole.flops_per_batch(batch) - frozen.flops_per_batch(batch)
    assert difference == 2 * tokens * (matrices - 3 * adapters)


# Training


class _Losses(Callback):
    def __init__(self) -> None:
        self.losses: list[float] = []

    def batch_end(self, state: Any, logger: Any) -> None:
        self.losses.append(float(state.total_loss_dict["loss/train/total"]))


def _train(model: Any, duration: str = "6ba", **settings: Any) -> list[float]:
    data: Any = [{key: each[0] for key, each in rows(1, 12, seed=s).items()} for s in range(24)]
    notes = _Losses()
    trainer = Trainer(
        model=model,
        train_dataloader=DataLoader(
            data,
            batch_size=4 // dist.get_world_size(),
            sampler=dist.get_sampler(data, shuffle=True),
        ),
        optimizers=torch.optim.AdamW(model.parameters(), lr=0.02),
        max_duration=duration,
        callbacks=[notes, *settings.pop("callbacks", [])],
        progress_bar=False,
        device="cpu",
        seed=SEED,
        **settings,
    )
    trainer.fit()
    trainer.close()
    return notes.losses


def _norms(model: Any) -> dict[str, float]:
    whole = ((n, p.full_tensor() if hasattr(p, "full_tensor") else p)
             for n, p in model.named_parameters())  # fmt: skip
    return {name.replace("_checkpoint_wrapped_module.", ""): float(p.norm()) for name, p in whole}


@pytest.mark.parametrize("kind", ["mpt_causal_lm", "llama"])
def test_B98_B99_a_checkpoint_holds_adapters_and_goes_on_exactly(kind: str, tmp_path: Path) -> None:
    settings = LORA | {"lora_dropout": 0.2, "use_dora": True}
    model = _model(kind, tmp_path / "base", peft_config=settings)
    trained = [name for name, each in model.named_parameters() if each.requires_grad]
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    run = {"run_name": "adapters", "save_folder": str(tmp_path / "run"), "save_interval": "3ba"}
    losses = _train(model, save_filename="ba{batch}.pt", **run)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]) == (name not in trained)

    saved = safe_torch_load(str(tmp_path / "run" / "ba3.pt"))["state"]
    assert list(saved["model"]) == trained
    assert set(saved["optimizers"]["AdamW"]["state"]) == set(trained)
    # Named again in the new optimizer's groups, the base has no moments there either.
    (tmp_path / "run" / "ba6.pt").unlink()
    again = _model(kind, tmp_path / "base", peft_config=settings)
    n_trained = sum(each.requires_grad for each in again.parameters())
    rest = _train(again, load_path=str(tmp_path / "run" / "ba3.pt"))
    assert rest == losses[3:] and n_trained == len(trained)
    for (name, ours), theirs in zip(again.named_parameters(), model.parameters(), strict=True):
        assert torch.equal(ours, theirs), name


def test_a_stopped_run_goes_on_by_itself(tmp_path: Path) -> None:
    run = {"run_name": "stopped", "save_folder": str(tmp_path), "save_interval": "2ba"}
    run |= {"autoresume": True, "save_filename": "ba{batch}.pt"}
    through = _train(_mpt(peft_config=LORA), run_name="through")
    first = _train(_mpt(peft_config=LORA), "4ba", **run)
    rest = _train(_mpt(peft_config=LORA), "6ba", **run)
    assert first + rest == through


def test_adapters_of_another_base_are_refused(tmp_path: Path) -> None:
    run = {"run_name": "base", "save_folder": str(tmp_path), "save_filename": "ba{batch}.pt"}
    _train(_mpt(peft_config=LORA), "2ba", save_interval="2ba", **run)
    path, other = str(tmp_path / "ba2.pt"), _mpt(peft_config=LORA)
    with torch.no_grad():
        other.model.get_base_model().transformer.norm_f.weight[3] += 1e-3
    for weights_only in (False, True):
        with pytest.raises(ValueError, match="they were trained on another base"):
            _train(other, load_path=path, load_weights_only=weights_only)
    _train(other, load_path=path, load_ignore_keys=["state/integrations"])


@pytest.mark.parametrize("whole", [{}, {"modules_to_save": ["wte"]}])
def test_adapters_are_trained_on_the_base_of_a_checkpoint(whole: Any, tmp_path: Path) -> None:
    """Of a model without adapters; and a run stopped later starts from the same base again."""
    from composer.callbacks import LoadCheckpoint

    pretrained = _mpt()
    _train(pretrained, "2ba", save_folder=str(tmp_path / "pre"), save_filename="base.pt")
    expected = _logits(pretrained.eval().model)
    base = str(tmp_path / "pre" / "base.pt")

    def run(duration: str, **settings: Any) -> Any:
        model = _mpt(peft_config=LORA | whole, init_config={"emb_init_std": 0.1})
        load = LoadCheckpoint(base, load_weights_only=True)
        return model, _train(model, duration, callbacks=[load], **settings)

    model, _ = run("1ba")
    with model.model.disable_adapter():
        torch.testing.assert_close(_logits(model.eval().model), expected)
    _, through = run("4ba", run_name="through")
    saving = {"run_name": "stopped", "save_folder": str(tmp_path / "run"), "autoresume": True}
    _, first = run("2ba", save_interval="2ba", save_filename="ba{batch}.pt", **saving)
    _, rest = run("4ba", save_interval="2ba", save_filename="ba{batch}.pt", **saving)
    assert first + rest == through
    saved = safe_torch_load(base)
    del saved["state"]["model"]["model.transformer.norm_f.weight"]
    torch.save(saved, base)
    with pytest.raises(RuntimeError, match="Not in it: model.transformer.norm_f.weight"):
        run("1ba")


def test_a_checkpoint_becomes_a_merged_model_without_its_trainer(tmp_path: Path) -> None:
    folder = save("llama", tmp_path / "base")
    model = _hf(folder, peft_config=LORA)
    _train(model, save_folder=str(tmp_path), save_filename="last.pt", save_interval="6ba")
    saved = safe_torch_load(str(tmp_path / "last.pt"))
    config = get_peft_config_from_composer_state_dict(saved)
    assert config is not None and config.base_model_name_or_path == folder
    base = AutoModelForCausalLM.from_pretrained(folder)
    restored = restore_adapters(base, config, saved["state"]["model"])
    adapted = _logits(model.eval().model)
    torch.testing.assert_close(_logits(restored), adapted)
    _equal(_logits(merge_adapters(restored)), adapted)
    other = build("llama", hidden_size=32)
    with pytest.raises(ValueError, match="of another base than the LlamaForCausalLM"):
        restore_adapters(other, config, saved["state"]["model"])
    with pytest.raises(ValueError, match="matches no layer"):
        restore_adapters(build("gpt2"), config, saved["state"]["model"])


@pytest.mark.parametrize("kind", ["mpt_causal_lm", "llama"])
def test_loaded_adapters_are_trained_on(kind: str, tmp_path: Path) -> None:
    first = _shaken(_model(kind, tmp_path / "base", peft_config=LORA))
    first.model.save_pretrained(tmp_path / "adapters")
    model = _model(kind, tmp_path / "base", pretrained_lora_id_or_path=str(tmp_path / "adapters"))
    torch.testing.assert_close(_logits(model.eval().model), _logits(first.model))
    assert list(model.state_dict()) == list(first.state_dict())
    losses = _train(model, "12ba")
    assert sum(losses[6:]) < sum(losses[:6])


COMPILED = {"compile_config": {"per_block": True, "backend": "aot_eager"}}
RECOMPUTED = {"parallelism_config": {"fsdp2": {"activation_checkpointing": True}}}


@pytest.mark.parametrize(
    "settings",
    [pytest.param(COMPILED, marks=pytest.mark.slow), RECOMPUTED],
    ids=["compiled", "recomputed"],
)
@pytest.mark.parametrize("kind", ["mpt_causal_lm", "llama"])
def test_compiled_and_recomputed_blocks_train_the_same(
    kind: str, settings: Any, tmp_path: Path
) -> None:
    plain = _train(_model(kind, tmp_path, peft_config=LORA), "3ba")
    losses = _train(_model(kind, tmp_path, peft_config=LORA), "3ba", **settings)
    assert losses == pytest.approx(plain, rel=1e-5)


def test_adapters_are_averaged(tmp_path: Path) -> None:
    from composer.algorithms import EMA

    model = _mpt(peft_config=LORA)
    ema = EMA(half_life="2ba", update_interval="1ba")
    _train(model, algorithms=[ema])
    assert ema.ema_model is not None
    assert all("lora_" in name for name in ema.ema_model.named_parameters_dict)


def _english(tokenizer: Any, topics: list[str], n_rows: int) -> Any:
    """Rows of the Python manual, which comes with Python."""
    from pydoc_data.topics import topics as pages

    ids = tokenizer("\n".join(pages[name] for name in topics))["input_ids"]
    table = torch.tensor(ids[: n_rows * 128]).view(n_rows, 128)
    return [{"input_ids": row, "labels": row} for row in table]


@pytest.mark.slow
def test_smollm2_learns_english_by_adapters_and_leaves_merged(
    smollm2: Path, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    settings = LORA | {"r": 8, "lora_alpha": 16, "target_modules": "all-linear"}
    model = ComposerHFCausalLM(
        tokenizer, str(smollm2), peft_config=settings, use_train_metrics=False
    )
    heldout = _english(tokenizer, ["operator-summary", "numbers", "while", "assert"], 6)
    trainer = Trainer(
        model=model,
        train_dataloader=DataLoader(
            _english(tokenizer, ["compound", "import", "exprlists", "typesseq"], 32), batch_size=4
        ),
        eval_dataloader=DataLoader(heldout, batch_size=4),
        eval_interval="1ep",
        optimizers=torch.optim.AdamW(
            [each for each in model.parameters() if each.requires_grad], lr=3e-3
        ),
        max_duration="1ep",
        save_folder=str(tmp_path),
        save_filename="last.pt",
        progress_bar=False,
        device="cpu",
    )
    trainer.eval()
    before = float(trainer.state.eval_metrics["eval"]["LanguagePerplexity"].compute())
    trainer.fit()
    after = float(trainer.state.eval_metrics["eval"]["LanguagePerplexity"].compute())
    print(f"perplexity {before:.2f} before, {after:.2f} after")
    assert after < 0.96 * before
    assert (tmp_path / "last.pt").stat().st_size < 0.2 * (
        smollm2 / "model.safetensors"
    ).stat().st_size

    batch = {"input_ids": heldout[0]["input_ids"][None], "attention_mask": torch.ones(1, 128)}
    adapted = _logits(model.eval().model, batch)
    saved = safe_torch_load(str(tmp_path / "last.pt"))
    base = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    config = get_peft_config_from_composer_state_dict(saved)
    merged = merge_adapters(restore_adapters(base, config, saved["state"]["model"]))
    (tmp_path / "merged").mkdir()
    write_hf_folder(merged, tokenizer, tmp_path / "merged", torch.float32)
    loaded: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    _equal(_logits(loaded.eval(), batch), adapted)
