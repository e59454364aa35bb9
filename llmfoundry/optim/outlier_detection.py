"""Whether a number stands out from its own recent past."""

__all__ = ["OutlierDetector"]


class OutlierDetector:
    """Compares each observation with the mean of older ones.

    The newest ``delay_interval`` observations are held back, so that a slow rise does not become
    its own yardstick.

    Args:
        threshold: How many times the mean an outlier is.
        delay_interval: Observations that are held back, and that the mean is taken of.
        history: Where the observations are kept, oldest first; a plain list, so that it can stand
            in a checkpoint.
    """

    def __init__(
        self,
        threshold: float = 7.5,
        delay_interval: int = 500,
        history: list[float] | None = None,
    ) -> None:
        self.threshold = threshold
        self.delay_interval = delay_interval
        self.history = [] if history is None else history

    def insert_observation(self, obs: float) -> bool:
        """Takes in an observation and says whether it is an outlier."""
        self.history.append(obs)
        if len(self.history) > 2 * self.delay_interval:
            del self.history[0]
        mean = self.get_delayed_mva()
        return mean is not None and obs > self.threshold * mean

    def get_delayed_mva(self) -> float | None:
        """The mean of the older observations, or None while there are none."""
        older = self.history[: -self.delay_interval]
        return sum(older) / len(older) if older else None
