"""Files wherever they are: a path, a web address, an object store; and text links to them."""

import contextlib
import os
import re
import ssl
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Any, Protocol

from composer.utils.file_names import (
    FORMAT_NAME_WITH_DIST_AND_TIME_TABLE,
    FORMAT_NAME_WITH_DIST_TABLE,
    ensure_folder_has_no_conflicting_files,
    ensure_folder_is_empty,
    format_name_with_dist,
    format_name_with_dist_and_time,
    is_tar,
)
from composer.utils.lazy import handed_on
from composer.utils.object_store.object_store import (
    ObjectStore,
    ObjectStoreTransientError,
    whole_file,
)
from composer.utils.object_store.redaction import without_secrets
from composer.utils.object_store.utils import build_remote_backend
from composer.utils.retrying import retry

__all__ = [
    "FORMAT_NAME_WITH_DIST_AND_TIME_TABLE",
    "FORMAT_NAME_WITH_DIST_TABLE",
    "arguments_of_store",
    "create_symlink_file",
    "ensure_folder_has_no_conflicting_files",
    "ensure_folder_is_empty",
    "extract_path_from_symlink",
    "format_name_with_dist",
    "format_name_with_dist_and_time",
    "get_file",
    "get_web_file",
    "is_tar",
    "is_uri",
    "list_remote_objects",
    "maybe_create_object_store_from_uri",
    "parse_uri",
    "validate_credentials",
    "validate_remote_path",
]

# A store has no links; a small text file with this ending holds the name of its target instead.
_SYMLINK = ".symlink"
# dbfs:/folder and file:/folder have no place; one letter before the colon is a drive of Windows.
_URI = re.compile(r"([A-Za-z][\w+.-]+):/(?:/([^/]*))?(.*)", re.DOTALL)
_WEB_SCHEMES = ("http", "https")
_WEB_TIMEOUT_SECONDS = 60
_WEB_BACKOFF_SECONDS = 1.0


class _DownloadsFiles(Protocol):
    """A logger destination that can fetch what it once uploaded."""

    def download_file(
        self,
        remote_file_name: str,
        destination: str,
        overwrite: bool = False,
        progress_bar: bool = True,
    ) -> None: ...


def is_uri(path: str) -> bool:
    """Tells whether ``path`` is an address with a scheme, such as ``s3://bucket/name``."""
    return _URI.fullmatch(path) is not None


def parse_uri(uri: str) -> tuple[str, str, str]:
    """Splits an address into (scheme, bucket, name); a local path gives two empty strings first.

    >>> parse_uri("s3://bucket/folder/name.pt")
    ('s3', 'bucket', 'folder/name.pt')
    >>> parse_uri("/folder/name.pt")
    ('', '', '/folder/name.pt')
    """
    match = _URI.fullmatch(uri)
    if match is None:
        return "", "", uri
    scheme, place, name = match.groups(default="")
    # In bucket@host the part before the @ is the bucket; the host is the store's own affair.
    bucket = place.rpartition("@")[0] or place
    return "azure" if scheme.lower() == "azure_blobs" else scheme, bucket, name.lstrip("/")


def maybe_create_object_store_from_uri(uri: str) -> ObjectStore | None:
    """Returns the store that an address is in, or None for a local path.

    Raises:
        ValueError: If the address lacks a part.
        NotImplementedError: If there is no store for the scheme.
    """
    scheme = parse_uri(uri)[0]
    return build_remote_backend(scheme, arguments_of_store(uri)) if scheme else None


def arguments_of_store(uri: str) -> dict[str, Any]:
    """Returns what an address says to the constructor of the store that it is in.

    >>> arguments_of_store("s3://bucket/name"), arguments_of_store("sftp://me@host:2222/name")
    ({'bucket': 'bucket'}, {'host': 'sftp://me@host:2222/'})

    Raises:
        ValueError: If the address lacks a part.
    """
    scheme, bucket, name = parse_uri(uri)
    if scheme == "file":
        if bucket not in ("", "localhost"):
            raise ValueError(f"{uri} has two slashes before {bucket!r}; it must have three.")
        return {}
    if scheme in ("s3", "gs", "az", "azure") and not bucket:
        raise ValueError(f"{uri} names no bucket; write {scheme}://bucket/name.")
    if scheme == "dbfs":
        return {"path": name}
    if scheme == "sftp":  # with the user and the port
        return {"host": uri[: len(uri) - len(name)]}
    place = "container" if scheme == "libcloud" else "bucket"
    return {place: bucket} if bucket else {}


