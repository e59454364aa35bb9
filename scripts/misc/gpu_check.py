"""Checks attention and experts on a GPU, and prints the MFU of three sizes of MPT.

    python scripts/misc/gpu_check.py

It was not run on a GPU yet: no machine of the project has had one. A test runs it on a CPU, at a
tiny size. Each way to attend (SDPA's fused kernels, FlexAttention, upstream's flash-attention
function) gets the same bf16 inputs as SDPA's plain mathematics in fp32, under every mask that MPT
has; outputs and gradients may be off by a few units in the last place of bf16. So may those of the
grouped product of experts, one of which has no tokens. Forward and backward passes of each size run
with compiled blocks, without an optimizer. Exits with 1 if a result is wrong.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from omegaconf import OmegaConf
from torch.nn.attention import SDPBackend, sdpa_kernel

from composer.callbacks.peak_flops import get_gpu_flops_available
from composer.core.precision import Precision
from composer.distributed.compiling import compile_model
from llmfoundry.models import ComposerMPTCausalLM
from llmfoundry.models.layers.alibi import gen_slopes
from llmfoundry.models.layers.dmoe import grouped_product
from llmfoundry.models.layers.flash import (
    flash_attn_fn,
    gen_attention_mask_in_length,
    gen_flash_attn_padding_info,
)
from llmfoundry.models.layers.masking import AttentionMasks
from llmfoundry.models.layers.sdpa import attend

ROOT = Path(__file__).resolve().parents[2]
SIZES = {"125m": 16, "350m": 8, "1b": 4}
"""Recipes, and the rows of a batch of theirs."""
CASES: dict[str, dict[str, Any]] = {
    "causal": {},
    "groups of heads": {"kv_heads": 2},
    "left padding": {"padded": True},
    "documents": {"documents": True},
    "window": {"window": 0.25},
    "alibi": {"alibi": True},
    "softcap": {"softcap": 5.0},
    "decoding": {"n_queries": 1, "padded": True},
    "all at once": {"kv_heads": 2, "documents": True, "window": 0.25, "alibi": True},
}
HEADS, HEAD_DIM, ROWS = 8, 64, 2
Ways = dict[str, Callable[..., torch.Tensor]]


def inputs_of(case: dict[str, Any], length: int, device: str) -> dict[str, Any]:
    """Returns queries, keys, values in bf16, and the masks of a case."""
    generator = torch.Generator().manual_seed(17)
    kv_heads, n_queries = case.get("kv_heads", HEADS), case.get("n_queries", length)

    def draw(heads: int, positions: int) -> torch.Tensor:
        drawn = torch.randn(ROWS, heads, positions, HEAD_DIM, generator=generator)
        return drawn.to(device, torch.bfloat16).requires_grad_()

    mask_BT = torch.ones(ROWS, length, dtype=torch.bool, device=device)
    if case.get("padded"):
        mask_BT[1, : length // 3] = False
    ids_BT = (torch.arange(length, device=device) * 3 // length).expand(ROWS, -1)
    return {
        "qkv": [draw(HEADS, n_queries), draw(kv_heads, length), draw(kv_heads, length)],
        "mask_BT": mask_BT if case.get("padded") else None,
        "ids_BT": ids_BT if case.get("documents") else None,
        "slopes_H": gen_slopes(HEADS, device=device, return_1d=True) if case.get("alibi") else None,
        "window": int(case["window"] * length) if "window" in case else -1,
        "softcap": case.get("softcap"),
        "real_BS": mask_BT[:, length - n_queries :],
    }


def plain(qkv: list[torch.Tensor], inputs: dict[str, Any]) -> torch.Tensor:
    """Attends by definition, in the dtype of ``qkv``; uses no code of ours."""
    q, k, v = qkv
    k, v = (x.repeat_interleave(q.size(1) // x.size(1), dim=1) for x in (k, v))
    key_T = torch.arange(k.size(2), device=q.device)
    distance_ST = key_T[k.size(2) - q.size(2) :, None] - key_T
    hidden = (distance_ST < 0)[None, None]
    if inputs["window"] != -1:
        hidden = hidden | (distance_ST > inputs["window"])
    if inputs["mask_BT"] is not None:
        hidden = hidden | ~inputs["mask_BT"][:, None, None]
    if inputs["ids_BT"] is not None:
        ids_BT = inputs["ids_BT"]
        hidden = hidden | (ids_BT[:, None, :, None] != ids_BT[:, None, None])
    bias = torch.zeros(hidden.shape, dtype=q.dtype, device=q.device)
    if inputs["slopes_H"] is not None:
        bias = bias - inputs["slopes_H"].view(1, -1, 1, 1) * distance_ST
    bias = bias.masked_fill(hidden, torch.finfo(q.dtype).min)
    if inputs["softcap"] is None:
        with sdpa_kernel(SDPBackend.MATH):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    scores = q @ k.mT / HEAD_DIM**0.5
    scores = inputs["softcap"] * torch.tanh(scores / inputs["softcap"])
    return (scores + bias).softmax(-1) @ v


def by_attend(qkv: list[torch.Tensor], inputs: dict[str, Any], flex: bool) -> torch.Tensor:
    """Attends as MPT's layers do."""
    masks = AttentionMasks(
        qkv[0].size(2), qkv[1].size(2), qkv[0].device,
        inputs["mask_BT"], inputs["ids_BT"], inputs["slopes_H"],
    )  # fmt: skip
    scale = HEAD_DIM**-0.5
    q, k, v = qkv
    return attend(q, k, v, masks, scale, inputs["window"], inputs["softcap"], flex=flex)[0]


