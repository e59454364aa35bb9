"""A model that answers over the network, with the outputs that evaluation takes of any model."""

import abc
from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from composer.core.types import Batch
from composer.models.base import ComposerModel

__all__ = ["InferenceAPIEvalWrapper"]


class InferenceAPIEvalWrapper(ComposerModel):
    """A model behind an API: it is evaluated on in-context-learning tasks and cannot be trained.

    Settings come as one mapping, as programs pass it, or by name, as recipes do.

    Args:
        om_model_config: The settings as a mapping.
        tokenizer: The model's own tokenizer, as the tasks are made of its tokens.
        **settings: ``version`` is the model's name at the service; without it ``name`` is. The
            other settings are those of the service.

    Raises:
        ValueError: If a setting is missing or unknown.
    """

    known_settings: ClassVar[frozenset[str]] = frozenset({"name", "version"})

    def __init__(
        self,
        om_model_config: Mapping[str, Any] | None = None,
        tokenizer: Any = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        if om_model_config and settings:
            raise ValueError(
                f"om_model_config and {sorted(settings)} are two places for settings; use one."
            )
        self.settings = dict(om_model_config or settings)
        if unknown := sorted(self.settings.keys() - self.known_settings):
            raise ValueError(
                f"{type(self).__name__} has no {unknown}; it has {sorted(self.known_settings)}."
            )
        name = self.settings.get("version") or self.settings.get("name")
        if name is None:
            raise ValueError("version is missing: the model's name at the service.")
        self.model_name: str = name
        if tokenizer is None:
            raise ValueError("A tokenizer is needed: the one that the model itself uses.")
        self.tokenizer = tokenizer
        self.eval_metrics: dict[str, Any] = {}
        self.labels: torch.Tensor | None = None

    @abc.abstractmethod
    def score(self, context: list[int], continuation: list[int]) -> torch.Tensor:
        """Returns what stands for the logits of each token of the continuation, ``[n, V]``."""

    def rebatch(self, batch: Batch) -> Batch:
        """Returns the batch that outputs and metrics are about, by default the one that came."""
        return batch

    def eval_forward(self, batch: Batch, outputs: Any | None = None) -> torch.Tensor:
        """Returns outputs in the place of logits, ``[B, S, V]``.

        The continuations' are asked for. Elsewhere they say what is known, the next token.

        Args:
            batch: An in-context-learning batch, padded on the right.
            outputs: Not used; nothing is computed in training.

        Raises:
            ValueError: If a continuation has no context.
        """
        self._check(batch)
        batch = self.rebatch(batch)
        ids: torch.Tensor = batch["input_ids"]
        self.labels = _moved_left(batch["labels"], -100)
        following = _moved_left(ids, self._pad_id)[..., None]
        logits = torch.zeros(*ids.shape, len(self.tokenizer), device=ids.device)
        logits.scatter_(2, following, 1.0)
        for row, indices in enumerate(batch["continuation_indices"]):
            begin, end = int(indices[0]), int(indices[-1]) + 1
            if begin == 0:
                raise ValueError(f"Row {row} is all continuation: its first token follows nothing.")
            tokens = ids[row].tolist()
            scores = self.score(tokens[:begin], tokens[begin:end])
            logits[row, begin - 1 : end - 1] = scores.to(logits.device)
        return logits

    @property
    def _pad_id(self) -> int:
        pad = self.tokenizer.pad_token_id
        return self.tokenizer.eos_token_id if pad is None else pad

    def _check(self, batch: Batch) -> None:
        if batch.get("mode") != "icl_task":
            raise NotImplementedError(
                f"{type(self).__name__} evaluates tasks with continuations (mode 'icl_task'), and "
                f"this batch has mode {batch.get('mode')!r}."
            )

    def update_metric(self, batch: Batch, outputs: Any, metric: Any) -> dict[str, Any]:
        """Adds a batch to an in-context-learning metric, and returns what that tells about it."""
        self._check(batch)
        if not getattr(metric, "needs_batch", False):
            raise NotImplementedError(
                f"{type(metric).__name__} looks at whole rows, and an API is asked only for "
                "continuations; use an in-context-learning metric."
            )
        batch = self.rebatch(batch)
        result = metric.update(batch=batch, outputs=outputs, labels=self.labels)
        if result is None:
            return {}
        result["metric_name"] = [type(metric).__name__] * len(batch["input_ids"])
        return result

    def get_metrics(self, is_train: bool = False) -> dict[str, Any]:
        """Returns the metrics of evaluation; there are none of training."""
        return {} if is_train else self.eval_metrics

    def forward(self, batch: Batch) -> Any:
        """Is refused.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError(f"{type(self).__name__} is for evaluation: use eval_forward.")

    def loss(self, outputs: Any, batch: Batch, *args: Any, **kwargs: Any) -> Any:
        """Is refused.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot be trained.")


def _moved_left(values: torch.Tensor, last: int) -> torch.Tensor:
    """Puts what follows in each place, and ``last`` behind the last."""
    moved = torch.full_like(values, last)
    moved[:, :-1] = values[:, 1:]
    return moved