def extract_path_from_symlink(
    source_path: str,
    object_store: ObjectStore | _DownloadsFiles | None = None,
) -> str:
    """Returns the name that a ``.symlink`` text file holds.

    Args:
        source_path: The text file's path, address or object name.
        object_store: Where it is, if it is an object's name.
    """
    with tempfile.TemporaryDirectory() as folder:
        copy = os.path.join(folder, "target" + ".txt")
        _fetch(source_path, copy, object_store, overwrite=False, progress_bar=False)
        return Path(copy).read_text().strip()


def create_symlink_file(existing_path: str, destination_filename: str | os.PathLike[str]) -> None:
    """Writes a text file that stands for a link in stores which have none.

    Args:
        existing_path: What the link points at.
        destination_filename: The text file; must not exist, and must end with ``.symlink``.
    """
    if not str(destination_filename).endswith(_SYMLINK):
        raise ValueError(
            f"{destination_filename} must end with {_SYMLINK!r}: readers tell a link by that."
        )
    with open(destination_filename, "x") as file:
        file.write(existing_path)


def get_file(
    path: str,
    destination: str,
    object_store: ObjectStore | _DownloadsFiles | None = None,
    overwrite: bool = False,
    progress_bar: bool = True,
) -> None:
    """Makes a file available at a local path: downloads it, or links to it if it is local.

    ``.symlink`` text files are followed, also when only ``<path>.symlink`` exists.

    Args:
        path: A local path, a web address, an object store's address, or with ``object_store`` a
            name in it.
        destination: Where the file is to appear, whole.
        object_store: A store, or a logger destination that can download.
        overwrite: Replace a file at ``destination``.
        progress_bar: Show the download's progress.

    Raises:
        FileNotFoundError: If there is no such file.
        PermissionError: If it may not be read.
        FileExistsError: If ``destination`` exists and ``overwrite`` is off.
        ObjectStoreTransientError: If trouble that may pass did not, although it was tried again.
    """
    if object_store is None and is_uri(path) and parse_uri(path)[0] not in _WEB_SCHEMES:
        with contextlib.ExitStack() as stack:
            store = maybe_create_object_store_from_uri(path)
            assert store is not None
            stack.enter_context(store)
            get_file(parse_uri(path)[2], destination, store, overwrite, progress_bar)
        return
    if path.endswith(_SYMLINK):
        target = extract_path_from_symlink(path, object_store)
        get_file(target, destination, object_store, overwrite, progress_bar)
        return
    try:
        _fetch(path, destination, object_store, overwrite, progress_bar)
    except FileNotFoundError as error:
        try:
            target = extract_path_from_symlink(path + _SYMLINK, object_store)
        except FileNotFoundError:
            raise error from None
        get_file(target, destination, object_store, overwrite, progress_bar)


def _fetch(
    path: str,
    destination: str,
    object_store: ObjectStore | _DownloadsFiles | None,
    overwrite: bool,
    progress_bar: bool,
) -> None:
    if object_store is None:
        if parse_uri(path)[0] in _WEB_SCHEMES:
            get_web_file(path, destination, overwrite, progress_bar)
        else:
            _link(path, destination, overwrite)
    elif isinstance(object_store, ObjectStore):
        total = object_store.get_object_size(path)
        with _progress(f"Downloading {path}", total, progress_bar) as advance:
            object_store.download_object(path, destination, overwrite=overwrite, callback=advance)
    else:
        object_store.download_file(
            path, destination, overwrite=overwrite, progress_bar=progress_bar
        )


def _refuse_existing(destination: str, overwrite: bool) -> None:
    if os.path.lexists(destination) and not overwrite:
        raise FileExistsError(
            f"The file at {destination} already exists and overwrite is set to False."
        )


def _link(path: str, destination: str, overwrite: bool) -> None:
    source = os.path.abspath(path)
    if not os.path.exists(source):
        raise FileNotFoundError(f"Local path {path} does not exist.")
    _refuse_existing(destination, overwrite)
    Path(destination).unlink(missing_ok=True)
    os.symlink(source, destination)


