"""Continues prompts with a model in the Hugging Face format, and tells how fast."""

import itertools
import random
import time
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from llmfoundry.command_utils.inference_model import (
    DTYPES,
    UNLIMITED,
    autocast,
    end_token_ids,
    load_model,
    load_tokenizer,
    or_default,
    str2bool,
    str_or_bool,
)
from llmfoundry.utils.prompt_files import load_prompts

__all__ = ["DEFAULT_PROMPTS", "DTYPES", "hf_generate", "str2bool", "str_or_bool"]

DEFAULT_PROMPTS = [
    "My name is",
    "This is an explanation of deep learning to a five year old. Deep learning is",
]
GREEN, PLAIN = "\033[92m", "\033[0m"


@dataclass
class Latency:
    """Seconds that a batch took."""

    encode: float = 0.0
    generate: float = 0.0
    decode: float = 0.0


def _clock(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _settings(args: Namespace, tokenizer: Any, model: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    """Gives each seed and generation settings of the grid that the arguments span."""
    grid = itertools.product(
        args.temperature,
        args.top_p,
        args.top_k,
        args.repetition_penalty,
        args.no_repeat_ngram_size,
        args.seed,
    )
    for temperature, top_p, top_k, repetition_penalty, no_repeat_ngram_size, seed in grid:
        settings: dict[str, Any] = {
            "max_new_tokens": args.max_new_tokens,
            "use_cache": args.use_cache,
            "do_sample": temperature > 0 and args.do_sample,
            "repetition_penalty": repetition_penalty,
            "no_repeat_ngram_size": no_repeat_ngram_size,
            "eos_token_id": end_token_ids(args, tokenizer, model),
            "pad_token_id": or_default(args.pad_token_id, tokenizer.pad_token_id),
        }
        if settings["do_sample"]:
            settings |= {"temperature": temperature, "top_p": top_p, "top_k": top_k}
        yield seed, settings


def _seed_all(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def _generate(
    model: Any, tokenizer: Any, prompts: list[str], settings: dict[str, Any]
) -> tuple[Any, torch.Tensor, list[str], Latency]:
    """Continues one batch; returns the prompts' tokens, all tokens, the texts and the times."""
    latency, start = Latency(), _clock(model.device)
    inputs = tokenizer(
        prompts,
        return_tensors="pt",
        padding=True,
        truncation=tokenizer.model_max_length < UNLIMITED,
        return_token_type_ids=False,
    ).to(model.device)
    encoded = _clock(model.device)
    tokens = model.generate(**inputs, **settings)
    generated = _clock(model.device)
    prompt_length = inputs["input_ids"].size(1)
    texts = tokenizer.batch_decode(tokens[:, prompt_length:], skip_special_tokens=True)
    latency.encode = encoded - start
    latency.generate = generated - encoded
    latency.decode = _clock(model.device) - generated
    return inputs, tokens, texts, latency


def _report(inputs: Any, tokens: torch.Tensor, latency: Latency, pad_token_id: int) -> str:
    """Returns how many tokens there were, and how long they took."""
    n_rows, prompt_length = inputs["input_ids"].shape
    n_input = inputs["attention_mask"].sum(dim=1).tolist()
    n_output = (tokens[:, prompt_length:] != pad_token_id).sum(dim=1).tolist()
    total = latency.encode + latency.generate + latency.decode
    per_token = 1000 * total / max(sum(n_output), 1)
    return (
        f"bs={n_rows}, input_tokens={n_input}, output_tokens={n_output}\n"
        f"total_input_tokens={sum(n_input)}, total_output_tokens={sum(n_output)}\n"
        f"encode_latency={1000 * latency.encode:.2f}ms, "
        f"gen_latency={1000 * latency.generate:.2f}ms, "
        f"decode_latency={1000 * latency.decode:.2f}ms, total_latency={1000 * total:.2f}ms\n"
        f"latency_per_output_token={per_token:.2f}ms/tok\n"
        f"output_tok_per_sec={1000 / max(per_token, 1e-9):.2f}tok/sec"
    )


def hf_generate(args: Namespace) -> list[str]:
    """Runs the command, prints what it generates, and returns the continuations.

    Args:
        args: The flags of ``scripts/inference/hf_generate.py``.

    Raises:
        RuntimeError: The model cannot be loaded.
        ValueError: Flags contradict each other, have no effect, or need what is not installed.
    """
    prompts = load_prompts(args.prompts, args.prompt_delimiter)
    model = load_model(args)
    tokenizer = load_tokenizer(args)
    size = args.max_batch_size or len(prompts)
    batches = [prompts[start : start + size] for start in range(0, len(prompts), size)]
    continuations: list[str] = []
    with torch.no_grad(), autocast(args, model):
        for seed, settings in _settings(args, tokenizer, model):
            print(f"\nseed={seed}, settings={settings}")
            if args.warmup:
                _generate(model, tokenizer, batches[0], settings)
            for batch in batches:
                _seed_all(seed)
                inputs, tokens, texts, latency = _generate(model, tokenizer, batch, settings)
                for prompt, text in zip(batch, texts, strict=True):
                    print(f"{'#' * 100}\n{GREEN}{prompt}{PLAIN}{text}")
                print("#" * 100)
                print(_report(inputs, tokens, latency, settings["pad_token_id"]))
                continuations.extend(texts)
    return continuations
