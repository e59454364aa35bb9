"""ALiBi: attention biased by distance instead of positions."""

from composer.algorithms.alibi.alibi import Alibi, apply_alibi

__all__ = ["Alibi", "apply_alibi"]
