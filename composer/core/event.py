"""The moments of training at which algorithms, callbacks and loggers are called."""

from __future__ import annotations

from composer.utils.string_enum import StringEnum


class Event(StringEnum):
    """Names each moment of training; a callback's methods are named after its values.

    The order in which they fire is in the training, evaluation and prediction loops of
    ``composer.trainer``, and drawn in the documentation.
    """

    INIT = "init"
    BEFORE_LOAD = "before_load"
    AFTER_LOAD = "after_load"
    FIT_START = "fit_start"

    ITERATION_START = "iteration_start"
    EPOCH_START = "epoch_start"
    BEFORE_DATALOADER = "before_dataloader"
    AFTER_DATALOADER = "after_dataloader"
    BATCH_START = "batch_start"

    BEFORE_TRAIN_BATCH = "before_train_batch"
    BEFORE_FORWARD = "before_forward"
    AFTER_FORWARD = "after_forward"
    BEFORE_LOSS = "before_loss"
    AFTER_LOSS = "after_loss"
    BEFORE_BACKWARD = "before_backward"
    AFTER_BACKWARD = "after_backward"
    AFTER_TRAIN_BATCH = "after_train_batch"

    BATCH_END = "batch_end"
    BATCH_CHECKPOINT = "batch_checkpoint"
    EPOCH_END = "epoch_end"
    EPOCH_CHECKPOINT = "epoch_checkpoint"
    ITERATION_END = "iteration_end"
    ITERATION_CHECKPOINT = "iteration_checkpoint"
    FIT_END = "fit_end"

    EVAL_BEFORE_ALL = "eval_before_all"
    EVAL_START = "eval_start"
    EVAL_BATCH_START = "eval_batch_start"
    EVAL_BEFORE_FORWARD = "eval_before_forward"
    EVAL_AFTER_FORWARD = "eval_after_forward"
    EVAL_BATCH_END = "eval_batch_end"
    EVAL_END = "eval_end"
    EVAL_AFTER_ALL = "eval_after_all"
    EVAL_STANDALONE_START = "eval_standalone_start"
    EVAL_STANDALONE_END = "eval_standalone_end"

    PREDICT_START = "predict_start"
    PREDICT_BATCH_START = "predict_batch_start"
    PREDICT_BEFORE_FORWARD = "predict_before_forward"
    PREDICT_AFTER_FORWARD = "predict_after_forward"
    PREDICT_BATCH_END = "predict_batch_end"
    PREDICT_END = "predict_end"

    @property
    def is_before_event(self) -> bool:
        """Whether something begins here, so that a later event of the same name ends it."""
        return self in _BEFORE

    @property
    def is_after_event(self) -> bool:
        """Whether something ends here that an earlier event of the same name began."""
        return self in _AFTER

    @property
    def canonical_name(self) -> str:
        """The name without before, after, start and end: the same for both events of a pair."""
        name: str = self.value
        for affix in ("before_", "after_", "_start", "_end"):
            name = name.replace(affix, "")
        return name

    @property
    def is_predict(self) -> bool:
        """Whether this is an event of ``Trainer.predict``."""
        return self.value.startswith("predict")

    @property
    def is_eval(self) -> bool:
        """Whether this is an event of evaluation, inside or outside of training."""
        return self.value.startswith("eval")


_AFTER_OF = {
    Event.BEFORE_LOAD: Event.AFTER_LOAD,
    Event.FIT_START: Event.FIT_END,
    Event.ITERATION_START: Event.ITERATION_END,
    Event.EPOCH_START: Event.EPOCH_END,
    Event.BEFORE_DATALOADER: Event.AFTER_DATALOADER,
    Event.BATCH_START: Event.BATCH_END,
    Event.BEFORE_TRAIN_BATCH: Event.AFTER_TRAIN_BATCH,
    Event.BEFORE_FORWARD: Event.AFTER_FORWARD,
    Event.BEFORE_LOSS: Event.AFTER_LOSS,
    Event.BEFORE_BACKWARD: Event.AFTER_BACKWARD,
    Event.EVAL_BEFORE_ALL: Event.EVAL_AFTER_ALL,
    Event.EVAL_START: Event.EVAL_END,
    Event.EVAL_BATCH_START: Event.EVAL_BATCH_END,
    Event.EVAL_BEFORE_FORWARD: Event.EVAL_AFTER_FORWARD,
    Event.EVAL_STANDALONE_START: Event.EVAL_STANDALONE_END,
    Event.PREDICT_START: Event.PREDICT_END,
    Event.PREDICT_BATCH_START: Event.PREDICT_BATCH_END,
    Event.PREDICT_BEFORE_FORWARD: Event.PREDICT_AFTER_FORWARD,
}
_BEFORE = frozenset(_AFTER_OF)
_AFTER = frozenset(_AFTER_OF.values())
