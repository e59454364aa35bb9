"""The MPT as the trainer sees it: batches in, losses, metrics and floating-point operations out."""

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import torch
from transformers.modeling_outputs import CausalLMOutputWithPast

from composer.core.types import Batch
from composer.models.adapters import maybe_get_underlying_model
from composer.models.huggingface import HuggingFaceModel
from llmfoundry.builders.components import build_metric
from llmfoundry.builders.declared_keys import declares_keys
from llmfoundry.metrics import (
    DEFAULT_CAUSAL_LM_EVAL_METRICS,
    DEFAULT_CAUSAL_LM_TRAIN_METRICS,
)
from llmfoundry.models.hf.adapters import (
    ALL_LINEAR,
    PEFT_KEYS,
    check_adapter_settings,
    fit_to_model,
    initialise_adapters_as_peft,
    lora_config,
    with_trained_adapters,
)
from llmfoundry.models.mpt.causal_lm import (
    IGNORE_INDEX,
    MPTForCausalLM,
    mean_over_targets,
    shift_targets,
)
from llmfoundry.models.mpt.config import MPTConfig
from llmfoundry.models.mpt.config_checks import ATTENTION_KEYS, INIT_KEYS
from llmfoundry.models.utils.mpt_param_count import mpt_get_active_params, mpt_get_total_params

__all__ = ["ComposerMPTCausalLM", "compute_loss_from_logits"]

LOSS_FUNCTIONS = ("fused_crossentropy", "torch_crossentropy")
"""Both names mean the chunked loss, which needs no package and gives the same value."""


