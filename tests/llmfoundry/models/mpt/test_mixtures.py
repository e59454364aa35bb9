"""MPTs with mixtures of experts: initialisation, losses, ranks, recomputation, export."""

import copy
import functools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from composer import Evaluator, Trainer
from composer.algorithms import SAM, GradientClipping
from composer.loggers import InMemoryLogger
from composer.optim import DecoupledAdamW
from composer.utils import dist
from llmfoundry.callbacks.log_mbmoe_tok_per_expert_callback import MegaBlocksMoE_TokPerExpert
from llmfoundry.command_utils.convert_composer_to_hf import (
    write_huggingface_pretrained_from_composer_checkpoint,
)
from llmfoundry.models.hf.hf_export import write_hf_folder
from llmfoundry.models.layers import mb_moe
from llmfoundry.models.llm_embed.contrastive_model import ContrastiveModel
from llmfoundry.models.mpt.composer_mpt import ComposerMPTCausalLM
from tests.launch import run_ranks

ROWS, LENGTH = 8, 16
DROPLESS: dict[str, Any] = {
    "ffn_type": "mb_dmoe",
    "moe_num_experts": 4,
    "moe_top_k": 2,
    "moe_world_size": 1,
    "moe_loss_weight": 0.5,
    "moe_zloss_weight": 0.01,
    "ffn_hidden_size": 24,
}
GLOBAL = {**DROPLESS, "lbl_process_group": "global_group"}
TORCH = {
    "ffn_type": "torch_dmoe",
    "moe_num_experts": 4,
    "moe_top_k": 2,
    "mlp_type": "glu",
    "moe_jitter_eps": None,
    "moe_normalize_expert_weights": 1,
    "uniform_expert_assignment": False,
}


