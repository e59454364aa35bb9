"""The loss by how much context a token was predicted from.

Legend: B batch, S query positions, V vocabulary.
"""

from typing import Any

import torch
import torch.nn.functional as F

from composer.core.callback import Callback
from composer.core.logger import Logger
from composer.core.logger_destination import LoggerDestination
from composer.core.state import State
from composer.distributed.mesh import num_copies_of_a_batch
from composer.utils import dist
from llmfoundry.models.mpt.backbone import index_in_document
from llmfoundry.utils.warnings import experimental_class

__all__ = ["LossPerpVsContextLengthLogger"]

FOLDER = "metrics/train/LossPerpVLenTable"
BY_POSITION = ("mean_loss_v_len", "mean_perplexity_v_len", "sum_length")
BY_INDEX_IN_DOCUMENT = (
    "mean_loss_seq_id_v_len",
    "mean_perplexity_seq_id_v_len",
    "sum_length_seq_id",
)


@experimental_class("LossPerpVsContextLengthLogger")
class LossPerpVsContextLengthLogger(Callback):
    """Logs tables of the loss and perplexity of training batches at each position, over all ranks.

    A row is a batch; its columns are ``context_length_0`` onwards and ``batch_index``. Where no
    token had that much context there is -1. Batches with a ``sequence_id`` have three more tables,
    by each token's index in its document.

    ===================================================== ============================
    ``metrics/train/LossPerpVLenTable/mean_loss_v_len``    mean loss
    ``.../mean_perplexity_v_len``                          mean of exp(loss)
    ``.../sum_length``                                     how many targets there were
    ===================================================== ============================

    Args:
        log_batch_interval: Batches between logged tables.
        compute_batch_interval: Batches between rows.
        ignore_index: The label of no target.

    Raises:
        ValueError: Rows are rarer than tables, no logger takes tables, or the model gives no logits
            in training.
    """

    def __init__(
        self, log_batch_interval: int, compute_batch_interval: int, ignore_index: int = -100
    ) -> None:
        super().__init__()
        if not 1 <= compute_batch_interval <= log_batch_interval:
            raise ValueError(
                f"compute_batch_interval={compute_batch_interval} must be from 1 to "
                f"log_batch_interval={log_batch_interval}, or tables would have no rows."
            )
        self.log_batch_interval = log_batch_interval
        self.compute_batch_interval = compute_batch_interval
        self.ignore_index = ignore_index
        self.sums: dict[str, torch.Tensor] = {}
        self.rows: dict[str, list[tuple[torch.Tensor, int]]] = {}

    def init(self, state: State, logger: Logger) -> None:
        """Checks that some logger takes tables."""
        if all(type(d).log_table is LoggerDestination.log_table for d in logger.destinations):
            raise ValueError(
                "loss_perp_v_len logs tables, which none of this run's loggers takes. Add one that "
                "does, such as mlflow."
            )

    def before_train_batch(self, state: State, logger: Logger) -> None:
        """Starts over; a batch that did not fit into memory is begun again."""
        self.sums = {}

    def after_forward(self, state: State, logger: Logger) -> None:
        """Adds a micro-batch's losses."""
        if (state.timestamp.batch.value + 1) % self.compute_batch_interval != 0:
            return
        logits_BSV: Any = getattr(state.outputs, "logits", None)
        if logits_BSV is None:
            raise ValueError(
                "loss_perp_v_len needs the logits of training batches, and the model gives none. "
                "Set use_train_metrics: true for the model."
            )
        labels_BS = state.batch["labels"]
        targets_BS = F.pad(labels_BS[:, 1:], (0, 1), value=self.ignore_index)
        with torch.no_grad():
            loss_BS = F.cross_entropy(
                logits_BSV.float().flatten(0, 1),
                targets_BS.flatten(),
                ignore_index=self.ignore_index,
                reduction="none",
            ).view_as(targets_BS)
        is_target_BS = targets_BS != self.ignore_index
        position_BS = torch.arange(labels_BS.size(1), device=labels_BS.device).expand_as(labels_BS)
        self._add("position", loss_BS, is_target_BS, position_BS)
        sequence_id_BS = state.batch.get("sequence_id")
        if sequence_id_BS is not None:
            self._add("document", loss_BS, is_target_BS, index_in_document(sequence_id_BS))

    def batch_end(self, state: State, logger: Logger) -> None:
        """Keeps the batch's row, and logs the tables when they are due."""
        batch = state.timestamp.batch.value
        for kind, sums in self.sums.items():
            copies = num_copies_of_a_batch(state.device_mesh)
            self.rows.setdefault(kind, []).append((_over_ranks(sums, copies), batch))
        self.sums = {}
        if batch % self.log_batch_interval == 0:
            for kind, rows in self.rows.items():
                _log_tables(kind, rows, logger)
            self.rows = {}

    def _add(
        self,
        kind: str,
        loss_BS: torch.Tensor,
        is_target_BS: torch.Tensor,
        index_BS: torch.Tensor,
    ) -> None:
        """Adds losses, perplexities and counts at their indices, as ``[3, S]``."""
        counted = is_target_BS.float()
        sums = torch.zeros(3, loss_BS.size(1), device=loss_BS.device)
        for row, value_BS in enumerate((loss_BS, loss_BS.exp(), torch.ones_like(loss_BS))):
            sums[row].index_add_(0, index_BS.flatten(), (value_BS * counted).flatten())
        before = self.sums.get(kind, sums[:, :0])
        length = max(before.size(1), sums.size(1))
        self.sums[kind] = _longer(before, length) + _longer(sums, length)


def _longer(sums: torch.Tensor, length: int, value: float = 0.0) -> torch.Tensor:
    return F.pad(sums, (0, length - sums.size(1)), value=value)


def _over_ranks(sums: torch.Tensor, copies: int) -> torch.Tensor:
    """Returns means and counts over all ranks, whose batches may be of different lengths.

    Args:
        sums: This rank's losses, perplexities and counts, as ``[3, S]``.
        copies: How many ranks have one and the same batch, all of whose logits each of them has.
    """
    length = torch.tensor([sums.size(1)], device=sums.device)
    dist.all_reduce(length, "MAX")
    sums = _longer(sums, int(length))
    dist.all_reduce(sums, "SUM")
    loss, perplexity, count = sums
    means = [torch.where(count > 0, each / count, -1.0) for each in (loss, perplexity)]
    return torch.stack([*means, count / copies])


def _log_tables(kind: str, rows: list[tuple[torch.Tensor, int]], logger: Logger) -> None:
    length = max(values.size(1) for values, _ in rows)
    columns = [*(f"context_length_{index}" for index in range(length)), "batch_index"]
    padded = [(_longer(values, length, -1.0).tolist(), batch) for values, batch in rows]
    for index, name in enumerate(BY_POSITION if kind == "position" else BY_INDEX_IN_DOCUMENT):
        table = [[*values[index], batch] for values, batch in padded]
        logger.log_table(columns, table, f"{FOLDER}/{name}")
