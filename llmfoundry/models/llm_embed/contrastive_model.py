"""Language models that are trained to embed texts: ``contrastive_lm``."""

import importlib.util
from typing import Any

import torch
import torch.nn.functional as F

from composer.core.types import Batch
from composer.models.adapters import maybe_get_underlying_model
from composer.models.huggingface import HuggingFaceModel
from composer.utils import dist
from llmfoundry.layers_registry import ffns_with_megablocks
from llmfoundry.models.hf.adapters import check_adapter_settings, with_trained_adapters
from llmfoundry.models.hf.hf_base import ModelInitError
from llmfoundry.models.hf.hf_causal_lm import ComposerHFCausalLM
from llmfoundry.models.hf.hf_fsdp import prepare_hf_model_for_fsdp
from llmfoundry.models.hf.quantization import quantization_config
from llmfoundry.models.llm_embed.contrastive_loss import (
    ContrastiveConfig,
    ContrastiveEvalLoss,
    contrastive_loss,
    pool,
)
from llmfoundry.models.mpt.causal_lm import MPTForCausalLM
from llmfoundry.models.mpt.config import MPTConfig

__all__ = ["ContrastiveModel"]


class ContrastiveModel(HuggingFaceModel):
    """A language model whose hidden states embed texts, trained by contrast.

    A batch holds blocks of texts: a query, a passage that belongs to it, and hard negatives. The
    loss is that of finding each query's own passage among all of the batch, or of all ranks.

    Args:
        tokenizer: The tokenizer; without a padding token it pads with the end token.
        contrastive_config: Arguments of :class:`ContrastiveConfig`.
        pretrained_model_name_or_path: A transformers model; by default an MPT of ``kwargs``.
        pretrained_lora_id_or_path: Adapters that are loaded, and trained on.
        trust_remote_code: Runs code that comes with the model.
        init_device: ``cpu``, ``meta`` or ``mixed``.
        use_flash_attention_2: Uses flash-attention 2 where it is installed.
        use_auth_token: Uses the hub's token of this machine.
        config_overrides: Values that replace those of the configuration.
        load_in_8bit: Quantises the weights with bitsandbytes, under adapters.
        loss_fn: Not used; the loss is the one above.
        pretrained: Whether weights are loaded.
        attn_implementation: How attention is computed, where it is not flash-attention 2.
        **kwargs: Arguments of ``MPTConfig``.

    Raises:
        ValueError: If a setting is wrong or would have no effect.
    """

    def __init__(
        self,
        tokenizer: Any,
        contrastive_config: dict[str, Any] | None = None,
        pretrained_model_name_or_path: str | None = None,
        pretrained_lora_id_or_path: str | None = None,
        trust_remote_code: bool = False,
        init_device: str = "cpu",
        use_flash_attention_2: bool = True,
        use_auth_token: bool = False,
        config_overrides: dict[str, Any] | None = None,
        load_in_8bit: bool = False,
        loss_fn: str = "fused_crossentropy",
        pretrained: bool = True,
        attn_implementation: str | None = "eager",
        **kwargs: Any,
    ) -> None:
        del loss_fn
        self_config = _contrastive_config(contrastive_config)
        check_adapter_settings(None, pretrained_lora_id_or_path, True, init_device)
        if tokenizer is not None and tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        if pretrained_model_name_or_path is None:
            idle = {
                "config_overrides": config_overrides,
                "load_in_8bit": load_in_8bit,
                "pretrained_lora_id_or_path": pretrained_lora_id_or_path,
            }
            if given := [name for name, value in idle.items() if value]:
                raise ValueError(f"{given} have no effect without pretrained_model_name_or_path.")
            model = self.build_mpt({"init_device": init_device, **kwargs})
        else:
            if kwargs:
                raise ValueError(
                    f"{sorted(kwargs)} are settings of an MPT, and the model is "
                    f"{pretrained_model_name_or_path!r}. Use config_overrides."
                )
            has_flash = importlib.util.find_spec("flash_attn") is not None
            flash = use_flash_attention_2 and has_flash
            model = self.build_pretrained(
                pretrained_model_name_or_path,
                attn_implementation="flash_attention_2" if flash else attn_implementation,
                config_overrides=config_overrides,
                pretrained=pretrained,
                load_in_8bit=load_in_8bit,
                init_device=init_device,
                lora=pretrained_lora_id_or_path,
                hub={"trust_remote_code": trust_remote_code, "token": use_auth_token or None},
            )
        super().__init__(
            model,
            tokenizer,
            use_logits=False,
            metrics=[],
            eval_metrics=[ContrastiveEvalLoss()],
            shift_labels=True,
            allow_embedding_resizing=True,
        )
        self.contrastive_config = self_config
        self.is_mpt = pretrained_model_name_or_path is None
        self._group: Any = None
        if not self.is_mpt:
            prepare_hf_model_for_fsdp(self.model, init_device)

    def build_mpt(self, kwargs: dict[str, Any]) -> Any:
        """Builds an MPT.

        Raises:
            ValueError: It is a mixture of experts with losses.
        """
        config = MPTConfig(**kwargs)
        if config.ffn_config["ffn_type"] in ffns_with_megablocks:
            raise ValueError(
                f"ffn_config.ffn_type: {config.ffn_config['ffn_type']} has a load-balancing loss, "
                "which contrastive training does not add. Use torch_dmoe, mptglu or mptmlp."
            )
        return MPTForCausalLM(config)

    def build_pretrained(self, name: str, *, hub: dict[str, Any], **settings: Any) -> Any:
        """Loads or builds a transformers model."""
        with dist.run_local_rank_zero_first():
            config = ComposerHFCausalLM.build_config(
                name, settings["attn_implementation"], settings["config_overrides"], **hub
            )
        try:
            model = ComposerHFCausalLM.build_inner_model(
                name,
                config,
                settings["pretrained"],
                quantization_config(None, settings["load_in_8bit"]),
                settings["init_device"],
                **hub,
            )
        except ModelInitError as error:
            raise ModelInitError(
                f"{error} If {name!r} is an encoder without an output layer, train it as "
                "finetune_embedding_model."
            ) from error
        return with_trained_adapters(model, settings["lora"])

    # Training

    @property
    def num_loss_tokens(self) -> None:
        """None: the loss is a mean over queries, not over tokens."""
        return None

    def forward(self, batch: Batch) -> dict[str, Any]:
        """Returns the embeddings of all texts, ``[texts, width]``, by the key ``embeddings``."""
        ids, mask = batch["input_ids"], batch["attention_mask"]
        ids, mask = ids.flatten(0, -2), mask.flatten(0, -2)
        hidden, logits = self._hidden_states(ids, mask)
        vectors = pool(hidden, mask, self.contrastive_config.vector_representation)
        if self.contrastive_config.normalize_output:
            vectors = F.normalize(vectors, dim=-1)
        if logits is not None:  # ranks wait for gradients of the head, which has none to give
            vectors = vectors + 0 * logits.sum()
        return {"embeddings": vectors}

    def _hidden_states(
        self, ids: torch.Tensor, mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The body's output; the whole model is called, since sharding acts at its call."""
        inner: Any = maybe_get_underlying_model(self.model)
        body = inner.base_model if inner.base_model is not inner else inner.get_decoder()
        kept: list[torch.Tensor] = []
        handle = body.register_forward_hook(lambda *args: kept.append(args[2][0]))
        try:
            last = {"logits_to_keep": 1} if "logits_to_keep" in self.model_forward_args else {}
            outputs = self.model(input_ids=ids, attention_mask=mask, **last)
        finally:
            handle.remove()
        return kept[-1], outputs.get("logits")

    def loss(self, outputs: dict[str, Any], batch: Batch) -> torch.Tensor:
        """Returns the contrastive loss of the batch's blocks.

        Raises:
            ValueError: If the batch has no blocks of at least two texts.
        """
        return contrastive_loss(
            outputs["embeddings"], _texts_in_a_block(batch), self.contrastive_config, self._ranks()
        )

    def _ranks(self) -> Any:
        """The ranks that are gathered over; made once, by all ranks together."""
        size = self.contrastive_config.infonce_process_group_size
        if size is None or dist.get_world_size() == 1:
            return None
        if self._group is None:
            if dist.get_world_size() % size:
                raise ValueError(
                    f"infonce_process_group_size={size} must divide the {dist.get_world_size()} "
                    "ranks."
                )
            self._group = torch.distributed.new_subgroups(size)[0]
        return self._group

    def eval_forward(self, batch: Batch, outputs: Any | None = None) -> dict[str, Any]:
        """Returns loss and outputs, of which the metric takes the loss."""
        vectors: dict[str, Any] = self.forward(batch) if outputs is None else outputs
        self.labels = None
        return {"loss": self.loss(vectors, batch), "outputs": vectors}

    def flops_per_batch(self, batch: Batch) -> int:
        """Returns the floating-point operations of one forward and backward pass."""
        n_texts, seq_len = batch["input_ids"].flatten(0, -2).shape
        config = self.config.get_text_config()
        layers, width = (
            (config.n_layers, config.d_model)
            if self.is_mpt
            else (config.num_hidden_layers, config.hidden_size)
        )
        n_params = sum(each.numel() for each in self.parameters())
        return (2 * n_params * seq_len + layers * 2 * 2 * width * seq_len**2) * 3 * n_texts


def _contrastive_config(settings: dict[str, Any] | None) -> ContrastiveConfig:
    known = ContrastiveConfig.__dataclass_fields__
    if unknown := sorted((settings or {}).keys() - known):
        raise ValueError(f"contrastive_config has no {unknown}; it has {sorted(known)}.")
    return ContrastiveConfig(**(settings or {}))


def _texts_in_a_block(batch: Batch) -> int:
    ids = batch["input_ids"]
    if ids.ndim == 3:
        if ids.size(1) < 2:
            raise ValueError(
                f"Blocks of {ids.size(1)} text have nothing to compare; a block is a query, its "
                "passage and any negatives."
            )
        return ids.size(1)
    if ids.size(0) % 2:
        raise ValueError(f"{ids.size(0)} texts are no pairs of a query and its passage.")
    return 2
