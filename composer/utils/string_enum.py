"""String-valued enums that users may spell in any case, by name or by value."""

from __future__ import annotations

import warnings
from enum import Enum


class StringEnum(Enum):
    """Accepts its members by instance, by value or by name, in any case.

    Member names must be upper case and member values lower case; anything else is refused when the
    class is made. Comparing a member with a plain string works but warns: convert the string first,
    so that a misspelling is an error and not a silent ``False``.

    Raises:
        ValueError: If a member's name is not upper case or its value not lower case.
    """

    __hash__ = object.__hash__  # each member is one object, and Enum's own is written in Python

    def __init__(self, *args: object) -> None:
        if self.name != self.name.upper():
            raise ValueError(
                f"{type(self).__name__}.{self.name} must have an upper-case name: write "
                f"{self.name.upper()}"
            )
        if not isinstance(self.value, str) or self.value != self.value.lower():
            raise ValueError(
                f"{type(self).__name__}.{self.name} must have a lower-case string as its value, "
                f"not {self.value!r}"
            )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, str):
            return super().__eq__(other)
        name = type(self).__name__
        warnings.warn(
            f"Comparing {name} with the string {other!r} may give false negatives; convert it "
            f"first: {name}({other!r})",
            category=UserWarning,
            stacklevel=2,
        )
        try:
            return super().__eq__(type(self)(other))
        except ValueError:
            return NotImplemented

    @classmethod
    def _missing_(cls, value: object) -> StringEnum:
        if not isinstance(value, str):
            raise TypeError(
                f"Unable to convert value({value!r}) of type {type(value)} to {cls.__name__}"
            )
        by_name = cls.__members__.get(value.upper())
        if by_name is not None:
            return by_name
        for member in cls:
            if member.value == value.lower():
                return member
        valid = ", ".join(repr(member.value) for member in cls)
        raise ValueError(f"Value {value!r} not found in {cls.__name__}; it must be one of {valid}")
