"""A folder on a machine that is reached by SSH."""

import contextlib
import os
import stat
import threading
import uuid
from collections.abc import Iterator
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from composer.utils.import_helpers import MissingConditionalImportError
from composer.utils.object_store._drivers import Driver, Kind, Progress
from composer.utils.object_store.remote_object_store import RemoteObjectStore

__all__ = ["SFTPObjectStore"]


class SFTPObjectStore(RemoteObjectStore):
    """A folder on a machine that is reached by SSH.

    Args:
        host: The machine's name, or ``sftp://user@host:port/folder``.
        port: The port of its SSH server.
        username: Whom to sign in as; by default the local user.
        password: That user's password, if no key serves.
        known_hosts_filename: A file of hosts that are trusted, beside the user's own.
        known_hosts_filename_environ: The variable that names such a file otherwise.
        key_filename: The private key.
        key_filename_environ: The variable that names it otherwise.
        missing_host_key_policy: What to do about an unknown host: ``RejectPolicy``,
            ``WarningPolicy`` or ``AutoAddPolicy``, the last of which trusts whoever answers.
        cwd: The folder that object names are relative to.
        connect_kwargs: Further arguments of paramiko's ``SSHClient.connect``.
    """

    def __init__(
        self,
        host: str,
        port: int = 22,
        username: str | None = None,
        password: str | None = None,
        known_hosts_filename: str | None = None,
        known_hosts_filename_environ: str = "COMPOSER_SFTP_KNOWN_HOSTS_FILE",
        key_filename: str | None = None,
        key_filename_environ: str = "COMPOSER_SFTP_KEY_FILE",
        missing_host_key_policy: str = "RejectPolicy",
        cwd: str = "",
        connect_kwargs: dict[str, Any] | None = None,
    ) -> None:
        address = urlsplit(host if "://" in host else f"sftp://{host}")
        if address.scheme != "sftp" or not address.hostname or address.query or address.fragment:
            raise ValueError(f"{host!r} is not the address of a host, such as sftp://user@host.")
        self.cwd = cwd or address.path
        self.known_hosts_filename = known_hosts_filename or os.environ.get(
            known_hosts_filename_environ
        )
        self.key_filename = key_filename or os.environ.get(key_filename_environ)
        login = {
            **(connect_kwargs or {}),
            "hostname": address.hostname,
            "port": address.port or port,
            "username": username or address.username,
            "password": password or address.password,
            "key_filename": self.key_filename,
        }
        self._connection = _SFTPDriver(
            login, self.known_hosts_filename, missing_host_key_policy, self.cwd
        )
        self.ssh_client = self._connection.client
        place = f"{login['username']}@" if login["username"] else ""
        place += f"{address.hostname}:{login['port']}"
        super().__init__(self._connection, "sftp", place, options=login)

    @property
    def sftp_client(self) -> Any:
        """The open channel."""
        return self._connection.channel()

    def get_uri(self, object_name: str) -> str:
        """Returns the object's address; two slashes begin a path that is not the user's."""
        folder = self.cwd.rstrip("/")
        path = f"{folder}/{self.get_key(object_name)}" if folder else self.get_key(object_name)
        return f"sftp://{self.bucket}/{path.lstrip('/')}"

    def close(self) -> None:
        """Ends the connection."""
        self.ssh_client.close()


class _SFTPDriver(Driver):
    """One connection, used by one thread at a time and opened again when it was lost."""

    def __init__(
        self, login: dict[str, Any], known_hosts: str | None, policy: str, folder: str
    ) -> None:
        try:
            import paramiko
            from paramiko.ssh_exception import NoValidConnectionsError
        except ImportError as error:
            raise MissingConditionalImportError("sftp", "paramiko") from error
        policies = ("RejectPolicy", "WarningPolicy", "AutoAddPolicy")
        if policy not in policies:
            raise ValueError(f"missing_host_key_policy={policy!r} must be one of {policies}.")
        self._refusals = (paramiko.AuthenticationException, paramiko.BadHostKeyException)
        self._lost = (ConnectionError, TimeoutError, NoValidConnectionsError)
        self.errors = (OSError, EOFError, paramiko.SSHException)
        self.client = paramiko.SSHClient()
        self.client.load_system_host_keys()
        if known_hosts is not None:
            self.client.load_host_keys(known_hosts)
        self.client.set_missing_host_key_policy(getattr(paramiko, policy)())
        self._login, self._folder = login, folder.rstrip("/")
        self._lock = threading.RLock()
        self._channel: Any = None

    def channel(self) -> Any:
        """Returns the open channel."""
        with self._lock:
            transport = self.client.get_transport()
            if self._channel is None or transport is None or not transport.is_active():
                self.client.connect(**self._login)
                self._channel = self.client.open_sftp()
            return self._channel

    def kind(self, error: Exception) -> Kind:
        """Says what an error means; whatever breaks off a conversation may pass."""
        if isinstance(error, FileNotFoundError):
            return "missing"
        unknown_host = "not found in known_hosts" in str(error)
        if isinstance(error, (PermissionError, *self._refusals)) or unknown_host:
            return "forbidden"
        lost = isinstance(error, self._lost) or not isinstance(error, OSError)
        return "passing" if lost else "other"

    def stat(self, key: str) -> tuple[int, str | None]:
        """Asks for the file's attributes."""
        with self._lock:
            found = self.channel().stat(self._path(key))
        if stat.S_ISDIR(found.st_mode):
            raise FileNotFoundError(f"{key} is a folder.")
        return found.st_size, None

    def fetch(self, key: str, path: str, callback: Progress) -> int:
        """Reads the file ahead, over the one connection."""
        with self._lock:
            size, _tag = self.stat(key)
            self.channel().get(self._path(key), path, callback=callback)
        return size

    def put(self, key: str, file: BinaryIO, size: int, callback: Progress, extra: Any) -> None:
        """Writes beside the name and then renames, so that nobody reads half a file."""
        del extra
        target = self._path(key)
        aside = f"{target}.{uuid.uuid4().hex}.partial"
        with self._lock:
            channel = self.channel()
            self._make_folders(channel, target.rpartition("/")[0])
            try:
                channel.putfo(file, aside, file_size=size, callback=callback)
                channel.posix_rename(aside, target)
            except BaseException:
                with contextlib.suppress(*self.errors):
                    channel.remove(aside)
                raise

    def names(self, folder: str) -> Iterator[str]:
        """Yields the files below a folder."""
        with self._lock:
            try:
                entries = self.channel().listdir_attr(self._path(folder) or ".")
            except FileNotFoundError:
                return
            for entry in entries:
                name = f"{folder}/{entry.filename}".lstrip("/")
                if stat.S_ISDIR(entry.st_mode):
                    yield from self.names(name)
                else:
                    yield name

    def _make_folders(self, channel: Any, folder: str) -> None:
        if not folder:
            return
        try:
            channel.stat(folder)
        except FileNotFoundError:
            self._make_folders(channel, folder.rpartition("/")[0])
            with contextlib.suppress(OSError):  # another process may have made it
                channel.mkdir(folder)

    def _path(self, key: str) -> str:
        return "/".join(part for part in (self._folder, key) if part)
