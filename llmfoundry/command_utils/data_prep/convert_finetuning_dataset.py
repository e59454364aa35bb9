"""``data_prep convert_finetuning_dataset``: rows of answers to learn into MDS shards."""

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from llmfoundry.command_utils.data_prep._loading import load_tokenizer
from llmfoundry.command_utils.data_prep._rows import Output, unwritten
from llmfoundry.command_utils.data_prep._writing import REPORT_FILENAME, finished_folder
from llmfoundry.data.finetuning.examples import (
    get_example_type,
    get_messages,
    get_prompt_and_response,
)
from llmfoundry.data.finetuning.preprocessing import dataset_constructor
from llmfoundry.data.finetuning.row_fates import KEPT, RowReport
from llmfoundry.data.finetuning.sources import load_rows
from llmfoundry.data.finetuning.stitching import TargetPolicy
from llmfoundry.data.finetuning.tokenized_rows import (
    Preprocessing,
    at_row,
    formatted_row,
    tokenize_rows,
)
from llmfoundry.utils.exceptions import InvalidDatasetError

__all__ = ["convert_finetuning_dataset", "convert_finetuning_dataset_from_args"]

COLUMNS = {
    "prompt_response": {"prompt": "str", "response": "str"},
    "chat": {"messages": "json"},
}
DEFAULT_POLICY = TargetPolicy(2048)
# Each split has its own of these, or they do not decide what is written.
NOT_SHARED = ("splits", "data_files", "out_root", "local", "num_workers")


def convert_finetuning_dataset(
    dataset: str,
    data_subset: str | None,
    splits: list[str],
    preprocessor: str | None,
    data_files: Sequence[str],
    skip_preprocessing: bool,
    out_root: str,
    local: str | None,
    compression: str | None,
    num_workers: int | None,
    tokenizer: str | None,
    tokenizer_kwargs: dict[str, Any],
    max_seq_len: int,
    target_prompts: str,
    target_responses: str,
    encoder_decoder: bool,
) -> None:
    """Writes splits of a fine-tuning data set as MDS shards: texts, or turns of token ids.

    Rows keep their order, and the result does not depend on ``num_workers``. With a tokenizer, rows
    with nothing to learn within ``max_seq_len`` are left out; the report counts them by reason. A
    call that was killed goes on, when it is repeated, with the first split that is not whole.

    Args:
        dataset: A hub name, a folder or file, or ``json``, ``csv`` or ``parquet`` with
            ``data_files``.
        data_subset: The data set's configuration.
        splits: The splits; each becomes a folder.
        preprocessor: A registered name or ``package.module:function``, which turns a row into a
            prompt and response or a chat; None takes the one registered for ``dataset``.
        data_files: The file of each split, in their order; empty leaves it to ``dataset``.
        skip_preprocessing: The rows are prompts and responses or chats already.
        out_root: The folder of the splits' folders, here or in a store.
        local: A second folder to keep a copy in, mostly of what goes to a store.
        compression: Compression of the shards, such as ``zstd``.
        num_workers: Processes that tokenise at most.
        tokenizer: A folder or hub name; None writes texts.
        tokenizer_kwargs: Arguments of the tokenizer.
        max_seq_len: Tokens of a row that training will take.
        target_prompts: ``none``, ``all`` or ``length>=N``, as training will have it.
        target_responses: ``last`` or ``all``, as training will have it.
        encoder_decoder: Training will be of an encoder-decoder.

    Raises:
        ValueError: Settings contradict each other or have no effect, or a folder is not empty.
        UserError: A row is faulty; the error names it.
    """
    shared = {name: value for name, value in locals().items() if name not in NOT_SHARED}
    policy = TargetPolicy(max_seq_len, target_prompts, target_responses, not encoder_decoder)
    _check(splits, data_files, tokenizer, tokenizer_kwargs, policy)
    if local and _real(local) == _real(out_root):
        raise ValueError(
            f"local={local!r} is out_root={out_root!r}: a copy needs a folder of its own. Leave "
            "local out."
        )
    files = dict(zip(splits, data_files or [None] * len(splits), strict=True))
    missing = unwritten(
        [
            Output(
                os.path.join(root, split),
                compression,
                {**shared, "split": split, "data_file": file},
            )
            for split, file in files.items()
            for root in ([local, out_root] if local else [out_root])
        ]
    )
    preprocess = _preprocessing(dataset, preprocessor, skip_preprocessing)
    loaded = load_tokenizer(tokenizer, tokenizer_kwargs) if tokenizer else None
    for split, file in files.items():
        outputs = [output for output in missing if output.arguments["split"] == split]
        if not outputs:
            continue
        kwargs: dict[str, Any] = {"name": data_subset} if data_subset else {}
        if file:
            kwargs["data_files"] = {split: file}
        rows = load_rows(dataset, split, hf_kwargs=kwargs)
        source = f"{file or dataset}, split {split}"
        if loaded is None:
            report = RowReport()
            columns, samples = _texts(rows, source, preprocess, report)
        else:
            turns, report = tokenize_rows(
                rows, source, loaded, policy, preprocess, processes=num_workers
            )
            columns, samples = {"turns": "json"}, _turns(turns)
        _write(outputs, columns, samples, report, source)


def _real(root: str) -> str:
    return os.path.realpath(root.removeprefix("file://"))


