"""How fast a model generates: prefill and decoding, by batch size and lengths."""

import contextlib
import csv
import itertools
import logging
import sys
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from transformers.generation.streamers import BaseStreamer

from llmfoundry.builders.models import build_composer_model
from llmfoundry.builders.tokenizers import build_tokenizer
from llmfoundry.command_utils.inference_model import DTYPES
from llmfoundry.config.loading import load_recipe, to_dict_container
from llmfoundry.config.parse import make_dataclass_and_log_config
from llmfoundry.config.problems import ConfigError, Problems

__all__ = ["InferenceBenchmarkConfig", "inference_benchmark"]

log = logging.getLogger(__name__)

LEGACY_MODEL_KEYS = ("init_std", "attn_pdrop")
"""Old benchmark files have them at the model's top, where they never had an effect."""

TABLE_COLUMNS = (
    "latency p50 (s)",
    "latency p99 (s)",
    "prefill p50 (s)",
    "decode p50 (ms/token)",
    "throughput (tokens/s)",
)
"""What fits on a screen; the CSV has all."""


@dataclass(frozen=True, kw_only=True)
class InferenceBenchmarkConfig:
    """What is measured."""

    model: dict[str, Any]
    """``name`` of a registered model, then its arguments; an exported folder is a ``hf_causal_lm``
    with ``pretrained_model_name_or_path``."""

    batch_sizes: list[int]
    """Prompts at once."""

    input_lengths: list[int]
    """Tokens of each prompt."""

    output_lengths: list[int]
    """Tokens that are generated for each prompt."""

    benchmark_name: str = "benchmark"
    """How the rows of the result begin."""

    tokenizer: dict[str, Any] | None = None
    """``name`` and ``kwargs``, for models that want one; prompts are random tokens."""

    device: str | None = None
    """Where the model runs; a GPU if there is one."""

    model_dtype: str | None = None
    """The weights' dtype: ``fp32``, ``fp16`` or ``bf16``; as they are built by default."""

    autocast_dtype: str | None = None
    """The products' dtype, if it is not the weights'."""

    use_deepspeed: bool = False
    """Must be false; see the error."""

    use_cache: bool = True
    """Whether keys and values are kept."""

    num_batches: int = 5
    """How often each case is measured."""

    num_warmup_batches: int = 3
    """How often each case runs before that."""

    variables: dict[str, Any] | None = None
    """What only serves interpolation."""


