"""What commands that generate share: flags, and the model and tokenizer that these name."""

import contextlib
import logging
from argparse import ArgumentParser, Namespace
from typing import Any

import torch

__all__ = [
    "DTYPES",
    "UNLIMITED",
    "add_model_flags",
    "autocast",
    "end_token_ids",
    "load_model",
    "load_tokenizer",
    "or_default",
    "str2bool",
    "str_or_bool",
]

log = logging.getLogger(__name__)

DTYPES = {
    "fp32": torch.float32,
    "float32": torch.float32,
    "fp16": torch.float16,
    "float16": torch.float16,
    "bf16": torch.bfloat16,
    "bfloat16": torch.bfloat16,
}
UNLIMITED = 10**9
"""Tokenizers without a limit write a far larger number."""


def str2bool(value: str | bool) -> bool:
    """Reads yes, no, true, false, t, f, y, n, 1 and 0, in any case.

    Raises:
        ValueError: It is none of these.
    """
    if isinstance(value, bool):
        return value
    if value.lower() in ("yes", "true", "t", "y", "1"):
        return True
    if value.lower() in ("no", "false", "f", "n", "0"):
        return False
    raise ValueError(f"A boolean is written yes or no, true or false; got {value!r}.")


def str_or_bool(value: str | bool) -> str | bool:
    """Reads a boolean where there is one, and keeps any other text."""
    try:
        return str2bool(value)
    except ValueError:
        return str(value)


def add_model_flags(parser: ArgumentParser, max_new_tokens: int) -> None:
    """Adds the flags that `load_model`, `load_tokenizer` and `autocast` read."""
    add = parser.add_argument
    add("-n", "--name_or_path", required=True, help="A folder, or a name on the hub.")
    add("--max_seq_len", type=int, help="Tokens that the model is given at most.")
    add("--max_new_tokens", type=int, default=max_new_tokens)
    for flag in ("--do_sample", "--use_cache", "--warmup", "--trust_remote_code"):
        add(flag, type=str2bool, nargs="?", const=True, default=True)
    add("--eos_token_id", type=int, help="The tokenizer's and the model's own by default.")
    add("--pad_token_id", type=int, help="The tokenizer's by default.")
    add("--model_dtype", choices=sorted(DTYPES), default="fp32", help="dtype of the weights.")
    add("--autocast_dtype", choices=sorted(DTYPES), help="dtype of the products.")
    add("--use_auth_token", type=str_or_bool, nargs="?", const=True, help="Token for the hub.")
    add("--revision", help="Branch, tag or commit on the hub.")
    add("--device", help="Where the model runs; a GPU if there is one.")
    add("--device_map", help="How accelerate spreads the model; auto where there are more GPUs.")
    add("--attn_impl", help="attn_config.attn_impl of an MPT; attn_implementation of another.")


def or_default(value: Any, default: Any) -> Any:
    """Returns ``value``, or ``default`` if it is None."""
    return default if value is None else value


def end_token_ids(args: Namespace, tokenizer: Any, model: Any) -> list[int] | None:
    """Returns what ends a continuation: the flag's token, or the tokenizer's and the model's own.

    A model's generation configuration may name more than its tokenizer, as the end of a turn.
    """
    if args.eos_token_id is not None:
        return [args.eos_token_id]
    own = model.generation_config.eos_token_id
    ends = [tokenizer.eos_token_id, *(own if isinstance(own, list) else [own])]
    return list(dict.fromkeys(end for end in ends if end is not None)) or None


def autocast(args: Namespace, model: Any) -> contextlib.AbstractContextManager[Any]:
    """Returns the context that gives products the dtype that the flags say."""
    if args.autocast_dtype is None:
        return contextlib.nullcontext()
    return torch.autocast(model.device.type, DTYPES[args.autocast_dtype])


def _load(args: Namespace, loader: Any, **settings: Any) -> Any:
    try:
        return loader.from_pretrained(
            args.name_or_path,
            trust_remote_code=args.trust_remote_code,
            token=args.use_auth_token,
            revision=args.revision,
            **settings,
        )
    except Exception as error:
        raise RuntimeError(
            f"Unable to load {args.name_or_path}. If the model is private or gated, log in with "
            f"`hf auth login`; if it carries its own code, pass --trust_remote_code true. ({error})"
        ) from error


def load_model(args: Namespace) -> Any:
    """Loads the model in evaluation mode, where the flags want it.

    Raises:
        ValueError: Device and device map are both given, accelerate is missing for a device map,
            or the choice of attention has no effect.
        RuntimeError: The model cannot be loaded.
    """
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils.import_utils import is_accelerate_available

    if args.device is not None and args.device_map is not None:
        raise ValueError("You can only set one of `device` and `device_map`.")
    device_map = args.device_map
    if args.device is None and torch.cuda.device_count() > 1:
        device_map = device_map or "auto"
    if device_map is not None and not is_accelerate_available():
        raise ValueError(
            f"The device map {device_map!r} needs accelerate: pip install accelerate, or name one "
            "device, as with --device cuda:0."
        )
    settings: dict[str, Any] = {} if device_map is None else {"device_map": device_map}
    config = _load(args, AutoConfig)
    if args.attn_impl is not None:
        settings |= _choose_attention(config, args.attn_impl)
    if hasattr(config, "init_device"):
        config.init_device = "cpu"
    dtype = DTYPES[args.model_dtype]
    model = _load(args, AutoModelForCausalLM, config=config, dtype=dtype, **settings)
    if device_map is None:
        model.to(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    return model.eval()


def _choose_attention(config: Any, attn_impl: str) -> dict[str, Any]:
    """Writes the choice into the configuration, or returns it as an argument of the loader."""
    attn_config = getattr(config, "attn_config", None)
    if attn_config is None:
        return {"attn_implementation": attn_impl}
    if isinstance(attn_config, dict):
        attn_config["attn_impl"] = attn_impl
    elif attn_impl != "torch":
        raise ValueError(
            f"--attn_impl {attn_impl} has no effect on {type(config).__name__}, whose class knows "
            "torch only; leave the flag out."
        )
    return {}


def load_tokenizer(args: Namespace) -> Any:
    """Loads the tokenizer, to pad and to cut on the left: a prompt's end stays at its place.

    Raises:
        RuntimeError: It cannot be loaded.
    """
    from transformers import AutoTokenizer

    tokenizer = _load(args, AutoTokenizer)
    if tokenizer.pad_token_id is None:
        log.warning("The tokenizer has no pad_token_id. Using its eos_token_id.")
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = tokenizer.truncation_side = "left"
    if args.max_seq_len is not None:
        tokenizer.model_max_length = args.max_seq_len
    return tokenizer
