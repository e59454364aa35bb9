"""Fetches SmolLM2-135M-Instruct as a transformers folder, for examples and slow tests.

python scripts/misc/fetch_smollm2.py --output_folder data/smollm2
"""

import argparse

from llmfoundry.command_utils import fetch_smollm2


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output_folder", default="data/smollm2", help="where the folder goes")
    parser.add_argument("--dtype", default="bfloat16", help="of the weights")
    return parser.parse_args()


if __name__ == "__main__":
    fetch_smollm2(**vars(parse_args()))
