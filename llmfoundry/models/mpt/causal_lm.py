"""The MPT as a language model: the backbone, its head, its loss and its generation.

Legend: B batch, S query positions, T key positions, E model width, V vocabulary.
"""

import math
import warnings
from typing import Any

import torch
import torch.nn.functional as F
from transformers import GenerationMixin
from transformers.cache_utils import Cache

from llmfoundry.models.layers.custom_embedding import LanguageModelHead
from llmfoundry.models.layers.sequence_share import SequenceShare
from llmfoundry.models.mpt.backbone import MPTModel, MPTPreTrainedModel
from llmfoundry.models.mpt.cache import CACHE_FIELD
from llmfoundry.models.mpt.config import MPTConfig
from llmfoundry.models.mpt.outputs import MPTCausalLMOutput

__all__ = ["IGNORE_INDEX", "MPTForCausalLM", "mean_over_targets", "shift_targets"]

IGNORE_INDEX = -100


def shift_targets(labels_BS: torch.Tensor) -> torch.Tensor:
    """Returns at each position the next label; the last position has none."""
    return F.pad(labels_BS[:, 1:], (0, 1), value=IGNORE_INDEX)


def mean_over_targets(loss_sum: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Returns the loss per target; zero, not NaN, where there is none."""
    return loss_sum / (targets != IGNORE_INDEX).sum().clamp(min=1)


class MPTForCausalLM(MPTPreTrainedModel, GenerationMixin):
    """Gives each position a score for every next token.

    With tied weights the token embedding is the head, and there is no ``lm_head``.

    Args:
        config: The model's description.
    """

    _tied_weights_keys = {}
    _tp_plan = {"lm_head": "colwise_rep"}
    _pp_plan = {"lm_head": (["hidden_states"], ["logits"])}  # pyright: ignore[reportAssignmentType]  # as theirs
    z_loss: float = 0.0
    """In training, what of the mean squared log normaliser is added to the loss."""

    def __init__(self, config: MPTConfig) -> None:
        super().__init__(config)
        self.transformer = self.backbone_model_class(config)
        self.lm_head: Any = None
        if not config.tie_word_embeddings:
            with torch.random.fork_rng(devices=[]):
                self.lm_head = LanguageModelHead(
                    config.d_model, config.vocab_size, bias=False, device=config.init_device
                )
        self.logit_scale = config.logit_scale
        if self.logit_scale == "inv_sqrt_d_model":
            self.logit_scale = 1 / math.sqrt(config.d_model)
        if self.logit_scale == 0:
            warnings.warn("logit_scale is 0: the model gives the same logits always.", stacklevel=2)
        self.final_logit_softcapping = config.final_logit_softcapping
        self.post_init()

    @property
    def backbone_model_class(self) -> type[MPTModel]:
        """The class of the backbone."""
        return MPTModel

    def get_input_embeddings(self) -> torch.nn.Module:
        """Returns the token embedding."""
        return self.transformer.get_input_embeddings()

    def set_input_embeddings(self, value: torch.nn.Module) -> None:
        """Replaces the token embedding, which with tied weights is the head too."""
        self.transformer.set_input_embeddings(value)

    def get_output_embeddings(self) -> torch.nn.Module:
        """Returns the head: the token embedding where weights are tied."""
        return self.get_input_embeddings() if self.lm_head is None else self.lm_head

    def set_output_embeddings(self, new_embeddings: torch.nn.Module) -> None:
        """Replaces the head.

        Raises:
            ValueError: Weights are tied, and the new head is no embedding.
        """
        if self.lm_head is not None:
            assert isinstance(new_embeddings, torch.nn.Linear)
            self.lm_head = LanguageModelHead.around(new_embeddings)
        elif new_embeddings is self.get_input_embeddings():
            return
        elif isinstance(new_embeddings, torch.nn.Embedding):
            warnings.warn("Weights are tied: this replaces the input embedding too.", stacklevel=2)
            self.set_input_embeddings(new_embeddings)
        else:
            raise ValueError(
                "new_embeddings must be an Embedding, as this model's weights are tied, but got "
                f"{type(new_embeddings).__name__}."
            )

    def tie_weights(self, *args: Any, **kwargs: Any) -> None:
        """Drops the head where the configuration ties it to the embedding."""
        if getattr(self.config, "tie_word_embeddings", True):
            self.lm_head = None

    def split_sequences(self, share: SequenceShare) -> None:
        """Computes only this rank's share of each sequence; the other ranks do the others."""
        self.transformer.share = share

    def get_decoder(self) -> MPTModel:
        """Returns the backbone."""
        return self.transformer

    def set_decoder(self, decoder: MPTModel) -> None:
        """Replaces the backbone."""
        self.transformer = decoder

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        past_key_values: Any = None,
        attention_mask: torch.Tensor | None = None,
        sequence_id: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        return_dict: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        use_cache: bool | None = None,
        inputs_embeds: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        cache: Any = None,
        logits_to_keep: int | torch.Tensor = 0,
        return_logits: bool = True,
        detach_logits: bool = False,
    ) -> MPTCausalLMOutput:
        """Returns logits, and with labels the mean loss.

        Args:
            input_ids: Tokens ``[B, S]``.
            past_key_values: See ``MPTModel``.
            attention_mask: See ``MPTModel``.
            sequence_id: See ``MPTModel``.
            labels: Tokens ``[B, S]``, shifted inside; -100 where there is no target.
            return_dict: True or None.
            output_attentions: Whether attention weights are returned.
            output_hidden_states: Whether each block's input is returned.
            use_cache: Whether the past is extended and returned.
            inputs_embeds: Embeddings instead of tokens.
            position_ids: Positions ``[B, S]``.
            cache: Another name of ``past_key_values``.
            logits_to_keep: How many of the last positions get logits, or which; 0 for all.
            return_logits: Whether logits are returned beside a loss, which by itself never holds
                the logits of all tokens.
            detach_logits: Whether logits beside a loss come without gradients, for metrics.
        """
        outputs = self.transformer(
            input_ids=input_ids,
            past_key_values=past_key_values,
            attention_mask=attention_mask,
            sequence_id=sequence_id,
            return_dict=return_dict,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            use_cache=use_cache,
            inputs_embeds=inputs_embeds,
            position_ids=position_ids,
            cache=cache,
        )
        hidden_BSE = outputs.last_hidden_state
        share = None if CACHE_FIELD in outputs else self.transformer.share
        loss = logits = None
        if labels is not None:
            targets_BS = shift_targets(labels)
            if share is None:
                loss_sum = self._summed_loss(hidden_BSE, targets_BS)
            else:  # the mean over ranks, as they average their gradients, is the whole's
                own_BS = share.keep(targets_BS, IGNORE_INDEX)
                loss_sum = share.size * self._summed_loss(hidden_BSE, own_BS)
            loss = mean_over_targets(loss_sum, targets_BS)
        if labels is None or return_logits:
            with torch.set_grad_enabled(torch.is_grad_enabled() and not detach_logits):
                if share is not None:
                    source: Any = input_ids if inputs_embeds is None else inputs_embeds
                    hidden_BSE = share.gather(hidden_BSE)[:, : source.size(1)]
                logits = self._logits(hidden_BSE, logits_to_keep)
        return MPTCausalLMOutput(
            loss=loss,
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            routing=outputs.routing,
            **{CACHE_FIELD: outputs[CACHE_FIELD] if CACHE_FIELD in outputs else None},
        )

    def _summed_loss(self, hidden_BSE: torch.Tensor, targets_BS: torch.Tensor) -> torch.Tensor:
        scaling = {
            "logit_scale": self.logit_scale,
            "softcap": self.final_logit_softcapping,
            "z_loss": self.z_loss if self.training else 0.0,
        }
        if self.lm_head is not None:
            return self.lm_head(hidden_BSE, targets=targets_BS, **scaling)
        return self.transformer.wte(hidden_BSE, unembed=True, targets=targets_BS, **scaling)

    def _logits(self, hidden_BSE: torch.Tensor, logits_to_keep: int | torch.Tensor) -> torch.Tensor:
        if isinstance(logits_to_keep, torch.Tensor) or logits_to_keep:
            kept = (
                slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
            )
            hidden_BSE = hidden_BSE[:, kept]
        if self.lm_head is not None:
            logits_BSV = self.lm_head(hidden_BSE)
        else:
            logits_BSV = self.transformer.wte(hidden_BSE, unembed=True)
        if self.logit_scale is not None:
            logits_BSV = logits_BSV * self.logit_scale
        if self.final_logit_softcapping is not None:
            cap = self.final_logit_softcapping
            logits_BSV = cap * torch.tanh(logits_BSV / cap)
        return logits_BSV

    def prepare_inputs_for_generation(  # pyright: ignore[reportIncompatibleMethodOverride]  # upstream's order
        self,
        input_ids: torch.Tensor,
        past_key_values: Any = None,
        inputs_embeds: torch.Tensor | None = None,
        cache: Any = None,
        next_sequence_length: int | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Returns the arguments of the forward that gives the next token.

        Args:
            input_ids: All tokens so far.
            past_key_values: The past.
            inputs_embeds: Embeddings of the prompt, for the first step.
            cache: Another name of ``past_key_values``.
            next_sequence_length: How many of the last tokens are new; with a past, one by default.
            **kwargs: ``attention_mask``, ``use_cache``, ``logits_to_keep`` are used; and
                ``is_first_iteration``: a prompt is read, all of it by default.

        Raises:
            NotImplementedError: The batch is padded on the right.
        """
        cache = past_key_values if cache is None else cache
        has_past = cache is not None and (
            not isinstance(cache, Cache) or cache.get_seq_length() > 0
        )
        mask_BT = kwargs.get("attention_mask")
        is_first = kwargs.get("is_first_iteration", not has_past)
        # A row that is padding as yet is no fault: a prompt may be read in pieces.
        if is_first and mask_BT is not None and bool((mask_BT[:, :-1] > mask_BT[:, -1:]).any()):
            raise NotImplementedError(
                "MPT does not support generation with right padding. Pad on the left: "
                "tokenizer.padding_side = 'left'."
            )
        if next_sequence_length is None and has_past and "is_first_iteration" not in kwargs:
            next_sequence_length = 1
        if next_sequence_length is not None:
            input_ids = input_ids[:, -next_sequence_length:]
        inputs = {"input_ids": input_ids}
        if inputs_embeds is not None and not has_past:
            inputs = {"inputs_embeds": inputs_embeds}
        if self.transformer.attn_uses_sequence_id and self.training:
            inputs["sequence_id"] = torch.zeros_like(input_ids)
        if self.transformer.temperature_wants_positions and mask_BT is not None:
            n_new = next(iter(inputs.values())).size(1)
            index_T = torch.arange(mask_BT.size(1), device=mask_BT.device)
            inputs["position_ids"] = index_T[None, mask_BT.size(1) - n_new :]
        kept = {"logits_to_keep": kwargs["logits_to_keep"]} if "logits_to_keep" in kwargs else {}
        return {
            **inputs,
            **kept,
            "attention_mask": mask_BT,
            "past_key_values": cache,
            "use_cache": kwargs.get("use_cache", True),
        }

    @staticmethod
    def _reorder_cache(past_key_values: Any, beam_idx: Any) -> Any:
        """Returns the past of the chosen beams."""
        if past_key_values is None:
            return None
        if isinstance(past_key_values, Cache):
            past_key_values.reorder_cache(beam_idx)
            return past_key_values
        return tuple(
            tuple(state.index_select(0, beam_idx) for state in layer) for layer in past_key_values
        )

    def fsdp_wrap_fn(self, module: torch.nn.Module) -> bool | dict[str, Any]:
        """Says whether ``module`` is a unit of sharding, or with which settings."""
        return self.transformer.fsdp_wrap_fn(module)

    def activation_checkpointing_fn(self, module: torch.nn.Module) -> bool:
        """Says whether ``module`` recomputes its activations in the backward pass."""
        return self.transformer.activation_checkpointing_fn(module)
