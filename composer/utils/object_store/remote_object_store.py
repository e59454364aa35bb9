"""All stores behind a network, whatever the client: rules for trying, checking and hiding."""

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from composer.utils.object_store._drivers import Driver, FsspecDriver, Progress
from composer.utils.object_store.object_store import (
    ObjectStore,
    ObjectStoreTransientError,
    refuse_to_replace,
    whole_file,
)
from composer.utils.object_store.redaction import secrets_in, without_secrets
from composer.utils.retrying import retry

__all__ = ["FsspecObjectStore", "RemoteObjectStore"]

log = logging.getLogger(__name__)

TResult = TypeVar("TResult")

_LONGEST_MESSAGE = 600

# How to get in, by scheme; the end of the error that says that one may not.
_CURES = {
    "s3": (
        "Check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN (or AWS_PROFILE), "
        "and that they may list the bucket and read and write its objects; without s3:ListBucket "
        "a missing object is answered like this, too. AWS_SKIP_SIGNATURE=true reads public data."
    ),
    "gs": (
        "Check GOOGLE_APPLICATION_CREDENTIALS (or GCS_KEY and GCS_SECRET), and that the account "
        "has the role Storage Object User in the bucket."
    ),
    "az": (
        "Check AZURE_ACCOUNT_NAME and AZURE_ACCOUNT_ACCESS_KEY, or give the identity the role "
        "Storage Blob Data Contributor for the container."
    ),
    "hf": (
        "Check HF_TOKEN: it needs write access to upload, and for a gated repository its terms "
        "must be accepted on the Hub."
    ),
}


