"""What ALiBi does to which class of module."""

from composer.algorithms.alibi.attention_surgery_functions.utils import policy_registry

__all__ = ["policy_registry"]
