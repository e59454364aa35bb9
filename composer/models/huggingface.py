"""Trains, evaluates and generates with any transformers model."""

from __future__ import annotations

import copy
import importlib.util
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from composer.core.types import Batch
from composer.models.adapters import (
    add_adapters,
    filter_state_dict_peft,
    has_adapters,
    has_few_bits,
    keep_only_adapters_in_checkpoints,
    maybe_get_underlying_model,
    plain_name_of,
    sum_of_base,
)
from composer.models.base import ComposerModel
from composer.models.hf_metadata import (
    describe_model,
    describe_tokenizer,
    get_hf_config_from_composer_state_dict,
    get_peft_config_from_composer_state_dict,
    load_model_from_saved_state,
    load_tokenizer_from_saved_state,
)
from composer.utils.gradients import as_sharded
from composer.utils.import_helpers import MissingConditionalImportError
from composer.utils.lazy import handed_on

__all__ = [
    "HuggingFaceModel",
    "filter_state_dict_peft",
    "get_hf_config_from_composer_state_dict",
    "get_peft_config_from_composer_state_dict",
    "maybe_get_underlying_model",
    "peft_installed",
]

log = logging.getLogger(__name__)

peft_installed = importlib.util.find_spec("peft") is not None

_IGNORED = -100

# These read checkpoints, which stands on a higher floor.
__getattr__ = handed_on(
    {
        "hf_from_composer_checkpoint": "composer.checkpoint.huggingface",
        "write_huggingface_pretrained_from_composer_checkpoint": "composer.checkpoint.huggingface",
    }
)


