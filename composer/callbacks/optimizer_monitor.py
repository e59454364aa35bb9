"""Norms of gradients, moments, parameters and updates."""

import torch

from composer.core.callback import Callback
from composer.core.logger import Logger
from composer.core.state import State


class OptimizerMonitor(Callback):
    """Logs L2 norms of each trainable parameter's gradient and of what the optimizer reports.

    Norms of sharded parameters are those of the whole parameters.

    | key | logged |
    | --- | --- |
    | ``l2_norm/grad/global`` | the norm of all gradients together |
    | ``l2_norm/grad/<parameter>`` | the gradient, after clipping |
    | ``l2_norm/moment/...``, ``/param/...``, ``/update/...`` | if the optimizer can report them |

    An optimizer can if it has ``report_per_parameter_metrics``, as DecoupledAdamW does.

    Args:
        log_optimizer_metrics: Ask the optimizer for its own metrics too.
        batch_log_interval: Every how many batches.
    """

    def __init__(self, log_optimizer_metrics: bool = True, batch_log_interval: int = 10) -> None:
        if batch_log_interval < 1:
            raise ValueError(f"batch_log_interval={batch_log_interval} must be at least one batch.")
        self.log_optimizer_metrics = log_optimizer_metrics
        self.batch_log_interval = batch_log_interval

    def batch_end(self, state: State, logger: Logger) -> None:
        """Logs the norms, if this batch is due."""
        if state.timestamp.batch.value % self.batch_log_interval != 0:
            return
        report = None
        if self.log_optimizer_metrics and state.optimizers:
            report = getattr(state.optimizers[0], "report_per_parameter_metrics", None)
        metrics: dict[str, torch.Tensor] = {}
        for name, parameter in state.model.named_parameters():
            if parameter.grad is None or not parameter.requires_grad:
                continue
            if report is not None:
                metrics = report(parameter, name, metrics)
            if f"l2_norm/grad/{name}" not in metrics:
                metrics[f"l2_norm/grad/{name}"] = torch.linalg.vector_norm(parameter.grad)
        values = _to_numbers(metrics)
        gradient_norms = [v for key, v in values.items() if key.startswith("l2_norm/grad/")]
        values["l2_norm/grad/global"] = sum(norm**2 for norm in gradient_norms) ** 0.5
        logger.log_metrics(values)


def _to_numbers(metrics: dict[str, torch.Tensor]) -> dict[str, float]:
    """Brings all values to the host at once; each ``.item()`` would wait for the device."""
    if not metrics:
        return {}
    whole = [_whole(value).detach().float().reshape(()) for value in metrics.values()]
    stacked = torch.stack([value.to(whole[0].device) for value in whole])
    return dict(zip(metrics, stacked.tolist(), strict=True))


def _whole(value: torch.Tensor) -> torch.Tensor:
    """Reduces a metric of a sharded parameter over its ranks."""
    full_tensor = getattr(value, "full_tensor", None)
    return value if full_tensor is None else full_tensor()
