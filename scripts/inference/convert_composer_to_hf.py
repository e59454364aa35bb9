"""Turns a checkpoint of the trainer into a folder that transformers loads."""

from argparse import ArgumentParser, Namespace

from llmfoundry.command_utils.convert_composer_to_hf import (
    DTYPES,
    MAX_SHARD_SIZE,
    convert_composer_to_hf,
)


def parse_args() -> Namespace:
    """Reads the command line."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--composer_path", required=True, help="The one-file checkpoint.")
    parser.add_argument("--hf_output_path", required=True, help="The new folder.")
    parser.add_argument(
        "--local_checkpoint_save_location", help="Where a copy of the checkpoint is kept."
    )
    parser.add_argument("--output_precision", choices=sorted(DTYPES), default="fp32")
    parser.add_argument(
        "--max_shard_size", default=MAX_SHARD_SIZE, help="Weights above it are split."
    )
    parser.add_argument("--hf_repo_for_upload", help="A hub repository to upload the folder to.")
    parser.add_argument(
        "--test_uploaded_model", action="store_true", help="Loads the upload and compares it."
    )
    parser.add_argument(
        "--trust_remote_code", action="store_true", help="Runs code of the checkpoint's tokenizer."
    )
    return parser.parse_args()


if __name__ == "__main__":
    convert_composer_to_hf(parse_args())
