"""Any transformers model by name: its configuration, its weights, adapters, and sharding rules."""

import contextlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import torch
import transformers

from composer.core.types import Batch
from composer.models.huggingface import HuggingFaceModel
from composer.utils import dist
from llmfoundry.builders.components import build_metric
from llmfoundry.models.hf.adapters import (
    check_adapter_settings,
    fit_to_model,
    initialise_adapters_as_peft,
    lora_config,
    with_trained_adapters,
)
from llmfoundry.models.hf.config_overrides import set_config_overrides
from llmfoundry.models.hf.document_mask import has_one_document_a_row
from llmfoundry.models.hf.hf_fsdp import prepare_hf_model_for_fsdp
from llmfoundry.models.hf.load_whole import load_whole
from llmfoundry.models.hf.quantization import freeze_few_bits, quantization_config
from llmfoundry.utils.meta_init_context import init_empty_weights

__all__ = ["BaseHuggingFaceModel", "ModelInitError"]

INIT_DEVICES = ("cpu", "meta", "mixed")


class ModelInitError(RuntimeError, ValueError):
    """Says on every rank that a model could not be built on some of them, and why."""


class BaseHuggingFaceModel(HuggingFaceModel):
    """A transformers model that is loaded or built by its name.

    Weights are float32, whatever they were saved in; training casts them as its precision says. One
    rank of a node downloads, the others wait.

    Args:
        pretrained_model_name_or_path: A folder or a name on the hub.
        tokenizer: The tokenizer, which is saved with checkpoints.
        pretrained: Whether weights are loaded; otherwise they are initialised.
        pretrained_lora_id_or_path: Adapters that are loaded, and trained on.
        trust_remote_code: Runs code that comes with the model.
        use_auth_token: Uses the hub's token of this machine.
        use_flash_attention_2: Another spelling of ``attn_implementation: flash_attention_2``.
        load_in_8bit: Another spelling of ``quantization: {backend: bitsandbytes, weights: int8}``.
        init_device: ``cpu``; ``meta``, with fresh weights that come to life where they are sharded;
            or ``mixed``, with weights on rank 0 that are sent to the others.
        config_overrides: Values that replace those of the configuration, nested ones by key.
        use_logits: Hands the logits to metrics, not the whole output.
        shift_labels: Whether metrics compare a logit with the next token.
        peft_config: Arguments of ``peft.LoraConfig``: only adapters are trained. Without
            ``target_modules`` they stand where peft puts them, or beside all linear layers.
        allow_embedding_resizing: Enlarges the embeddings for a larger tokenizer.
        use_train_metrics: Whether metrics are computed on training batches too.
        additional_train_metrics: Names of more of them.
        additional_eval_metrics: Names of more evaluation metrics.
        should_save_peft_only: Saves only adapter weights in checkpoints, where there are adapters.
        attn_implementation: How attention is computed, by default as transformers chooses.
        quantization: ``backend`` and ``weights``, see
            :func:`~llmfoundry.models.hf.quantization.quantization_config`.

    Raises:
        ModelInitError: If the model could not be built on a rank; a ``ValueError`` and a
            ``RuntimeError`` at once.
        ValueError: If settings do not fit each other or the configuration.
    """

    model_cls: ClassVar[Any] = transformers.AutoModelForCausalLM
    """What loads or builds the model."""
    subselect_config_attr: ClassVar[str | None] = None
    """The part of a configuration that describes this kind of model, if there are several."""
    default_train_metrics: ClassVar[Sequence[str]] = ()
    default_eval_metrics: ClassVar[Sequence[str]] = ()

    def __init__(
        self,
        pretrained_model_name_or_path: str,
        tokenizer: Any | None = None,
        pretrained: bool = True,
        pretrained_lora_id_or_path: str | None = None,
        trust_remote_code: bool = False,
        use_auth_token: bool = False,
        use_flash_attention_2: bool = False,
        load_in_8bit: bool = False,
        init_device: str = "cpu",
        config_overrides: dict[str, Any] | None = None,
        use_logits: bool = True,
        shift_labels: bool = False,
        peft_config: dict[str, Any] | None = None,
        allow_embedding_resizing: bool = False,
        use_train_metrics: bool = True,
        additional_train_metrics: list[str] | None = None,
        additional_eval_metrics: list[str] | None = None,
        should_save_peft_only: bool = True,
        attn_implementation: str | None = None,
        quantization: dict[str, Any] | None = None,
    ) -> None:
        _check(pretrained_model_name_or_path, init_device)
        quantised = quantization_config(quantization, load_in_8bit)
        check_adapter_settings(
            peft_config, pretrained_lora_id_or_path, should_save_peft_only, init_device
        )
        if quantised is not None and not should_save_peft_only:
            raise ValueError(
                "should_save_peft_only=False would put quantised weights into checkpoints, which "
                "no plain model loads; leave it out."
            )
        lora = None if peft_config is None else self.get_peft_config(peft_config)
        hub = {"trust_remote_code": trust_remote_code, "token": use_auth_token or None}
        with dist.run_local_rank_zero_first():
            config = self.build_config(
                pretrained_model_name_or_path,
                attn_implementation=_attention(use_flash_attention_2, attn_implementation),
                config_overrides=config_overrides,
                **hub,
            )
        model = self.build_inner_model(
            pretrained_model_name_or_path, config, pretrained, quantised, init_device, **hub
        )
        model = with_trained_adapters(model, pretrained_lora_id_or_path)
        model = self.transform_model(model)
        train_metrics, eval_metrics = self.build_metrics(
            use_train_metrics, additional_train_metrics, additional_eval_metrics
        )
        super().__init__(
            model=model,
            tokenizer=tokenizer,
            use_logits=use_logits,
            metrics=train_metrics,
            eval_metrics=eval_metrics,
            shift_labels=shift_labels,
            allow_embedding_resizing=allow_embedding_resizing,
            peft_config=None if lora is None else fit_to_model(lora, model),
            should_save_peft_only=should_save_peft_only,
        )
        self.prepare_inner_model(self.model, init_device)
        if self.using_peft:
            initialise_adapters_as_peft(self.model, init_device)

    # What subclasses change

    @classmethod
    def build_config(
        cls,
        pretrained_model_name_or_path: str,
        attn_implementation: str | None = None,
        config_overrides: dict[str, Any] | None = None,
        **hub: Any,
    ) -> Any:
        """Returns the model's configuration with a recipe's values in it.

        Raises:
            ValueError: If the configuration has no value that is to be replaced.
        """
        attention = (
            {} if attn_implementation is None else {"attn_implementation": attn_implementation}
        )
        config = transformers.AutoConfig.from_pretrained(
            pretrained_model_name_or_path, **attention, **hub
        )
        inner = getattr(config, cls.subselect_config_attr or "", None)
        config = config if inner is None else inner
        # Training keeps no keys and values; generate() asks for them itself.
        config.use_cache = False
        config.dtype = torch.float32
        if attn_implementation is not None and inner is not None:
            config._attn_implementation = attn_implementation
        set_config_overrides(config, config_overrides or {})
        return config

    @classmethod
    def build_metrics(
        cls,
        use_train_metrics: bool,
        additional_train_metrics: list[str] | None = None,
        additional_eval_metrics: list[str] | None = None,
    ) -> tuple[list[Any], list[Any]]:
        """Returns the metrics of training and those of evaluation."""
        train = [*cls.default_train_metrics, *(additional_train_metrics or [])]
        evaluation = [*cls.default_eval_metrics, *(additional_eval_metrics or [])]
        return (
            [build_metric(name, {}) for name in train] if use_train_metrics else [],
            [build_metric(name, {}) for name in evaluation],
        )

    @classmethod
    def build_inner_model(
        cls,
        pretrained_model_name_or_path: str,
        config: Any,
        pretrained: bool = True,
        quantised: Any = None,
        init_device: str = "cpu",
        **hub: Any,
    ) -> Any:
        """Returns the transformers model: loaded, initialised, or without memory.

        Args:
            pretrained_model_name_or_path: A folder or a name on the hub.
            config: What :meth:`build_config` returned.
            pretrained: Whether weights are loaded.
            quantised: transformers' settings for weights in few bits, which are then frozen.
            init_device: ``cpu``, ``meta`` or ``mixed``.
            **hub: ``trust_remote_code`` and ``token``.

        Raises:
            ModelInitError: If that failed on a rank.
        """
        in_turn: Callable[[], AbstractContextManager[Any]] = dist.run_local_rank_zero_first
        if quantised is not None and (init_device != "cpu" or not pretrained):
            raise ValueError(
                f"Quantised weights are loaded on each rank, so that {init_device=} and "
                f"{pretrained=} do not go with them; use init_device: cpu and pretrained: true."
            )
        if init_device == "mixed":
            is_first = dist.get_global_rank() == 0
            init_device, pretrained = ("cpu", pretrained) if is_first else ("meta", False)
            in_turn = contextlib.nullcontext
        with _errors_of_all_ranks():
            if init_device == "meta":
                if pretrained:
                    raise ValueError(
                        'Setting cfg.pretrained=True is not supported when init_device="meta". '
                        "Use init_device: mixed, which loads weights on one rank."
                    )
                with init_empty_weights(include_buffers=False):
                    model = cls.model_cls.from_config(config, **_code(hub))
            elif pretrained:
                bits = {} if quantised is None else {"quantization_config": quantised}
                with in_turn():  # one rank of a node fills the cache, which the others read
                    model = load_whole(
                        cls.model_cls,
                        pretrained_model_name_or_path,
                        may_have_more=True,
                        config=config,
                        dtype=torch.float32,
                        **bits,
                        **hub,
                    )
            else:
                model = cls.model_cls.from_config(config, **_code(hub))
        if quantised is not None:
            freeze_few_bits(model)
        if not pretrained:
            _take_generation_settings(model, pretrained_model_name_or_path, hub)
        if getattr(config, "tie_word_embeddings", False):
            model.tie_weights()  # building on meta unties them
        return model

    def _known(self, batch: Batch, without: Sequence[str] = ()) -> dict[str, Any]:
        inputs = super()._known(batch, without)
        if batch.get("sequence_id") is None:
            return inputs
        return self.keep_documents_apart(inputs, batch["sequence_id"])

    def keep_documents_apart(
        self, inputs: dict[str, Any], sequence_id: torch.Tensor
    ) -> dict[str, Any]:
        """Returns inputs such that no document of a row sees another.

        Args:
            inputs: Keyword arguments of the model.
            sequence_id: For each token which document of its row it belongs to, ``[B, S]``.

        Raises:
            ValueError: If this kind of model has no such inputs, and a row has several documents.
        """
        if has_one_document_a_row(sequence_id):
            return inputs
        raise ValueError(
            f"{type(self).__name__} cannot keep the documents of a row apart, and the batch has a "
            "sequence_id; use rows of one document each."
        )

    def transform_model(self, model: Any) -> Any:
        """Returns the model that is trained, by default the one that was loaded."""
        return model

    def get_peft_config(self, peft_config: dict[str, Any]) -> Any:
        """Returns the settings of adapters.

        Raises:
            ValueError: If they are not LoRA for a causal language model, or a key is unknown.
        """
        return lora_config(peft_config)

    @staticmethod
    def prepare_inner_model(model: Any, init_device: str) -> None:
        """Tells sharding which modules are units, and how they are initialised."""
        prepare_hf_model_for_fsdp(model, init_device)


