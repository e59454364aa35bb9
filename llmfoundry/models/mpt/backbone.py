"""The MPT without its head: embeddings, blocks, final norm.

Legend: B batch, S query positions, T key positions, E model width.
"""

import functools
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from transformers import PreTrainedModel

from llmfoundry.layers_registry import norms
from llmfoundry.models.layers.alibi import gen_slopes
from llmfoundry.models.layers.attention import AttentionContext, KeyValue
from llmfoundry.models.layers.blocks import MPTBlock
from llmfoundry.models.layers.custom_embedding import LanguageModelHead, SharedEmbedding
from llmfoundry.models.layers.layer_builders import build_norm
from llmfoundry.models.layers.masking import (
    AttentionMasks,
    attn_bias_shape,
    count_positions,
    drop_trivial_mask,
    index_in_document,
    is_left_padded,
)
from llmfoundry.models.layers.mb_moe import Routing, sum_routings
from llmfoundry.models.layers.norm import autocast_dtype
from llmfoundry.models.layers.rotary import RotaryEmbedding, gen_rotary_embedding
from llmfoundry.models.layers.sequence_share import SequenceShare
from llmfoundry.models.layers.value_embedding import ValueEmbedding, ValueGate
from llmfoundry.models.mpt.block_overrides import plan_blocks
from llmfoundry.models.mpt.cache import CACHE_FIELD, Past, open_cache
from llmfoundry.models.mpt.config import MPTConfig
from llmfoundry.models.mpt.config_checks import value_embedding_layers
from llmfoundry.models.mpt.outputs import MPTModelOutput
from llmfoundry.models.utils.act_ckpt import (
    build_act_ckpt_mod_to_blocks,
    check_mapping_blocks_overlap,
    pass_on_block_idx,
)
from llmfoundry.models.utils.param_init_fns import init_own_params_

__all__ = ["MPTModel", "MPTPreTrainedModel", "index_in_document"]


class MPTPreTrainedModel(PreTrainedModel):
    """What MPT models share: their configuration, and how their parameters are initialised."""

    config_class = MPTConfig
    base_model_prefix = "model"
    _no_split_modules = ["MPTBlock"]
    _supports_sdpa = True

    def param_init_fn(self, module: torch.nn.Module) -> None:
        """Initialises the parameters that ``module`` itself owns, as ``init_config`` says."""
        config = self.config
        if isinstance(module, (LanguageModelHead, ValueGate)):
            # A head as published models have it: init_config is for the backbone.
            module.reset_parameters()
            return
        init_own_params_(module, config.init_config, config.n_layers, config.d_model)

    @torch.no_grad()
    def _init_weights(self, module: torch.nn.Module) -> None:
        """Initialises what transformers did not find in a checkpoint, and nothing else."""
        own = dict(module.named_parameters(recurse=False))
        if any(param.is_meta for param in own.values()):
            return
        loaded = {
            name: param.clone()
            for name, param in own.items()
            if getattr(param, "_is_hf_initialized", False)
        }
        if own and len(loaded) == len(own):
            return
        self.param_init_fn(module)
        for name, value in loaded.items():
            own[name].copy_(value)

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> Any:
        """Resizes all that has a row for each token, as transformers does; returns the first."""
        embedding: Any = super().resize_token_embeddings(*args, **kwargs)
        for module in self.modules():
            if isinstance(module, ValueEmbedding):
                module.resize(embedding.num_embeddings)
        return embedding


