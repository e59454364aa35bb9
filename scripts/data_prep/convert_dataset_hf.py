"""Writes splits of C4 or the Pile as shards."""

import argparse


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", required=True, help="allenai/c4 or the_pile")
    parser.add_argument("--data_subset", default=None, help="configuration, such as en")
    parser.add_argument(
        "--splits",
        nargs="+",
        default=["train", "train_small", "val", "val_small", "val_xsmall"],
        help="our splits; each becomes a folder",
    )
    parser.add_argument("--out_root", required=True, help="folder of the split folders")
    parser.add_argument("--compression", default=None, help="compression of the shards")
    parser.add_argument("--concat_tokens", type=int, default=None, help="tokens of a row")
    parser.add_argument("--tokenizer", default=None, help="a folder or a hub name")
    parser.add_argument("--tokenizer_kwargs", default=None, help="arguments of it, as JSON")
    parser.add_argument("--bos_text", default=None, help="text that starts a document")
    parser.add_argument("--eos_text", default=None, help="text that ends a document")
    parser.add_argument(
        "--no_wrap", action="store_true", help="throw away what a full row leaves of its documents"
    )
    parser.add_argument(
        "--num_workers", type=int, default=None, help="processes that tokenise; all CPUs if unset"
    )
    parser.add_argument(
        "--packing",
        default="concat",
        help="concat cuts where a row ends; best_fit fits whole documents into rows",
    )
    parser.add_argument(
        "--format", dest="output_format", default="mds", help="mds, or tokens: flat files of ids"
    )
    return parser.parse_args()


if __name__ == "__main__":
    # Here, for the processes that tokenise run this file too, and need nothing of it.
    from llmfoundry.command_utils import convert_dataset_hf_from_args

    convert_dataset_hf_from_args(**vars(parse_args()))
