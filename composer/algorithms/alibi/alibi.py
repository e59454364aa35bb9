"""ALiBi: attention biased by distance instead of positions (Press et al., 2108.12409)."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.optim import Optimizer

from composer.algorithms.alibi.attention_surgery_functions.transformers_models import (
    register_classes_of,
)
from composer.algorithms.alibi.attention_surgery_functions.utils import policy_registry
from composer.algorithms.utils.surgery import ModelSurgery, OnNoMatch, report_no_match
from composer.core.event import Event
from composer.core.logger import Logger
from composer.core.state import State
from composer.utils.module_surgery import replace_module_classes, update_params_in_optimizer


def apply_alibi(
    model: torch.nn.Module,
    max_sequence_length: int,
    optimizers: Optimizer | Sequence[Optimizer] | None = None,
    on_no_match: OnNoMatch = "raise",
) -> None:
    """Replaces the positions of a model by a bias that falls with distance, in place.

    Learned positions become zeros and are frozen; rotary ones no longer rotate. It knows BERT,
    RoBERTa, GPT-2, and Llama and its kin of transformers; classes that are registered in
    ``policy_registry``; and models that have a method ``use_alibi(max_sequence_length)``, as MPT.

    Args:
        model: The model.
        max_sequence_length: The longest sequence that the model is to read.
        optimizers: The optimizer, whose parameters are exchanged too.
        on_no_match: ``"raise"`` or ``"warn"`` if nothing in the model is known.

    Raises:
        NoMatchError: If nothing in the model is known.
        NotImplementedError: If the model's attention cannot add a bias.
    """
    register_classes_of(model, policy_registry)
    before = list(model.parameters())
    count = 0
    for module in model.modules():
        use_alibi = getattr(module, "use_alibi", None)
        if use_alibi is not None:
            use_alibi(max_sequence_length)
            count += 1
    policies = {
        kind: partial(_call, function, max_sequence_length)
        for kind, function in policy_registry.items()
    }
    count += len(replace_module_classes(model, policies, recurse_on_replacements=True))
    for kind, policy in policies.items():
        if isinstance(model, kind):  # replace_module_classes leaves the root alone
            policy(model, 0)
            count += 1
    if not count:
        wanted = "no attention that ALiBi knows (GPT-2, BERT, RoBERTa, Llama and its kin, MPT)"
        report_no_match("Alibi", wanted, on_no_match)
    if optimizers:
        known = {id(parameter) for parameter in before}
        after = [p for p in model.parameters() if p.requires_grad or id(p) in known]
        update_params_in_optimizer(before, after, optimizers)


def _call(
    function: Any, max_sequence_length: int, module: torch.nn.Module, module_index: int
) -> torch.nn.Module | None:
    return function(module, module_index, max_sequence_length)


class Alibi(ModelSurgery):
    """Replaces positions by a bias on attention that falls with distance.

    A model that is trained so reads longer sequences than it was trained on. So training takes
    shorter ones, and more of them: the same tokens, in less time.

    A model of transformers that was saved for others is to be given to `apply_alibi` again when it
    is loaded: its configuration has no word for the bias. That of MPT has.

    Args:
        max_sequence_length: The longest sequence that the model is to read.
        train_sequence_length_scaling: What part of a sequence is one in training: 0.25 cuts each
            sequence into four. 1 leaves them alone.
        on_no_match: ``"raise"`` or ``"warn"`` if nothing in the model is known.

    Raises:
        ValueError: If the scaling is not in (0, 1], or the length not positive.
    """

    def __init__(
        self,
        max_sequence_length: int,
        train_sequence_length_scaling: float = 0.25,
        on_no_match: OnNoMatch = "raise",
    ) -> None:
        super().__init__(on_no_match)
        if max_sequence_length < 1:
            raise ValueError(f"max_sequence_length={max_sequence_length} must be positive.")
        if not 0 < train_sequence_length_scaling <= 1:
            raise ValueError(
                f"train_sequence_length_scaling={train_sequence_length_scaling} must be in (0, 1]."
            )
        self.max_sequence_length = max_sequence_length
        self.train_sequence_length_scaling = train_sequence_length_scaling
        self._applied = False

    def match(self, event: Event, state: State) -> bool:
        """Matches INIT once, and batches if they are to be cut."""
        if event == Event.INIT:
            return not self._applied
        return event == Event.AFTER_DATALOADER and self.train_sequence_length_scaling != 1

    def apply(self, event: Event, state: State, logger: Logger) -> int | None:
        """Changes the model, or cuts the sequences of a batch."""
        if event == Event.INIT:
            apply_alibi(state.model, self.max_sequence_length, state.optimizers, self.on_no_match)
            self._applied = True
        else:
            state.batch = _cut(state.batch, self.train_sequence_length_scaling)
        return None


def _cut(batch: Any, scaling: float) -> Any:
    """Cuts every sequence of a batch into parts, each of which becomes a sequence."""
    cure = "pass train_sequence_length_scaling=1 to Alibi to leave batches alone."
    if not isinstance(batch, Mapping):
        raise TypeError(f"A batch that is a {type(batch).__name__} has no sequences to cut; {cure}")
    cut: dict[Any, Any] = dict(batch)
    for name, value in batch.items():
        if isinstance(value, list):
            del cut[name]  # what it says of each row, such as its tokens, is not of the new rows
        if not isinstance(value, torch.Tensor):
            continue
        if value.ndim != 2:
            raise ValueError(f"{name!r} of shape {tuple(value.shape)} has no sequences; {cure}")
        size, length = int(value.shape[0] / scaling), int(value.shape[1] * scaling)
        if size * length != value.numel():
            raise ValueError(
                f"Sequences of {value.shape[1]} tokens cannot be cut to {scaling} of their length; "
                f"choose lengths that can, or {cure}"
            )
        cut[name] = value.reshape(size, length)
    return cut
