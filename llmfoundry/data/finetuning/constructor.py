"""Data sets by name and preprocessing function, tokenised, filtered and counted."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from composer.utils import dist
from composer.utils.import_helpers import import_object
from llmfoundry.data.finetuning.node_order import first_rank_first
from llmfoundry.data.finetuning.row_fates import RowReport
from llmfoundry.data.finetuning.sources import load_rows
from llmfoundry.data.finetuning.stitching import TargetPolicy
from llmfoundry.data.finetuning.streaming_dataset import StreamingFinetuningDataset
from llmfoundry.data.finetuning.tokenization import tokenize_formatted_example
from llmfoundry.data.finetuning.tokenized_rows import Preprocessing, tokenize_rows
from llmfoundry.tokenizers.dates import get_date_string
from llmfoundry.utils.exceptions import (
    DatasetTooSmallError,
    InvalidDatasetError,
    InvalidPromptResponseKeysError,
)

__all__ = ["DatasetConstructor"]

log = logging.getLogger(__name__)


class DatasetConstructor:
    """Knows preprocessing functions by the names of their data sets, and builds data sets."""

    def __init__(self) -> None:
        self._functions: dict[str, Preprocessing] = {}

    def register(self, *names: str) -> Callable[[Preprocessing], Preprocessing]:
        """Registers the decorated preprocessing function under the names of data sets.

        Raises:
            ValueError: A name is registered already.
        """

        def add(function: Preprocessing) -> Preprocessing:
            for name in names:
                if name in self._functions:
                    raise ValueError(
                        f"A tokenization function has already been registered with {name=}. "
                        "Choose another name."
                    )
                self._functions[name] = function
            return function

        return add

    def print_registered_tasks(self) -> None:
        """Prints the names that have a preprocessing function."""
        print("\n".join(sorted(self._functions)))

    def get_preprocessing_fn_from_dict(self, mapping: Mapping[str, str]) -> Preprocessing:
        """Gives a function that takes prompt and response from the columns that a mapping names.

        Args:
            mapping: ``{"prompt": column, "response": column}``.
        """

        def preprocess(example: Any) -> dict[str, Any]:
            if set(mapping) != {"prompt", "response"} or not set(mapping.values()) <= set(example):
                raise InvalidPromptResponseKeysError(dict(mapping), example)
            return {key: example[column] for key, column in mapping.items()}

        return preprocess

    def get_preprocessing_fn_from_str(
        self, preprocessor: str | None, dataset_name: str | None = None
    ) -> Preprocessing | None:
        """Finds a preprocessing function.

        Args:
            preprocessor: A registered name, or ``package.module:function``; None takes the function
                of ``dataset_name``, if there is one.
            dataset_name: The data set.

        Raises:
            ValueError: The function can not be imported.
        """
        if preprocessor is None:
            return self._functions.get(dataset_name or "")
        if preprocessor in self._functions:
            return self._functions[preprocessor]
        try:
            return import_object(preprocessor)
        except (AttributeError, ImportError, ValueError) as error:
            raise ValueError(
                f"Failed to import preprocessing function from string = {preprocessor}. It must "
                "be package.module:function, with the package on PYTHONPATH or in code_paths, or "
                f"one of {sorted(self._functions)}. {type(error).__name__}: {error}"
            ) from error

    def build_from_hf(
        self,
        dataset_name: str,
        split: str,
        safe_load: bool = False,
        max_seq_len: int = 2048,
        mapping_fn: Callable[..., dict[str, Any]] = tokenize_formatted_example,
        preprocessing_fn: Preprocessing | None = None,
        tokenizer: Any = None,
        target_prompts: str = "none",
        target_responses: str = "last",
        decoder_only_format: bool = True,
        hf_kwargs: dict[str, Any] | None = None,
        date_string: str | None = None,
    ) -> Any:
        """Loads a data set, tokenises its rows and leaves out those with nothing to learn.

        Each node tokenises once: its other ranks read what its first one has written. What became
        of the rows is logged.

        Args:
            dataset_name: A hub name, a folder or file, ``json``, ``csv`` or ``parquet`` with
                ``data_files``, or a remote folder of ``{split}.jsonl`` or the like.
            split: The split.
            safe_load: Loads data files only, never code.
            max_seq_len: Tokens of a row at most; longer ones are cut.
            mapping_fn: Tokenises a row: (example, tokenizer) to its ``turns``.
            preprocessing_fn: Turns a row into a prompt and response or a chat.
            tokenizer: The tokenizer.
            target_prompts: ``none``, ``all`` or ``length>=N``.
            target_responses: ``last`` or ``all``.
            decoder_only_format: False for encoder-decoders.
            hf_kwargs: Arguments of ``datasets.load_dataset``.
            date_string: What chat templates write as today; by default rank 0's date.

        Raises:
            InvalidDatasetError: No row stays.
            UserError: A row is faulty; the error names it.
        """
        policy = TargetPolicy(max_seq_len, target_prompts, target_responses, decoder_only_format)
        date_string = date_string or dist.from_rank_zero(get_date_string)
        with first_rank_first() as share:
            rows = load_rows(dataset_name, split, safe_load, hf_kwargs, share)
            tokenized, report = tokenize_rows(
                rows,
                f"{dataset_name}, split {split}",
                tokenizer,
                policy,
                preprocessing_fn,
                mapping_fn,
                date_string=date_string,
            )
        _log(dataset_name, split, report)
        if not len(tokenized):
            raise InvalidDatasetError(
                f"No samples are left of {dataset_name}, split {split}. " + _told(report)
            )
        return tokenized

    def build_from_streaming(self, *args: Any, **kwargs: Any) -> StreamingFinetuningDataset:
        """Builds the data set of MDS shards.

        Raises:
            DatasetTooSmallError: It has fewer samples than nodes.
        """
        dataset = self.streaming_dataset_class(*args, **kwargs)
        nodes = dist.get_world_size() // dist.get_local_world_size()
        least = max(nodes, dataset.num_canonical_nodes or 1)
        if dataset.size < least:
            raise DatasetTooSmallError(
                f"There are {dataset.size} samples for {nodes} nodes and num_canonical_nodes="
                f"{dataset.num_canonical_nodes}. Each needs one: use more data, or fewer."
            )
        return dataset

    @property
    def streaming_dataset_class(self) -> type[StreamingFinetuningDataset]:
        """What :meth:`build_from_streaming` builds; a subclass may build another."""
        return StreamingFinetuningDataset


def _log(name: str, split: str, report: RowReport) -> None:
    if dist.get_local_rank() == 0:
        level = logging.WARNING if report.dropped else logging.INFO
        log.log(level, f"Fine-tuning data {name}, split {split}: {_told(report)}.")


def _told(report: RowReport) -> str:
    return "; ".join(report.lines())