def _write(
    outputs: list[Output],
    columns: dict[str, str],
    samples: Iterator[dict[str, Any]],
    report: RowReport,
    source: str,
) -> None:
    """Writes rows to the last place; once they are there, whole, their copies appear."""
    with ExitStack() as stack:
        *copies, folder = [
            stack.enter_context(finished_folder(output.folder, output.arguments))
            for output in outputs
        ]
        with outputs[-1].writer(folder, columns, None) as writer:
            for sample in samples:
                writer.write(sample)
        if not report.kept:
            raise InvalidDatasetError(f"No row stays of {source}: {'; '.join(report.lines())}.")
        numbers = report.as_dict() | {"arguments": outputs[-1].arguments}
        text = json.dumps(numbers, indent=2) + "\n"
        (folder / REPORT_FILENAME).write_text(text, encoding="utf-8")
        for copy in copies:
            shutil.copytree(folder, copy, dirs_exist_ok=True)
    print("\n  ".join([f"Wrote {outputs[-1].folder} from {source}:", *report.lines()]))


def _check(
    splits: Sequence[str],
    data_files: Sequence[str],
    tokenizer: str | None,
    tokenizer_kwargs: dict[str, Any],
    policy: TargetPolicy,
) -> None:
    if not splits or len(set(splits)) < len(splits):
        raise ValueError(f"splits={list(splits)} must name at least one split, and each once.")
    if data_files and len(data_files) != len(splits):
        raise ValueError(
            f"data_files names {len(data_files)} files for {len(splits)} splits {list(splits)}; "
            "give one for each split, in the same order."
        )
    if tokenizer is None and (tokenizer_kwargs or policy != DEFAULT_POLICY):
        raise ValueError(
            "tokenizer_kwargs, max_seq_len, target_prompts, target_responses and encoder_decoder "
            "have no effect without tokenizer: texts are written whole. Give it, or leave them out."
        )


def _preprocessing(
    dataset: str, preprocessor: str | None, skip_preprocessing: bool
) -> Preprocessing | None:
    if skip_preprocessing:
        if preprocessor is not None:
            raise ValueError(
                f"preprocessor={preprocessor!r} has no effect with skip_preprocessing. Leave one "
                "of them out."
            )
        return None
    function = dataset_constructor.get_preprocessing_fn_from_str(preprocessor, dataset)
    if function is None:
        raise ValueError(
            f"No preprocessing function is registered for {dataset!r}. Name one with preprocessor "
            "(package.module:function), or set skip_preprocessing if the rows are prompts and "
            "responses or chats already."
        )
    return function


def _texts(
    rows: Any, source: str, preprocess: Preprocessing | None, report: RowReport
) -> tuple[dict[str, str], Iterator[dict[str, Any]]]:
    """The columns of rows of text, and the rows, which are counted as they are taken."""

    def example(number: int) -> tuple[str, dict[str, Any]]:
        place = f"Row {number + 1} of {source}"
        row = formatted_row(rows[number], place, preprocess)
        with at_row(place):
            kind = get_example_type(row)
            if kind == "chat":
                return kind, {"messages": [dict(message) for message in get_messages(row)]}
            prompt, response = get_prompt_and_response(row)
        return kind, {"prompt": prompt, "response": response}

    first = example(0)[0]

    def samples() -> Iterator[dict[str, Any]]:
        for number in range(len(rows)):
            kind, sample = example(number)
            if kind != first:
                raise InvalidDatasetError(
                    f"Row {number + 1} of {source} is of another kind ({kind}) than row 1 "
                    f"({first}). Texts of one data set have the same columns: convert the kinds "
                    "apart, or give a tokenizer."
                )
            report.fates[KEPT] += 1
            report.empty_answers += _has_empty_answer(sample)
            yield sample

    return COLUMNS[first], samples()


def _has_empty_answer(sample: Mapping[str, Any]) -> bool:
    said = [each["content"] for each in sample.get("messages", ()) if each["role"] == "assistant"]
    return not all(str(answer or "").strip() for answer in said or [sample["response"]])


def _turns(table: Any) -> Iterator[dict[str, Any]]:
    for batch in table.iter(batch_size=1_000):
        for turns in batch["turns"]:
            yield {"turns": turns}


def convert_finetuning_dataset_from_args(
    dataset: str,
    data_subset: str | None,
    splits: list[str],
    preprocessor: str | None,
    data_files: Sequence[str],
    skip_preprocessing: bool,
    out_root: str,
    local: str | None,
    compression: str | None,
    num_workers: int | None,
    tokenizer: str | None,
    tokenizer_kwargs: str | None,
    max_seq_len: int,
    target_prompts: str,
    target_responses: str,
    encoder_decoder: bool,
) -> None:
    """:func:`convert_finetuning_dataset` with a command line's values: kwargs are JSON."""
    convert_finetuning_dataset(
        dataset=dataset,
        data_subset=data_subset,
        splits=splits,
        preprocessor=preprocessor,
        data_files=data_files,
        skip_preprocessing=skip_preprocessing,
        out_root=out_root,
        local=local,
        compression=compression,
        num_workers=num_workers,
        tokenizer=tokenizer,
        tokenizer_kwargs=json.loads(tokenizer_kwargs) if tokenizer_kwargs else {},
        max_seq_len=max_seq_len,
        target_prompts=target_prompts,
        target_responses=target_responses,
        encoder_decoder=encoder_decoder,
    )
