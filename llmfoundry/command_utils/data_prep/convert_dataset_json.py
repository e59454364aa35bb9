"""``data_prep convert_dataset_json``: JSON files with a ``text`` column into MDS shards."""

from llmfoundry.command_utils.data_prep._json_rows import json_files, read_texts
from llmfoundry.command_utils.data_prep._rows import (
    Concatenation,
    print_report,
    write_texts,
    write_token_rows,
)
from llmfoundry.command_utils.data_prep._tokenizing import Tokenizing
from llmfoundry.command_utils.data_prep._writing import finished_folder

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
) -> None:
    """Writes the rows of JSON files as MDS shards, tokenised if ``concat_tokens`` is given.

    Args:
        path: A JSON file (one object a line, or an array), or a folder of them.
        out_root: The folder of the shards, which must not hold anything yet.
        compression: Compression of the shards, such as ``zstd``.
        concat_tokens: Tokens of a row; None writes the texts as they are.
        split: ``train``: plain JSON files have no other.
        tokenizer: A folder or hub name; needed with ``concat_tokens``.
        bos_text: Text of the token that starts each document.
        eos_text: Text of the token that ends each document.
        no_wrap: Throws away what a full row leaves of its documents.
        num_workers: Processes that tokenise; the result does not depend on it.
        packing: ``concat`` joins texts and cuts them into rows; ``best_fit`` fits texts into padded
            rows and cuts only those that are longer than one.
    """
    if split != "train":
        raise ValueError(f"split={split!r}: JSON files have only the split 'train'.")
    files = json_files(path)
    how = concatenation(
        concat_tokens, tokenizer, None, bos_text, eos_text, no_wrap, num_workers or 1, packing
    )
    with finished_folder(out_root) as folder:
        texts = read_texts(files)
        if how is None:
            report = write_texts(folder, texts, compression)
        else:
            report = write_token_rows(folder, ([text] for text in texts), how, compression)
    print_report(f"Wrote {out_root} from {len(files)} JSON files:", report)


def concatenation(
    concat_tokens: int | None,
    tokenizer: str | None,
    tokenizer_kwargs: dict[str, object] | None,
    bos_text: str | None,
    eos_text: str | None,
    no_wrap: bool,
    processes: int,
    packing: str,
) -> Concatenation | None:
    """How to make rows of tokens, or None if texts are to be written as they are.

    Raises:
        ValueError: Settings of concatenation are given but it is not, or it lacks the tokenizer.
    """
    if concat_tokens is None:
        idle = {"bos_text": bos_text, "eos_text": eos_text, "no_wrap": no_wrap}
        idle["packing"] = packing != "concat"
        given = [name for name, value in idle.items() if value]
        if given:
            raise ValueError(
                f"{' and '.join(given)} has no effect without concat_tokens. Give it (tokens of a "
                "row) with a tokenizer, or leave them out."
            )
        return None
    if tokenizer is None:
        raise ValueError(
            "When setting concat_tokens, you must specify a tokenizer (a folder or a hub name)."
        )
    how = Concatenation(
        concat_tokens,
        Tokenizing(tokenizer, tokenizer_kwargs),
        bos_text or "",
        eos_text or "",
        no_wrap,
        processes,
        packing,
    )
    how.row_maker()  # Refuses what cannot be before anything is written.
    return how


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
    )
