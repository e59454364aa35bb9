"""The loss of a transformers language model without the logits of all tokens at once."""

import functools
import warnings
from typing import Any

import torch
from transformers.modeling_outputs import CausalLMOutputWithPast

from llmfoundry.models.hf.adapted_head import head_weight, is_plain_head
from llmfoundry.models.utils.chunked_cross_entropy import chunked_cross_entropy

__all__ = ["computes_loss_in_chunks", "with_chunked_loss"]

IGNORE_INDEX = -100
NOT_OF_THE_BODY = ("labels", "logits_to_keep", "num_items_in_batch")
PROBE_TOKENS = 64
TOLERANCE = 1e-2
"""Relative, for bf16; a head that does more than its product is off by far more."""


def with_chunked_loss(model: Any) -> bool:
    """Makes a causal language model, in place, compute its loss in chunks; says whether it can.

    With ``labels`` its forward then returns a loss and no logits, unless ``return_logits=True``
    asks for them; these have no gradient. The first loss is compared with the class's own, and if
    they differ, because the head does something that its configuration does not tell, the class's
    own forward is used from then on, with a warning.

    Args:
        model: A causal language model of transformers, not one around it.
    """
    head = model.get_output_embeddings()
    config = model.config.get_text_config()
    has_body = getattr(model, "base_model", model) is not model
    if not (has_body and is_plain_head(head)) or getattr(config, "output_router_logits", False):
        return False
    own = type(model)
    # A class, not an attribute: sharding changes the class too, and copies must not share a method.
    kind = type(
        own.__name__,
        (_ChunkedLoss, own),
        {"__module__": own.__module__, "__qualname__": own.__qualname__, "__doc__": own.__doc__},
    )
    kind.forward = _forward_like(own.forward)  # type: ignore[method-assign]
    model.__class__ = kind
    model.loss_is_checked = False
    return True


def computes_loss_in_chunks(model: Any) -> bool:
    """Says whether :func:`with_chunked_loss` changed a model."""
    return isinstance(model, _ChunkedLoss)


def _forward_like(own_forward: Any) -> Any:
    @functools.wraps(own_forward)  # the signature says what the model takes
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs.get("labels") is None or not self.chunks_its_loss:
            kwargs.pop("return_logits", None)
            return own_forward(self, *args, **kwargs)
        return self.forward_with_chunked_loss(**kwargs)

    return forward


class _ChunkedLoss:
    """The part that :func:`with_chunked_loss` puts before a model's own class."""

    chunks_its_loss = True
    loss_is_checked = True

    def forward_with_chunked_loss(self: Any, **kwargs: Any) -> CausalLMOutputWithPast:
        """Returns the mean loss per target, and logits without gradients if they are asked for."""
        return_logits = kwargs.pop("return_logits", False)
        if not self.loss_is_checked:
            self.loss_is_checked = True
            if not self._agrees_with_its_class(kwargs):
                self.chunks_its_loss = False
                return self.forward(**kwargs)  # hooks have run for this call
        loss, hidden = self._chunked_loss(kwargs)
        logits = None
        if return_logits:
            with torch.no_grad():
                logits = self._logits_like_its_class(hidden)
        return CausalLMOutputWithPast(loss=loss, logits=logits)

    def _chunked_loss(self: Any, kwargs: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = {key: each for key, each in kwargs.items() if key not in NOT_OF_THE_BODY}
        hidden = self.base_model(**inputs)[0]
        targets = kwargs["labels"][:, 1:].flatten()
        scale, cap = _of_the_head(self.config)
        summed = chunked_cross_entropy(
            hidden[:, :-1].flatten(0, 1),
            head_weight(self.get_output_embeddings()),
            targets,
            ignore_index=IGNORE_INDEX,
            logit_scale=scale,
            softcap=cap,
        )
        return summed / (targets != IGNORE_INDEX).sum().clamp(min=1), hidden

    def _logits_like_its_class(self: Any, hidden: torch.Tensor) -> torch.Tensor:
        logits = self.get_output_embeddings()(hidden)
        scale, cap = _of_the_head(self.config)
        logits = logits if scale is None else logits * scale
        return logits if cap is None else cap * torch.tanh(logits / cap)

    @torch.no_grad()
    def _agrees_with_its_class(self: Any, kwargs: dict[str, Any]) -> bool:
        """Compares both losses on the beginning of a row."""
        labels = kwargs["labels"]
        inputs = {"labels": labels[:1, :PROBE_TOKENS]}
        for key in ("input_ids", "inputs_embeds"):
            if kwargs.get(key) is not None:
                inputs[key] = kwargs[key][:1, :PROBE_TOKENS]
        if (inputs["labels"][:, 1:] == IGNORE_INDEX).all():  # nothing to compare: every token then
            inputs["labels"] = inputs.get("input_ids", torch.zeros_like(inputs["labels"]))
        modes = {module: module.training for module in self.modules()}
        self.eval()
        self.chunks_its_loss = False
        own = self.forward(**inputs)
        self.chunks_its_loss = True
        loss, hidden = self._chunked_loss(inputs)
        logits = self._logits_like_its_class(hidden)
        for module, mode in modes.items():  # not train(): a part may be in eval mode by itself
            module.training = mode
        # The loss alone would not tell: logits of fresh weights are so small that no factor shows.
        off = (logits.float() - own.logits.float()).norm() / own.logits.float().norm()
        if float(off) <= TOLERANCE and torch.isclose(
            loss.float(), own.loss.float(), rtol=TOLERANCE
        ):
            return True
        warnings.warn(
            f"{type(self).__name__} computes its loss otherwise than from its head and its "
            f"configuration ({float(own.loss):.4f}, not {float(loss):.4f}; logits differ by "
            f"{float(off):.1%}): its own forward is used, which holds the logits of all tokens.",
            stacklevel=2,
        )
        return False


def _of_the_head(config: Any) -> tuple[float | None, float | None]:
    """What a configuration says that happens to logits: a factor and a cap."""
    text = config.get_text_config()
    scale = getattr(text, "logit_scale", None)
    divisor = getattr(text, "logits_scaling", None)
    if divisor is not None:
        scale = (1.0 if scale is None else scale) / divisor
    caps = (getattr(text, name, None) for name in ("final_logit_softcapping", "logits_soft_cap"))
    return scale, next((cap for cap in caps if cap is not None), None)
