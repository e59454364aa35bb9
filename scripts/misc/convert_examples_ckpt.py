"""Turns a checkpoint of the examples repository (``mosaic_gpt``) into one of an MPT."""

from argparse import ArgumentParser, Namespace

from llmfoundry.command_utils.convert_examples_ckpt import convert_examples_ckpt


def parse_args() -> Namespace:
    """Reads the command line."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint_path", required=True, help="The one-file checkpoint.")
    parser.add_argument("--output_path", required=True, help="The new file.")
    parser.add_argument("--local_ckpt_path", help="Where a copy of a remote one is kept.")
    return parser.parse_args()


if __name__ == "__main__":
    args = parse_args()
    convert_examples_ckpt(args.checkpoint_path, args.output_path, args.local_ckpt_path)