class MPTModel(MPTPreTrainedModel):
    """Turns tokens into hidden states.

    Args:
        config: The model's description. Biases go with ``no_bias``; an ``init_device`` of ``mixed``
            becomes cpu on rank 0 and meta elsewhere.
    """

    share: SequenceShare | None = None
    """What this rank computes of each sequence, where ranks compute sequences together."""

    def __init__(self, config: MPTConfig) -> None:
        _settle_init_device(config)
        super().__init__(config)
        attn_config = config.attn_config
        self.attn_impl = attn_config["attn_impl"]
        self.attn_uses_sequence_id = attn_config["attn_uses_sequence_id"]
        self.alibi = attn_config["alibi"]
        self.alibi_bias_max = attn_config["alibi_bias_max"]
        self.rope = attn_config["rope"]
        self.rope_impl = attn_config["rope_impl"] if self.rope else None
        self.learned_pos_emb = config.learned_pos_emb
        self.embedding_fraction = config.embedding_fraction
        self.is_causal = True
        self.shift_labels = True
        self.attn_bias_shape = attn_bias_shape(
            self.attn_impl,
            config.n_heads,
            config.max_seq_len,
            self.alibi,
            causal=True,
            use_sequence_id=self.attn_uses_sequence_id,
        )
        if config.norm_type.lower() not in norms:
            raise NotImplementedError(
                f"Requested norm type ({config.norm_type}) is not implemented within this repo "
                f"(Options: {' | '.join(norms.names())})."
            )
        # What torch draws for new layers is overwritten; without it, a model starts with the same
        # numbers on whatever device it is built, meta too.
        with torch.random.fork_rng(devices=[]):
            self._build_layers(config)
        ffn: Any = self.blocks[0].ffn
        self.mb_args = ffn.args if getattr(ffn, "gives_routing", False) else None
        if config.no_bias:
            self._drop_biases()
        self.post_init()

    def _build_layers(self, config: MPTConfig) -> None:
        device = config.init_device
        self.wte = SharedEmbedding(
            config.vocab_size,
            config.d_model,
            padding_idx=getattr(config, "pad_token_id", None),
            device=device,
        )
        if self.learned_pos_emb:
            self.wpe = torch.nn.Embedding(config.max_seq_len, config.d_model, device=device)
        self.emb_drop = torch.nn.Dropout(config.emb_pdrop)
        self.blocks = self.construct_blocks(config)
        self.norm_f = build_norm(
            config.norm_type.lower(), config.d_model, eps=config.norm_eps, device=device
        )
        self.rotary_embedding: RotaryEmbedding | None = None
        if self.rope:
            self.rotary_embedding = gen_rotary_embedding(
                max_seq_len=config.max_seq_len,
                d_model=config.d_model,
                n_heads=config.n_heads,
                head_dim=config.head_dim,
                **{
                    key: config.attn_config[key]
                    for key in ("rope_impl", "rope_theta", "rope_dail_config", "rope_hf_config")
                },
            )
        settings = [block.get("attn_config", {}) for block in self.block_args]
        self._uses_temperature = any(
            a["attn_temperature_tuning"]["attn_scale"] != 0.0 for a in settings
        )
        self._grows = self.rotary_embedding is not None and self.rotary_embedding.grows
        # Temperatures count padding, as old models did, unless they are given position_ids, as
        # generation does so that a batch changes nothing (dynamic RoPE takes none with a cache).
        self.temperature_wants_positions = self._uses_temperature and not self._grows

    @property
    def block_class(self) -> type[MPTBlock]:
        """The class of the blocks."""
        return MPTBlock

    def construct_blocks(self, config: MPTConfig) -> torch.nn.ModuleList:
        """Returns the blocks, each with its overrides and its place."""
        plan = plan_blocks(config.to_dict())
        self.block_args = plan.block_args
        self.state_cache_layers = plan.state_cache_layers
        with_tables = value_embedding_layers(config.attn_config, config.n_layers)
        blocks = torch.nn.ModuleList()
        for index, block_args in enumerate(plan.block_args):
            arguments = self.extract_block_args(block_args)
            if index in with_tables:
                table = {"value_vocab_size": config.vocab_size}
                arguments["attn_config"] = arguments["attn_config"] | table
            block: Any = self.block_class(device=config.init_device, **arguments)
            block.block_idx, block.max_block_idx = index, config.n_layers - 1
            pass_on_block_idx(block)
            blocks.append(block)
        return blocks

    def extract_block_args(self, block_args: dict[str, Any]) -> dict[str, Any]:
        """Returns the arguments of a block, from the configuration that holds for it."""
        return dict(block_args)

    def _drop_biases(self) -> None:
        for module in self.modules():
            is_linear = isinstance(module, torch.nn.Linear)
            if not is_linear and isinstance(getattr(module, "bias", None), torch.nn.Parameter):
                module.register_parameter("bias", None)

    def use_alibi(self, max_sequence_length: int) -> None:
        """Replaces learned positions by ALiBi, which the Alibi algorithm of composer asks for.

        Args:
            max_sequence_length: The longest sequence that the model is to read.

        Raises:
            ValueError: Positions are rotary.
        """
        if self.rope:
            raise ValueError("ALiBi replaces learned positions, not rotary ones; set rope: False.")
        config = self.config
        self.alibi = config.attn_config["alibi"] = True
        self.learned_pos_emb = config.learned_pos_emb = False
        config.max_seq_len = max_sequence_length
        self._modules.pop("wpe", None)

    def get_input_embeddings(self) -> torch.nn.Module:
        """Returns the token embedding."""
        return self.wte

    def set_input_embeddings(self, value: torch.nn.Module) -> None:
        """Replaces the token embedding."""
        assert isinstance(value, torch.nn.Embedding)
        self.wte = SharedEmbedding.around(value)

    def get_sequence_length(self, x: torch.Tensor) -> int:
        """Returns how many positions an input has."""
        return x.size(1)

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        past_key_values: Any = None,
        attention_mask: torch.Tensor | None = None,
        sequence_id: torch.Tensor | None = None,
        return_dict: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        use_cache: bool | None = None,
        inputs_embeds: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        cache: Any = None,
    ) -> MPTModelOutput:
        """Returns the last hidden state and what else is asked for.

        Args:
            input_ids: Tokens ``[B, S]``.
            past_key_values: The past: a transformers ``Cache``, or a tuple of keys and values for
                each layer.
            attention_mask: ``[B, T]``, past and present; False at padding.
            sequence_id: The document of each position ``[B, S]``, -1 at padding.
            return_dict: True or None.
            output_attentions: Whether attention weights are returned.
            output_hidden_states: Whether each block's input is returned.
            use_cache: Whether the past is extended and returned.
            inputs_embeds: Embeddings ``[B, S, E]`` instead of tokens.
            position_ids: Positions ``[B, S]``; by default they count on from the past.
            cache: Another name of ``past_key_values``.

        Raises:
            NotImplementedError: Training with left padding, or ``return_dict=False``.
            ValueError: Inputs contradict each other.
        """
        self._check_inputs(input_ids, inputs_embeds, attention_mask, sequence_id, return_dict)
        use_cache = bool(self.config.use_cache if use_cache is None else use_cache)
        past_key_values = past_key_values if cache is None else cache
        past = open_cache(past_key_values, use_cache, self.config.n_layers)
        source: Any = inputs_embeds if input_ids is None else input_ids
        seq_len = self.get_sequence_length(source)
        assert seq_len <= self.config.max_seq_len or self._grows, (
            f"Cannot forward input with seq_len={seq_len}, this model only supports "
            f"seq_len<={self.config.max_seq_len}"
        )
        if self._grows and past.cache is not None and position_ids is not None:
            raise ValueError(
                "rope_hf_config of type dynamic counts positions itself where there is a cache; "
                "leave out position_ids, or use_cache."
            )
        mask_BT = None if attention_mask is None else attention_mask.bool()
        key_mask_BT = drop_trivial_mask(mask_BT)
        if self.training and key_mask_BT is not None and is_left_padded(key_mask_BT):
            raise NotImplementedError(
                "MPT does not support training with left padding. Pad on the right."
            )
        positions = self._positions(source, past.length, key_mask_BT, position_ids)
        keep = self._keep(past, bool(output_attentions or output_hidden_states))
        own = keep(source)
        x_BSE = self.wte(own) if inputs_embeds is None else own
        if self.learned_pos_emb:
            x_BSE = x_BSE + self.wpe(keep(positions))
        if self.embedding_fraction != 1:
            kept = self.embedding_fraction
            x_BSE = x_BSE * kept + x_BSE.detach() * (1 - kept)
        counted_BS = None if position_ids is None else positions
        context = self._context(
            x_BSE, past, key_mask_BT, sequence_id, positions, counted_BS, bool(output_attentions)
        )
        context.ids_BS = own if inputs_embeds is None else None
        mask_BS = None if mask_BT is None else keep(mask_BT)
        return self._run_blocks(
            self.emb_drop(x_BSE), context, past, mask_BS, bool(output_hidden_states)
        )

    def _keep(self, past: Past, needs_all_layers: bool) -> Callable[[torch.Tensor], torch.Tensor]:
        """Returns what leaves of a whole sequence those positions that are computed here."""
        if self.share is None or past.cache is not None:
            return _all_of
        if needs_all_layers:
            raise NotImplementedError(
                "output_attentions and output_hidden_states are not available with context "
                "parallelism, where no rank has those of a whole sequence."
            )
        return self.share.keep

    def _check_inputs(
        self,
        input_ids: torch.Tensor | None,
        inputs_embeds: torch.Tensor | None,
        attention_mask: torch.Tensor | None,
        sequence_id: torch.Tensor | None,
        return_dict: bool | None,
    ) -> None:
        if return_dict is False:
            raise NotImplementedError("return_dict False is not implemented yet for MPT")
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("You must specify exactly one of input_ids and inputs_embeds.")
        if self.training and self.attn_uses_sequence_id and sequence_id is None:
            raise ValueError(
                "sequence_id is a required argument when MPT is configured with "
                "attn_uses_sequence_id=True and the model is in train mode."
            )
        if sequence_id is not None and not self.attn_uses_sequence_id:
            _warn_sequence_id_is_ignored()

    def _positions(
        self,
        source: torch.Tensor,
        past_length: int,
        key_mask_BT: torch.Tensor | None,
        position_ids: torch.Tensor | None,
    ) -> torch.Tensor:
        """Returns positions ``[B or 1, S]``, counted from each row's first token."""
        seq_len = self.get_sequence_length(source)
        end = past_length + seq_len
        if self.learned_pos_emb and end > self.config.max_seq_len:
            raise ValueError(
                f"Cannot forward input with past sequence length {past_length} and current "
                f"sequence length {seq_len}, this model only supports total sequence length <= "
                f"{self.config.max_seq_len}."
            )
        return count_positions(past_length, end, source.device, key_mask_BT, position_ids)

    def _context(
        self,
        x_BSE: torch.Tensor,
        past: Past,
        key_mask_BT: torch.Tensor | None,
        sequence_id: torch.Tensor | None,
        positions: torch.Tensor,
        counted_BS: torch.Tensor | None,
        needs_weights: bool,
    ) -> AttentionContext:
        """Computes, once for all layers, masks, rotary tables and positions."""
        length, device = past.length + positions.size(1), x_BSE.device
        sequence_id = sequence_id if self.attn_uses_sequence_id and past.length == 0 else None
        slopes_H = None
        if self.alibi:
            slopes_H = gen_slopes(
                self.config.n_heads, self.alibi_bias_max, device=device, return_1d=True
            )
        masks = AttentionMasks(
            positions.size(1), length, device, key_mask_BT, sequence_id, slopes_H
        )
        index_BS = torch.arange(past.length, length, device=device)[None]
        position_BS = None
        if self._uses_temperature:
            counted_BS = index_BS if counted_BS is None else counted_BS
            position_BS = counted_BS if sequence_id is None else index_in_document(sequence_id)
        share = self.share if past.cache is None else None
        if share is not None:
            index_BS, positions = share.keep(index_BS), share.keep(positions)
            position_BS = None if position_BS is None else share.keep(position_BS)
        rotary = None
        if self.rotary_embedding is not None:
            placed, n_queries = positions, None
            if self._grows and past.cache is not None:
                placed = count_positions(0, length, device, key_mask_BT)
                n_queries = index_BS.size(1)
            elif not self.rotary_embedding.follows_padding:
                placed = index_BS
            rotary = self.rotary_embedding(placed, length, autocast_dtype(x_BSE), n_queries)
        parts = () if share is None else masks.of_share(share)
        return AttentionContext(masks, rotary, position_BS, past.cache, needs_weights, share, parts)

    def _run_blocks(
        self,
        x_BSE: torch.Tensor,
        context: AttentionContext,
        past: Past,
        mask_BT: torch.Tensor | None,
        output_hidden_states: bool,
    ) -> MPTModelOutput:
        hidden_states: tuple[torch.Tensor, ...] = ()
        attentions: tuple[Any, ...] = ()
        key_values: dict[int, KeyValue] = {}
        inputs: dict[int, torch.Tensor] = {}
        routings: list[Routing] = []
        kept_kv = self.state_cache_layers.get("reuse_kv_layer_idx", ())
        mixes_values = bool(self.config.attn_config.get("value_residual"))
        kept_x = self.state_cache_layers.get("reuse_kv_x_layer_idx", ())
        for index, block in enumerate(self.blocks):
            if output_hidden_states:
                hidden_states += (x_BSE,)
            if index in kept_x:
                inputs[index] = x_BSE
            attn_config = self.block_args[index]["attn_config"]
            source = attn_config.get("reuse_kv_layer_idx")
            if source is None and mixes_values and index > 0:
                source = 0
            x_BSE, weights, key_value, *routing = block(
                x_BSE,
                context,
                attention_mask=mask_BT,
                prev_layer_key_value=_kept(key_values, source),
                x_prev=_kept(inputs, attn_config.get("reuse_kv_x_layer_idx")),
            )
            if index in kept_kv or (mixes_values and index == 0):
                key_values[index] = key_value
            attentions += (weights,)
            routings += routing
        x_BSE = self.norm_f(x_BSE)
        return MPTModelOutput(
            last_hidden_state=x_BSE,
            hidden_states=(*hidden_states, x_BSE) if output_hidden_states else None,
            attentions=attentions if context.needs_weights else None,
            routing=sum_routings(routings) if routings else None,
            **{CACHE_FIELD: past.handed_back()},
        )

    def fsdp_wrap_fn(self, module: torch.nn.Module) -> bool | dict[str, Any]:
        """Says whether ``module`` is a unit of sharding, or with which settings."""
        own_settings: Any = getattr(module, "_fsdp_kwargs_dict", None)
        if own_settings is not None:
            return own_settings
        if isinstance(module, (SharedEmbedding, LanguageModelHead)):
            # A tied embedding is needed first and last: it stays whole in between, in the root.
            return not self.config.tie_word_embeddings
        return isinstance(module, (MPTBlock, ValueEmbedding))

    def activation_checkpointing_fn(self, module: torch.nn.Module) -> bool:
        """Says whether ``module`` recomputes its activations in the backward pass."""
        block_idx = getattr(module, "block_idx", None)
        if block_idx is None:
            return False
        return any(
            isinstance(module, kind) and (-1 in blocks or block_idx in blocks)
            for kind, blocks in self._checkpointed()
        )

    def _checkpointed(self) -> Iterator[tuple[type, list[int]]]:
        last = self.config.n_layers - 1
        target = getattr(self.config, "activation_checkpointing_target", None)
        mapping = build_act_ckpt_mod_to_blocks(target, MPTBlock, last)
        check_mapping_blocks_overlap(mapping, last)
        yield from mapping.items()


def _settle_init_device(config: MPTConfig) -> None:
    """Makes ``mixed`` what it means on this process: rank 0 alone has weights."""
    if config.init_device == "mixed":
        is_first = int(os.environ.get("RANK", "0")) == 0
        config.init_device = "cpu" if is_first else "meta"


def _all_of(whole: torch.Tensor) -> torch.Tensor:
    return whole


def _kept(states: dict[int, Any], index: int | None) -> Any:
    return None if index is None else states[index]


@functools.cache
def _warn_sequence_id_is_ignored() -> None:
    """Warns once in a process, where a loader may give sequence ids with every batch."""
    warnings.warn(
        "MPT received non-None input for `sequence_id` but is configured with "
        "attn_uses_sequence_id=False. This input will be ignored. If you want the model to use "
        "`sequence_id`, set attn_uses_sequence_id to True.",
        stacklevel=4,
    )