class HuggingFaceModel(ComposerModel):
    """Wraps a transformers model for the trainer.

    Args:
        model: The model.
        tokenizer: Its tokenizer, which is saved in checkpoints and needed to generate text.
        use_logits: Hands the logits to metrics, not the whole output.
        metrics: Metrics of the training batches.
        eval_metrics: Metrics of the evaluation, by default copies of ``metrics``.
        shift_labels: Moves the labels one place to the left for metrics, as a causal language model
            needs it; by default it is found out whether the model is one.
        allow_embedding_resizing: Enlarges the embeddings if the tokenizer has more entries than the
            model's vocabulary; otherwise that is an error.
        peft_config: Settings of low-rank adapters (``peft.LoraConfig``), which are then trained
            alone; a model of the peft package brings its own.
        should_save_peft_only: Saves only adapter weights in checkpoints, where there are adapters.

    Raises:
        ValueError: If the tokenizer has more entries than the vocabulary and may not enlarge it, or
            the adapters are of another kind.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any | None = None,
        use_logits: bool = False,
        metrics: list[Any] | None = None,
        eval_metrics: list[Any] | None = None,
        shift_labels: bool | None = None,
        allow_embedding_resizing: bool = False,
        peft_config: Any | None = None,
        should_save_peft_only: bool = True,
    ) -> None:
        super().__init__()
        self.model = model
        self.config = model.config
        self.tokenizer = tokenizer
        inner = maybe_get_underlying_model(model)
        is_causal_lm = _is_registered(inner, "MODEL_FOR_CAUSAL_LM_MAPPING")
        self.shift_labels = is_causal_lm if shift_labels is None else shift_labels
        if is_causal_lm and not self.shift_labels:
            log.warning(
                "The shift_labels argument was set to False but the model is an instance of a "
                "HuggingFace causal language model: its metrics will compare each token with "
                "itself, not with the next one."
            )
        if tokenizer is None:
            log.warning(
                "The tokenizer was not provided. This means the tokenizer config will not be saved "
                "in checkpoints, and text cannot be generated."
            )
        else:
            self._fit_vocabulary(len(tokenizer), allow_embedding_resizing, peft_config)
        self._adapt(peft_config)
        self.should_save_peft_only = should_save_peft_only
        self.model_forward_args = set(inspect.signature(inner.forward).parameters)
        self.use_logits = use_logits
        self.labels: torch.Tensor | None = None
        """The labels of the batch that was last evaluated, as the metrics take them."""
        self.dummy_forward_called = False
        self.train_metrics = _by_name(metrics)
        self.val_metrics = (
            copy.deepcopy(self.train_metrics) if eval_metrics is None else _by_name(eval_metrics)
        )
        self._loss_targets = _loss_targets(inner, is_causal_lm)

    def _adapt(self, peft_config: Any | None) -> None:
        """Puts adapters around the model if they are asked for."""
        if getattr(self.model, "_hf_peft_config_loaded", False):
            raise ValueError(
                "The model's adapters are inside it (add_adapter), where checkpoints would not "
                "find them; pass the plain model and peft_config instead."
            )
        if peft_config is not None:
            if not peft_installed:
                raise MissingConditionalImportError("peft", "peft")
            if has_adapters(self.model):
                log.warning("The model has adapters already, so its peft_config is not used.")
            else:
                self.model = add_adapters(self.model, peft_config)
        self.using_peft = has_adapters(self.model)
        if self.using_peft:
            keep_only_adapters_in_checkpoints(self)

    def _fit_vocabulary(
        self, entries: int, allow_embedding_resizing: bool, peft_config: Any | None
    ) -> None:
        """Makes room for all tokens; rows beyond the tokenizer's entries are left as they are."""
        vocab_size = _vocab_size(self.config)
        if vocab_size is None or entries == vocab_size:
            return
        if entries < vocab_size:
            log.info(
                "The tokenizer has %d entries, fewer than the model's vocabulary of %d. The rest "
                "is padding, or waits for tokens to be added.",
                entries,
                vocab_size,
            )
            return
        if not allow_embedding_resizing:
            raise ValueError(
                f"The tokenizer has {entries} entries, more than the model's vocabulary of "
                f"{vocab_size}: some tokens would have no embedding. Pass "
                "allow_embedding_resizing=True to enlarge it, or give the model a vocab_size of at "
                f"least {entries}."
            )
        if has_adapters(self.model):
            raise ValueError(
                f"The tokenizer has {entries} entries, more than the {vocab_size} of the model, "
                "which has adapters already. Enlarge it before they are put in."
            )
        if peft_config is not None and (frozen := _frozen_ends(self.model, peft_config)):
            raise ValueError(
                f"The tokenizer has {entries} entries, and the rows beyond {vocab_size} of "
                f"{', '.join(frozen)} would stay as they were drawn: adapters freeze them, and are "
                "saved without them. Name both ends in peft_config.modules_to_save to train them "
                "(of one weight also set ensure_weight_tying), or enlarge the model before."
            )
        log.warning(
            "The embeddings are enlarged from %d to %d rows for the tokenizer.", vocab_size, entries
        )
        on_meta = any(p.is_meta for p in self.model.parameters())
        self.model.resize_token_embeddings(entries, mean_resizing=not on_meta)

    # Training

    def forward(self, batch: Batch) -> Any:
        """Returns the model's output for those keys of the batch that its forward knows.

        Raises:
            ValueError: If the batch is no mapping.
        """
        return self.model(**self._known(batch))

    def _known(self, batch: Batch, without: Sequence[str] = ()) -> dict[str, Any]:
        if not isinstance(batch, Mapping):
            raise ValueError(
                f"Unexpected batch type {type(batch).__name__}: a HuggingFaceModel takes a mapping "
                "with keys such as input_ids, attention_mask and labels."
            )
        known = self.model_forward_args.difference(without)
        return {key: value for key, value in batch.items() if key in known}

    def loss(self, outputs: Any, batch: Batch) -> Any:
        """Returns the loss that the model computed from the labels in the batch.

        Raises:
            ValueError: If there were no labels.
        """
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs[0]
        if loss is None:
            raise ValueError(
                "The model returned no loss, because the batch has no labels, only "
                f"{sorted(batch)}; add the key 'labels' to it."
            )
        return loss

    @property
    def num_loss_tokens(self) -> Callable[[Batch], int] | None:
        """The function that counts the targets that a batch's loss is a mean over.

        It is None for a model whose loss is a mean over samples.
        """
        return self._loss_targets

    # Evaluation

    def eval_forward(self, batch: Batch, outputs: Any | None = None) -> Any:
        """Returns what the metrics take: logits, the whole output, or generated texts.

        The batch's ``mode`` decides: ``'generate'`` gives the continuations as texts; otherwise it
        is the logits with ``use_logits`` (and in mode ``'icl_task'``), else the whole output. The
        batch is left as it is; the labels for the metrics are kept in ``labels``.

        Args:
            batch: The batch.
            outputs: Outputs of ``forward`` for this batch, where training has them already.
        """
        if batch.get("mode") == "generate":
            return self._generate_texts(batch)
        is_task = batch.get("mode") == "icl_task"
        self.labels = batch.get("labels")
        if self.labels is not None and (self.shift_labels or is_task):
            self.labels = _shifted(self.labels)
        if not self.use_logits and not is_task:
            return self.forward(batch) if outputs is None else outputs
        # A model that returns tuples puts the loss, if it made one, before the logits.
        takes_labels = "labels" in batch and "labels" in self.model_forward_args
        has_loss = outputs is not None and takes_labels
        if outputs is None:
            outputs = self._forward_without_labels(batch)
        if isinstance(outputs, Mapping):
            logits: Any = outputs["logits"]
        else:
            logits = outputs[int(has_loss)] if isinstance(outputs, Sequence) else outputs
        # One output per row is a regression; its labels have one dimension.
        return logits.squeeze(1) if logits.ndim == 2 and logits.shape[1] == 1 else logits

    def _forward_without_labels(self, batch: Batch) -> Any:
        inputs = self._known(batch, without=("labels",))
        if getattr(self.config, "is_encoder_decoder", False) and "decoder_input_ids" not in inputs:
            # The model would have made them of the labels, which it does not get.
            prepare = getattr(self.model, "prepare_decoder_input_ids_from_labels", None)
            if prepare is None:
                raise RuntimeError(
                    f"{type(self.model).__name__} is an encoder-decoder that cannot make "
                    "decoder_input_ids of labels; add decoder_input_ids to the batch."
                )
            inputs["decoder_input_ids"] = prepare(labels=batch["labels"])
        return self.model(**inputs)

    def _generate_texts(self, batch: Batch) -> list[str]:
        if self.tokenizer is None:
            raise ValueError(
                "A tokenizer is needed to generate text: pass it to HuggingFaceModel(tokenizer=)."
            )
        self.labels = batch.get("labels")
        tokens = self.generate(
            batch["input_ids"],
            attention_mask=batch["attention_mask"],
            **batch.get("generation_kwargs", {}),
        )
        if not getattr(self.config, "is_encoder_decoder", False):
            tokens = tokens[:, batch["input_ids"].shape[1] :]
        texts = self.tokenizer.batch_decode(tokens, skip_special_tokens=True)
        # Where a leading space is a token of its own, decoding has dropped it.
        if len(self.tokenizer(" a", add_special_tokens=False)["input_ids"]) == 1:
            return texts
        return [" " + text for text in texts]

    def update_metric(self, batch: Batch, outputs: Any, metric: Any) -> dict[str, Any]:
        """Adds a batch to a metric, and returns what the metric tells about it, if anything."""
        labels = self.labels
        if labels is not None and metric.device.type == "cpu":
            labels = labels.cpu()  # on MPS, metrics stay on the CPU
            outputs = outputs.cpu() if isinstance(outputs, torch.Tensor) else outputs
        if getattr(metric, "needs_batch", False):
            result = metric.update(batch=batch, outputs=outputs, labels=labels)
        else:
            result = metric.update(outputs, labels)
        if result is None:
            return {}
        result["metric_name"] = [type(metric).__name__] * batch["input_ids"].shape[0]
        return result

    def get_metrics(self, is_train: bool = False) -> dict[str, Any]:
        """Returns the metrics by the names of their classes."""
        return (self.train_metrics if is_train else self.val_metrics) or {}

    # Generation

    def generate(self, input_ids: torch.Tensor, **kwargs: Any) -> Any:
        """Continues the prompts, as ``generate`` of the transformers model does.

        All ranks of a sharded model call it together; their texts may differ in length.

        Args:
            input_ids: The prompts, padded on the left.
            **kwargs: Arguments of transformers' ``generate``; ``pad_token_id`` comes from the
                tokenizer if it is not given.

        Raises:
            ValueError: If a prompt of a decoder-only model is padded on the right.
        """
        mask = kwargs.get("attention_mask")
        is_encoder_decoder = getattr(self.config, "is_encoder_decoder", False)
        if mask is not None and not is_encoder_decoder and bool((mask[:, -1] == 0).any()):
            raise ValueError(
                "A prompt is padded on the right, so its continuation would follow padding; pad on "
                "the left (tokenizer.padding_side = 'left')."
            )
        if self.tokenizer is not None:
            kwargs.setdefault("pad_token_id", self.tokenizer.pad_token_id)
        if any(as_sharded(p) is not None or hasattr(p, "ds_id") for p in self.parameters()):
            # A rank that is done goes on for the others, who need its part of the weights.
            kwargs.setdefault("synced_gpus", True)
        return self.model.generate(input_ids, **kwargs)

    # Checkpoints

    def get_metadata(self) -> dict[str, Any]:
        """Returns configuration and tokenizer as plain data for the checkpoint."""
        tokenizer = {} if self.tokenizer is None else describe_tokenizer(self.tokenizer)
        return {"model": describe_model(self.model), "tokenizer": tokenizer}

    @property
    def has_few_bits(self) -> bool:
        """Whether the weights are quantised."""
        return has_few_bits(self.model)

    def plain_name_of(self, name: str) -> str | None:
        """Returns the name that a weight has without adapters; None for the adapters' own."""
        return plain_name_of(self, name) if self.using_peft else name

    def sum_of_base(self) -> int | None:
        """Returns what tells the base of adapters that are saved alone from another base.

        All ranks call it. It is None where there are no such adapters, or it cannot be told.
        """
        return sum_of_base(self.model) if self.using_peft and self.should_save_peft_only else None

    load_huggingface_tokenizer_from_saved_state = staticmethod(load_tokenizer_from_saved_state)
    load_huggingface_model_from_saved_state = staticmethod(load_model_from_saved_state)

    @staticmethod
    def hf_from_composer_checkpoint(
        checkpoint_path: str,
        model_instantiation_class: type | str | None = None,
        model_config_kwargs: dict[str, Any] | None = None,
        local_checkpoint_save_location: str | Path | None = None,
        trust_remote_code: bool = False,
    ) -> tuple[Any, Any | None]:
        """Returns model (**with fresh weights**) and tokenizer of a checkpoint.

        To get the weights too, hand the checkpoint to the trainer as ``load_path``, or write a
        folder with ``write_huggingface_pretrained_from_composer_checkpoint``.

        Args:
            checkpoint_path: Path or address of a checkpoint, a file or a folder of shards.
            model_instantiation_class: A model class, an Auto class or the dotted path of one; by
                default the class that was saved.
            model_config_kwargs: Values that replace saved ones in the configuration.
            local_checkpoint_save_location: Where a remote checkpoint is kept, by default nowhere.
            trust_remote_code: Runs tokenizer code that the checkpoint carries.
        """
        from_checkpoint: Any = __getattr__("hf_from_composer_checkpoint")
        return from_checkpoint(
            checkpoint_path,
            model_instantiation_class,
            model_config_kwargs,
            local_checkpoint_save_location,
            trust_remote_code,
        )


