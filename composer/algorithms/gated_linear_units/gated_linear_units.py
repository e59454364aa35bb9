"""Gated linear units: feed-forward networks with a gate (Shazeer, 2002.05202)."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.optim import Optimizer

from composer.algorithms.gated_linear_units.gated_linear_unit_layers import BERTGatedFFOutput
from composer.algorithms.utils.surgery import ModelSurgery, OnNoMatch, report_no_match
from composer.core.event import Event
from composer.core.logger import Logger
from composer.core.state import State
from composer.utils.module_surgery import count_module_instances, replace_module_classes

ActFn = Callable[[torch.Tensor], torch.Tensor]


def from_BertOutput(
    layer: Any,
    module_index: int,
    act_fn: ActFn,
    gated_layer_bias: bool = False,
    non_gated_layer_bias: bool = False,
) -> BERTGatedFFOutput:
    """Makes the gated network that stands for a BertOutput, initialised anew."""
    del module_index
    weight = layer.dense.weight
    gated = BERTGatedFFOutput(
        d_embed=layer.dense.out_features,
        d_ff=layer.dense.in_features,
        dropout_rate=layer.dropout.p,
        act_fn=act_fn,
        layernorm_eps=layer.LayerNorm.eps,
        gated_layer_bias=gated_layer_bias,
        non_gated_layer_bias=non_gated_layer_bias,
    )
    return gated.to(weight.device, weight.dtype).train(layer.training)


def from_BertIntermediate(layer: Any, module_index: int) -> torch.nn.Identity:
    """Makes what stands for a BertIntermediate, whose work the gated network does."""
    del layer, module_index
    return torch.nn.Identity()


def apply_gated_linear_units(
    model: torch.nn.Module,
    optimizers: Optimizer | Sequence[Optimizer] | None = None,
    act_fn: ActFn | None = None,
    gated_layer_bias: bool = False,
    non_gated_layer_bias: bool = False,
    on_no_match: OnNoMatch = "raise",
) -> None:
    """Replaces the feed-forward networks of a BERT by gated ones, initialised anew, in place.

    Args:
        model: A BERT of transformers, or a HuggingFaceModel of one.
        optimizers: The optimizer, whose parameters are exchanged too.
        act_fn: What gates go through; by default the networks' own activation.
        gated_layer_bias: Whether the projections that are gated have a bias.
        non_gated_layer_bias: Whether the other ones have a bias.
        on_no_match: ``"raise"`` or ``"warn"`` if there is no feed-forward network.

    Raises:
        NoMatchError: If there is no feed-forward network.
        TypeError: If the model is no BERT.
        ValueError: If networks have different activations, so that ``act_fn`` has to say.
    """
    from transformers.models.bert import modeling_bert as bert

    unwrapped: Any = model
    if not isinstance(model, bert.BertPreTrainedModel):  # it may be in a HuggingFaceModel
        unwrapped = getattr(model, "model", model)
    if not isinstance(unwrapped, bert.BertPreTrainedModel):
        raise TypeError(
            f"GatedLinearUnits changes a BERT of transformers, not a {type(unwrapped).__name__}. "
            "Llama and its kin have gates; an MPT has them by ffn_config: {ffn_type: mptglu}."
        )
    inner = [module for module in unwrapped.modules() if isinstance(module, bert.BertIntermediate)]
    if count_module_instances(unwrapped, BERTGatedFFOutput):
        return  # they are gated already
    if not inner:
        report_no_match("GatedLinearUnits", "no BertIntermediate", on_no_match)
        return
    act = _common_activation(inner) if act_fn is None else act_fn

    policies: dict[Any, Any] = {
        bert.BertIntermediate: from_BertIntermediate,
        bert.BertOutput: partial(
            from_BertOutput,
            act_fn=act,
            gated_layer_bias=gated_layer_bias,
            non_gated_layer_bias=non_gated_layer_bias,
        ),
    }
    replace_module_classes(model, policies, optimizers)


def _common_activation(intermediates: Sequence[Any]) -> ActFn:
    found = [module.intermediate_act_fn for module in intermediates]
    if len({type(one) for one in found}) != 1:
        names = ", ".join(sorted({type(one).__name__ for one in found}))
        raise ValueError(
            f"The feed-forward networks have different activations ({names}); say in act_fn which "
            "one the gates go through."
        )
    return found[0]


class GatedLinearUnits(ModelSurgery):
    """Replaces the feed-forward networks of a BERT by gated ones, which learn more.

    Args:
        act_fn: What gates go through; by default the networks' own activation.
        gated_layer_bias: Whether the projections that are gated have a bias.
        non_gated_layer_bias: Whether the other ones have a bias.
        on_no_match: ``"raise"`` or ``"warn"`` if there is no feed-forward network.
    """

    def __init__(
        self,
        act_fn: ActFn | None = None,
        gated_layer_bias: bool = False,
        non_gated_layer_bias: bool = False,
        on_no_match: OnNoMatch = "raise",
    ) -> None:
        super().__init__(on_no_match)
        self.act_fn = act_fn
        self.gated_layer_bias = gated_layer_bias
        self.non_gated_layer_bias = non_gated_layer_bias

    def __repr__(self) -> str:
        text = super().__repr__()
        # A function cannot be made again from its text; the checkpoint says that there was one.
        return text if self.act_fn is None else text.replace(repr(self.act_fn), "act_fn", 1)

    def apply(self, event: Event, state: State, logger: Logger) -> int | None:
        """Changes the feed-forward networks of the model."""
        apply_gated_linear_units(
            state.model,
            state.optimizers,
            self.act_fn,
            self.gated_layer_bias,
            self.non_gated_layer_bias,
            self.on_no_match,
        )
        return None
