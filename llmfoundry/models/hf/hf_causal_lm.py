"""Any causal language model of transformers, as recipes name it: ``hf_causal_lm``."""

import functools
from typing import Any, ClassVar

import torch

from composer.core.types import Batch
from composer.models.adapters import count_frozen, maybe_get_underlying_model
from llmfoundry.builders.declared_keys import declares_keys
from llmfoundry.metrics import DEFAULT_CAUSAL_LM_EVAL_METRICS, DEFAULT_CAUSAL_LM_TRAIN_METRICS
from llmfoundry.models.hf.adapters import PEFT_KEYS
from llmfoundry.models.hf.document_mask import with_document_mask
from llmfoundry.models.hf.head_loss import computes_loss_in_chunks, with_chunked_loss
from llmfoundry.models.hf.hf_base import BaseHuggingFaceModel
from llmfoundry.models.hf.quantization import QUANTIZATION_KEYS

__all__ = ["ComposerHFCausalLM"]


@declares_keys({"peft_config": PEFT_KEYS, "quantization": QUANTIZATION_KEYS})
class ComposerHFCausalLM(BaseHuggingFaceModel):
    """A causal language model of transformers, loaded or built by its name.

    Training computes the loss in chunks, so that the logits of all tokens never exist at once, if
    the model's head is a plain matrix; train metrics need logits, which then come without a
    gradient. Batches with a ``sequence_id`` (several documents in a row) are masked such that no
    document sees another, and positions begin anew in each.

    Args:
        tokenizer: The tokenizer, which is saved with checkpoints.
        pretrained_model_name_or_path: A folder or a name on the hub.
        pretrained: Whether weights are loaded; otherwise they are initialised.
        pretrained_lora_id_or_path: Adapters that are loaded, and trained on.
        trust_remote_code: Runs code that comes with the model.
        use_auth_token: Uses the hub's token of this machine.
        use_flash_attention_2: Another spelling of ``attn_implementation: flash_attention_2``.
        load_in_8bit: Another spelling of ``quantization: {backend: bitsandbytes, weights: int8}``.
        init_device: ``cpu``, ``meta`` or ``mixed``, see :class:`BaseHuggingFaceModel`.
        config_overrides: Values that replace those of the configuration, nested ones by key.
        peft_config: Arguments of ``peft.LoraConfig``: only adapters are trained. Without
            ``target_modules`` they stand where peft puts them, or beside all linear layers.
        use_train_metrics: Whether metrics are computed on training batches too.
        allow_embedding_resizing: Enlarges the embeddings for a larger tokenizer.
        additional_train_metrics: Names of more metrics of training.
        additional_eval_metrics: Names of more evaluation metrics.
        should_save_peft_only: Saves only adapter weights in checkpoints, where there are adapters.
        attn_implementation: How attention is computed, by default as transformers chooses.
        quantization: Loads a frozen base in few bits: ``backend`` (bitsandbytes or torchao) and
            ``weights`` (int8, nf4 or fp4).
    """

    subselect_config_attr: ClassVar[str | None] = "text_config"
    default_train_metrics = DEFAULT_CAUSAL_LM_TRAIN_METRICS
    default_eval_metrics = DEFAULT_CAUSAL_LM_EVAL_METRICS

    def __init__(
        self,
        tokenizer: Any,
        pretrained_model_name_or_path: str,
        pretrained: bool = True,
        pretrained_lora_id_or_path: str | None = None,
        trust_remote_code: bool = False,
        use_auth_token: bool = False,
        use_flash_attention_2: bool = False,
        load_in_8bit: bool = False,
        init_device: str = "cpu",
        config_overrides: dict[str, Any] | None = None,
        peft_config: dict[str, Any] | None = None,
        use_train_metrics: bool = True,
        allow_embedding_resizing: bool = False,
        additional_train_metrics: list[str] | None = None,
        additional_eval_metrics: list[str] | None = None,
        should_save_peft_only: bool = True,
        attn_implementation: str | None = None,
        quantization: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(
            pretrained_model_name_or_path,
            tokenizer=tokenizer,
            pretrained=pretrained,
            pretrained_lora_id_or_path=pretrained_lora_id_or_path,
            trust_remote_code=trust_remote_code,
            use_auth_token=use_auth_token,
            use_flash_attention_2=use_flash_attention_2,
            load_in_8bit=load_in_8bit,
            init_device=init_device,
            config_overrides=config_overrides,
            shift_labels=True,
            peft_config=peft_config,
            allow_embedding_resizing=allow_embedding_resizing,
            use_train_metrics=use_train_metrics,
            additional_train_metrics=additional_train_metrics,
            additional_eval_metrics=additional_eval_metrics,
            should_save_peft_only=should_save_peft_only,
            attn_implementation=attn_implementation,
            quantization=quantization,
        )
        inner = maybe_get_underlying_model(self.model)
        if type(self).loss is BaseHuggingFaceModel.loss:  # a loss of one's own wants logits
            with_chunked_loss(inner)

    def keep_documents_apart(
        self, inputs: dict[str, Any], sequence_id: torch.Tensor
    ) -> dict[str, Any]:
        """Returns inputs with a mask and positions such that no document of a row sees another.

        Raises:
            ValueError: If the model's attention cannot be given such a mask.
        """
        return with_document_mask(inputs, sequence_id, maybe_get_underlying_model(self.model))

    def forward(self, batch: Batch) -> Any:
        """Returns loss and, where they are needed, logits."""
        inner = maybe_get_underlying_model(self.model)
        inputs = self._known(batch)
        if not computes_loss_in_chunks(inner) or "labels" not in inputs:
            return self.model(**inputs)
        needs_logits = not self.training or bool(self.train_metrics)
        return self.model(**inputs, return_logits=needs_logits)

    @functools.cached_property
    def n_total_params(self) -> int:
        """The number of parameters."""
        return sum(each.numel() for each in self.parameters())

    def flops_per_batch(self, batch: Batch) -> int:
        """Returns the floating-point operations of one forward and backward pass.

        Two for each parameter of a matrix and token, and two for each pair of tokens and unit of
        width in scores and in sums, both for the forward; the backward costs two forwards, and one
        of what is frozen.
        """
        n_rows, seq_len = batch["input_ids"].shape[:2]
        config = self.config.get_text_config()
        attention = config.num_hidden_layers * 2 * 2 * config.hidden_size * seq_len**2
        multiplied = self.n_total_params - self._n_looked_up
        embedding = maybe_get_underlying_model(self.model).get_input_embeddings().weight
        frozen = count_frozen(self) - (0 if embedding.requires_grad else self._n_looked_up)
        unspent = 2 * min(frozen, multiplied) * seq_len
        return ((2 * multiplied * seq_len + attention) * 3 - unspent) * n_rows

    @functools.cached_property
    def _n_looked_up(self) -> int:
        """Parameters of the embeddings that are no output layer too."""
        inner = maybe_get_underlying_model(self.model)
        embedding, head = inner.get_input_embeddings(), inner.get_output_embeddings()
        tied = head is not None and head.weight is embedding.weight
        return 0 if tied else embedding.weight.numel()
