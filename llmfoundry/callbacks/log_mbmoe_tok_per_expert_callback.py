"""How evenly a mixture of experts spreads tokens over its experts."""

import torch

from composer.core.callback import Callback
from composer.core.logger import Logger
from composer.core.state import State
from composer.utils import dist

__all__ = ["MegaBlocksMoE_TokPerExpert"]


class MegaBlocksMoE_TokPerExpert(Callback):
    """Logs how many tokens the experts of mb_moe and mb_dmoe get in a training batch.

    | Key | Logged data |
    | --- | --- |
    | ``mb_moe/all_layers_{min,max,median,std}_tpe`` | over the experts of all layers |
    | ``mb_moe/layer{i}_{min,max,median,std}_tpe`` | over those of layer ``i`` |

    Args:
        log_interval: Batches between two logs.
        log_every_layer: Whether each layer is logged too.
        all_reduce_stats: Whether tokens of all ranks are counted, and not this one's alone.
        normalize: Whether counts are shares of the tokens; those of a layer add up to its top k.

    Raises:
        ValueError: ``log_interval`` is not positive, or, when training starts, the model has no
            such experts.
    """

    def __init__(
        self,
        log_interval: int = 10,
        log_every_layer: bool = False,
        all_reduce_stats: bool = False,
        normalize: bool = True,
    ) -> None:
        if log_interval < 1:
            raise ValueError(f"log_interval={log_interval} must be at least 1 batch.")
        self.log_interval = log_interval
        self.log_every_layer = log_every_layer
        self.all_reduce_stats = all_reduce_stats
        self.normalize = normalize
        self.top_k = 1
        self.counts: torch.Tensor | None = None
        """Tokens by layer and expert, so far in this batch."""

    def fit_start(self, state: State, logger: Logger) -> None:
        """Checks that there are experts to watch."""
        mixtures = [m for m in state.model.modules() if getattr(m, "gives_routing", False)]
        if not mixtures:
            raise ValueError(
                "mbmoe_tok_per_expert has nothing to log: the model has no FFN of type mb_moe or "
                "mb_dmoe. Take the callback out."
            )
        router: torch.nn.Module = mixtures[0].get_submodule("router")
        self.top_k = int(router.moe_top_k)  # pyright: ignore[reportArgumentType]  # an attribute

    def before_train_batch(self, state: State, logger: Logger) -> None:
        """Forgets passes that are run again: SAM's first, and those whose memory ran out."""
        self.counts = None

    def after_loss(self, state: State, logger: Logger) -> None:
        """Counts a micro-batch of a batch that will be logged."""
        if (int(state.timestamp.batch) + 1) % self.log_interval:
            return
        counts = state.outputs.routing.tokens_per_expert  # type: ignore[union-attr]
        self.counts = counts if self.counts is None else self.counts + counts

    def batch_end(self, state: State, logger: Logger) -> None:
        """Logs what was counted."""
        if self.counts is None:
            return
        counts, self.counts = self.counts, None
        if self.all_reduce_stats:
            dist.all_reduce(counts)
        shares = counts.float()
        if self.normalize:
            shares = shares * self.top_k / shares.sum(dim=1, keepdim=True)
        rows = {"all_layers": shares.flatten()}
        if self.log_every_layer:
            rows |= {f"layer{index}": row for index, row in enumerate(shares)}
        for name, row in rows.items():
            logger.log_metrics(
                {
                    f"mb_moe/{name}_{kind}_tpe": float(getattr(row, kind)())
                    for kind in ("min", "max", "median", "std")
                }
            )