def _by_name(metrics: list[Any] | None) -> dict[str, Any] | None:
    return None if metrics is None else {type(metric).__name__: metric for metric in metrics}


def _vocab_size(config: Any) -> int | None:
    text_config = config.get_text_config() if hasattr(config, "get_text_config") else config
    return getattr(text_config, "vocab_size", None)


def _frozen_ends(model: Any, peft_config: Any) -> list[str]:
    """Returns the names of the embedding and the output layer, where adapters leave them frozen."""
    ends = [model.get_input_embeddings(), model.get_output_embeddings()]
    names = [name for name, each in model.named_modules() if any(each is end for end in ends)]
    entries = [f".{entry}" for entry in peft_config.modules_to_save or ()]
    frozen = [name for name in names if not f".{name}".endswith(tuple(entries))]
    is_one = ends[1] is not None and ends[0].weight is ends[1].weight
    keeps_one = is_one and getattr(peft_config, "ensure_weight_tying", False)
    return [] if keeps_one and len(frozen) < len(names) else frozen


def _is_registered(model: Any, mapping_name: str) -> bool:
    """Says whether transformers lists the model's class for a task."""
    import transformers

    classes = getattr(transformers, mapping_name).get(type(model.config), ())
    return isinstance(model, classes if isinstance(classes, tuple) else (classes,))


