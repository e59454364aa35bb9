"""Today, for chat templates that tell the model."""

from datetime import datetime

__all__ = ["get_date_string"]


def get_date_string() -> str:
    """Today's date, such as ``26 Jul 2025``."""
    return datetime.now().strftime("%d %b %Y")