def by_flash_attn_fn(qkv: list[torch.Tensor], inputs: dict[str, Any]) -> torch.Tensor:
    """Attends by upstream's function."""
    n_queries, length, ids_BT = qkv[0].size(2), qkv[1].size(2), inputs["ids_BT"]
    info = gen_flash_attn_padding_info(
        ROWS, n_queries, length - n_queries, qkv[0].device,
        gen_attention_mask_in_length(ids_BT, length, True, "flash", None), inputs["mask_BT"],
    )  # fmt: skip
    flat = [x.transpose(1, 2).flatten(2) for x in qkv]
    past = (flat[1][:, :-n_queries], flat[2][:, :-n_queries])
    out, _, _ = flash_attn_fn(
        flat[0], flat[1][:, -n_queries:], flat[2][:, -n_queries:], HEADS, qkv[1].size(1),
        past_key_value=past if n_queries == 1 else None, is_causal=True,
        sliding_window_size=inputs["window"], alibi_slopes=inputs["slopes_H"],
        flash_attn_padding_info=info, attn_logit_softcapping=inputs["softcap"],
    )  # fmt: skip
    return out.unflatten(-1, (HEADS, -1)).transpose(1, 2)


WAYS: Ways = {
    "sdpa": lambda qkv, inputs: by_attend(qkv, inputs, flex=False),
    "flex": lambda qkv, inputs: by_attend(qkv, inputs, flex=True),
    "flash_attn_fn": by_flash_attn_fn,
}


def errors_of(case: dict[str, Any], length: int, device: str) -> dict[str, float]:
    """Returns by way the largest error of outputs and gradients, over their largest value."""
    inputs = inputs_of(case, length, device)
    exact = [x.detach().float().requires_grad_() for x in inputs["qkv"]]

    def results(way: Callable[..., torch.Tensor], qkv: list[torch.Tensor]) -> list[torch.Tensor]:
        out_BSHD = way(qkv, inputs).transpose(1, 2)[inputs["real_BS"]]
        gradients = torch.autograd.grad(out_BSHD.float().square().sum(), qkv)
        return [out_BSHD.detach(), *gradients]

    expected = results(plain, exact)
    return {
        name: max(
            float((found.float() - right).abs().max() / right.abs().max())
            for found, right in zip(results(way, inputs["qkv"]), expected, strict=True)
        )
        for name, way in WAYS.items()
    }


