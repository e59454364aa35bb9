"""Warnings with a promise: what goes away and when, what is still an experiment."""

import functools
import logging
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

__all__ = [
    "ExperimentalWarning",
    "SpecificWarningFilter",
    "VersionedDeprecationWarning",
    "experimental_class",
    "experimental_function",
]

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
AnyClass = TypeVar("AnyClass", bound=type)


class VersionedDeprecationWarning(UserWarning):
    """Says that something goes away, and in which version.

    Args:
        message: What is deprecated and what to use instead.
        remove_version: The version that no longer has it.
    """

    def __init__(self, message: str, remove_version: str) -> None:
        super().__init__(f"{message} It will be removed in version {remove_version}.")


class ExperimentalWarning(Warning):
    """Says that a feature may change without notice.

    Args:
        feature_name: The feature, as a user would call it.
    """

    def __init__(self, feature_name: str) -> None:
        self.feature_name = feature_name
        super().__init__(f"{feature_name} is experimental and may change with future versions.")


def experimental_function(
    feature_name: str,
) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Marks a function as experimental: each call warns."""

    def decorate(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        @functools.wraps(function)
        def warned(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            warnings.warn(ExperimentalWarning(feature_name), stacklevel=2)
            return function(*args, **kwargs)

        return warned

    return decorate


def experimental_class(feature_name: str) -> Callable[[AnyClass], AnyClass]:
    """Marks a class as experimental: each construction warns."""

    def decorate(cls: AnyClass) -> AnyClass:
        original = cls.__init__

        @functools.wraps(original)
        def warned(self: object, *args: object, **kwargs: object) -> None:
            warnings.warn(ExperimentalWarning(feature_name), stacklevel=2)
            original(self, *args, **kwargs)

        cls.__init__ = warned
        cls.is_experimental = True
        return cls

    return decorate


class SpecificWarningFilter(logging.Filter):
    """Keeps records whose message contains a text out of a log.

    Args:
        message_to_suppress: The text.
    """

    def __init__(self, message_to_suppress: str) -> None:
        super().__init__()
        self.message_to_suppress = message_to_suppress

    def filter(self, record: logging.LogRecord) -> bool:
        """Says whether a record is kept."""
        return self.message_to_suppress not in record.getMessage()