def compute_loss_from_logits(
    outputs: CausalLMOutputWithPast,
    shift_labels: bool,
    labels: torch.Tensor,
    loss_fn: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """Returns the mean loss per target of logits that are there already.

    Args:
        outputs: The model's outputs.
        shift_labels: Whether labels still stand under the logits of their own token.
        labels: Tokens, -100 where there is no target.
        loss_fn: Takes logits ``[N, V]`` and targets ``[N]``; returns losses ``[N]``, or their sum.
    """
    targets = shift_targets(labels) if shift_labels else labels
    assert outputs.logits is not None
    losses = loss_fn(outputs.logits.flatten(0, -2).float(), targets.flatten())
    return mean_over_targets(losses.sum(), targets)


KEYS_OF_PRETRAINED_CONFIG = {
    "activation_checkpointing_target",
    "bos_token_id",
    "eos_token_id",
    "fuse_norm_attn_norm",
    "pad_token_id",
    "verbose",
}
"""Keys that ``MPTConfig`` takes among its ``**kwargs``."""


@declares_keys(
    {
        "": KEYS_OF_PRETRAINED_CONFIG | (set(inspect.signature(MPTConfig).parameters) - {"kwargs"}),
        "attn_config": ATTENTION_KEYS | {"prefix_lm"},
        "init_config": INIT_KEYS | {"verbose"},
        "peft_config": PEFT_KEYS,
    }
)
class ComposerMPTCausalLM(HuggingFaceModel):
    """An MPT language model for the trainer.

    Training computes the loss inside ``forward``, chunk by chunk, so that the logits of all tokens
    never exist at once. Train metrics need them; then they are computed too, without a gradient. A
    subclass with a ``loss`` of its own gets logits with gradients instead.

    Args:
        tokenizer: Saved with checkpoints; if it has more tokens than ``vocab_size``, the embedding
            grows.
        use_train_metrics: Whether metrics are computed on training batches too.
        additional_train_metrics: Names of more of them.
        loss_fn: ``fused_crossentropy`` or ``torch_crossentropy``; they are the same.
        additional_eval_metrics: Names of more evaluation metrics.
        peft_config: Arguments of ``peft.LoraConfig``: only adapters are trained. Without
            ``target_modules`` they stand beside all linear layers but the output layer.
        pretrained_lora_id_or_path: Adapters that are loaded, and trained on.
        should_save_peft_only: Saves only adapter weights in checkpoints, where there are adapters.
        **kwargs: The arguments of ``MPTConfig``.

    Raises:
        ValueError: ``loss_fn`` is unknown, or the adapters do not fit the model.
    """

    def __init__(
        self,
        tokenizer: Any | None = None,
        use_train_metrics: bool = True,
        additional_train_metrics: list[str] | None = None,
        loss_fn: str = "fused_crossentropy",
        additional_eval_metrics: list[str] | None = None,
        peft_config: dict[str, Any] | None = None,
        pretrained_lora_id_or_path: str | None = None,
        should_save_peft_only: bool = True,
        **kwargs: Any,
    ) -> None:
        if loss_fn not in LOSS_FUNCTIONS:
            raise ValueError(
                f"Specified loss_fn={loss_fn} not recognized. `loss_fn` must be one of "
                f"{list(LOSS_FUNCTIONS)}."
            )
        check_adapter_settings(
            peft_config,
            pretrained_lora_id_or_path,
            should_save_peft_only,
            kwargs.get("init_device", "cpu"),
        )
        lora = None if peft_config is None else lora_config(peft_config)
        train_metrics = [*DEFAULT_CAUSAL_LM_TRAIN_METRICS, *(additional_train_metrics or [])]
        eval_metrics = [*DEFAULT_CAUSAL_LM_EVAL_METRICS, *(additional_eval_metrics or [])]
        model = self.model_class(self.config_class(**kwargs))
        super().__init__(
            model=with_trained_adapters(model, pretrained_lora_id_or_path),
            tokenizer=tokenizer,
            use_logits=True,
            metrics=[build_metric(name, {}) for name in train_metrics] if use_train_metrics else [],
            eval_metrics=[build_metric(name, {}) for name in eval_metrics],
            shift_labels=True,
            allow_embedding_resizing=True,
            peft_config=None if lora is None else fit_to_model(lora, model, ALL_LINEAR),
            should_save_peft_only=should_save_peft_only,
        )
        if self.using_peft:
            initialise_adapters_as_peft(self.model, kwargs.get("init_device", "cpu"))
        self.loss_fn = torch.nn.CrossEntropyLoss(ignore_index=IGNORE_INDEX, reduction="none")
        self.computes_own_loss = type(self).loss is not ComposerMPTCausalLM.loss

    @property
    def model_class(self) -> type[MPTForCausalLM]:
        """The class of the model."""
        return MPTForCausalLM

    @property
    def config_class(self) -> type[MPTConfig]:
        """The class of its configuration."""
        return MPTConfig

    def at_width(self, d_model: int) -> torch.nn.Module:
        """Returns a model like this one of another width, with heads of the same size.

        Raises:
            ValueError: The heads do not fit into the width.
        """
        settings = self.model.config.to_dict()
        for where, key in ((settings, "n_heads"), (settings["attn_config"], "kv_n_heads")):
            heads = where.get(key)
            if heads is None:
                continue
            where[key], left = divmod(heads * d_model, settings["d_model"])
            if left or not where[key]:
                raise ValueError(
                    f"d_model={d_model} is no whole number of heads of this model, whose "
                    f"{key}={heads} make up d_model={settings['d_model']}."
                )
        settings["d_model"] = d_model
        model = self.model_class(self.config_class(**settings))
        return torch.nn.ModuleDict({"model": model})

    def forward(self, batch: Batch) -> CausalLMOutputWithPast:
        """Returns the loss when training; logits otherwise, and where train metrics need them."""
        keys = ("input_ids", "attention_mask", "sequence_id", "inputs_embeds", "position_ids")
        inputs = {key: batch.get(key) for key in keys}
        labels = batch.get("labels")
        if not self.training or labels is None or self.computes_own_loss:
            return self.model(**inputs)
        return self.model(
            **inputs, labels=labels, return_logits=bool(self.train_metrics), detach_logits=True
        )

    def loss(
        self, outputs: CausalLMOutputWithPast, batch: Batch
    ) -> torch.Tensor | dict[str, torch.Tensor]:
        """Returns the mean loss per target; zero where the batch has none.

        For mb_moe and mb_dmoe in training: it as ``loss``, the load-balancing loss as ``lbl``, the
        router's z-loss, if it is on, as ``zloss``, and their sum as ``total``. A step's ``lbl`` is
        the mean of its micro-batches' with the weights of their losses, which add up to 1.
        """
        loss = outputs.loss
        if loss is None:
            loss = compute_loss_from_logits(
                outputs, self.shift_labels, batch["labels"], self.loss_fn
            )
        routing = outputs.get("routing")
        if routing is None:
            return loss
        parts = {"loss": loss, "lbl": routing.balance_loss}
        if routing.z_loss is not None:
            parts["zloss"] = routing.z_loss
        return {"total": torch.stack(list(parts.values())).sum(), **parts}

    def fuse_z_loss(self, coefficient: float) -> bool:
        """Adds the z-loss to the training loss in the same pass, and says whether it will."""
        if self.computes_own_loss:
            return False
        maybe_get_underlying_model(self.model).z_loss = coefficient
        return True

    @property
    def ranks_meet_in_training(self) -> bool:
        """Whether a rank's forward pass in training waits for the passes of others."""
        settings: list[Any] = [m.args for m in self.modules() if getattr(m, "gives_routing", False)]
        return any(each.lbl_process_group or each.moe_world_size > 1 for each in settings)

    def get_targets(self, batch: Batch) -> torch.Tensor:
        """Returns at each position the token that should come next, -100 for none."""
        return shift_targets(batch["labels"])

    @property
    def num_loss_tokens(self) -> Callable[[Batch], int]:
        """The function that counts the targets that a batch's loss is a mean over."""
        return _count_targets

    @functools.cached_property
    def n_total_params(self) -> int:
        """The number of parameters."""
        return mpt_get_total_params(self)

    @functools.cached_property
    def n_active_params(self) -> int:
        """The number of parameters that one token uses in matrix products."""
        return mpt_get_active_params(self)

    def flops_per_batch(self, batch: Batch) -> int:
        """Returns the floating-point operations of one forward and backward pass.

        Two for each parameter and token, and two for each pair of tokens and unit of all heads
        in scores and in sums, both for the forward; the backward costs two forwards, and one of
        what is frozen.
        """
        if self.model.config.block_overrides is not None:
            warnings.warn(
                "FLOPs are not counted for models with block_overrides; they show as 0.",
                stacklevel=2,
            )
            return 0
        n_rows, seq_len = batch["input_ids"].shape[:2]
        config = self.model.config
        params_flops = 2 * self.n_active_params * seq_len
        width = config.n_heads * config.attention_head_dim
        attention_flops = config.n_layers * 2 * 2 * width * seq_len**2
        unspent = 2 * mpt_get_active_params(self, of_frozen=True) * seq_len
        return ((params_flops + attention_flops) * 3 - unspent) * n_rows


def _count_targets(batch: Batch) -> int:
    return int((batch["labels"][:, 1:] != IGNORE_INDEX).sum())
