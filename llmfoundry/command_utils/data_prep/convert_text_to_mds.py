"""``data_prep convert_text_to_mds``: a folder of text files into MDS shards of token rows."""

import ast
import logging
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from llmfoundry.command_utils.data_prep._loading import load_tokenizer
from llmfoundry.command_utils.data_prep._rows import Output, concatenation, write_dataset
from llmfoundry.command_utils.data_prep._text_files import get_object_names, read_documents
from llmfoundry.command_utils.data_prep._writing import (
    DONE_FILENAME,
    check_output_folder,
    is_whole,
)
from llmfoundry.utils.stores import local_file

__all__ = [
    "convert_text_to_mds",
    "convert_text_to_mds_from_args",
    "download_and_convert",
    "get_object_names",
    "get_task_args",
    "is_already_processed",
    "write_done_file",
]

# These decide how the work is done and not what comes out.
WITHOUT_INFLUENCE = ("processes", "reprocess", "output_folder")


def convert_text_to_mds(
    tokenizer_name: str,
    output_folder: str,
    input_folder: str,
    concat_tokens: int,
    eos_text: str,
    bos_text: str,
    no_wrap: bool,
    compression: str | None,
    processes: int,
    args_str: str,
    reprocess: bool,
    trust_remote_code: bool,
    packing: str = "concat",
    output_format: str = "mds",
) -> None:
    """Writes the text files below a folder as rows of tokens; each file is one document.

    The shards do not depend on ``processes``. A folder that was written by the same call before is
    left as it is; a call that was killed leaves no output folder, and is repeated as it was.

    Args:
        tokenizer_name: A folder or hub name.
        output_folder: The folder of the shards, which must not hold anything else yet; it and
            the next may be in a store, such as ``s3://bucket/folder``.
        input_folder: The folder of the text files.
        concat_tokens: Tokens of a row.
        eos_text: Text of the token that ends each document.
        bos_text: Text of the token that starts each document.
        no_wrap: Throws away what a full row leaves of its documents.
        compression: Compression of the shards, such as ``zstd``.
        processes: Processes that tokenise, at most.
        args_str: All arguments as text, to recognise the call by.
        reprocess: Writes again what an earlier call with these settings wrote, and replaces it.
        trust_remote_code: Runs code that comes with the tokenizer.
        packing: ``concat`` joins files and cuts them into rows; ``best_fit`` fits files into padded
            rows and cuts only those that are longer than one.
        output_format: ``mds`` or ``tokens``, flat files of token ids.

    Raises:
        InputFolderMissingDataError: There is no text file in the input folder.
        CannotUnicodeDecodeFile: A file is not UTF-8.
        OutputFolderNotEmptyError: The output folder holds something else.
        DatasetTooSmallError: All texts together are less than one row.
    """
    object_names = get_object_names(input_folder)
    is_done = is_whole(output_folder) and is_already_processed(
        output_folder, args_str, object_names
    )
    if is_done and not reprocess:
        print(
            f"{output_folder} already holds the tokens of {input_folder}; nothing to do. To write "
            "them again, give reprocess."
        )
        return
    arguments = {
        "input_folder": input_folder,
        "compression": compression,
        "concat_tokens": concat_tokens,
        "tokenizer": tokenizer_name,
        "bos_text": bos_text,
        "eos_text": eos_text,
        "no_wrap": no_wrap,
        "packing": packing,
        "format": output_format,
    }
    check_output_folder(output_folder, arguments, reprocess)
    how = concatenation(
        concat_tokens,
        tokenizer_name,
        {"trust_remote_code": True} if trust_remote_code else {},
        bos_text,
        eos_text,
        no_wrap,
        processes,
        packing,
    )
    write_dataset(
        Output(output_folder, compression, arguments, output_format, replaces=reprocess),
        read_documents(object_names),
        how,
        f"{len(object_names)} text files of {input_folder}",
        finish=lambda folder: write_done_file(str(folder), args_str, object_names),
    )


def get_task_args(
    object_names: Sequence[str],
    output_root: str,
    input_folder: str,
    n_groups: int,
    tokenizer_name: str,
    concat_tokens: int,
    eos_text: str,
    bos_text: str,
    no_wrap: bool,
    compression: str | None,
    trust_remote_code: bool,
) -> Iterator[tuple[Any, ...]]:
    """Yields the arguments of :func:`download_and_convert` for each of ``n_groups`` groups.

    :func:`convert_text_to_mds` needs no groups. They are for who shares files out over machines and
    then calls :func:`llmfoundry.utils.merge_shard_groups`; each group drops what fills no row.
    """
    size = math.ceil(len(object_names) / n_groups)
    how = (tokenizer_name, concat_tokens, eos_text, bos_text, no_wrap, compression)
    for group, start in enumerate(range(0, len(object_names), size)):
        names = [*object_names[start : start + size]]
        yield names, os.path.join(output_root, str(group)), input_folder, *how, trust_remote_code


