"""Splits sequences over ranks: each computes its share, and attends to the keys of all.

Attention hides later keys, so a rank that had the last part would have the most to do. A sequence
is cut in twice as many pieces as there are ranks, and each takes one from the front and its
counterpart from the back.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from composer.distributed.mesh import CONTEXT, SHARD, build_mesh
from composer.utils.parallelism import CPConfig

__all__ = ["SequenceShare", "prepare_cp_module"]

_IGNORED = -100


def prepare_cp_module(model: torch.nn.Module, cp_config: CPConfig) -> None:
    """Has a model compute this rank's share of each sequence, in place.

    Ranks of a group are given one batch. A rank's loss is the sum over its own targets, divided by
    those of the batch and times the number of ranks: its mean over ranks, as they average their
    gradients, is the loss of the whole.

    A model takes part by ``split_sequences(share)``; Hugging Face causal language models do so
    without.

    Args:
        model: The model, or the ComposerModel that holds it.
        cp_config: The mesh or degree.

    Raises:
        ValueError: If the model cannot be split.
    """
    mesh = cp_config.device_mesh
    if mesh is None:
        kind = "cuda" if next(model.parameters()).is_cuda else "cpu"
        mesh = build_mesh(kind, {SHARD: -1, CONTEXT: cp_config.context_parallel_degree})[CONTEXT]
        cp_config.device_mesh = mesh
    share = SequenceShare(mesh)
    for module in model.modules():
        split_sequences: Any = getattr(module, "split_sequences", None)
        if split_sequences is not None:
            split_sequences(share)
            return
    for module in model.modules():
        if hasattr(module, "set_attn_implementation"):
            _SplitHuggingFaceModel(module, share, lambda: _has_train_metrics(model))
            return
    raise ValueError(
        f"context parallelism cannot split a {type(model).__name__}: it takes MPT, Hugging Face "
        "causal language models, and models that offer split_sequences(share)"
    )


def _has_train_metrics(model: torch.nn.Module) -> bool:
    get_metrics: Any = getattr(model, "get_metrics", None)
    return get_metrics is not None and bool(get_metrics(is_train=True))


class SequenceShare:
    """Cuts this rank's share out of sequences, and puts the shares of all ranks together.

    Sequences whose length does not divide are padded on the right.

    Args:
        mesh: The mesh of the ranks that compute one sequence together, which has one axis.
    """

    def __init__(self, mesh: Any) -> None:
        self.mesh = mesh
        self.rank: int = mesh.get_local_rank()
        self.size: int = mesh.size()

    def piece_length(self, length: int) -> int:
        """Returns how long each of the pieces of a sequence is."""
        return -(-length // (2 * self.size))

    def ends(self, length: int) -> tuple[int, int]:
        """Returns where the two pieces of this rank end in the (padded) sequence."""
        piece = self.piece_length(length)
        return (self.rank + 1) * piece, (2 * self.size - self.rank) * piece

    def pad(self, whole: torch.Tensor, fill: float = 0, dim: int = 1) -> torch.Tensor:
        """Returns a sequence padded to the length at which all pieces are full."""
        length = whole.size(dim)
        missing = 2 * self.size * self.piece_length(length) - length
        if missing == 0:
            return whole
        shape = [missing if axis == dim else size for axis, size in enumerate(whole.shape)]
        return torch.cat([whole, whole.new_full(shape, fill)], dim=dim)

    def keep(self, whole: torch.Tensor, fill: float = 0, dim: int = 1) -> torch.Tensor:
        """Returns this rank's two pieces of a whole sequence, one after the other.

        Args:
            whole: What has a place for each position of the sequence.
            fill: What stands at padding.
            dim: The dimension of positions.
        """
        piece = self.piece_length(whole.size(dim))
        padded = self.pad(whole, fill, dim)
        starts = (end - piece for end in self.ends(whole.size(dim)))
        return torch.cat([padded.narrow(dim, start, piece) for start in starts], dim=dim)

    def gather(self, share: torch.Tensor, dim: int = 1) -> torch.Tensor:
        """Returns the (padded) sequence of which each rank gives its share.

        The gradient of a share is the sum of those of all ranks.
        """
        return self.gather_each([share], dim)[0]

    def gather_each(self, shares: Sequence[torch.Tensor], dim: int = 1) -> list[torch.Tensor]:
        """Returns the sequences of which each rank gives its shares, all of one shape, at once."""
        from torch.distributed.tensor import DTensor, Partial, Shard

        own = DTensor.from_local(
            torch.stack([*shares]), self.mesh, [Shard(dim + 1)], run_check=False
        )
        pieces = own.full_tensor(grad_placements=[Partial()]).chunk(2 * self.size, dim=dim + 1)
        in_order = [*pieces[0::2], *pieces[::-2]]
        return [torch.cat([piece[i] for piece in in_order], dim) for i in range(len(shares))]


class _SplitHuggingFaceModel:
    """Stands between a transformers model and its attention, and before and after its forward."""

    def __init__(self, model: Any, share: SequenceShare, keeps_logits: Callable[[], bool]) -> None:
        from transformers import AttentionInterface, AttentionMaskInterface

        _check_hugging_face_model(model)
        self.share = share
        self.keeps_logits = keeps_logits
        self.length = 0
        """How long the sequences of the running forward are; 0 if it is not split."""
        self.documents: torch.Tensor | None = None
        self.hides_only_later_keys = False
        self.logits_to_keep: int | torch.Tensor = 0
        name = f"context_parallel_{id(self)}"
        AttentionInterface.register(name, self.attend)
        AttentionMaskInterface.register(name, self.mask)
        model.set_attn_implementation(name)
        model.register_forward_pre_hook(self.before, with_kwargs=True)
        model.register_forward_hook(self.after)

    def before(
        self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Cuts the inputs; a forward that caches keys, to generate, stays whole on each rank."""
        from transformers.masking_utils import find_packed_sequence_indices

        caches = any(kwargs.get(key) for key in ("use_cache", "cache", "past_key_values"))
        if caches:
            self.length = 0
            return None
        if args or kwargs.get("output_attentions") or kwargs.get("output_hidden_states"):
            raise ValueError(
                "with context parallelism a model is called with keyword arguments, and returns "
                "neither attentions nor hidden states"
            )
        keys = [key for key in ("input_ids", "inputs_embeds") if kwargs.get(key) is not None]
        source = kwargs[keys[0]]
        rows, self.length = source.shape[:2]
        mask, positions = kwargs.get("attention_mask"), kwargs.get("position_ids")
        self.documents = None
        if positions is None:
            positions = torch.arange(self.length, device=source.device)[None]
        elif mask is None and not module.config.use_cache:  # as transformers finds documents
            documents = find_packed_sequence_indices(positions.expand(rows, -1))
            self.documents = None if documents is None else self.share.pad(documents, -1)
        self.hides_only_later_keys = self.documents is None and (mask is None or bool(mask.all()))
        if mask is None:
            mask = torch.ones(rows, self.length, dtype=torch.bool, device=source.device)
        cut = {key: self.share.keep(kwargs[key]) for key in keys}
        cut |= {"position_ids": self.share.keep(positions), "attention_mask": self.share.pad(mask)}
        if kwargs.get("labels") is not None:
            cut |= self._targets(kwargs["labels"])
        self.logits_to_keep = kwargs.get("logits_to_keep", 0)
        return args, {**kwargs, **cut, "use_cache": False, "logits_to_keep": 0}

    def _targets(self, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        targets = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=_IGNORED)
        own = self.share.keep(targets, _IGNORED)
        count = (targets != _IGNORED).sum().clamp(min=1)
        return {"labels": own, "shift_labels": own, "num_items_in_batch": count / self.share.size}

    def after(self, module: torch.nn.Module, args: tuple[Any, ...], outputs: Any) -> None:
        """Puts the logits of all ranks together, where anybody needs them."""
        if not self.length:
            return
        if outputs.loss is not None and module.training and not self.keeps_logits():
            outputs.logits = None
            return
        with torch.set_grad_enabled(torch.is_grad_enabled() and outputs.loss is None):
            logits = self.share.gather(outputs.logits)
        # Views only where needed: fully_shard warns of a module that returns one.
        if logits.size(1) != self.length:
            logits = logits[:, : self.length]
        kept = self.logits_to_keep
        if isinstance(kept, torch.Tensor):
            logits = logits[:, kept]
        elif kept:
            logits = logits[:, -kept:]
        outputs.logits = logits

    def mask(self, batch_size: int, **kwargs: Any) -> torch.Tensor | None:
        """Returns which keys of the whole sequence this rank's queries see, None for earlier."""
        from transformers.masking_utils import and_masks, packed_sequence_mask_function, sdpa_mask

        if not self.length:
            return sdpa_mask(batch_size, **kwargs)
        narrow = kwargs.pop("local_size", None) is not None
        if kwargs.pop("allow_is_causal_skip", True) and self.hides_only_later_keys and not narrow:
            return None
        function = kwargs.pop("mask_function")
        if self.documents is not None:
            function = and_masks(function, packed_sequence_mask_function(self.documents))
        piece = self.share.piece_length(self.length)
        for key in ("q_length", "kv_length", "q_offset", "kv_offset"):
            kwargs.pop(key)
        rows: list[Any] = [
            sdpa_mask(
                batch_size,
                q_length=piece,
                kv_length=2 * self.share.size * piece,
                q_offset=end - piece,
                mask_function=function,
                allow_is_causal_skip=False,
                **kwargs,
            )
            for end in self.share.ends(self.length)
        ]
        return torch.cat(rows, dim=2)

    def attend(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, None]:
        """Returns what this rank's queries see of all ranks' values."""
        from torch.nn.attention.bias import causal_lower_right  # brings the compiler along
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        if not self.length:
            return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
        key, value = self.share.gather_each([key, value], dim=2)
        kwargs["is_causal"] = False
        outputs = []
        start, piece = 0, self.share.piece_length(self.length)
        for end in self.share.ends(self.length):
            seen: Any = None
            if attention_mask is not None:
                seen = attention_mask[:, :, start : start + piece, :end]
            elif piece > 1:
                seen = causal_lower_right(piece, end)
            part = query[:, :, start : start + piece]
            outputs.append(
                sdpa_attention_forward(
                    module, part, key[:, :, :end], value[:, :, :end], seen, **kwargs
                )[0]
            )
            start += piece
        return torch.cat(outputs, dim=1), None


def _check_hugging_face_model(model: Any) -> None:
    takes_any = any(
        parameter.kind is inspect.Parameter.VAR_KEYWORD
        for parameter in inspect.signature(type(model).forward).parameters.values()
    )
    if getattr(model, "loss_type", None) != "ForCausalLM" or not takes_any:
        raise ValueError(
            f"context parallelism cannot split a {type(model).__name__}: of Hugging Face models it "
            "takes causal language models of transformers 5"
        )
    implementation = model.config._attn_implementation
    if implementation != "sdpa":
        raise ValueError(
            f"context parallelism takes the place of the attention implementation 'sdpa', and the "
            f"model has {implementation!r}: build it with attn_implementation='sdpa'"
        )
