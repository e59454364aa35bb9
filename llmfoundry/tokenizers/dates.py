"""Today, for chat templates that tell the model."""

import re
from datetime import datetime
from functools import cache

__all__ = ["as_date", "dated_template", "get_date_string", "tells_date"]

DATE_FORMAT = "%d %b %Y"
CALL = re.compile(r"""\bstrftime_now\(\s*(["'])(.*?)\1\s*\)""")


def get_date_string() -> str:
    """Today's date, such as ``26 Jul 2025``."""
    return datetime.now().strftime(DATE_FORMAT)


def tells_date(chat_template: object) -> bool:
    """Says whether what a template writes depends on the day; a template, or several by name."""
    return any(name in str(chat_template) for name in ("date_string", "strftime_now"))


@cache
def dated_template(chat_template: str, date_string: str) -> str:
    """A chat template that writes this date as today, where it asks ``strftime_now``.

    ``apply_chat_template`` hands no function to a template, so what such calls give is written in
    their place. (The other way that templates know the date, ``date_string``, is a variable.)

    Raises:
        ValueError: ``date_string`` is not a date such as ``26 Jul 2025``.
    """
    day = as_date(date_string)
    return CALL.sub(lambda call: repr(day.strftime(call[2])), chat_template)


def as_date(date_string: str) -> datetime:
    """The day of a ``date_string``.

    Raises:
        ValueError: It is not a date such as ``26 Jul 2025``.
    """
    try:
        return datetime.strptime(date_string, DATE_FORMAT)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"date_string must be a date such as '26 Jul 2025', but is {date_string!r}."
        ) from error
