"""Any transformers model by name: its configuration, its weights, adapters, and sharding rules."""

import contextlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import torch
import transformers

from composer.models.huggingface import HuggingFaceModel, peft_installed
from composer.utils import dist
from composer.utils.import_helpers import MissingConditionalImportError
from llmfoundry.builders.components import build_metric
from llmfoundry.models.hf.config_overrides import set_config_overrides
from llmfoundry.models.hf.hf_fsdp import prepare_hf_model_for_fsdp
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
        load_in_8bit: Quantises the weights with bitsandbytes.
        init_device: ``cpu``; ``meta``, with fresh weights that come to life where they are sharded;
            or ``mixed``, with weights on rank 0 that are sent to the others.
        config_overrides: Values that replace those of the configuration, nested ones by key.
        use_logits: Hands the logits to metrics, not the whole output.
        shift_labels: Whether metrics compare a logit with the next token.
        peft_config: Arguments of ``peft.LoraConfig``: only adapters are trained.
        allow_embedding_resizing: Enlarges the embeddings for a larger tokenizer.
        use_train_metrics: Whether metrics are computed on training batches too.
        additional_train_metrics: Names of more of them.
        additional_eval_metrics: Names of more evaluation metrics.
        should_save_peft_only: Saves only adapter weights in checkpoints, where there are adapters.
        attn_implementation: How attention is computed, by default as transformers chooses.

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
    ) -> None:
        _check(pretrained_model_name_or_path, init_device)
        _check_adapters(pretrained_lora_id_or_path)
        hub = {"trust_remote_code": trust_remote_code, "token": use_auth_token or None}
        with dist.run_local_rank_zero_first():
            config = self.build_config(
                pretrained_model_name_or_path,
                attn_implementation=_attention(use_flash_attention_2, attn_implementation),
                config_overrides=config_overrides,
                **hub,
            )
        model = self.build_inner_model(
            pretrained_model_name_or_path, config, pretrained, load_in_8bit, init_device, **hub
        )
        model = self.with_trained_adapters(model, pretrained_lora_id_or_path)
        train_metrics, eval_metrics = self.build_metrics(
            use_train_metrics, additional_train_metrics, additional_eval_metrics
        )
        super().__init__(
            model=self.transform_model(model),
            tokenizer=tokenizer,
            use_logits=use_logits,
            metrics=train_metrics,
            eval_metrics=eval_metrics,
            shift_labels=shift_labels,
            allow_embedding_resizing=allow_embedding_resizing,
            peft_config=None if peft_config is None else self.get_peft_config(peft_config),
            should_save_peft_only=should_save_peft_only,
        )
        self.prepare_inner_model(self.model, init_device)

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
        load_in_8bit: bool = False,
        init_device: str = "cpu",
        **hub: Any,
    ) -> Any:
        """Returns the transformers model: loaded, initialised, or without memory.

        Raises:
            ModelInitError: If that failed on a rank.
        """
        in_turn: Callable[[], AbstractContextManager[Any]] = dist.run_local_rank_zero_first
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
                quantised = _quantisation() if load_in_8bit else {}
                with in_turn():  # one rank of a node fills the cache, which the others read
                    model = cls.model_cls.from_pretrained(
                        pretrained_model_name_or_path,
                        config=config,
                        dtype=torch.float32,
                        **quantised,
                        **hub,
                    )
            else:
                model = cls.model_cls.from_config(config, **_code(hub))
        if not pretrained:
            _take_generation_settings(model, pretrained_model_name_or_path, hub)
        if getattr(config, "tie_word_embeddings", False):
            model.tie_weights()  # building on meta unties them
        return model

    @staticmethod
    def with_trained_adapters(model: Any, name_or_path: str | None) -> Any:
        """Returns the model inside adapters that are loaded and trained on, if there are any.

        Raises:
            ValueError: If the package peft is not installed.
        """
        if name_or_path is None:
            return model
        _check_adapters(name_or_path)
        import peft

        return peft.PeftModelForCausalLM.from_pretrained(model, name_or_path, is_trainable=True)

    def transform_model(self, model: Any) -> Any:
        """Returns the model that is trained, by default the one that was loaded."""
        return model

    def get_peft_config(self, peft_config: dict[str, Any]) -> Any:
        """Returns the settings of adapters.

        Raises:
            ValueError: If they are not LoRA for a causal language model.
        """
        if not peft_installed:
            raise MissingConditionalImportError("peft", "peft")
        import peft

        settings = dict(peft_config)
        for key, right in (("peft_type", "LORA"), ("task_type", "CAUSAL_LM")):
            if str(settings.get(key, "")).upper() != right:
                raise ValueError(
                    f"peft_config.{key}={settings.get(key)!r} is not supported; set it to {right}."
                )
            settings[key] = right
        settings.pop("peft_type")  # the class says it
        try:
            return peft.LoraConfig(**settings)
        except TypeError as error:
            raise ValueError(f"peft_config does not fit peft.LoraConfig: {error}") from error

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


def _check_adapters(name_or_path: str | None) -> None:
    if name_or_path is not None and not peft_installed:
        raise ValueError(
            f"pretrained_lora_id_or_path={name_or_path!r} needs the package peft, which is not "
            "installed: pip install 'llmfoundry[peft]'."
        )


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


def _quantisation() -> dict[str, Any]:
    if importlib.util.find_spec("bitsandbytes") is None:
        raise MissingConditionalImportError("gpu", "bitsandbytes")
    return {"quantization_config": transformers.BitsAndBytesConfig(load_in_8bit=True)}


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
