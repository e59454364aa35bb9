"""Face of the algorithms that recipes name."""

from composer.utils.lazy import handed_on

__all__ = ["GradientClipping"]

__getattr__ = handed_on({"GradientClipping": "composer.algorithms"})
