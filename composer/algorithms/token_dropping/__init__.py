"""Token dropping: middle layers compute a random part of the tokens, at first a small one."""

from composer.algorithms.token_dropping.token_dropping import TokenDropping, apply_token_dropping

__all__ = ["TokenDropping", "apply_token_dropping"]
