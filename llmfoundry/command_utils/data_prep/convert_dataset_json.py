"""``data_prep convert_dataset_json``: JSON files with a ``text`` column into shards."""

from llmfoundry.command_utils.data_prep._json_rows import json_files, read_texts
from llmfoundry.command_utils.data_prep._rows import Output, concatenation, write_dataset
from llmfoundry.command_utils.data_prep._writing import check_output_folder

__all__ = ["convert_dataset_json", "convert_dataset_json_from_args"]


def convert_dataset_json(
    path: str,
    out_root: str,
    compression: str | None,
    concat_tokens: int | None,
    split: str,
    tokenizer: str | None = None,
    bos_text: str = "",
    eos_text: str = "",
    no_wrap: bool = False,
    num_workers: int | None = None,
    packing: str = "concat",
    output_format: str = "mds",
) -> None:
    """Writes the rows of JSON files as shards, tokenised if ``concat_tokens`` is given.

    Args:
        path: A JSON file (one object a line, or an array), or a folder of them; it and the next may
            be in a store, such as ``s3://bucket/folder``.
        out_root: The folder of the shards, which must not hold anything yet.
        compression: Compression of the shards, such as ``zstd``.
        concat_tokens: Tokens of a row; None writes the texts as they are.
        split: ``train``: plain JSON files have no other.
        tokenizer: A folder or hub name; needed with ``concat_tokens``.
        bos_text: Text of the token that starts each document.
        eos_text: Text of the token that ends each document.
        no_wrap: Throws away what a full row leaves of its documents.
        num_workers: Processes that tokenise, all CPUs if None; the result does not depend on it.
        packing: ``concat`` joins texts and cuts them into rows; ``best_fit`` fits texts into padded
            rows and cuts only those that are longer than one.
        output_format: ``mds`` or ``tokens``, flat files of token ids.

    Raises:
        InvalidDatasetError: A row is no object with a ``text``; the error names file and line.
        OutputFolderNotEmptyError: ``out_root`` holds something.
        DatasetTooSmallError: All texts together are less than one row.
    """
    if split != "train":
        raise ValueError(f"split={split!r}: JSON files have only the split 'train'.")
    arguments = {
        "path": path,
        "compression": compression,
        "concat_tokens": concat_tokens,
        "tokenizer": tokenizer,
        "bos_text": bos_text,
        "eos_text": eos_text,
        "no_wrap": no_wrap,
        "packing": packing,
        "format": output_format,
    }
    files = json_files(path)
    check_output_folder(out_root, arguments)
    how = concatenation(
        concat_tokens, tokenizer, None, bos_text, eos_text, no_wrap, num_workers, packing
    )
    write_dataset(
        Output(out_root, compression, arguments, output_format),
        ([text] for text in read_texts(files)),
        how,
        f"{len(files)} JSON files of {path}",
    )


def convert_dataset_json_from_args(
    path: str,
    out_root: str,
    compression: str | None,
    concat_tokens: int | None,
    split: str,
    tokenizer: str | None = None,
    bos_text: str | None = None,
    eos_text: str | None = None,
    no_wrap: bool = False,
    num_workers: int | None = None,
    packing: str = "concat",
    output_format: str = "mds",
) -> None:
    """:func:`convert_dataset_json` with a command line's values, where unset is None."""
    convert_dataset_json(
        path=path,
        out_root=out_root,
        compression=compression,
        concat_tokens=concat_tokens,
        split=split,
        tokenizer=tokenizer,
        bos_text=bos_text or "",
        eos_text=eos_text or "",
        no_wrap=no_wrap,
        num_workers=num_workers,
        packing=packing,
        output_format=output_format,
    )
