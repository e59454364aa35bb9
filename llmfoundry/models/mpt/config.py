"""The configuration of an MPT model."""

import copy
import inspect
from typing import Any

from transformers import PretrainedConfig

from llmfoundry.models.mpt.block_overrides import ALLOWED_OVERRIDES
from llmfoundry.models.mpt.config_checks import (
    check_config,
    check_spelling,
    fill_defaults,
    read_legacy_keys,
)
from llmfoundry.models.utils.config_defaults import (
    attn_config_defaults,
    fc_type_defaults,
    ffn_config_defaults,
    init_config_defaults,
)

__all__ = ["MPTConfig"]


def _as_int(name: str, value: int | float) -> int:
    if int(value) != value:
        raise ValueError(f"{name} must be an integer, but got {value}.")
    return int(value)


class MPTConfig(PretrainedConfig):
    """Describes an MPT model.

    Args:
        d_model: Width of the residual stream.
        n_heads: Attention heads.
        n_layers: Blocks.
        head_dim: Width of a head; ``d_model / n_heads`` by default.
        expansion_ratio: FFN hidden width over ``d_model``.
        max_seq_len: The longest sequence in tokens.
        vocab_size: Rows of the embedding.
        resid_pdrop: Dropout after attention and after the FFN.
        emb_pdrop: Dropout after the embedding.
        learned_pos_emb: Whether positions are learned; off where alibi or rope is on.
        attn_config: The attention's settings (``attn_config_defaults``).
        ffn_config: The FFN's settings: ``ffn_type``, ``ffn_hidden_size``, ``ffn_act_fn``.
        init_device: Where weights are made: cpu, meta, or mixed (meta but on local rank 0).
        logit_scale: What logits are multiplied by: a number or ``inv_sqrt_d_model``.
        no_bias: Whether linear layers and norms go without biases.
        attention_bias: Whether the attention's input projections have biases; ``not no_bias`` by
            default.
        embedding_fraction: The share of the embedding's gradient that is kept.
        norm_type: A name of the norms registry.
        norm_eps: The norms' epsilon.
        use_cache: Whether keys and values are returned for the next token.
        init_config: The initialisation's settings (``init_config_defaults``).
        fc_type: The linear layers: a name of the fcs registry, or ``name`` and arguments.
        tie_word_embeddings: Whether the embedding is also the output layer.
        use_pad_tok_in_ffn: Whether the FFN computes padding too.
        block_overrides: Layers that differ: ``order``, ``overrides``, ``repeat``.
        final_logit_softcapping: Logits become ``c * tanh(logit / c)``.
        **kwargs: Attributes of ``PretrainedConfig``, and such as
            ``activation_checkpointing_target`` or ``fuse_norm_attn_norm``.

    Raises:
        ValueError: A value is out of its range, or values contradict each other.
        TypeError: A key is not known.
    """

    model_type = "mpt"
    attribute_map = {
        "hidden_size": "d_model",
        "num_attention_heads": "n_heads",
        "num_hidden_layers": "n_layers",
        "max_position_embeddings": "max_seq_len",
    }
    allowed_block_overrides = ALLOWED_OVERRIDES

    def __init__(
        self,
        d_model: int = 2048,
        n_heads: int = 16,
        n_layers: int = 24,
        head_dim: int | None = None,
        expansion_ratio: int | float = 4,
        max_seq_len: int = 2048,
        vocab_size: int = 50368,
        resid_pdrop: float = 0.0,
        emb_pdrop: float = 0.0,
        learned_pos_emb: bool = True,
        attn_config: dict[str, Any] | None = None,
        ffn_config: dict[str, Any] | None = None,
        init_device: str = "cpu",
        logit_scale: float | str | None = None,
        no_bias: bool = False,
        attention_bias: bool | None = None,
        embedding_fraction: float = 1.0,
        norm_type: str = "low_precision_layernorm",
        norm_eps: float = 1e-05,
        use_cache: bool = False,
        init_config: dict[str, Any] | None = None,
        fc_type: str | dict[str, Any] = "torch",
        tie_word_embeddings: bool = True,
        use_pad_tok_in_ffn: bool = True,
        block_overrides: dict[str, Any] | None = None,
        final_logit_softcapping: float | None = None,
        **kwargs: Any,
    ) -> None:
        self.d_model = d_model
        self.n_heads = n_heads
        self.n_layers = n_layers
        self.head_dim = head_dim
        self.expansion_ratio = expansion_ratio
        self.max_seq_len = _as_int("max_seq_len", max_seq_len)
        self.vocab_size = vocab_size
        self.resid_pdrop = resid_pdrop
        self.emb_pdrop = emb_pdrop
        self.learned_pos_emb = learned_pos_emb
        self.attn_config = {} if attn_config is None else attn_config
        self.ffn_config = {} if ffn_config is None else ffn_config
        self.init_device = init_device
        self.logit_scale = logit_scale
        self.no_bias = no_bias
        self.attention_bias = not no_bias if attention_bias is None else attention_bias
        self.embedding_fraction = embedding_fraction
        self.norm_type = norm_type
        self.norm_eps = norm_eps
        self.use_cache = use_cache
        self.init_config = {} if init_config is None else init_config
        self.fc_type = {"name": fc_type} if isinstance(fc_type, str) else fc_type
        self.use_pad_tok_in_ffn = use_pad_tok_in_ffn
        self.block_overrides = copy.deepcopy(block_overrides)
        self.final_logit_softcapping = final_logit_softcapping
        for key in ("name", "loss_fn"):
            kwargs.pop(key, None)
        check_spelling(kwargs, self._own_keys())
        read_legacy_keys(self.attn_config, self.init_config, kwargs)
        fill_defaults(self.attn_config, attn_config_defaults)
        fill_defaults(self.ffn_config, ffn_config_defaults)
        fill_defaults(self.init_config, init_config_defaults)
        fill_defaults(self.fc_type, fc_type_defaults)
        check_config(self)
        kwargs["tie_word_embeddings"] = tie_word_embeddings
        super().__init__(**kwargs)

    @classmethod
    def _own_keys(cls) -> set[str]:
        return set(inspect.signature(cls.__init__).parameters) - {"self", "kwargs"}

    @property
    def attention_head_dim(self) -> int:
        """The width of an attention head."""
        return self.head_dim or self.d_model // self.n_heads
