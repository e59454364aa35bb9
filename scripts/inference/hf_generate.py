"""Continues prompts with a model in the Hugging Face format, and tells how fast."""

from argparse import ArgumentParser, Namespace

from llmfoundry.command_utils.hf_generate import DEFAULT_PROMPTS, hf_generate
from llmfoundry.command_utils.inference_model import add_model_flags


def parse_args() -> Namespace:
    """Reads the command line."""
    parser = ArgumentParser(description=__doc__)
    add_model_flags(parser, max_new_tokens=100)
    add = parser.add_argument
    add(
        "-p",
        "--prompts",
        nargs="+",
        default=DEFAULT_PROMPTS,
        help="Prompts, or file::PATH for the prompts in a file.",
    )
    add("--prompt-delimiter", help="What separates prompts in a file; a file is one without it.")
    add("--max_batch_size", type=int, help="Prompts at a time; all by default.")
    add("--temperature", type=float, nargs="+", default=[1.0], help="0 picks the likeliest token.")
    add("--top_k", type=int, nargs="+", default=[50])
    add("--top_p", type=float, nargs="+", default=[1.0])
    add("--repetition_penalty", type=float, nargs="+", default=[1.0])
    add("--no_repeat_ngram_size", type=int, nargs="+", default=[0])
    add("--seed", type=int, nargs="+", default=[42])
    return parser.parse_args()


if __name__ == "__main__":
    hf_generate(parse_args())
