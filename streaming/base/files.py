"""Files that are either whole or not there, made once however many processes want them."""

import errno
import fcntl
import os
import re
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO

TMP_SUFFIX = ".tmp"
"""What the name of a file ends in while it is being made."""

_OWN_TMP = re.compile(rf"(\.[0-9a-f]{{32}})?{re.escape(TMP_SUFFIX)}$")
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL, errno.EBADF)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_PATIENCE_SECONDS = 2.0


def sync_folder(dirname: str) -> None:
    """Makes renames in a folder survive a power cut, where the file system can."""
    try:
        fd = os.open(dirname or ".", os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(fd)
    except OSError:
        pass
    finally:
        os.close(fd)


def write_file(filename: str, data: bytes) -> None:
    """Writes a file aside, flushes it and renames it, so that no half of it is ever seen."""
    tmp = filename + TMP_SUFFIX
    with open(tmp, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(tmp, filename)
    sync_folder(os.path.dirname(filename))


def name_when_made(path: str) -> str:
    """The name that a file gets when it is whole."""
    return _OWN_TMP.sub("", path)


def make_once(
    filename: str,
    is_good: Callable[[], bool],
    make: Callable[[BinaryIO], None],
    size: int = 0,
) -> bool:
    """Makes a file if it is not there or not good; of many processes one does it, the others wait.

    The lock is the kernel's, on the file that is being written. It ends with its process, so that a
    killed one holds up nobody; what it left half written, the next one overwrites. Where there are
    no locks, each process that comes in the meantime makes the file, aside and under its own name.

    Args:
        filename: The file.
        is_good: Says whether the file as it stands will do.
        make: Writes the content to the open file; what it raises is passed on, and no file is made.
        size: Bytes that it will have, as far as known: those who count see them from the start.

    Returns:
        Whether this process made it.
    """
    if is_good():
        return False
    os.makedirs(os.path.dirname(filename) or ".", exist_ok=True)
    tmp = filename + TMP_SUFFIX
    while True:
        with (
            open(os.open(tmp, os.O_RDWR | os.O_CREAT, 0o666), "r+b") as file,
            _locked(file) as has_lock,
        ):
            if has_lock and not _is_same_file(file, tmp):
                # Who held the lock has finished (and renamed the file) or given up.
                if is_good():
                    return False
                continue
            if is_good():
                _unlink(tmp)
                return False
            if has_lock:
                _fill(file, tmp, make, size)
            else:
                _unlink(tmp)
                tmp = f"{filename}.{uuid.uuid4().hex}{TMP_SUFFIX}"
                with open(tmp, "xb") as own:
                    _fill(own, tmp, make, size)
            os.replace(tmp, filename)
            return True


def _fill(file: BinaryIO, tmp: str, make: Callable[[BinaryIO], None], size: int) -> None:
    try:
        file.truncate(0)
        file.truncate(size)
        make(file)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())
    except BaseException:
        _unlink(tmp)
        raise


@contextmanager
def disk_full_named(filename: str, size: int | None = None) -> Iterator[None]:
    """Says, if the disk is full when this is done, for what, and what can be done about it.

    Args:
        filename: What is being written.
        size: How many bytes, if that is known.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        wanted = "" if size is None else f", of {size} bytes,"
        raise OSError(
            error.errno,
            f"{os.strerror(error.errno)}: {filename}{wanted} could not be written. Free space "
            "there, set `cache_limit` to what the disk can hold, or choose another `local`",
        ) from error


def remove_abandoned(tmp: str) -> bool:
    """Removes a file that a killed process was making; says whether it was one."""
    try:
        with open(tmp, "r+b") as file:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_same_file(file, tmp):
                os.unlink(tmp)
    except FileNotFoundError:
        return True
    except OSError:  # It is being made, or there are no locks here, or it is another's.
        return False
    return True


def lock(fd: int, how: int) -> bool:
    """Takes the kernel's lock on what is open; file systems without locks let everyone through.

    Args:
        fd: The file or folder; closing it lets the lock go.
        how: As for ``fcntl.flock``.

    Returns:
        Whether nobody else holds it, which can only be False with ``LOCK_NB``.
    """
    try:
        fcntl.flock(fd, how)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return True


class FolderUse:
    """A share in the use of a folder, as long as this object or its process lives.

    It is the kernel's lock on the folder itself, which leaves nothing behind.

    Args:
        path: The folder, which is made if need be.
    """

    def __init__(self, path: str) -> None:
        self._fd = -1
        os.makedirs(path, exist_ok=True)
        self._fd = os.open(path, os.O_RDONLY)
        lock(self._fd, fcntl.LOCK_SH)

    def is_shared(self) -> bool:
        """Whether somebody else uses the folder; waits a moment for one who is about to end."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        try:
            while not lock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB):
                if time.monotonic() > deadline:
                    return True
                time.sleep(0.02)
            return False
        finally:
            lock(self._fd, fcntl.LOCK_SH)

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def _is_same_file(file: BinaryIO, path: str) -> bool:
    try:
        here = os.stat(path)
    except FileNotFoundError:
        return False
    there = os.fstat(file.fileno())
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


@contextmanager
def _locked(file: BinaryIO) -> Iterator[bool]:
    """Holds the kernel's lock on a file; says whether the file system has locks."""
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        yield False
    else:
        yield True  # Closing the file lets the lock go.


def remove_file(filename: str) -> int:
    """Removes a file if it is there, and returns how many bytes it had."""
    try:
        size = os.stat(filename).st_size
        os.unlink(filename)
    except FileNotFoundError:
        return 0
    return size
