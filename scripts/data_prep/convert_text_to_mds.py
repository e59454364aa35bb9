"""Writes the text files below a folder as shards of token rows."""

import argparse

from llmfoundry.utils.cpu_count import default_processes


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output_folder", required=True, help="folder of the shards")
    parser.add_argument("--input_folder", required=True, help="folder of the text files")
    parser.add_argument("--compression", default="zstd", help="compression of the shards")
    parser.add_argument("--concat_tokens", type=int, required=True, help="tokens of a row")
    parser.add_argument(
        "--tokenizer", dest="tokenizer_name", required=True, help="a folder or a hub name"
    )
    parser.add_argument("--bos_text", default=None, help="text that starts a document")
    parser.add_argument("--eos_text", default=None, help="text that ends a document")
    parser.add_argument(
        "--use_tokenizer_eos", action="store_true", help="end documents with the tokenizer's own"
    )
    parser.add_argument(
        "--no_wrap", action="store_true", help="throw away what a full row leaves of its documents"
    )
    parser.add_argument(
        "--processes", type=int, default=default_processes(), help="processes that tokenise"
    )
    parser.add_argument(
        "--reprocess",
        # Upstream's flag takes a value, and any value but an empty one meant yes.
        type=lambda text: text.lower() not in ("", "0", "false", "no"),
        nargs="?",
        const=True,
        default=False,
        help="write again what the same call wrote",
    )
    parser.add_argument(
        "--trust-remote-code", action="store_true", help="run code that comes with the tokenizer"
    )
    parser.add_argument("--logging-level", default="INFO", help="level of Python's logging")
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
    from llmfoundry.command_utils import convert_text_to_mds_from_args

    convert_text_to_mds_from_args(**vars(parse_args()))
