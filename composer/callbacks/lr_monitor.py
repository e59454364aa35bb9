"""Learning rates."""

from composer.core.callback import Callback
from composer.core.logger import Logger
from composer.core.state import State


class LRMonitor(Callback):
    """Logs the learning rate of every parameter group, after every batch.

    | key | logged |
    | --- | --- |
    | ``lr-<OptimizerClass>/group<i>`` | the rate that the next batch will use |
    """

    def batch_end(self, state: State, logger: Logger) -> None:
        """Logs the rates."""
        logger.log_metrics(
            {
                f"lr-{type(optimizer).__name__}/group{i}": group["lr"]
                for optimizer in state.optimizers
                for i, group in enumerate(optimizer.param_groups)
            }
        )