class RemoteObjectStore(ObjectStore):
    """A bucket behind a network, and what holds for every such bucket.

    Trouble that may pass is tried again after a growing pause; a missing object and a refusal are
    not. A download appears whole, and only if it has the object's size; an upload counts once the
    store says that the object has the file's size. No message holds a credential.

    Args:
        driver: The client.
        scheme: The scheme of its addresses.
        bucket: The bucket's name.
        prefix: The folder in the bucket that object names are relative to.
        options: What the client was made of; its secrets are kept out of messages.
    """

    num_attempts = 3
    """How often an operation is tried in all; each request was tried several times before."""
    backoff_seconds = 1.0
    """The pause before the second attempt, doubled for each later one, plus up to a half at random.
    """

    def __init__(
        self,
        driver: Driver,
        scheme: str,
        bucket: str,
        prefix: str = "",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._driver = driver
        self.scheme = scheme
        self.bucket = bucket.strip("/")
        folder = _segments(prefix)
        self.prefix = f"{folder}/" if folder else ""
        self._secrets = secrets_in(options or {})

    @property
    def client(self) -> Any:
        """The client library's own object for the bucket."""
        return self._driver.client

    def get_key(self, object_name: str) -> str:
        """Returns the whole name of an object in the bucket."""
        return self.prefix + _segments(object_name)

    def get_uri(self, object_name: str) -> str:
        """Returns the object's address."""
        return f"{self.scheme}://{self.bucket}/{self.get_key(object_name)}"

    def get_object_size(self, object_name: str) -> int:
        """Returns the object's size in bytes."""
        return self._call(object_name, lambda: self._driver.stat(self.get_key(object_name)))[0]

    def upload_object(
        self,
        object_name: str,
        filename: str | os.PathLike[str],
        callback: Progress | None = None,
        **kwargs: Any,
    ) -> None:
        """Stores a local file, and asks the store whether it has all of it."""
        extra = self._extra(kwargs)
        key, uri = self.get_key(object_name), self.get_uri(object_name)

        with open(filename, "rb") as file:  # out here: its errors are not the store's
            size = os.fstat(file.fileno()).st_size

            def upload() -> None:
                file.seek(0)
                self._driver.put(key, file, size, callback or _no_callback, extra)
                stored = self._driver.stat(key)[0]
                if stored != size:
                    raise ObjectStoreTransientError(
                        f"{uri} has {stored} bytes after the upload of {size} bytes."
                    )

            self._call(object_name, upload)

    def download_object(
        self,
        object_name: str,
        filename: str | os.PathLike[str],
        overwrite: bool = False,
        callback: Progress | None = None,
    ) -> None:
        """Copies an object to a local file, which appears whole and with the object's size."""
        refuse_to_replace(filename, overwrite)
        key, uri = self.get_key(object_name), self.get_uri(object_name)
        with whole_file(filename) as aside:

            def download() -> None:
                os.truncate(aside, 0)
                expected = self._driver.fetch(key, str(aside), callback or _no_callback)
                got = aside.stat().st_size
                if got != expected:
                    raise ObjectStoreTransientError(f"{uri} ended after {got} of {expected} bytes.")

            self._call(object_name, download)

    def list_objects(self, prefix: str | None = None) -> list[str]:
        """Returns the names, relative to the store's prefix, that start with ``prefix``, sorted."""
        # Clients list folders, while a prefix may end within a name.
        prefix = (prefix or "").lstrip("/")
        whole = self.prefix + prefix
        folder = whole.rpartition("/")[0]
        names = self._call(prefix, lambda: list(self._driver.names(folder)))
        return sorted(name[len(self.prefix) :] for name in names if name.startswith(whole))

    def _extra(self, kwargs: Mapping[str, Any]) -> Any:
        if kwargs:
            raise ValueError(f"{type(self).__name__}.upload_object takes no {sorted(kwargs)}.")
        return None

    def _mended(self, message: str) -> bool:
        """Tells whether what the message says was mended, so that trying again is worth it."""
        del message
        return False

    def _call(self, object_name: str, call: Callable[[], TResult]) -> TResult:
        def attempt() -> TResult:
            try:
                return call()
            except self._driver.errors as error:
                translated = self._translated(error, object_name)
            # Out of the handler, so that no traceback shows the client's own, unchecked text.
            raise translated

        return retry(
            ObjectStoreTransientError,
            num_attempts=self.num_attempts,
            initial_backoff=self.backoff_seconds,
            max_jitter=self.backoff_seconds / 2,
        )(attempt)()

    def _translated(self, error: Exception, object_name: str) -> Exception:
        kind = self._driver.kind(error)
        if kind == "other" and isinstance(error, OSError):
            return error  # of the local file, such as a full disk
        uri = self.get_uri(object_name)
        message = str(error).partition("\n\nDebug source")[0].strip()
        message = without_secrets(message, self._secrets)[:_LONGEST_MESSAGE]
        if kind == "missing":
            return FileNotFoundError(f"Object {uri} not found, or its bucket is not. {message}")
        if kind == "forbidden":
            return PermissionError(
                f"No access to {uri}. {_CURES.get(self.scheme, '')} The store said: {message}"
            )
        if kind == "passing" or self._mended(message):
            log.warning("Trouble with %s that may pass: %s", uri, message)
            return ObjectStoreTransientError(f"{uri} could not be reached: {message}")
        return RuntimeError(f"{uri} could not be used: {message}")


class FsspecObjectStore(RemoteObjectStore):
    """A place that fsspec knows: a repository on the Hugging Face Hub, or memory for tests.

    Args:
        scheme: ``hf`` or ``memory``.
        bucket: The part of the address after the scheme; on the Hub the user, or ``datasets``.
        prefix: The folder that object names are relative to.
        **options: Arguments of fsspec's file system, such as ``token``.
    """

    def __init__(self, scheme: str, bucket: str = "", prefix: str = "", **options: Any) -> None:
        driver = FsspecDriver(scheme, bucket.strip("/"), options)
        super().__init__(driver, scheme, bucket, prefix, options)


def _segments(name: str) -> str:
    """Returns a name without the empty parts that joining leaves: clients refuse these."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ValueError(f"Object name {name!r} must not contain '..'.")
    return "/".join(parts)


def _no_callback(done: int, total: int) -> None:
    del done, total