def mpt(ffn_config: dict[str, Any], **settings: Any) -> ComposerMPTCausalLM:
    torch.manual_seed(1)
    sizes = {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": LENGTH, "vocab_size": 64}
    return ComposerMPTCausalLM(
        **sizes,
        use_train_metrics=False,
        attn_config={"alibi": True, "attn_impl": "torch"},
        ffn_config=copy.deepcopy(ffn_config),
        **settings,
    )


def rows() -> Any:
    generator = torch.Generator().manual_seed(0)
    texts = torch.randint(0, 64, (ROWS, LENGTH), generator=generator)
    return [{"input_ids": text, "labels": text} for text in texts]


def whole(parameter: Any) -> torch.Tensor:
    return parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter


def trained(
    ffn_config: dict[str, Any], microbatch: int = ROWS, **kwargs: Any
) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Trains two steps; returns the last losses, and what the weights have become."""
    target = kwargs.pop("target", None)
    make_optimizer = kwargs.pop("optimizer", functools.partial(torch.optim.SGD, lr=0.5))
    model = mpt(ffn_config, activation_checkpointing_target=target)
    size = ROWS // dist.get_world_size()
    sampler = dist.get_sampler(rows(), shuffle=False)
    trainer = Trainer(
        model=model,
        train_dataloader=DataLoader(rows(), batch_size=size, sampler=sampler),
        optimizers=make_optimizer(model.parameters()),
        max_duration="2ep",
        device_train_microbatch_size=min(microbatch, size),
        progress_bar=False,
        **kwargs,
    )
    trainer.fit()
    losses = {name: float(value) for name, value in trainer.state.total_loss_dict.items()}
    trainer.close()
    # Numbers that a change of any one weight changes.
    weights = {
        name.replace("_checkpoint_wrapped_module.", ""): [
            float(whole(p.detach()).double().norm()),
            float(whole(p.detach()).double().flatten() @ torch.arange(p.numel()).double().sin()),
        ]
        for name, p in model.named_parameters()
    }
    return losses, weights


def check_same(one: Any, other: Any) -> None:
    for ours, theirs in zip(one, other, strict=True):
        assert ours.keys() == theirs.keys()
        for name, value in theirs.items():
            assert ours[name] == pytest.approx(value, rel=1e-5, abs=1e-5), name


@pytest.mark.parametrize("kind", ["mb_moe", "mb_dmoe", "torch_dmoe"])
def test_initialisation(kind: str) -> None:
    own = TORCH if kind == "torch_dmoe" else {**DROPLESS, "ffn_type": kind}
    model = mpt({**own, "ffn_hidden_size": 512})
    experts = model.model.transformer.blocks[0].ffn.experts
    width, inner, layers = 32, 512, 2
    deviations = {"w1": math.sqrt(2 / width), "v1": math.sqrt(2 / width)}
    deviations["w2"] = math.sqrt(2 / inner) / math.sqrt(2 * layers)
    if kind == "torch_dmoe":
        deviations["w2"] = math.sqrt(2 / width)
    for name, weight in experts.mlp.named_parameters():
        assert weight.std().item() == pytest.approx(deviations[name], rel=0.03), name
    if kind != "torch_dmoe":
        assert not experts.bias.any()
        assert mpt(own, no_bias=True).model.transformer.blocks[0].ffn.experts.bias is None


def test_losses_and_counts() -> None:
    model, batch = mpt(DROPLESS), {k: torch.stack([r[k] for r in rows()]) for k in rows()[0]}
    outputs = model(batch)
    losses = model.loss(outputs, batch)
    assert isinstance(losses, dict)
    assert losses.keys() == {"total", "loss", "lbl", "zloss"}
    parts = [losses[name].item() for name in ("loss", "lbl", "zloss")]
    assert losses["total"].item() == pytest.approx(sum(parts))
    assert losses["loss"].item() == pytest.approx(model.model(**batch).loss.item())
    assert 0.5 < losses["lbl"].item() < 1
    assert outputs.routing.tokens_per_expert.shape == (2, 4)
    losses["total"].backward()
    assert all(p.grad is not None and p.grad.any() for n, p in model.named_parameters())
    assert isinstance(model.loss(model.eval()(batch), batch), torch.Tensor)
    experts = 2 * 4 * 2 * 24 * 32
    total = sum(p.numel() for p in model.parameters())
    assert (model.n_total_params, model.n_active_params) == (total, total - experts // 2)
    assert model.flops_per_batch(batch) == (
        3 * ROWS * (2 * model.n_active_params * LENGTH + 2 * 4 * 32 * LENGTH**2)
    )


def test_what_is_logged() -> None:
    logger = InMemoryLogger()
    callback = MegaBlocksMoE_TokPerExpert(log_interval=2, log_every_layer=True, normalize=False)
    shares = MegaBlocksMoE_TokPerExpert(log_interval=1)
    losses, _ = trained(DROPLESS, 2, callbacks=[callback, shares], loggers=[logger])
    assert losses.keys() == {f"loss/train/{name}" for name in ("total", "loss", "lbl", "zloss")}
    assert losses["loss/train/total"] == pytest.approx(
        sum(value for name, value in losses.items() if not name.endswith("total"))
    )
    data = logger.data
    assert [int(t.batch) for t, _ in data["mb_moe/layer1_max_tpe"]] == [2]
    assert len(data["mb_moe/all_layers_std_tpe"]) == 3
    one, other = (data[f"mb_moe/layer{i}_max_tpe"][0][1] for i in (0, 1))
    # All tokens of the batch, though it was cut into four.
    assert one + other <= 2 * ROWS * LENGTH and max(one, other) > ROWS * LENGTH * 2 / 4
    first = data["mb_moe/all_layers_min_tpe"][0][1]
    assert 0 <= first <= 0.5
    with pytest.raises(ValueError, match="no FFN of type mb_moe"):
        trained({"ffn_type": "mptmlp"}, callbacks=[MegaBlocksMoE_TokPerExpert()])


def test_passes_that_are_run_again_do_not_count() -> None:
    logger = InMemoryLogger()
    callback = MegaBlocksMoE_TokPerExpert(log_interval=1, log_every_layer=True, normalize=False)
    two = {**DROPLESS, "moe_num_experts": 2, "moe_top_k": 1}
    trained(two, 4, callbacks=[callback], loggers=[logger], algorithms=[SAM(interval=1)])
    least, most = (logger.data[f"mb_moe/layer0_{name}_tpe"] for name in ("min", "max"))
    assert [a + b for (_, a), (_, b) in zip(least, most, strict=True)] == [ROWS * LENGTH] * 2


def test_frozen_experts_save_what_a_token_uses_of_them() -> None:
    model, batch = mpt(DROPLESS), {k: torch.stack([r[k] for r in rows()]) for k in rows()[0]}
    whole_flops = model.flops_per_batch(batch)
    for block in model.model.transformer.blocks:
        block.ffn.experts.mlp.requires_grad_(False)
    used = 2 * 2 * 2 * 24 * 32  # layers, top k, matrices
    assert whole_flops - model.flops_per_batch(batch) == 2 * used * LENGTH * ROWS


def test_settings_by_attribute() -> None:
    transformer = mpt(DROPLESS).model.transformer
    assert (transformer.mb_args.moe_top_k, transformer.mb_args.hidden_size) == (2, 32)
    assert mpt(TORCH).model.transformer.mb_args is None


def test_microbatches_weigh_the_mean_of_their_loads() -> None:
    model, texts = mpt(DROPLESS), rows()
    halves = []
    for half in (texts[:4], texts[4:]):
        batch = {key: torch.stack([row[key] for row in half]) for key in half[0]}
        losses = model.loss(model(batch), batch)
        assert isinstance(losses, dict)
        halves.append(losses)
    logger = InMemoryLogger()
    trained(DROPLESS, 4, loggers=[logger])
    for name in ("total", "loss", "lbl", "zloss"):
        logged = float(logger.data[f"loss/train/{name}"][0][1])
        assert logged == pytest.approx(sum(h[name].item() for h in halves) / 2, rel=1e-6)


FSDP = {"fsdp": {"state_dict_type": "full"}}
RECOMPUTES = {"fsdp": {"activation_checkpointing": True}}
SHARED = {**GLOBAL, "moe_world_size": 2}
SHARED_GROUP = {**SHARED, "lbl_process_group": "expert_group", "memory_optimized_mlp": True}


def _some_ways() -> dict[str, Any]:
    return {
        "of two neighbours": trained({**GLOBAL, "lbl_process_group": 2}),
        "recomputed FFNs": trained(GLOBAL, parallelism_config=RECOMPUTES, target="mb_dmoe"),
        "shared, recomputed": trained(SHARED_GROUP, parallelism_config=RECOMPUTES),
    }


def _uneven() -> Any:
    """Trains where rank 0's second micro-batch has no targets, so that it has one pass less."""
    texts = rows()
    for row in texts[4::2]:
        row["labels"] = torch.full_like(row["labels"], -100)
    model = mpt(GLOBAL)
    trainer = Trainer(
        model=model,
        train_dataloader=DataLoader(
            texts, batch_size=4, sampler=dist.get_sampler(texts, shuffle=False)
        ),
        optimizers=torch.optim.SGD(model.parameters(), lr=0.5),
        max_duration="2ep",
        device_train_microbatch_size=2,
        progress_bar=False,
        dist_timeout=60,
    )
    trainer.fit()
    return [float(p.detach().double().norm()) for p in model.parameters()]


def _refused() -> list[str]:
    found = []
    for make in (
        lambda: mpt({**GLOBAL, "lbl_process_group": 3}),
        lambda: Trainer(
            model=mpt(GLOBAL),
            eval_dataloader=Evaluator(
                label="auto",
                dataloader=DataLoader(rows(), batch_size=4, sampler=dist.get_sampler(rows())),
                device_eval_microbatch_size="auto",
            ),
        ),
    ):
        with pytest.raises(ValueError) as error:
            make()
        found.append(str(error.value))
    return found


def _when_ranks_meet(folder: str) -> Any:
    refused, uneven = _refused(), _uneven()
    shared = {**STACKED, "moe_capacity_factor": 0.5, "moe_world_size": 2}
    alone = {**shared, "moe_world_size": 1}
    dropped = [trained(each, parallelism_config=FSDP) for each in (shared, alone)]
    # A group of ranks that is gone is not asked.
    trained({**GLOBAL, "lbl_process_group": 2})
    before = mb_moe._neighbours(2, torch.distributed.group.WORLD)
    rank = dist.get_global_rank()
    torch.distributed.destroy_process_group()
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/again", rank=rank, world_size=2
    )
    trained({**GLOBAL, "lbl_process_group": 2})
    assert mb_moe._neighbours(2, torch.distributed.group.WORLD) is not before
    return refused, uneven, dropped