def _check(name: str, init_device: str) -> None:
    if name.startswith("mosaicml/mpt"):
        raise ValueError(
            "The MPT series of models on the Hugging Face Hub is no longer supported by LLM "
            f"Foundry through hf_causal_lm (got {name!r}). Train it as mpt_causal_lm."
        )
    if init_device not in INIT_DEVICES:
        raise ValueError(f"init_device={init_device!r} must be one of {INIT_DEVICES}.")


def _attention(use_flash_attention_2: bool, attn_implementation: str | None) -> str | None:
    if not use_flash_attention_2:
        return attn_implementation
    if attn_implementation not in (None, "flash_attention_2"):
        raise ValueError(
            f"use_flash_attention_2=True and attn_implementation={attn_implementation!r} are two "
            "answers to one question; leave one of them out."
        )
    if importlib.util.find_spec("flash_attn") is None:
        raise ValueError(
            "use_flash_attention_2 is set to True, but flash-attention 2 is not installed. Leave "
            "it out: attn_implementation sdpa uses PyTorch's own flash attention."
        )
    return "flash_attention_2"


def _code(hub: dict[str, Any]) -> dict[str, Any]:
    return {"trust_remote_code": hub.get("trust_remote_code", False)}


def _take_generation_settings(model: Any, name: str, hub: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # a model need not have any
        model.generation_config = transformers.GenerationConfig.from_pretrained(name, **hub)


@contextlib.contextmanager
def _errors_of_all_ranks() -> Iterator[None]:
    """Turns an error on any rank into one on all, so that none waits for the others."""
    error: Exception | None = None
    try:
        yield
    except Exception as e:  # whatever a model's own code may raise
        error = e
    texts = dist.all_gather_object(None if error is None else f"{type(error).__name__}: {error}")
    failed = [rank for rank, text in enumerate(texts) if text is not None]
    if failed:
        raise ModelInitError(
            f"Error initializing model on ranks {failed}. See individual rank logs for more "
            f"details. Rank {failed[0]}: {texts[failed[0]]}"
        ) from error
