"""``data_prep convert_text_to_mds``: a folder of text files into MDS shards of token rows."""

import ast
import logging
import os
from collections.abc import Iterable
from pathlib import Path

from llmfoundry.command_utils.data_prep._rows import (
    Concatenation,
    print_report,
    write_token_rows,
)
from llmfoundry.command_utils.data_prep._text_files import get_object_names, read_pieces
from llmfoundry.command_utils.data_prep._tokenizing import Tokenizing, load_tokenizer
from llmfoundry.command_utils.data_prep._writing import (
    DONE_FILENAME,
    check_output_folder,
    finished_folder,
)
from llmfoundry.utils.exceptions import DatasetTooSmallError
from llmfoundry.utils.stores import local_file

__all__ = [
    "convert_text_to_mds",
    "convert_text_to_mds_from_args",
    "is_already_processed",
    "write_done_file",
]

log = logging.getLogger(__name__)

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
        reprocess: Does not accept what an earlier call wrote; its folder must be removed first.
        trust_remote_code: Runs code that comes with the tokenizer.
        packing: ``concat`` joins files and cuts them into rows; ``best_fit`` fits files into padded
            rows and cuts only those that are longer than one.

    Raises:
        OutputFolderNotEmptyError: The output folder holds something else.
        DatasetTooSmallError: All texts together are less than one row.
    """
    object_names = get_object_names(input_folder)
    if not reprocess and is_already_processed(output_folder, args_str, object_names):
        print(
            f"{output_folder} already holds the tokens of {input_folder}; nothing to do. To write "
            "them again, remove it or name another folder."
        )
        return
    check_output_folder(output_folder)
    how = Concatenation(
        concat_tokens,
        Tokenizing(tokenizer_name, {"trust_remote_code": True} if trust_remote_code else {}),
        bos_text,
        eos_text,
        no_wrap,
        processes,
        packing,
    )
    how.row_maker()  # Refuses what cannot be before anything is written.
    with finished_folder(output_folder) as folder:
        documents = (read_pieces(name) for name in object_names)
        report = write_token_rows(folder, documents, how, compression)
        if not any(folder.glob("shard.*")):
            raise DatasetTooSmallError(
                f"The texts in {input_folder} are too few to fill one row of {concat_tokens} "
                f"tokens ({'; '.join(report)}). Add text, or lower concat_tokens."
            )
        write_done_file(str(folder), args_str, object_names)
    print_report(f"Wrote {output_folder} from {len(object_names)} text files:", report)


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
        reprocess: Does not accept what an earlier call wrote.
        trust_remote_code: Runs code that comes with the tokenizer.
        logging_level: Level of Python's logging.
        packing: ``concat`` or ``best_fit``.
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
    )