def test_ranks_that_meet_in_each_pass(tmp_path: Path) -> None:
    (refused, one, dropped), (_, other, _) = run_ranks(_when_ranks_meet, 2, str(tmp_path))
    assert one == other
    check_same(*dropped)
    assert "lbl_process_group=3 neighbouring ranks" in refused[0] and "2 is no mult" in refused[0]
    assert "device_train_microbatch_size: auto: a rank whose memory ran out" in refused[1]


def test_two_ranks_equal_one() -> None:
    expected = trained(GLOBAL)
    for found in run_ranks(_some_ways, 2):
        for one in found.values():
            check_same(one, expected)


STACKED = {**GLOBAL, "ffn_type": "mb_moe", "moe_capacity_factor": 4}


def _more_ways() -> list[Any]:
    return [
        trained(GLOBAL),
        trained(GLOBAL, parallelism_config=FSDP),
        trained(GLOBAL, parallelism_config=RECOMPUTES),
        trained(SHARED, parallelism_config=FSDP),
        trained({**STACKED, "moe_world_size": 2}, parallelism_config=FSDP),
        _adamw(SHARED, parallelism_config=FSDP),
    ]


def _adamw(ffn_config: dict[str, Any], **kwargs: Any) -> Any:
    return trained(
        ffn_config,
        optimizer=functools.partial(DecoupledAdamW, lr=1e-2, eps=1e-3),
        algorithms=[GradientClipping("norm", 0.1)],
        **kwargs,
    )


