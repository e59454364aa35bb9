"""Encoder-decoder models of transformers, as recipes name them: ``hf_t5``."""

from typing import Any, ClassVar

import transformers

from llmfoundry.metrics import DEFAULT_ENC_DEC_METRICS
from llmfoundry.models.hf.hf_base import BaseHuggingFaceModel
from llmfoundry.utils.warnings import experimental_class

__all__ = ["ComposerHFT5"]


@experimental_class("ComposerHFT5")
class ComposerHFT5(BaseHuggingFaceModel):
    """A T5 or another encoder-decoder of transformers, loaded or built by its name.

    Args:
        tokenizer: The tokenizer, which is saved with checkpoints.
        pretrained_model_name_or_path: A folder or a name on the hub.
        pretrained: Whether weights are loaded; otherwise they are initialised.
        trust_remote_code: Runs code that comes with the model.
        use_auth_token: Uses the hub's token of this machine.
        config_overrides: Values that replace those of the configuration, nested ones by key.
        init_device: ``cpu``, ``meta`` or ``mixed``, see :class:`BaseHuggingFaceModel`.
        additional_train_metrics: Names of more metrics of training.
        name: Not used; recipes' ``name`` may come through.

    Raises:
        ValueError: If the model is no encoder-decoder.
    """

    model_cls: ClassVar[Any] = transformers.AutoModelForSeq2SeqLM
    default_train_metrics = DEFAULT_ENC_DEC_METRICS

    def __init__(
        self,
        tokenizer: Any,
        pretrained_model_name_or_path: str,
        pretrained: bool = True,
        trust_remote_code: bool = False,
        use_auth_token: bool = False,
        config_overrides: dict[str, Any] | None = None,
        init_device: str = "cpu",
        additional_train_metrics: list[str] | None = None,
        name: str | None = None,
    ) -> None:
        del name
        super().__init__(
            pretrained_model_name_or_path,
            tokenizer=tokenizer,
            pretrained=pretrained,
            trust_remote_code=trust_remote_code,
            use_auth_token=use_auth_token,
            config_overrides=config_overrides,
            init_device=init_device,
            shift_labels=False,  # a decoder is given its targets moved to the right
            additional_train_metrics=additional_train_metrics,
        )

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
            ValueError: If the model is no encoder-decoder, or has no value that is to be replaced.
        """
        config = super().build_config(
            pretrained_model_name_or_path, attn_implementation, config_overrides, **hub
        )
        if not config.is_encoder_decoder:
            raise ValueError(
                f"hf_t5 takes encoder-decoder models, and {pretrained_model_name_or_path!r} is a "
                f"{config.model_type}; use hf_causal_lm for decoders."
            )
        return config
