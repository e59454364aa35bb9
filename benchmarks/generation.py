"""Generation with a cache: our MPT against transformers' own class, same weights, in turns.

Run ``python benchmarks/generation.py``. Exits with 1 if ours generates fewer tokens a second than
theirs at any batch size, by the median of the pairs' ratios.
"""

import argparse
import statistics
import sys
import time
from typing import Any

import torch
from transformers import MptForCausalLM

from llmfoundry.models.mpt.causal_lm import MPTForCausalLM
from llmfoundry.models.mpt.config import MPTConfig
from llmfoundry.models.mpt.transformers_mpt import to_transformers_config

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def build(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the two models, with the same weights."""
    config = MPTConfig(
        d_model=args.width,
        n_heads=args.width // 64,
        n_layers=args.layers,
        max_seq_len=2048,
        vocab_size=50368,
        no_bias=True,
        attn_config={"attn_impl": "torch", "alibi": True},
    )
    device, dtype = "cuda" if torch.cuda.is_available() else "cpu", DTYPES[args.dtype]
    torch.manual_seed(0)
    ours: Any = MPTForCausalLM(config)
    theirs: Any = MptForCausalLM(to_transformers_config(config))
    theirs.load_state_dict(ours.state_dict(), strict=False)
    theirs.tie_weights()
    return {
        name: model.to(device=device, dtype=dtype).eval()
        for name, model in (("ours", ours), ("theirs", theirs))
    }


def generate(model: Any, prompts: torch.Tensor, n_new: int) -> tuple[torch.Tensor, float]:
    """Returns the new tokens, and the seconds that they took."""
    start = time.perf_counter()
    with torch.no_grad():
        tokens = model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            max_new_tokens=n_new,
            min_new_tokens=n_new,
            do_sample=False,
            use_cache=True,
            pad_token_id=0,
        )[:, prompts.size(1) :].cpu()
    return tokens, time.perf_counter() - start


def main() -> int:
    """Measures each batch size and prints a line for it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--prompt", type=int, default=128, help="tokens")
    parser.add_argument("--new", type=int, default=128, help="tokens")
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="fp32")
    args = parser.parse_args()
    models, failed = build(args), False
    for batch in args.batches:
        prompts = torch.randint(50368, (batch, args.prompt), device=models["ours"].device)
        warm = [generate(model, prompts, 8)[0] for model in models.values()]
        if args.dtype == "fp32" and not torch.equal(*warm):
            raise AssertionError("The two models write different tokens, so they do not compare.")
        seconds: dict[str, list[float]] = {name: [] for name in models}
        for round_index in range(args.rounds):
            for name in sorted(models, reverse=round_index % 2 == 1):
                seconds[name].append(generate(models[name], prompts, args.new)[1])
        rates = {name: batch * args.new / statistics.median(each) for name, each in seconds.items()}
        pairs = zip(seconds["theirs"], seconds["ours"], strict=True)
        ratios = sorted(theirs / ours for theirs, ours in pairs)
        print(
            f"batch {batch}: ours {rates['ours']:,.1f} tokens/s, theirs {rates['theirs']:,.1f}; "
            f"median of {len(ratios)} ratios {statistics.median(ratios):.3f} "
            f"({ratios[0]:.3f} to {ratios[-1]:.3f})",
            flush=True,
        )
        failed = failed or statistics.median(ratios) < 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
