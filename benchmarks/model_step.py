"""Forward and backward pass of an MPT beside transformers' GPT-2 of the same size.

    python benchmarks/model_step.py

Both have 12 layers of width 768 and learned positions, read the same two rows of 1,024 tokens and
compute their own loss, in bf16 autocast; GPT-2 attends by SDPA. They take turns with a third, the
MPT with its blocks compiled as the trainer compiles them; figures are medians over the rounds of
one's time over GPT-2's. Memory is the most that a process held which did nothing else, less what it
held after a step of a tiny model, which loads the code and the compiler. It takes four minutes on
two idle cores. Exits with 1 if a bar is missed.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from composer.distributed.compiling import compile_model
from llmfoundry.models import ComposerMPTCausalLM

SPEED_BAR = 1.0
"""The MPT's step over GPT-2's, compiled and not."""
MEMORY_BAR = 0.7
MODELS = ("gpt2", "mpt", "mpt_compiled")
VOCABULARY, PADDED_VOCABULARY = 50257, 50368
"""GPT-2's own, and the one of the recipes: both know the same tokens."""
CLOCKS = {"cpu": time.process_time, "wall": time.perf_counter}


def build(name: str, arguments: argparse.Namespace) -> tuple[torch.nn.Module, Callable[[], None]]:
    """Returns a model in training mode, and what runs its forward and backward pass once."""
    torch.manual_seed(17)
    width, heads, layers = arguments.width, arguments.heads, arguments.layers
    tokens = torch.randint(VOCABULARY, (arguments.batch_size, arguments.sequence))
    batch = {"input_ids": tokens, "labels": tokens}
    if name == "gpt2":
        import transformers

        config = transformers.GPT2Config(
            vocab_size=VOCABULARY, n_positions=arguments.sequence,
            n_embd=width, n_layer=layers, n_head=heads,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, attn_implementation="sdpa",  # pyright: ignore[reportCallIssue]  # one of its **kwargs
        )  # fmt: skip
        bare = transformers.GPT2LMHeadModel(config).train()

        def gpt2_step() -> None:
            with torch.autocast("cpu", torch.bfloat16):
                loss = bare(**batch, use_cache=False).loss
            loss.backward()

        return bare, gpt2_step
    model = ComposerMPTCausalLM(
        vocab_size=PADDED_VOCABULARY, max_seq_len=arguments.sequence,
        d_model=width, n_heads=heads, n_layers=layers, use_train_metrics=False,
    ).train()  # fmt: skip
    if name == "mpt_compiled":
        compile_model(model, {"per_block": True})

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            loss = model.loss(model(batch), batch)
        loss.backward()

    return model, step


def peak_mib(name: str, arguments: argparse.Namespace) -> float:
    """Returns what building a model and two of its steps add to this process's peak memory."""
    tiny = {"width": arguments.heads, "layers": 1, "sequence": 2, "batch_size": 1}
    build(name, argparse.Namespace(**{**vars(arguments), **tiny}))[1]()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    model, step = build(name, arguments)
    for _ in range(2):
        step()
        model.zero_grad()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def seconds_by_round(arguments: argparse.Namespace) -> list[dict[str, float]]:
    """Returns the time of a step of each model, a dictionary a round."""
    steps = {name: build(name, arguments) for name in MODELS}
    now, rounds = CLOCKS[arguments.clock], []
    for number in range(arguments.rounds + 1):
        times = {}
        for name in MODELS if number % 2 else reversed(MODELS):
            model, step = steps[name]
            start = now()
            step()
            times[name] = now() - start
            model.zero_grad()
        rounds.append(times)
    return rounds[1:]  # the first one warms up and compiles


def main() -> int:
    """Prints times and memory; returns 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch_size", type=int, default=2)
    parser.add_argument("--sequence", type=int, default=1024)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="what time is taken")
    parser.add_argument("--json", type=Path, default=None, help="write the result here too")
    parser.add_argument("--memory_of", choices=MODELS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory_of:
        print(peak_mib(arguments.memory_of, arguments))
        return 0
    memory = {}
    for name in MODELS:
        command = [sys.executable, __file__, *sys.argv[1:], "--memory_of", name]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        memory[name] = float(done.stdout.split()[-1])
    rounds = seconds_by_round(arguments)
    failed, result = False, {}
    for name in MODELS:
        seconds = statistics.median(times[name] for times in rounds)
        ratio = statistics.median(times[name] / times["gpt2"] for times in rounds)
        share = memory[name] / memory["gpt2"]
        result[name] = {"seconds": seconds, "ratio": ratio, "mib": memory[name], "share": share}
        print(
            f"{name:14} {seconds:7.2f} s a step, {ratio:.3f} of gpt2's (bar {SPEED_BAR}); "
            f"peak {memory[name]:6,.0f} MiB, {share:.2f} of gpt2's (bar {MEMORY_BAR})"
        )
        failed |= name != "gpt2" and (ratio > SPEED_BAR or share > MEMORY_BAR)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(result) + "\n", encoding="utf-8")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
