"""Adapters on two ranks train as on one, however the model came to life and is spread."""

import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.launch import run_ranks
from tests.llmfoundry.models.hf.test_adapters import LORA, _model, _train
from tests.llmfoundry.models.hf.tiny import save

pytest.importorskip("peft")

SHARDED = {"parallelism_config": {"fsdp2": {"state_dict_type": "full"}}}


def _trained(
    kind: str, folder: str, peft_config: Any, model: Any = None, run: Any = None
) -> tuple[list[float], dict[str, float], int | None]:
    warnings.filterwarnings("ignore", message="callbacks: _Losses")
    warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing")
    adapters = {} if peft_config is None else {"peft_config": LORA | peft_config}
    built = _model(kind, Path(folder), **adapters, **(model or {}))
    losses = _train(built, "4ba", **(run or {}))
    norms = {}
    for name, each in built.named_parameters():
        whole: Any = each.detach()
        whole = whole.full_tensor() if hasattr(whole, "full_tensor") else whole
        norms[name] = float(whole.norm())
    return losses, norms, built.sum_of_base()


def _agree(ranks: list[Any], alone: Any) -> None:
    for losses, norms, base in ranks:
        assert losses == pytest.approx(alone[0], rel=1e-5)
        assert norms == pytest.approx(alone[1], rel=1e-5)
        assert base == alone[2] is not None


@pytest.mark.slow
@pytest.mark.parametrize("model", [None, {"init_device": "mixed"}])
def test_a_tied_embedding_is_trained_whole_on_two_ranks(model: Any, tmp_path: Path) -> None:
    save("llama_tied", tmp_path)
    whole = {"modules_to_save": ["embed_tokens"], "target_modules": "all-linear"}
    alone = _trained("llama_tied", str(tmp_path), whole)
    _agree(run_ranks(_trained, 2, "llama_tied", str(tmp_path), whole, model, SHARDED), alone)


BOTH = [pytest.param("mpt_causal_lm", marks=pytest.mark.slow), "llama"]


@pytest.mark.parametrize("run", [{}, SHARDED], ids=["replicas", "shards"])
@pytest.mark.parametrize("kind", ["mpt_causal_lm", "llama"])
def test_B101_two_ranks_train_as_one(kind: str, run: Any, tmp_path: Path) -> None:
    if kind == "llama":
        save(kind, tmp_path)
    dora = {"use_dora": True, "target_modules": "all-linear"}
    alone = _trained(kind, str(tmp_path), dora)
    _agree(run_ranks(_trained, 2, kind, str(tmp_path), dora, None, run), alone)


@pytest.mark.parametrize("kind", BOTH)
def test_weights_of_rank_zero_are_sent_under_adapters(kind: str, tmp_path: Path) -> None:
    if kind == "llama":
        save(kind, tmp_path)
    dora = {"use_dora": True}
    alone = _trained(kind, str(tmp_path), dora)
    mixed = {"init_device": "mixed"}
    _agree(run_ranks(_trained, 2, kind, str(tmp_path), dora, mixed, SHARDED), alone)


@pytest.mark.parametrize("kind", BOTH)
def test_adapters_on_meta_start_as_peft_starts_them(kind: str, tmp_path: Path) -> None:
    fresh: dict[str, Any] = {"pretrained": False} if kind == "llama" else {}
    if kind == "llama":
        save(kind, tmp_path)
    meta = fresh | {"init_device": "meta"}
    plain = run_ranks(_trained, 2, kind, str(tmp_path), None, meta, SHARDED)
    ranks = run_ranks(_trained, 2, kind, str(tmp_path), {}, meta, SHARDED)
    for (losses, *_), (of_base, *_) in zip(ranks, plain, strict=True):
        # The base draws the same weights, and adapters start with no effect.
        assert losses[0] == of_base[0] and losses[1] != of_base[1] and losses[-1] < losses[0]
    with pytest.raises(ValueError, match="DoRA.*Use init_device: mixed or cpu"):
        _trained(kind, str(tmp_path), {"use_dora": True}, meta)


SHARDS = {"parallelism_config": {"fsdp2": {"state_dict_type": "sharded"}}, "save_metrics": False}


def _saved_and_gone_on(kind: str, folder: str, save_folder: str) -> tuple[list[float], Any]:
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    run = {**SHARDS, "save_folder": save_folder, "save_interval": "2ba"}
    losses, *_ = _trained(kind, folder, {}, None, run)
    path = f"{save_folder}/ep0-ba2"
    names = list(FileSystemReader(path).read_metadata().state_dict_metadata)
    rest, *_ = _trained(kind, folder, {}, None, {**SHARDS, "load_path": path})
    assert rest == losses[2:]
    return losses, [name for name in names if ".base_model." in name]


def test_B99_sharded_checkpoints_hold_adapters_alone(tmp_path: Path) -> None:
    save("llama", tmp_path / "base")
    ranks = run_ranks(_saved_and_gone_on, 2, "llama", str(tmp_path / "base"), str(tmp_path / "run"))
    for _, names in ranks:
        assert names and all("lora_" in name for name in names)


def _on_sharded_base(folder: str) -> None:
    """On two ranks: under adapters a base of shards is taken, and another one is refused."""
    warnings.filterwarnings("ignore", message="callbacks: _Losses")
    warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing")
    kind = "mpt_causal_lm"
    run = {**SHARDS, "run_name": "base", "save_folder": f"{folder}/base", "save_interval": "2ba"}
    _, norms, _ = _trained(kind, folder, None, None, run)
    other = {"init_config": {"emb_init_std": 0.1, "init_div_is_residual": False}}
    load = {**SHARDS, "load_path": f"{folder}/base/ep0-ba4", "load_weights_only": True}
    whole = {"modules_to_save": ["wte"]}
    save = {"run_name": "adapters", "save_folder": f"{folder}/adapters", "save_interval": "2ba"}
    _, adapted, _ = _trained(kind, folder, whole, other, {**load, **save})
    for name, norm in adapted.items():
        plain = name.replace(".base_model.model.", ".").replace(".base_layer.", ".")
        plain = plain.replace(".original_module.", ".")
        if "lora_" not in name and "modules_to_save" not in name:
            assert norm == pytest.approx(norms[plain], rel=1e-6)
    for weights_only in (True, False):
        with pytest.raises(ValueError, match="they were trained on another base"):
            again = {"load_path": f"{folder}/adapters/ep0-ba2", "load_weights_only": weights_only}
            _trained(kind, folder, whole, other, {**SHARDS, **again})


def test_a_sharded_base_is_taken_under_adapters_that_know_it(tmp_path: Path) -> None:
    run_ranks(_on_sharded_base, 2, str(tmp_path))
