"""The mathematics of one optimizer step: micro-batches in, gradients, new weights, losses out."""

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from composer.core.engine import Engine
from composer.core.event import Event
from composer.core.state import State
from composer.models.base import ComposerModel
from composer.optim.grad_scaler import takes_closure
from composer.trainer._losses import Losses, named_losses
from composer.trainer._metrics import TrainMetrics
from composer.trainer._scaling import NoScaling
from composer.trainer._targets import Weigher, Weighted

_NOTHING = torch.Tensor()


class TrainStep:
    """Runs one optimizer step over the micro-batches of a batch, firing its events in order.

    Args:
        module: the model without its wrappers; its ``loss`` is called.
        autocast: makes the precision context of a forward pass.
        to_device: moves a micro-batch to the device and applies its transforms.
        gradient_sync: makes the context of a micro-batch, told whether it is the last one and
            whether replicas exchange gradients at all (SAM's first pass stays on each rank).
        attempt: makes the context of all micro-batches of a step, told whether replicas exchange
            gradients; on leaving it, gradients are those of all ranks, or it has raised on all.
    """

    def __init__(
        self,
        state: State,
        engine: Engine,
        *,
        module: ComposerModel,
        autocast: Callable[[], AbstractContextManager[Any]],
        to_device: Callable[[Any], Any],
        gradient_sync: Callable[[bool, bool], AbstractContextManager[Any]],
        attempt: Callable[[bool], AbstractContextManager[Any]],
        weigher: Weigher,
        scaling: NoScaling,
        metrics: TrainMetrics,
    ):
        self.state = state
        self.engine = engine
        self.module = module
        self.autocast = autocast
        self.to_device = to_device
        self.gradient_sync = gradient_sync
        self.attempt = attempt
        self.weigher = weigher
        self.scaling = scaling
        self.metrics = metrics
        self.create_graph = any(a.backwards_create_graph for a in state.algorithms)
        is_scaled = state.scaler is not None
        self.optimizer_takes_closure = any(_wants_closure(o, is_scaled) for o in state.optimizers)

    def run(self, microbatches: Sequence[Any]) -> Losses:
        """Accumulates gradients over the micro-batches; steps the optimizer unless told not to.

        The scale of fp16 is updated all the same: it must shrink where gradients overflowed.
        """
        if self.optimizer_takes_closure:
            return self._step_with_closure(microbatches)
        losses = self._accumulate(microbatches)
        if not self.state.step_is_skipped:
            for optimizer in self.state.optimizers:
                self.scaling.step(optimizer)
        self.scaling.update()
        return losses

    def _step_with_closure(self, microbatches: Sequence[Any]) -> Losses:
        passes: list[Losses] = []

        @torch.enable_grad()
        def closure(ddp_sync: bool = True, **_: Any) -> torch.Tensor | float:
            passes.append(self._accumulate(microbatches, ddp_sync))
            if self.state.step_is_skipped:
                if len(passes) == 1:
                    raise _StepLeftOut
                raise RuntimeError(
                    "a step of an optimizer that runs the forward and backward passes itself (SAM, "
                    "LBFGS) cannot be left out: it has begun to move the weights. Let it raise an "
                    "error instead, or use another optimizer."
                )
            return passes[-1].parts["total"]

        try:
            for optimizer in self.state.optimizers:
                self.scaling.step_with_closure(optimizer, closure)
        except _StepLeftOut:  # before the optimizer had done anything
            pass
        self.scaling.update()
        return passes[0]  # the loss before the step, not one at a point that the optimizer tried

    def _accumulate(self, microbatches: Sequence[Any], ddp_sync: bool = True) -> Losses:
        whole = self.state.batch
        self.state.step_is_skipped = False
        self.engine.run_event(Event.BEFORE_TRAIN_BATCH)
        for optimizer in self.state.optimizers:
            optimizer.zero_grad(set_to_none=True)
        self.metrics.reset()
        losses = Losses()
        weighted = self.weigher.weigh(microbatches)
        with self.attempt(ddp_sync):
            for index, item in enumerate(weighted):
                with self.gradient_sync(index == len(weighted) - 1, ddp_sync):
                    seen_by_metrics = self._microbatch(item, losses)
                if not item.is_repeated:
                    self.metrics.update(seen_by_metrics, self.state.outputs)
        self.state.batch = whole
        self.state.batch_loss = losses.parts["total"]
        self.scaling.unscale()
        self.engine.run_event(Event.AFTER_TRAIN_BATCH)
        return losses

    def _microbatch(self, item: Weighted, losses: Losses) -> Any:
        """Adds a micro-batch's gradients and losses; returns it as metrics are to see it."""
        fire, state = self.engine.run_event, self.state
        state.batch = self.to_device(item.batch)  # algorithms may replace it at any event below
        state.outputs = state.loss = _NOTHING  # or the last ones take memory beside the next
        seen_by_metrics = self.metrics.keep(state.batch)
        fire(Event.BEFORE_FORWARD)
        with self.autocast():
            state.outputs = state.model(state.batch)
        fire(Event.AFTER_FORWARD)
        fire(Event.BEFORE_LOSS)
        with self.autocast():
            state.loss = self.module.loss(state.outputs, state.batch)
        fire(Event.AFTER_LOSS)
        fire(Event.BEFORE_BACKWARD)
        named = named_losses(state.loss)
        total = torch.nan_to_num(named.total) if item.is_empty else named.total
        self.scaling.backward(item.share_of(total), create_graph=self.create_graph)
        fire(Event.AFTER_BACKWARD)
        if item.is_empty:
            named.parts = {name: torch.nan_to_num(part) for name, part in named.parts.items()}
        losses.add(named, item.weight)
        return seen_by_metrics


class _StepLeftOut(Exception):
    """Says that the optimizer is not to step on this batch."""


_KNOWN_HOMES = ("torch.optim", "composer.optim", "llmfoundry.optim")


def _wants_closure(optimizer: torch.optim.Optimizer, is_scaled: bool) -> bool:
    """Tells whether an optimizer is to be given the passes as its closure.

    One that needs it is; so is a user's own, of which nobody knows whether it needs the closure
    that it names (not with fp16, whose scaler unscales before the step).
    """
    if takes_closure(optimizer) or is_scaled:
        return takes_closure(optimizer)
    names_closure = "closure" in inspect.signature(optimizer.step).parameters
    return names_closure and not optimizer.step.__module__.startswith(_KNOWN_HOMES)