@pytest.mark.slow
def test_two_ranks_equal_one_in_more_ways() -> None:
    dropless = trained(GLOBAL)
    expected = [*[dropless] * 4, trained(STACKED), _adamw(GLOBAL)]
    for found in run_ranks(_more_ways, 2):
        for one, other in zip(found, expected, strict=True):
            check_same(one, other)


def _saved_and_resumed(folder: str) -> dict[str, Any]:
    first: dict[str, Any] = {"save_folder": folder, "save_interval": "1ep"}
    second: dict[str, Any] = {"load_path": f"{folder}/ep1-ba1-rank0.pt"}
    return {
        "saved": trained(SHARED, parallelism_config=FSDP, **first),
        "resumed": trained(SHARED, parallelism_config=FSDP, **second),
        "resumed whole": trained(GLOBAL, parallelism_config=FSDP, **second),
    }


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The checkpoint")
def test_shared_experts_are_saved_and_resumed(tmp_path: Path) -> None:
    expected = trained(GLOBAL)
    found = run_ranks(_saved_and_resumed, 2, str(tmp_path))[0]
    for one in found.values():
        check_same(one, expected)
    check_same(trained(GLOBAL, load_path=str(tmp_path / "ep1-ba1-rank0.pt")), expected)
    write_huggingface_pretrained_from_composer_checkpoint(
        str(tmp_path / "ep2-ba2-rank0.pt"), tmp_path / "folder", trust_remote_code=True
    )
    settings = json.loads((tmp_path / "folder" / "config.json").read_text())["ffn_config"]
    assert (settings["moe_world_size"], settings["lbl_process_group"]) == (1, None)


EXPORTED = {
    "torch_dmoe": TORCH,
    "mb_moe": {**DROPLESS, "ffn_type": "mb_moe"},
    "mb_dmoe": {**GLOBAL, "mlp_type": "glu", "shared_expert": True},
}


@pytest.mark.parametrize("kind", EXPORTED)
def test_generation_with_a_cache_equals_generation_without(kind: str) -> None:
    model = mpt(EXPORTED[kind]).model.eval()
    prompt = torch.randint(1, 64, (2, 5), generator=torch.Generator().manual_seed(3))
    mask = torch.ones_like(prompt)
    mask[1, :2] = 0
    found = [
        model.generate(
            prompt,
            attention_mask=mask,
            max_new_tokens=8,
            do_sample=False,
            use_cache=use_cache,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
        for use_cache in (True, False)
    ]
    assert torch.equal(found[0].sequences, found[1].sequences)
    torch.testing.assert_close(found[0].logits, found[1].logits, atol=1e-5, rtol=1e-4)
    # A text's result does not depend on what stands beside it, though mb_moe drops in training.
    alone = model.generate(prompt[:1], max_new_tokens=8, do_sample=False, pad_token_id=0)
    assert torch.equal(alone, found[0].sequences[:1])


@pytest.mark.parametrize("kind", EXPORTED)
def test_an_exported_model_gives_the_same_logits(kind: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = mpt(EXPORTED[kind]).model.eval()
    batch = torch.stack([row["input_ids"] for row in rows()])
    expected = model(batch).logits
    assert write_hf_folder(model, None, tmp_path, torch.float32)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=True).eval()
    assert type(loaded).__module__.startswith("transformers_modules")
    assert torch.equal(loaded(batch).logits, expected)
    with pytest.raises(Exception, match="trust_remote_code=True"):
        AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=False)


@pytest.mark.parametrize("precision", [pytest.param("fp32", marks=pytest.mark.slow), "amp_bf16"])
def test_compiled_training_equals_training(precision: str) -> None:
    expected = trained(DROPLESS, precision=precision)
    torch.compiler.reset()
    config = {"backend": "aot_eager", "per_block": True}
    losses, weights = trained(DROPLESS, precision=precision, compile_config=config)
    tolerance = 1e-5 if precision == "fp32" else 2e-2
    for found, wanted in ((losses, expected[0]), (weights, expected[1])):
        for name, value in wanted.items():
            assert found[name] == pytest.approx(value, rel=tolerance, abs=tolerance), name


def test_ranks_must_be_there_to_share_experts() -> None:
    with pytest.raises(ValueError, match="moe_world_size=2 ranks share the experts, and 1 is no"):
        mpt(SHARED)


def test_who_adds_no_load_balancing_loss_refuses_it() -> None:
    sizes: dict[str, Any] = {
        "d_model": 32,
        "n_heads": 4,
        "n_layers": 1,
        "max_seq_len": 8,
        "vocab_size": 64,
    }
    with pytest.raises(ValueError, match="load-balancing loss, which contrastive training"):
        ContrastiveModel(None, None, **sizes, attn_config={"alibi": True}, ffn_config=DROPLESS)