def error_of_experts(device: str) -> float:
    """Returns the largest error of a grouped product and its gradients, as ``errors_of`` does."""
    generator = torch.Generator().manual_seed(17)
    x_RI, w_EIO = (
        torch.randn(size, generator=generator).to(device, torch.bfloat16).requires_grad_()
        for size in ((96, 64), (3, 64, 128))
    )
    exact = [x.detach().float().requires_grad_() for x in (x_RI, w_EIO)]
    found = grouped_product(x_RI, w_EIO, torch.tensor([40, 40, 96], device=device).int())
    right = torch.cat([exact[0][:40] @ exact[1][0], exact[0][40:] @ exact[1][2]])
    pairs = [
        (found, right),
        *zip(
            torch.autograd.grad(found.float().square().sum(), (x_RI, w_EIO)),
            torch.autograd.grad(right.square().sum(), exact),
            strict=True,
        ),
    ]
    return max(float(((a - b).abs().max() / b.abs().max()).detach()) for a, b in pairs)


def check_attention(length: int, device: str, bar: float) -> bool:
    """Prints the errors of every way under every mask; says whether all are within the bar."""
    right = True
    for case, settings in CASES.items():
        errors = errors_of(settings, length, device)
        right &= max(errors.values()) <= bar
        words = ", ".join(f"{name} {error:.1e}" for name, error in errors.items())
        print(f"{case:16} {words}  {'' if max(errors.values()) <= bar else 'OVER THE BAR'}")
    return right


def flops_per_second(recipe: dict[str, Any], rows: int, device: str, steps: int) -> float:
    """Returns the model FLOP/s of forward and backward passes with compiled blocks."""
    model: Any = ComposerMPTCausalLM(**recipe, use_train_metrics=False).to(device).train()
    compile_model(model, {"per_block": True})
    tokens = torch.randint(recipe["vocab_size"], (rows, recipe["max_seq_len"]), device=device)
    batch = {"input_ids": tokens, "labels": tokens}
    start = 0.0
    for step in range(steps + 2):
        if step == 2:  # two to warm up
            wait_for(device)
            start = time.perf_counter()
        with torch.autocast(device, torch.bfloat16):
            loss = model.loss(model(batch), batch)
        loss.backward()
        model.zero_grad()
    wait_for(device)
    return steps * model.flops_per_batch(batch) / (time.perf_counter() - start)


def wait_for(device: str) -> None:
    """Returns when the device has finished what it was given."""
    if device == "cuda":
        torch.cuda.synchronize()


def recipe_of(size: str, attn_impl: str) -> dict[str, Any]:
    """Returns the model's arguments in the recipe of a size."""
    loaded: Any = OmegaConf.load(ROOT / "yamls" / f"mpt-{size}.yaml")
    recipe: Any = OmegaConf.to_container(loaded, resolve=True)
    model = {key: value for key, value in recipe["model"].items() if key != "name"}
    attn_config = {**model["attn_config"], "attn_impl": attn_impl}
    return {**model, "init_device": "cpu", "attn_config": attn_config}


def main() -> int:
    """Runs all checks; returns 1 if a result is wrong, 2 without a GPU."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--length", type=int, default=1024, help="positions of the attention")
    parser.add_argument("--bar", type=float, default=0.03, help="the largest relative error")
    parser.add_argument("--sizes", nargs="*", choices=SIZES, default=list(SIZES))
    parser.add_argument("--attn_impl", choices=("torch", "flash", "flex"), default="torch")
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("There is no GPU here; nothing was checked.", file=sys.stderr)
        return 2
    name = torch.cuda.get_device_name()
    print(f"{name}, torch {torch.__version__}; errors relative to fp32 (bar {arguments.bar}):")
    right = check_attention(arguments.length, "cuda", arguments.bar)
    error = error_of_experts("cuda")
    right &= error <= arguments.bar
    print(f"{'experts':16} {error:.1e}  {'' if error <= arguments.bar else 'OVER THE BAR'}")
    run: Any = SimpleNamespace(device=SimpleNamespace(name="gpu"), precision=Precision.AMP_BF16)
    peak = get_gpu_flops_available(run)
    for size in arguments.sizes:
        recipe = recipe_of(size, arguments.attn_impl)
        rate = flops_per_second(recipe, SIZES[size], "cuda", arguments.steps)
        share = f"MFU {rate / peak:.1%}" if peak else "MFU unknown"
        print(f"mpt-{size}: {rate / 1e12:.1f} TFLOP/s, {share}")
    return int(not right)


if __name__ == "__main__":
    sys.exit(main())
