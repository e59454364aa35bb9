"""Turns a checkpoint of the trainer into a folder that transformers loads."""

from argparse import ArgumentParser, BooleanOptionalAction, Namespace

from llmfoundry.command_utils.convert_composer_to_hf import convert_composer_to_hf
from llmfoundry.models.hf.hf_export import DTYPES, MAX_SHARD_SIZE


def parse_args() -> Namespace:
    """Reads the command line."""
    parser = ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--composer_path", required=True, help="The checkpoint: a file, or a folder of shards.")
    add("--hf_output_path", required=True, help="The new folder.")
    add("--local_checkpoint_save_location", help="Where a copy of the checkpoint is kept.")
    add("--output_precision", choices=sorted(DTYPES), default="fp32")
    add("--max_shard_size", default=MAX_SHARD_SIZE, help="Weights above it are split.")
    add(
        "--compare_logits",
        action=BooleanOptionalAction,
        help="Compares logits, which needs memory for the model; by default if its weights are in "
        "one file. Tensors are always compared.",
    )
    add("--merge_adapters", action="store_true", help="Puts adapters into the model's weights.")
    add("--base_model", help="What adapters were trained on, if the checkpoint does not say.")
    add("--hf_repo_for_upload", help="A hub repository to upload the folder to.")
    add("--test_uploaded_model", action="store_true", help="Fetches the upload and compares it.")
    add("--trust_remote_code", action="store_true", help="Runs code of the checkpoint's tokenizer.")
    return parser.parse_args()


if __name__ == "__main__":
    convert_composer_to_hf(parse_args())
