"""What is hidden, and what is not."""

import pytest

from composer.utils.object_store.redaction import secrets_in, without_secrets


def test_given_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "from-environment")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    text = "from-environment given eu-west-1"
    assert without_secrets(text, ["given"]) == "*** *** eu-west-1"
    assert secrets_in({"account_key": "abcd", "sas_token": "abcde", "region": "abcd"}) == [
        "abcd",
        "abcde",
    ]
    assert secrets_in({"key": "a", "token": None}) == []
    assert without_secrets("abcde abcd", ["abcd", "abcde"]) == "*** ***"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "https://h/x?X-Amz-Signature=ab&X-Amz-Date=1",
            "https://h/x?X-Amz-Signature=***&X-Amz-Date=1",
        ),
        ("https://h/x?sv=1&sig=a%2Bb HTTP", "https://h/x?sv=1&sig=*** HTTP"),
        ("sftp://me:pass@host/x and s3://a/b", "sftp://me:***@host/x and s3://a/b"),
        ("s3://bucket/design=3", "s3://bucket/design=3"),
    ],
)
def test_addresses(text: str, shown: str) -> None:
    assert without_secrets(text) == shown
