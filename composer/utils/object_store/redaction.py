"""Keeps credentials out of logs and error messages."""

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["secrets_in", "without_secrets"]

_ENVIRONMENT = re.compile(r"(AWS|AZURE|GCS|GOOGLE|HF|HUGGING_?FACE|COMPOSER_SFTP|S3)_")
_SECRET_NAME = re.compile(r"key|secret|token|password|passphrase|credential|sas|signature", re.I)
_IN_QUERY = re.compile(
    r"\b(sig|signature|token|se?cret|password|x-(?:amz|goog)-(?:signature|credential|security-token))"
    r"(=|%3D)[^&\s\"'<>]+",
    re.I,
)
_PASSWORD_IN_ADDRESS = re.compile(r"(://[^/\s:@]*):[^/\s@]+@")
_SHORTEST = 4  # a shorter value cannot be told from ordinary text
_HIDDEN = "***"


def secrets_in(options: Mapping[str, Any]) -> list[str]:
    """Returns the values of those options whose names say that they are secret."""
    return [
        value
        for name, value in options.items()
        if isinstance(value, str) and len(value) >= _SHORTEST and _SECRET_NAME.search(name)
    ]


def without_secrets(text: str, secrets: Iterable[str] = ()) -> str:
    """Returns ``text`` without credentials.

    Hidden are the given ones, those of the environment, passwords in addresses and signatures in
    the queries of signed addresses.

    >>> without_secrets("https://user:pass@host/x?Signature=abc&a=1")
    'https://user:***@host/x?Signature=***&a=1'
    """
    known = {name: value for name, value in os.environ.items() if _ENVIRONMENT.match(name)}
    # Longest first: one secret may begin with another.
    for secret in sorted({*secrets, *secrets_in(known)}, key=len, reverse=True):
        text = text.replace(secret, _HIDDEN)
    text = _PASSWORD_IN_ADDRESS.sub(rf"\1:{_HIDDEN}@", text)
    return _IN_QUERY.sub(rf"\1\2{_HIDDEN}", text)
