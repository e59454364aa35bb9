"""Chats at the terminal with a model in the Hugging Face format."""

from argparse import ArgumentParser, Namespace

from llmfoundry.command_utils.hf_chat import MAX_NEW_TOKENS, SYSTEM_PROMPT, hf_chat
from llmfoundry.command_utils.inference_model import add_model_flags


def parse_args() -> Namespace:
    """Reads the command line."""
    parser = ArgumentParser(description=__doc__)
    add_model_flags(parser, max_new_tokens=MAX_NEW_TOKENS)
    add = parser.add_argument
    add("--temperature", type=float, default=1.0, help="0 picks the likeliest token.")
    add("--top_k", type=int, default=50)
    add("--top_p", type=float, default=1.0)
    add("--seed", type=int, default=42, help="Of what is sampled.")
    add("--system_prompt", default=SYSTEM_PROMPT, help="Empty for none.")
    add(
        "--stop_tokens",
        default="<|endoftext|> <|im_end|>",
        help="What ends a reply: tokens, or other strings without spaces, separated by spaces.",
    )
    add("--stop_strings", nargs="+", help="More of them, which may hold spaces.")
    return parser.parse_args()


if __name__ == "__main__":
    hf_chat(parse_args())