def _loss_targets(model: Any, is_causal_lm: bool) -> Callable[[Batch], int] | None:
    """Finds what the loss of a transformers model is a mean over."""
    if is_causal_lm and not getattr(model.config, "is_encoder_decoder", False):
        return _count_shifted
    over_tokens = (
        "MODEL_FOR_MASKED_LM_MAPPING",
        "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING",
        "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING",
    )
    return _count if any(_is_registered(model, name) for name in over_tokens) else None


def _count(batch: Batch) -> int:
    return int((_labels(batch) != _IGNORED).sum())


def _count_shifted(batch: Batch) -> int:
    # The first label has nothing before it that could predict it.
    return int((_labels(batch)[:, 1:] != _IGNORED).sum())


def _labels(batch: Batch) -> torch.Tensor:
    if "labels" not in batch:
        raise ValueError(
            f"The batch has no labels to train on, only {sorted(batch)}; add the key 'labels' to "
            "it (for a causal language model a copy of input_ids, -100 where nothing is learnt)."
        )
    return batch["labels"]


def _shifted(labels: torch.Tensor) -> torch.Tensor:
    """Returns labels that stand under the logits that predict them, without touching the batch."""
    shifted = torch.full_like(labels, _IGNORED)
    shifted[:, :-1] = labels[:, 1:]
    return shifted
