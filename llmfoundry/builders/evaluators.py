"""All that a recipe evaluates with."""

from typing import Any

from composer.core.callback import Callback
from composer.core.evaluator import Evaluator
from llmfoundry.builders.dataloaders import build_eval_loaders

__all__ = ["build_evaluators"]


def build_evaluators(
    eval_loader_config: dict[str, Any] | list[dict[str, Any]] | None,
    icl_tasks_config: str | list[dict[str, Any]] | None,
    eval_gauntlet_config: str | dict[str, Any] | None,
    *,
    tokenizer: Any,
    device_eval_batch_size: int | float,
    icl_seq_len: int,
    icl_subset_num_batches: int | None,
) -> tuple[list[Evaluator], list[str], Callback | None]:
    """Builds the evaluators of a recipe.

    Returns:
        The evaluators, the keys under which in-context-learning scores are logged, and the callback
        that averages these.
    """
    if icl_tasks_config is not None or eval_gauntlet_config is not None:
        raise NotImplementedError(NO_ICL)
    evaluators = []
    if eval_loader_config is not None:
        evaluators = build_eval_loaders(eval_loader_config, tokenizer, device_eval_batch_size)
    return evaluators, [], None


NO_ICL = (
    "in-context-learning tasks (icl_tasks, eval_gauntlet) are not part of this version. Evaluate "
    "with eval_loader, or remove the key."
)
