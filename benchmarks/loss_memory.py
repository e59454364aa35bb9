"""Time and peak memory of a language model's loss: by logits, by torch's chunked form, by ours.

Run ``python benchmarks/loss_memory.py``; each way runs in a process of its own. Exits with 1 if
ours needs more than a quarter of the memory of the logits path.

With ``--model`` the loss is that of a Llama of one layer: by the class of transformers itself
(``logits``), and as ``hf_causal_lm`` changes it (``ours``).
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from llmfoundry.models.hf.head_loss import with_chunked_loss
from llmfoundry.models.utils.chunked_cross_entropy import chunked_cross_entropy

ROW = 1024
WAYS = ("logits", "torch", "ours")


def loss_of(
    way: str,
    hidden: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Returns the summed loss, computed in one of the ways."""
    if way == "ours":
        return chunked_cross_entropy(hidden, weight, target)
    if way == "torch":
        options = torch.nn.LinearCrossEntropyOptions()
        inputs = (hidden.to(dtype), weight.to(dtype), target)
        return F.linear_cross_entropy(*inputs, reduction="sum", options=options)
    return F.cross_entropy(F.linear(hidden, weight).float(), target, reduction="sum")


def loss_of_model(way: str, model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Returns the mean loss of a transformers model, by its own head or in chunks."""
    if way == "ours":
        assert with_chunked_loss(model)
    return model(input_ids=tokens, labels=tokens, use_cache=False).loss


def peak_bytes() -> int:
    """Returns the most memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(way: str, args: argparse.Namespace) -> dict[str, float]:
    """Runs one forward and backward pass, and returns its cost over that of the inputs."""
    torch.manual_seed(0)
    dtype = torch.bfloat16 if args.bf16 else torch.float32
    if args.model:
        sizes = {"hidden_size": args.width, "intermediate_size": args.width}
        heads = {"num_attention_heads": args.width // 64, "num_hidden_layers": 1}
        model = LlamaForCausalLM(LlamaConfig(vocab_size=args.vocab, **sizes, **heads))
        tokens = torch.randint(args.vocab, (args.tokens // ROW, ROW))
        return measured(lambda: loss_of_model(way, model, tokens), args)
    hidden = torch.randn(args.tokens, args.width, requires_grad=True)
    weight = (torch.randn(args.vocab, args.width) * 0.02).requires_grad_(True)
    target = torch.randint(args.vocab, (args.tokens,))
    return measured(lambda: loss_of(way, hidden, weight, target, dtype) / args.tokens, args)


def measured(compute: Callable[[], torch.Tensor], args: argparse.Namespace) -> dict[str, float]:
    """Runs a loss forward and backward, and returns its cost over that of what is there."""
    before, start = peak_bytes(), time.perf_counter()
    with torch.autocast("cpu", torch.bfloat16, enabled=args.bf16):
        loss = compute()
    loss.backward()
    return {
        "loss": loss.item(),
        "seconds": time.perf_counter() - start,
        "peak_mib": (peak_bytes() - before) / 2**20,
    }


def main() -> int:
    """Measures each way in its own process, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--vocab", type=int, default=50368)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--model", action="store_true", help="the loss of a transformers model")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=["logits", "ours"])
    parser.add_argument("--only", choices=WAYS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.model and "torch" in args.ways:
        parser.error("--model has the ways logits and ours")
    if args.only:
        print(json.dumps(measure(args.only, args)))
        return 0
    rows = {}
    for way in args.ways:
        command = [sys.executable, __file__, *sys.argv[1:], "--only", way]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        rows[way] = json.loads(done.stdout.splitlines()[-1])
        print(f"{way:>8}  " + "  ".join(f"{key} {value:10.4f}" for key, value in rows[way].items()))
    if {"logits", "ours"} <= rows.keys():
        share = rows["ours"]["peak_mib"] / rows["logits"]["peak_mib"]
        print(f"ours needs {share:.3f} of the memory of the logits (bar: 0.25)")
        return int(share > 0.25)
    return 0


if __name__ == "__main__":
    sys.exit(main())
