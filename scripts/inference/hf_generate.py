"""Continues prompts with a model in the Hugging Face format, and tells how fast."""

from argparse import ArgumentParser, Namespace

from llmfoundry.command_utils.hf_generate import (
    DEFAULT_PROMPTS,
    DTYPES,
    hf_generate,
    str2bool,
    str_or_bool,
)


def parse_args() -> Namespace:
    """Reads the command line."""
    parser = ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("-n", "--name_or_path", required=True, help="A folder, or a name on the hub.")
    add(
        "-p",
        "--prompts",
        nargs="+",
        default=DEFAULT_PROMPTS,
        help="Prompts, or file::PATH for the prompts in a file.",
    )
    add("--prompt-delimiter", help="What separates prompts in a file; a file is one without it.")
    add("--max_seq_len", type=int, help="Prompts are cut to this many tokens.")
    add("--max_new_tokens", type=int, default=100)
    add("--max_batch_size", type=int, help="Prompts at a time; all by default.")
    add("--temperature", type=float, nargs="+", default=[1.0], help="0 picks the likeliest token.")
    add("--top_k", type=int, nargs="+", default=[50])
    add("--top_p", type=float, nargs="+", default=[1.0])
    add("--repetition_penalty", type=float, nargs="+", default=[1.0])
    add("--no_repeat_ngram_size", type=int, nargs="+", default=[0])
    add("--seed", type=int, nargs="+", default=[42])
    for flag in ("--do_sample", "--use_cache", "--warmup", "--trust_remote_code"):
        add(flag, type=str2bool, nargs="?", const=True, default=True)
    add("--eos_token_id", type=int, help="The tokenizer's by default.")
    add("--pad_token_id", type=int, help="The tokenizer's by default.")
    add("--model_dtype", choices=sorted(DTYPES), default="fp32", help="dtype of the weights.")
    add("--autocast_dtype", choices=sorted(DTYPES), help="dtype of the products.")
    add("--use_auth_token", type=str_or_bool, nargs="?", const=True, help="Token for the hub.")
    add("--revision", help="Branch, tag or commit on the hub.")
    add("--device", help="Where the model runs; a GPU if there is one.")
    add("--device_map", help="How accelerate spreads the model, such as auto.")
    add("--attn_impl", help="attn_config.attn_impl of an MPT.")
    return parser.parse_args()


if __name__ == "__main__":
    hf_generate(parse_args())
