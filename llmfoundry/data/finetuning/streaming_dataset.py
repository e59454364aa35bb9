"""Fine-tuning rows out of MDS shards: tokenised before, or tokenised as they are read."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from composer.utils import dist
from llmfoundry.data.data import check_token_encoding_type, stream_remote_local_validate
from llmfoundry.data.finetuning.examples import without_absent_columns
from llmfoundry.data.finetuning.row_fates import count_tokens, nothing_to_learn
from llmfoundry.data.finetuning.stitching import TargetPolicy
from llmfoundry.data.finetuning.tokenization import RowTokenizer, get_texts
from llmfoundry.data.finetuning.tokenized_rows import at_row
from llmfoundry.data.text_samples import place_of
from llmfoundry.tokenizers.dates import get_date_string, tells_date
from streaming.base.dataset import StreamingDataset
from streaming.base.stream import Stream

__all__ = ["StreamingFinetuningDataset"]


class StreamingFinetuningDataset(StreamingDataset):
    """Gives the samples of MDS shards as turns of token ids.

    A sample holds ``turns``; or ``input_ids`` and ``labels`` of one turn, as arrays or raw bytes of
    ``token_encoding_type``; or a row that is tokenised here: ``prompt`` with ``response`` or
    ``completion``, or ``messages``.

    Args:
        tokenizer: Tokenises rows of text.
        token_encoding_type: Number type of token ids that were written as raw bytes.
        streams: The streams to mix, instead of ``remote`` and ``local``.
        local: Where the shards are, or are kept once downloaded.
        remote: Where the shards are.
        split: The subfolder to take.
        shuffle: Whether each epoch has an order of its own.
        batch_size: Samples of a batch on one device.
        max_seq_len: Tokens that are taken of ``input_ids``.
        packing_ratio: Samples that one row of a batch is packed from; the position that
            :meth:`state_dict` is told counts such rows.
        date_string: What chat templates write as today, such as ``26 Jul 2025``; by default
            rank 0's date when this is made.
        **kwargs: Every other argument of :class:`streaming.StreamingDataset`.
    """

    def __init__(
        self,
        tokenizer: Any,
        token_encoding_type: str = "int64",
        streams: list[Stream] | None = None,
        local: str | None = None,
        remote: str | None = None,
        split: str | None = None,
        shuffle: bool = False,
        batch_size: int | None = None,
        max_seq_len: int = 2048,
        packing_ratio: float | None = None,
        date_string: str | None = None,
        **kwargs: Any,
    ) -> None:
        check_token_encoding_type(token_encoding_type)
        self.tokenizer = tokenizer
        self.token_encoding_type = token_encoding_type
        self.max_seq_len = max_seq_len
        self.packing_ratio = packing_ratio
        self.policy: TargetPolicy | None = None  # A row with nothing to learn by it is refused.
        if date_string is None and tells_date(tokenizer.chat_template):
            date_string = dist.from_rank_zero(get_date_string)
        self.date_string = date_string
        self._tokenize = RowTokenizer(tokenizer)
        if not streams:
            stream_remote_local_validate(remote, local, split)
        super().__init__(
            streams=streams,
            remote=remote,
            local=local,
            split=split,
            shuffle=shuffle,
            batch_size=batch_size,
            **kwargs,
        )

    def get_item(self, sample_id: int, retry: int = 7) -> Any:
        """The turns of the sample of this number.

        Raises:
            UserError: Its text is no row of fine-tuning; the error names file and row.
            ValueError: Its token ids are neither arrays nor bytes, or it has nothing to learn.
        """
        sample = super().get_item(sample_id, retry)
        with at_row(lambda: place_of(self, sample_id)):
            turns = self.get_turns(sample)
        if self.policy is not None:
            length, _, learnt = count_tokens(turns, self.policy, self.tokenizer.eos_token_id)
            if not learnt:
                limit, place = self.policy.max_seq_len, place_of(self, sample_id)
                raise nothing_to_learn(length, limit, place)
        return {"turns": turns}

    def get_turns(self, sample: Mapping[str, Any]) -> Any:
        """The turns of a sample: its own, or those that its ids or texts make."""
        if "turns" in sample:
            return sample["turns"]
        if "input_ids" in sample:
            return [
                {key: self._ids(sample[key]) for key in {"input_ids", "labels"} & sample.keys()}
            ]
        return self._tokenize([get_texts(_decoded(sample), self.tokenizer, self.date_string)])[0]

    def _ids(self, ids: Any) -> list[int]:
        if isinstance(ids, bytes):
            ids = np.frombuffer(ids, dtype=self.token_encoding_type)
        elif not isinstance(ids, np.ndarray):
            raise ValueError(
                f"Token ids must be arrays or bytes, and these are {type(ids).__name__}. Prepare "
                "the data again."
            )
        return ids[: self.max_seq_len].tolist()

    def state_dict(self, num_samples: int, from_beginning: bool) -> dict[str, Any]:
        """The position after ``num_samples`` rows of batches, each packed from several samples."""
        if self.packing_ratio is not None:
            num_samples = int(self.packing_ratio * num_samples)
        return super().state_dict(num_samples, from_beginning)


def _decoded(sample: Mapping[str, Any]) -> Any:
    texts = {k: v.decode("utf-8") if isinstance(v, bytes) else v for k, v in sample.items()}
    return without_absent_columns(texts)