class Stopwatch(BaseStreamer):
    """Notes when ``generate`` begins and when each token is there, on the device's side too."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: torch.Tensor) -> None:
        """Notes the time; ``generate`` has waited for the device to hand over ``value``."""
        self.times.append(time.perf_counter())

    def end(self) -> None:
        """Does nothing."""


def _parse(yaml_path: str, overrides: list[str]) -> InferenceBenchmarkConfig:
    """Reads the file.

    Raises:
        ConfigError: It has faults; the text lists all of them.
    """
    recipe = to_dict_container(load_recipe(yaml_path, overrides))
    device = recipe.pop("device", None)  # which recipes of training must not have
    model = recipe.get("model")
    if isinstance(model, dict):
        for key in LEGACY_MODEL_KEYS:
            if model.pop(key, None) is not None:
                log.warning("model.%s has no effect and never had; remove it.", key)
        if model.get("init_device") in ("meta", "mixed"):
            model["init_device"] = "cpu"  # there are weights to run with
    config = make_dataclass_and_log_config(recipe, InferenceBenchmarkConfig)[1]
    problems = Problems()
    for key in ("batch_sizes", "input_lengths", "output_lengths", "num_batches"):
        values = getattr(config, key)
        if not values or min(values if isinstance(values, list) else [values]) < 1:
            problems.add(key, f"must be at least 1, got {values}.")
    for key in ("model_dtype", "autocast_dtype"):
        if getattr(config, key) not in (None, *DTYPES):
            problems.add(key, f"must be one of {sorted(DTYPES)}, got {getattr(config, key)!r}.")
    if config.use_deepspeed:
        problems.add(
            "use_deepspeed",
            "DeepSpeed's inference kernels know no MPT and no transformers 5. Set it to false; "
            "model_dtype and the model's attn_impl choose what is fast.",
        )
    problems.raise_if_any()
    return replace(config, device=device or ("cuda" if torch.cuda.is_available() else "cpu"))


def _build(config: InferenceBenchmarkConfig) -> Any:
    """Builds the model where and as it is measured; returns the transformers model in it."""
    described, tokenizer = dict(config.model), None
    if config.tokenizer:
        tokenizer = build_tokenizer(config.tokenizer["name"], config.tokenizer.get("kwargs", {}))
    composer_model: Any = build_composer_model(described.pop("name"), described, tokenizer)
    model = composer_model.model
    longest = max(config.input_lengths)
    if getattr(model.config, "learned_pos_emb", True):
        longest += max(config.output_lengths)
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if limit is not None and longest > limit:
        raise ConfigError(
            f"input_lengths and output_lengths ask for {longest} tokens, but the model takes "
            f"{limit}. Shorten them, or raise the model's max_seq_len."
        )
    dtype = None if config.model_dtype is None else DTYPES[config.model_dtype]
    return model.to(device=config.device, dtype=dtype).eval()


def _measure(
    model: Any, config: InferenceBenchmarkConfig, batch_size: int, n_input: int, n_output: int
) -> dict[str, Any]:
    """Returns the row of one case."""
    generator = torch.Generator().manual_seed(0)
    vocab_size = model.config.get_text_config().vocab_size
    prompts = torch.randint(vocab_size, (batch_size, n_input), generator=generator)
    prompts = prompts.to(model.device)
    runs = []
    for _ in range(config.num_warmup_batches + config.num_batches):
        stopwatch = Stopwatch()
        model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            max_new_tokens=n_output,
            min_new_tokens=n_output,
            do_sample=False,
            use_cache=config.use_cache,
            pad_token_id=0,
            streamer=stopwatch,
        )
        runs.append(np.diff(stopwatch.times))
    steps = np.array(runs[config.num_warmup_batches :])  # [run, token], in seconds
    latency, prefill, decode = steps.sum(axis=1), steps[:, 0], steps[:, 1:]
    row: dict[str, Any] = {
        "name": f"{config.benchmark_name}_{batch_size}_{n_input}_{n_output}",
        "latency (s)": latency.mean(),
        "throughput (tokens/s)": batch_size * n_output / latency.mean(),
        "latency_per_sequence_output_token (ms)": 1000 * latency.mean() / n_output,
    }
    row |= _percentiles("latency", latency, "s") | _percentiles("prefill", prefill, "s")
    row["prefill (tokens/s)"] = batch_size * n_input / prefill.mean()
    row |= _percentiles("decode", 1000 * decode, "ms/token")
    row["decode (tokens/s)"] = batch_size / decode.mean() if decode.size else None
    return row


def _percentiles(name: str, values: np.ndarray, unit: str) -> dict[str, Any]:
    return {
        f"{name} p{percent} ({unit})": np.percentile(values, percent) if values.size else None
        for percent in (50, 90, 99)
    }


def inference_benchmark(yaml_path: str, overrides: list[str]) -> list[dict[str, Any]]:
    """Measures each case, prints a line of CSV for it, and at the end a table to standard error.

    Args:
        yaml_path: A file with the keys of `InferenceBenchmarkConfig`.
        overrides: ``key=value`` settings laid over it.

    Returns:
        The rows; a figure is None where there is nothing to measure.

    Raises:
        ConfigError: The file has faults.
    """
    config = _parse(yaml_path, overrides)
    model = _build(config)
    context: Any = contextlib.nullcontext()
    if config.autocast_dtype is not None:
        context = torch.autocast(model.device.type, DTYPES[config.autocast_dtype])
    rows: list[dict[str, Any]] = []
    cases = itertools.product(config.batch_sizes, config.input_lengths, config.output_lengths)
    with torch.no_grad(), context:
        for case in cases:
            rows.append(_measure(model, config, *case))
            writer = csv.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
            if len(rows) == 1:
                writer.writeheader()
            writer.writerow({key: _shown(value) for key, value in rows[-1].items()})
            sys.stdout.flush()
    _print_table(rows)
    return rows


def _shown(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else f"{value:.4g}"


def _print_table(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None)
    table.add_column("name", no_wrap=True)
    for column in TABLE_COLUMNS:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(row["name"], *(_shown(row[column]) for column in TABLE_COLUMNS))
    Console(stderr=True).print(table)
