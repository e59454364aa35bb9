"""A real S3 server for this folder's tests."""

import os
from collections.abc import Iterator

import pytest

from composer.utils.object_store.remote_object_store import RemoteObjectStore
from tests.composer.utils.object_store.faults import (
    SECRET,
    TOKEN,
    Proxy,
    faulty_proxy,
    make_bucket,
    s3_server,
)


@pytest.fixture(scope="module")
def moto() -> Iterator[tuple[str, int]]:
    with s3_server() as address:
        yield address


@pytest.fixture
def s3(
    moto: tuple[str, int], quick: None, no_credentials: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Proxy]:
    """An empty bucket named ``bucket`` behind a proxy, which the environment leads to."""
    make_bucket(*moto, "bucket")
    with faulty_proxy(*moto) as proxy:
        monkeypatch.setenv("S3_ENDPOINT_URL", proxy.url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        monkeypatch.setenv("AWS_SESSION_TOKEN", TOKEN)
        yield proxy


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the pauses between tries short."""
    monkeypatch.setattr(RemoteObjectStore, "backoff_seconds", 0.01)
    monkeypatch.setattr("composer.utils.object_store._drivers.FIRST_PAUSE_SECONDS", 0.002)


@pytest.fixture
def no_credentials(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Hides this machine's credentials."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "S3_", "GCS_", "GOOGLE_", "AZURE_", "HF_TOKEN")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