def get_web_file(
    url: str,
    destination: str,
    overwrite: bool = False,
    progress_bar: bool = True,
    context: ssl.SSLContext | None = None,
) -> None:
    """Downloads what is at a web address, as `get_file` does.

    Args:
        url: The address.
        destination: Where the file is to appear, whole.
        overwrite: Replace a file at ``destination``.
        progress_bar: Show the download's progress.
        context: Which certificates are accepted; by default those of known authorities.
    """
    _refuse_existing(destination, overwrite)  # it is replaced only by what has arrived whole
    shown = without_secrets(url)  # an address may be signed

    @retry(ObjectStoreTransientError, initial_backoff=_WEB_BACKOFF_SECONDS)
    def fetch() -> None:
        with (
            whole_file(destination) as aside,
            _web_errors(shown),
            urllib.request.urlopen(url, timeout=_WEB_TIMEOUT_SECONDS, context=context) as response,
            open(aside, "wb") as file,
        ):
            total = int(response.headers.get("Content-Length", 0))
            with _progress(f"Downloading {shown}", total, progress_bar) as advance:
                while chunk := response.read(1 << 20):
                    file.write(chunk)
                    advance(file.tell(), total)
            if total and file.tell() != total:
                raise ConnectionError(f"it ended after {file.tell()} of {total} bytes")

    fetch()


@contextlib.contextmanager
def _web_errors(shown: str) -> Iterator[None]:
    """Turns what went wrong with a download into what a store raises: what may pass, or not."""
    try:
        yield
    except urllib.error.HTTPError as error:
        answer = f"(HTTP {error.code})"
        if error.code in (404, 410):
            raise FileNotFoundError(f"{shown} not found {answer}; check the address.") from error
        if error.code in (401, 403):
            raise PermissionError(
                f"No access to {shown} {answer}: check that the address is public, or that the "
                "signature in it has not run out."
            ) from error
        if error.code < 500 and error.code not in (408, 425, 429):
            raise OSError(
                f"{shown} could not be read {answer}: {error.reason}; check the address."
            ) from error
        raise ObjectStoreTransientError(f"{shown} could not be read {answer}.") from error
    except (urllib.error.URLError, HTTPException, ConnectionError, TimeoutError) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, ssl.SSLCertVerificationError):
            raise
        raise ObjectStoreTransientError(f"{shown} could not be read: {reason!r}.") from error


@contextlib.contextmanager
def _progress(title: str, total: int, show: bool) -> Any:
    """Yields a callback (bytes done, bytes in all) that moves a progress bar, if one is wanted."""
    if not show or not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    from tqdm import tqdm  # costs an import that few runs need

    with tqdm(desc=title, total=total or None, unit="B", unit_scale=True) as bar:
        yield lambda done, _total: bar.update(done - bar.n)


def list_remote_objects(remote_path: str) -> list[str]:
    """Returns the names of the objects whose names start with an address's name.

    Raises:
        ValueError: If ``remote_path`` is not an address of an object store.
    """
    store = maybe_create_object_store_from_uri(remote_path)
    if store is None:
        raise ValueError(
            f"{remote_path!r} is a local path; an address such as file:///folder is needed."
        )
    with store:
        return store.list_objects(parse_uri(remote_path)[2])


def validate_remote_path() -> None:
    """Prints how many objects lie at the command line's address (composer_validate_remote_path)."""
    if len(sys.argv) != 2:
        raise ValueError("Usage: composer_validate_remote_path <address>, such as file:///folder.")
    address = sys.argv[1]
    count = len(list_remote_objects(address))
    if count == 0:
        raise ValueError(f"Found no objects at {address}; check the name and your credentials.")
    print(f"Found {count} objects at {address}")


def validate_credentials(remote_backend: ObjectStore, remote_file_name_to_test: str) -> None:
    """Uploads a one-line file, so that wrong credentials show at the start of a run.

    Args:
        remote_backend: The store.
        remote_file_name_to_test: The name to write under.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "credentials_validated_successfully")
        Path(path).write_text("credentials_validated_successfully")
        remote_backend.upload_object(object_name=remote_file_name_to_test, filename=path)


# Its home is on a higher floor, with the uploader that it makes.
__getattr__ = handed_on(
    {
        "maybe_create_remote_uploader_downloader_from_uri": (
            "composer.loggers.remote_uploader_downloader"
        )
    }
)
