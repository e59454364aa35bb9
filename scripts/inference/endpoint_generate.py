"""Continues prompts by a model behind an HTTP endpoint, and writes them to a CSV file."""

from argparse import ArgumentParser, Namespace

from llmfoundry.command_utils.endpoint_generate import (
    API_KEY_VARIABLE,
    APIS,
    URL_VARIABLE,
    endpoint_generate,
)


def parse_args() -> Namespace:
    """Reads the command line."""
    parser = ArgumentParser(
        description=__doc__, epilog=f"The key is read from the variable {API_KEY_VARIABLE}."
    )
    add = parser.add_argument
    add("-i", "--inputs", nargs="+", required=True, help="Prompts, or file::PATH for a file's.")
    add("--prompt-delimiter", default="\n", help="What separates prompts in a file.")
    add("-o", "--output-folder", required=True, help="A folder, or an address in a store.")
    add("--rate-limit", type=int, default=75, help="Prompts per second at most.")
    add("--batch-size", type=int, default=10, help="Prompts in a request.")
    add("-e", "--endpoint", help=f"The full address; the variable {URL_VARIABLE} by default.")
    add("--max-tokens", type=int, default=100)
    add("--temperature", type=float, default=1.0)
    add("--top-k", type=int, help="50 by default; not sent to --api openai unless given.")
    add("--top-p", type=float, default=1.0)
    add("--api", choices=APIS, default="mosaic", help="openai: completions as OpenAI has them.")
    add("--model", help="The model's name, for --api openai.")
    return parser.parse_args()


if __name__ == "__main__":
    endpoint_generate(parse_args())
