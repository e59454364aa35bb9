"""Files that are either whole or not there, made once however many processes want them."""

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO

_TMP_SUFFIX = ".tmp"


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
    tmp = filename + _TMP_SUFFIX
    with open(tmp, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(tmp, filename)
    sync_folder(os.path.dirname(filename))


def make_once(filename: str, is_good: Callable[[], bool], make: Callable[[BinaryIO], None]) -> bool:
    """Makes a file if it is not there or not good; of many processes one does it, the others wait.

    The lock is the kernel's, on the file that is being written. It ends with its process, so that a
    killed one holds up nobody; what it left half written, the next one overwrites.

    Args:
        filename: The file.
        is_good: Says whether the file as it stands will do.
        make: Writes the content to the open file; what it raises is passed on, and no file is made.

    Returns:
        Whether this process made it.
    """
    if is_good():
        return False
    os.makedirs(os.path.dirname(filename) or ".", exist_ok=True)
    tmp = filename + _TMP_SUFFIX
    while True:
        with open(tmp, "ab") as file, _locked(file):
            if not _is_same_file(file, tmp):
                # Who held the lock has finished (and renamed the file) or given up.
                if is_good():
                    return False
                continue
            if is_good():
                _unlink(tmp)
                return False
            try:
                file.truncate(0)
                make(file)
                file.flush()
                os.fsync(file.fileno())
            except BaseException:
                _unlink(tmp)
                raise
            os.replace(tmp, filename)
            return True


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
def _locked(file: BinaryIO) -> Iterator[None]:
    """Holds the kernel's lock on a file; file systems without locks let everyone through."""
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL):
            raise
    yield  # Closing the file lets the lock go.


def remove_file(filename: str) -> int:
    """Removes a file if it is there, and returns how many bytes it had."""
    try:
        size = os.stat(filename).st_size
        os.unlink(filename)
    except FileNotFoundError:
        return 0
    return size