def download_and_convert(
    file_names: list[str],
    output_folder: str,
    input_folder: str,
    tokenizer_name: str,
    concat_tokens: int,
    eos_text: str,
    bos_text: str,
    no_wrap: bool,
    compression: str | None,
    trust_remote_code: bool,
) -> None:
    """Writes text files, which may be in a store, as shards of token rows in one process."""
    kwargs = {"trust_remote_code": True} if trust_remote_code else {}
    how = concatenation(
        concat_tokens, tokenizer_name, kwargs, bos_text, eos_text, no_wrap, 1, "concat"
    )
    arguments = {"file_names": file_names}
    source = f"{len(file_names)} text files of {input_folder}"
    write_dataset(
        Output(output_folder, compression, arguments), read_documents(file_names), how, source
    )


def is_already_processed(output_root: str, args_str: str, object_names: Iterable[str]) -> bool:
    """Whether a folder was written, whole, from these files with these arguments."""
    try:
        with local_file(os.path.join(output_root, DONE_FILENAME)) as path:
            lines = Path(path).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return False
    return bool(lines) and _shaping(lines[0]) == _shaping(args_str) and lines[1:] == [*object_names]


def _shaping(args_str: str) -> object:
    """The arguments that shape the result, however the others differ."""
    try:
        args = ast.literal_eval(args_str)
    except (SyntaxError, ValueError):
        return args_str
    if not isinstance(args, dict):
        return args
    return {key: value for key, value in args.items() if key not in WITHOUT_INFLUENCE}


def write_done_file(folder: str, args_str: str, object_names: Iterable[str]) -> None:
    """Notes in a folder what it was written from; the last file to be written."""
    text = "\n".join([args_str, *object_names]) + "\n"
    (Path(folder) / DONE_FILENAME).write_text(text, encoding="utf-8")


def convert_text_to_mds_from_args(
    output_folder: str,
    input_folder: str,
    compression: str | None,
    concat_tokens: int,
    tokenizer_name: str,
    bos_text: str | None,
    eos_text: str | None,
    use_tokenizer_eos: bool,
    no_wrap: bool,
    processes: int,
    reprocess: bool,
    trust_remote_code: bool,
    logging_level: str,
    packing: str = "concat",
    output_format: str = "mds",
) -> None:
    """:func:`convert_text_to_mds` with a command line's values, where unset is None.

    Args:
        output_folder: The folder of the shards.
        input_folder: The folder of the text files.
        compression: Compression of the shards.
        concat_tokens: Tokens of a row.
        tokenizer_name: A folder or hub name.
        bos_text: Text of the token that starts each document.
        eos_text: Text of the token that ends each document.
        use_tokenizer_eos: Takes the tokenizer's own end token for ``eos_text``.
        no_wrap: Throws away what a full row leaves of its documents.
        processes: Processes that tokenise, at most.
        reprocess: Writes again what an earlier call with these settings wrote.
        trust_remote_code: Runs code that comes with the tokenizer.
        logging_level: Level of Python's logging.
        packing: ``concat`` or ``best_fit``.
        output_format: ``mds`` or ``tokens``.
    """
    logging.getLogger("llmfoundry").setLevel(logging_level.upper())
    if use_tokenizer_eos:
        if eos_text:
            raise ValueError(
                f"eos_text={eos_text!r} and use_tokenizer_eos both name the token that ends a "
                "document. Give one of them."
            )
        kwargs = {"trust_remote_code": True} if trust_remote_code else {}
        eos_text = load_tokenizer(tokenizer_name, kwargs).eos_token
        if not eos_text:
            raise ValueError(f"The tokenizer {tokenizer_name} has no end token; give eos_text.")
    args = {
        "tokenizer": tokenizer_name,
        "output_folder": output_folder,
        "input_folder": input_folder,
        "compression": compression,
        "concat_tokens": concat_tokens,
        "eos_text": eos_text or "",
        "bos_text": bos_text or "",
        "no_wrap": no_wrap,
        "processes": processes,
        "reprocess": reprocess,
        "trust_remote_code": trust_remote_code,
    }
    if packing != "concat":  # Folders that were written before there was a choice are still known.
        args["packing"] = packing
    if output_format != "mds":
        args["format"] = output_format
    convert_text_to_mds(
        tokenizer_name=tokenizer_name,
        output_folder=output_folder,
        input_folder=input_folder,
        concat_tokens=concat_tokens,
        eos_text=eos_text or "",
        bos_text=bos_text or "",
        no_wrap=no_wrap,
        compression=compression,
        processes=processes,
        args_str=str(args),
        reprocess=reprocess,
        trust_remote_code=trust_remote_code,
        packing=packing,
        output_format=output_format,
    )
