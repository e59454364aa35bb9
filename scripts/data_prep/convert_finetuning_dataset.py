"""Writes splits of a fine-tuning data set as MDS shards: texts, or turns of token ids."""

import argparse


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--dataset", required=True, help="a hub name, a folder or file, or json, csv, parquet")
    add("--data_subset", default=None, help="configuration of the data set")
    add("--splits", nargs="+", default=["train", "validation"], help="each becomes a folder")
    add("--preprocessor", default=None, help="a registered name, or package.module:function")
    add("--data_files", nargs="+", default=[], help="the file of each split, in their order")
    add(
        "--skip-preprocessing",
        "--skip_preprocessing",
        action="store_true",
        help="rows are prompts and responses, or chats, already",
    )
    add("--out_root", required=True, help="folder of the split folders, here or in a store")
    add("--local", default=None, help="a second folder to keep a copy in")
    add("--compression", default=None, help="compression of the shards")
    add("--num_workers", type=int, default=None, help="processes that tokenise")
    add("--tokenizer", default=None, help="a folder or a hub name; without it, texts are written")
    add("--tokenizer_kwargs", default=None, help="arguments of it, as JSON")
    add("--max_seq_len", type=int, default=2048, help="tokens of a row that training will take")
    add("--target_prompts", default="none", help="prompts to learn: none, all or length>=N")
    add("--target_responses", default="last", help="answers to learn: last or all")
    add("--encoder_decoder", action="store_true", help="training will be of an encoder-decoder")
    return parser.parse_args()


if __name__ == "__main__":
    # Here, for the processes that tokenise run this file too, and need nothing of it.
    from llmfoundry.command_utils import convert_finetuning_dataset_from_args

    convert_finetuning_dataset_from_args(**vars(parse_args()))
