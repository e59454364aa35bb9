"""Texts to token ids, in order, with as many processes as it pays to start."""

import multiprocessing
import os
import pickle
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cached_property
from itertools import chain, islice, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmfoundry.command_utils.data_prep._word_cache import WordCache, cuts_are_safe

__all__ = ["TokenIds", "Tokenizing", "tokenize_in_order"]

BATCH_CHARACTERS = 1_000_000
BATCH_TEXTS = 1_000
# Below this a pool costs more to start than it saves: each process imports the library.
BATCHES_THAT_PAY = 8

TokenIds = NDArray[np.int32]
Encoded = tuple[TokenIds, list[int]]


class Tokenizing:
    """A tokenizer, here and as it is sent to worker processes.

    Args:
        tokenizer: A tokenizer of transformers.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._backend = _backend(tokenizer)

    def __getstate__(self) -> dict[str, Any]:
        # Where the backend does all the work, a worker is spared the import of transformers.
        tokenizer = None if self._backend else self.tokenizer
        return {"tokenizer": tokenizer, "_backend": self._backend}

    @cached_property
    def _words(self) -> WordCache | None:
        return WordCache(self._backend) if self._backend and cuts_are_safe(self._backend) else None

    def encode(self, texts: list[str]) -> Encoded:
        """Token ids of all texts in one array, which is quickly sent, and where each ends, from 0.

        There are no special tokens but those in the texts.
        """
        lists: Iterable[Sequence[int] | TokenIds]
        if self._words is not None:
            lists = map(self._words.ids, texts)
        elif self._backend is not None:
            # The library's own call makes lists of all that a model may want.
            encodings = self._backend.encode_batch_fast(texts, add_special_tokens=False)
            lists = (each.ids for each in encodings)
        else:
            lists = self.tokenizer(
                texts, truncation=False, padding=False, add_special_tokens=False,
                return_attention_mask=False, return_token_type_ids=False,
            )["input_ids"]  # fmt: skip
        arrays = [np.asarray(ids, np.int32) for ids in lists]
        return np.concatenate(arrays), np.cumsum([0, *map(len, arrays)]).tolist()


def _backend(tokenizer: Any) -> Any:
    """The tokenizer of the tokenizers library that does all that a call does, if there is one."""
    from transformers import PreTrainedTokenizerFast as Fast

    is_plain = isinstance(tokenizer, Fast) and all(
        getattr(type(tokenizer), name) is getattr(Fast, name)
        for name in ("__call__", "_encode_plus")
    )
    if not is_plain or tokenizer.split_special_tokens:
        return None
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    return tokenizer.backend_tokenizer


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
        # The tokenizer's own threads do the work; ours reads and writes meanwhile.
        pool = ThreadPoolExecutor(1, "tokenizer")
        yield from _in_pool(chain(first, batches), pool, tokenizing.encode, ahead=2)
        return
    # Spawned and not forked: the tokenizer's threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    # By a file: who starts a process that ends before it has read a long argument waits for ever.
    with tempfile.NamedTemporaryFile() as sent:
        pickle.dump(tokenizing, sent)
        sent.flush()
        pool = ProcessPoolExecutor(processes, context, _start_worker, (sent.name,))
        yield from _in_pool(chain(first, batches), pool, _work, 2 * processes)


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


def _in_pool(
    batches: Iterator[list[str]],
    pool: Executor,
    work: Callable[[list[str]], Encoded],
    ahead: int,
) -> Iterator[TokenIds]:
    waiting: deque[Future[Encoded]] = deque()

    def oldest() -> Iterator[TokenIds]:
        ids, ends = waiting.popleft().result()
        return (ids[start:end] for start, end in pairwise(ends))

    try:
        for batch in batches:
            waiting.append(pool.submit(work, batch))
            # A bounded queue: a corpus is larger than memory, and reading is faster than this.
            if len(waiting) > ahead:
                yield from oldest()
        while waiting:
            yield from oldest()
    except BrokenProcessPool as error:
        raise RuntimeError(
            "A process that tokenises ended; what it printed says why. If there is too little "
            "memory, use fewer processes. A program that calls this must do so under "
            "`if __name__ == '__main__':`, since each process imports it, or ask for one process."
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


_worker: Tokenizing | None = None


def _start_worker(tokenizing: str) -> None:
    global _worker
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with open(tokenizing, "rb") as sent:
        _worker = pickle.load(sent)


def _work(texts: list[str]) -> Encoded:
    assert _worker is not None
    return _worker.encode(texts)


def _end_with_parent() -> None:
    """Ends a worker whose parent was killed; it would wait for work for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
