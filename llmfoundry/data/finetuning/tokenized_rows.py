"""A table of rows into a table of turns, in batches and processes, with a count of every row."""

import hashlib
import inspect
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from composer.utils import dist
from llmfoundry.data.finetuning.examples import without_absent_columns
from llmfoundry.data.finetuning.row_fates import CUT, KEPT, RowReport, row_fate
from llmfoundry.data.finetuning.stitching import TargetPolicy
from llmfoundry.data.finetuning.tokenization import (
    RowTokenizer,
    get_texts,
    tokenize_formatted_example,
)
from llmfoundry.tokenizers.dates import get_date_string, tells_date
from llmfoundry.utils.exceptions import BaseContextualError, InvalidDatasetError

__all__ = ["Preprocessing", "at_row", "formatted_row", "tokenize_rows"]

Preprocessing = Callable[..., Any]
"""Turns a row of a data set into a prompt and response or a chat."""

BATCH_ROWS = 1_000
FAULTS = ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError
# Below this a pool costs more to start than it saves.
ROWS_THAT_PAY = 20_000


def tokenize_rows(
    rows: Any,
    source: str,
    tokenizer: Any,
    policy: TargetPolicy,
    preprocess: Preprocessing | None = None,
    mapping_fn: Callable[..., dict[str, Any]] = tokenize_formatted_example,
    processes: int | None = None,
    date_string: str | None = None,
) -> tuple[Any, RowReport]:
    """Tokenises a ``datasets.Dataset`` and leaves out rows with nothing to learn.

    The result does not depend on ``processes``. It is cached by content, as ``datasets`` does.

    Args:
        rows: The data set.
        source: Its name in errors.
        tokenizer: The tokenizer.
        policy: Which tokens are learnt.
        preprocess: Turns a row into a prompt and response or a chat.
        mapping_fn: Tokenises a row, instead of all of a batch at once.
        processes: Processes at most; by default all CPUs but eight, or MAX_NUM_PROC if that is
            less, and one for a small data set.
        date_string: What chat templates write as today, such as ``26 Jul 2025``; today by default.

    Returns:
        The data set of ``turns``, and the count of what became of the rows.
    """
    import datasets
    import pyarrow
    import pyarrow.compute

    compute: Any = pyarrow.compute  # makes its functions when it is imported
    features = datasets.Features(
        {
            "turns": [
                {"input_ids": [datasets.Value("int32")], "labels": [datasets.Value("int32")]}
            ],
            "fate": datasets.Value("string"),
            "tokens": datasets.Value("int64"),
            "learnt": datasets.Value("int64"),
        }
    )
    if processes is None:
        processes = _processes(len(rows))
    tokenize = partial(
        rows.map,
        _Tokenize(source, tokenizer, policy, preprocess, mapping_fn, date_string),
        batched=True,
        batch_size=BATCH_ROWS,
        with_indices=True,
        remove_columns=rows.column_names,
        features=features,
        num_proc=processes if processes > 1 else None,
        desc="Tokenizing",
    )
    try:
        table = tokenize()
    except (OSError, pyarrow.ArrowInvalid):  # a cache that is torn
        if dist.get_local_rank() > 0:
            raise
        table = tokenize(load_from_cache_file=False)
    fates = table.data.column("fate")
    report = RowReport(
        Counter({each["values"].as_py(): each["counts"].as_py() for each in fates.value_counts()}),
        tokens=compute.sum(table.data.column("tokens")).as_py(),
        learnt=compute.sum(table.data.column("learnt")).as_py(),
    )
    turns = table.select_columns("turns")
    if report.dropped:
        stays = compute.is_in(fates, value_set=pyarrow.array([KEPT, CUT]))
        turns = turns.select(compute.indices_nonzero(stays).to_numpy())
    return turns, report


def _processes(rows: int) -> int:
    if rows < ROWS_THAT_PAY:
        return 1
    most = max(1, len(os.sched_getaffinity(0)) - 8)
    return min(most, int(os.environ.get("MAX_NUM_PROC", most)))


def _version(preprocess: Preprocessing | None) -> str:
    """What else tokens depend on, which a cache would not see: code."""
    texts = [
        each.read_text(encoding="utf-8") for each in sorted(Path(__file__).parent.glob("*.py"))
    ]
    module = inspect.getmodule(preprocess)
    if module is not None and getattr(module, "__file__", None):
        texts.append(inspect.getsource(module))
    return hashlib.sha256("".join(texts).encode()).hexdigest()


class _Tokenize:
    """Tokenises a batch of a table. A class and no closure, so that its cache key is its values."""

    def __init__(
        self,
        source: str,
        tokenizer: Any,
        policy: TargetPolicy,
        preprocess: Preprocessing | None,
        mapping_fn: Callable[..., dict[str, Any]],
        date_string: str | None,
    ) -> None:
        self.source = source
        self.tokenizer = tokenizer
        self.policy = policy
        self.preprocess = preprocess
        self.mapping_fn = mapping_fn
        # Only where it matters: else the cache would be another each day.
        self.date_string = None
        if tells_date(tokenizer.chat_template):
            self.date_string = date_string or get_date_string()
        self.version = _version(preprocess)

    def __call__(
        self, batch: Mapping[str, Sequence[Any]], indices: Sequence[int]
    ) -> dict[str, list[Any]]:
        rows = (
            dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True)
        )
        in_batch = self.mapping_fn is tokenize_formatted_example
        done: list[Any] = []
        for number, row in zip(indices, rows, strict=True):
            place = f"Row {number + 1} of {self.source}"
            example = formatted_row(row, place, self.preprocess)
            with at_row(place):
                if in_batch:
                    done.append(get_texts(example, self.tokenizer, self.date_string))
                else:
                    done.append(self.mapping_fn(example, self.tokenizer)["turns"])
        every_turns = RowTokenizer(self.tokenizer)(done) if in_batch else done
        eos = self.tokenizer.eos_token_id
        fates = [row_fate({"turns": turns}, self.policy, eos) for turns in every_turns]
        return {
            "turns": every_turns,
            "fate": [fate for fate, _, _ in fates],
            "tokens": [tokens for _, tokens, _ in fates],
            "learnt": [learnt for _, _, learnt in fates],
        }


def formatted_row(row: Mapping[str, Any], place: str, preprocess: Preprocessing | None) -> Any:
    """A row of a table as a prompt and response or a chat.

    Args:
        row: The row, all columns of the table.
        place: Where it stands, for errors.
        preprocess: The function that makes it so, if it is not yet.

    Raises:
        InvalidDatasetError: The function fails on the row.
    """
    if preprocess is None:
        return without_absent_columns(row)
    with at_row(place):
        try:
            return preprocess(dict(row))
        except FAULTS as error:
            name = getattr(preprocess, "__qualname__", preprocess)
            raise InvalidDatasetError(
                f"the preprocessing function {name} raised {type(error).__name__}: {error}. The "
                f"row has the columns {sorted(row)}"
            ) from error


@contextmanager
def at_row(place: str | Callable[[], str]) -> Iterator[None]:
    """Makes errors about a row say where it stands; a place dear to find is given as a function."""
    try:
        yield
    except BaseContextualError as error:
        error.place = place if isinstance(place, str) else place()
        raise
