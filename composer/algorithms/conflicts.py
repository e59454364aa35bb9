"""Which algorithms and optimizers do not go together: the one table, for the check and the docs."""

from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["CONFLICTS", "Conflict", "check_conflicts"]


class Conflict(NamedTuple):
    """Two classes, by name, that do not go together, and what to do instead."""

    one: str
    other: str
    reason: str
    only_interpolating: bool = False
    """Whether only if one of the two mixes losses (``interpolate_loss=True``)."""


_OWN_AVERAGE = "it keeps an average of its own, which is what is evaluated; leave one of them out"
_UNMIXED = (
    "with interpolate_loss=True, the loss that one mixes in is of targets that the other has not "
    "mixed; set interpolate_loss=False in both, and each mixes what the other has"
)
_UNSMOOTHED = (
    "with interpolate_loss=True, the loss of the other half of the mixture is taken after the "
    "smoothing is undone; set interpolate_loss=False, which smooths the mixed targets"
)
CONFLICTS = (
    Conflict("EMA", "CheckpointAveraging", "one model is evaluated; leave one of them out"),
    Conflict("EMA", "ScheduleFreeAdamW", _OWN_AVERAGE),
    Conflict("CheckpointAveraging", "ScheduleFreeAdamW", _OWN_AVERAGE),
    Conflict("SWA", "ScheduleFreeAdamW", _OWN_AVERAGE),
    Conflict(
        "SAM",
        "ScheduleFreeAdamW",
        "SAM hides the optimizer that keeps the average; use DecoupledAdamW",
    ),
    Conflict("MixUp", "CutMix", _UNMIXED, only_interpolating=True),
    Conflict(
        "SeqLengthWarmup",
        "SeqLengthCurriculum",
        "both say how long sequences are; leave one of them out",
    ),
    Conflict("LabelSmoothing", "MixUp", _UNSMOOTHED, only_interpolating=True),
    Conflict("LabelSmoothing", "CutMix", _UNSMOOTHED, only_interpolating=True),
)


def check_conflicts(plugins: Iterable[object]) -> None:
    """Refuses algorithms and optimizers that do not go together.

    Raises:
        ValueError: If two of them do not; all such pairs are listed.
    """
    by_name: dict[str, object] = {
        kind.__name__: each for each in plugins for kind in type(each).__mro__
    }
    mixing = {name for name, each in by_name.items() if getattr(each, "interpolate_loss", False)}
    found = [
        f"{row.one} does not go together with {row.other}: {row.reason}"
        for row in CONFLICTS
        if {row.one, row.other} <= by_name.keys()
        and (not row.only_interpolating or {row.one, row.other} & mixing)
    ]
    if found:
        raise ValueError("; ".join(found) + ".")
