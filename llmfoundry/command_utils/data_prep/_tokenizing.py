"""Texts to token ids, in order, with as many processes as it pays to start."""

import multiprocessing
import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import chain, islice
from typing import Any

__all__ = ["Tokenizing", "load_tokenizer", "tokenize_in_order"]

BATCH_CHARACTERS = 1_000_000
BATCH_TEXTS = 1_000
# Below this a pool costs more to start than it saves: each process imports the library.
BATCHES_THAT_PAY = 16

TokenIds = list[int]


class Tokenizing:
    """How to make a tokenizer, here and in worker processes.

    Args:
        name: A folder or a name on the hub.
        kwargs: Arguments of ``AutoTokenizer.from_pretrained``.
    """

    def __init__(self, name: str, kwargs: dict[str, Any] | None = None) -> None:
        self.name = name
        self.kwargs = kwargs or {}
        self.tokenizer = load_tokenizer(name, self.kwargs)


def load_tokenizer(name: str, kwargs: dict[str, Any] | None = None) -> Any:
    """Loads a tokenizer without a limit on the length of a text."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(name, **(kwargs or {}))
    except OSError as error:
        raise OSError(
            f"Tokenizer {name!r} is neither a folder here nor in the local cache, and could not be "
            f"fetched from the hub. The loader said: {error}"
        ) from error
    # A document may be longer than any context; the limit would only warn about that.
    tokenizer.model_max_length = int(1e30)
    return tokenizer


def tokenize_in_order(
    texts: Iterable[str], tokenizing: Tokenizing, processes: int = 1
) -> Iterator[TokenIds]:
    """Yields the token ids of each text, without special tokens, in the order of the texts.

    The result does not depend on ``processes``.

    Args:
        texts: The texts; read as needed, a bounded number ahead.
        tokenizing: The tokenizer.
        processes: Worker processes at most; with little to do none is started.
    """
    batches = _batches(texts)
    first = list(islice(batches, BATCHES_THAT_PAY)) if processes > 1 else []
    if processes <= 1 or len(first) < BATCHES_THAT_PAY:
        # The tokenizer's own threads do the work; they need no copies of anything.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
        for batch in chain(first, batches):
            yield from _ids(tokenizing.tokenizer, batch)
        return
    yield from _in_processes(chain(first, batches), tokenizing, processes)


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """Groups texts by size and not by time or process, so that the groups are always the same."""
    batch: list[str] = []
    characters = 0
    for text in texts:
        batch.append(text)
        characters += len(text)
        if characters >= BATCH_CHARACTERS or len(batch) >= BATCH_TEXTS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _ids(tokenizer: Any, batch: list[str]) -> list[TokenIds]:
    return tokenizer(
        batch,
        truncation=False,
        padding=False,
        add_special_tokens=False,
        return_attention_mask=False,
        return_token_type_ids=False,
    )["input_ids"]


_worker_tokenizer: Any = None


def _start_worker(name: str, kwargs: dict[str, Any]) -> None:
    global _worker_tokenizer
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _worker_tokenizer = load_tokenizer(name, kwargs)


def _work(batch: list[str]) -> list[TokenIds]:
    return _ids(_worker_tokenizer, batch)


def _in_processes(
    batches: Iterator[list[str]], tokenizing: Tokenizing, processes: int
) -> Iterator[TokenIds]:
    # Spawned and not forked: the tokenizer's threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        processes,
        mp_context=context,
        initializer=_start_worker,
        initargs=(tokenizing.name, tokenizing.kwargs),
    ) as pool:
        waiting: deque[Future[list[TokenIds]]] = deque()
        for batch in batches:
            waiting.append(pool.submit(_work, batch))
            # A bounded queue: a corpus is larger than memory, and reading is faster than this.
            if len(waiting) > 2 * processes:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()
