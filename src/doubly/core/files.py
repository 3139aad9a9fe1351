"""Files: one place that opens them, relative to their folder and without following links; written whole or not at all.

`Folder` is a folder whose content may come from anyone. A name in it is reached from a descriptor of the folder, one
part after the other, and no part may be a link: so nothing outside the folder is read, written or removed, whatever
lies in it. The folder itself may be reached by links, for the user has named it.

Every call that changes something is a call of the module `os`, so that tests can count them, and stop or fail any.
"""

import errno
import fcntl
import hashlib
import os
import re
import shutil
import socket
import stat
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from doubly.core.errors import DiskError, RunWarning, UserError

LOCK = "lock"
DAY = 24 * 3600.0
# what a flock gives on file systems that have none
NO_LOCKS = (errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS, errno.EINVAL)
# what the system says where there is no such file, but nothing, a link, or a file in place of a folder
ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
_NO_LINKS = os.O_NOFOLLOW | os.O_CLOEXEC


def write(path: Path, content: bytes) -> None:
    """Write a file so that at any moment either the old content or the new one is there, whole."""
    folder = Folder(path.parent)
    folder.make_itself()
    folder.sweep_of(path.name)
    folder.write(path.name, content)


class Folder:
    """A folder whose files are reached by names such as `posterior/mean-00001.safetensors`, never through a link."""

    def __init__(self, path: Path):
        self.path = path

    def make_itself(self) -> None:
        """Make the folder, and those above it, where they are not there."""
        with _failing("write", self.path):
            self.path.mkdir(parents=True, exist_ok=True)

    def read(self, name: str, most: int | None = None, first: int = -1) -> bytes | None:
        """The content of a file, or its `first` bytes; None if there is none. More than `most` are refused unread."""
        with _failing("read", self.path / name), suppress(FileNotFoundError), self._parent(name) as (parent, last):
            # without O_NONBLOCK, a pipe in place of the file would be waited for
            file = os.open(last, os.O_RDONLY | os.O_NONBLOCK | _NO_LINKS, dir_fd=parent)
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode):
                os.close(file)
                raise UserError(f"{self.path / name} is no file: remove it")
            with os.fdopen(file, "rb") as opened:
                if most is not None and found.st_size > most:
                    raise UserError(
                        f"{self.path / name} has {found.st_size} bytes, where at most {most} are expected: it is no "
                        "such file"
                    )
                return opened.read(first)
        return None

    def write(self, name: str, content: bytes, older: str | None = None) -> None:
        """Write a file whole or not at all; the one that was there is kept as `older`, if that is given."""
        with _failing("write", self.path / name), self._parent(name, make=True) as (parent, last):
            temporary = f".{last}.{_host()}-{os.getpid()}-{threading.get_native_id()}.tmp"
            try:
                _put(parent, temporary, content)
                if older is not None:
                    with suppress(FileNotFoundError):
                        os.replace(last, older, src_dir_fd=parent, dst_dir_fd=parent)
                os.replace(temporary, last, src_dir_fd=parent, dst_dir_fd=parent)
            except BaseException:
                with suppress(OSError):
                    os.unlink(temporary, dir_fd=parent)
                raise
            _sync_folder(parent)

    def append(self, name: str, content: bytes) -> None:
        """Add to the end of a file. What is there may be cut short by a crash until `sync`."""
        with _failing("write", self.path / name), self._parent(name, make=True) as (parent, last):
            file = os.open(
                last, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | _NO_LINKS, 0o666, dir_fd=parent
            )
            try:
                _write_all(file, content)
            finally:
                os.close(file)

    def sync(self, name: str) -> None:
        """Wait until what was added to a file is on the disk; nothing where there is no such file."""
        with _failing("write", self.path / name), suppress(FileNotFoundError), self._parent(name) as (parent, last):
            file = os.open(last, os.O_RDONLY | os.O_NONBLOCK | _NO_LINKS, dir_fd=parent)
            try:
                os.fsync(file)
            finally:
                os.close(file)

    def exists(self, name: str) -> bool:
        """Whether there is a file of that name, and no link or folder in its place; an error if a disk cannot tell."""
        try:
            with self._parent(name) as (parent, last):
                return stat.S_ISREG(os.stat(last, dir_fd=parent, follow_symlinks=False).st_mode)
        except OSError as error:
            if error.errno in ABSENT:
                return False
            raise DiskError(f"cannot read {self.path / name}: {error.strerror or error}", error.errno) from error

    def names(self, folder: str = "", pattern: str = ".*") -> list[str]:
        """The files in a folder of it whose last names match the pattern, as names to `read` them by, in order."""
        there = f"{folder}/" if folder else ""
        with (
            _failing("read", self.path / folder),
            suppress(FileNotFoundError),
            self._parent(f"{there}.") as (inside, _),
        ):
            found = [name for name in os.listdir(inside) if re.fullmatch(pattern, name)]
            return [f"{there}{name}" for name in sorted(found) if self.exists(f"{there}{name}")]
        return []

    def make(self, name: str) -> None:
        """Make a folder in it."""
        with _failing("write", self.path / name), self._parent(f"{name}/.", make=True):
            pass

    def remove(self, name: str) -> None:
        """Remove a file, a link (not what it leads to) or a folder with all in it; nothing where there is none."""
        with _failing("remove", self.path / name), suppress(FileNotFoundError), self._parent(name) as (parent, last):
            if stat.S_ISDIR(os.stat(last, dir_fd=parent, follow_symlinks=False).st_mode):
                shutil.rmtree(last, dir_fd=parent)
            else:
                os.unlink(last, dir_fd=parent)

    def move(self, name: str, to: str) -> None:
        """Give a file another name in the folder."""
        with (
            _failing("move", self.path / name),
            self._parent(name) as (parent, last),
            self._parent(to, make=True) as (new_parent, new),
        ):
            os.replace(last, new, src_dir_fd=parent, dst_dir_fd=new_parent)

    def sweep(self, *folders: str) -> None:
        """Remove temporaries that a process which is gone has left here and in these folders."""
        for folder in ("", *folders):
            with suppress(UserError):
                for name in self.names(folder, TEMPORARY):
                    if self._is_left_over(name):
                        self.remove(name)

    def sweep_of(self, name: str) -> None:
        """Remove temporaries that a process which is gone has left of one file; others here are not ours to judge."""
        with suppress(UserError):
            for left in self.names(pattern=rf"\.{re.escape(name)}{OWNER}"):
                if self._is_left_over(left):
                    self.remove(left)

    def _is_left_over(self, name: str) -> bool:
        found = re.fullmatch(TEMPORARY, name.rpartition("/")[2])
        assert found is not None
        if found["host"] in (None, _host()):
            return not _is_running(int(found["pid"]))
        with suppress(OSError):  # another machine's: nobody takes a day for a file
            return time.time() - os.lstat(self.path / name).st_mtime > DAY
        return False

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep a second process from moving the same chain; the lock goes with the process, however it ends."""
        with _failing("write", self.path / LOCK), self._parent(LOCK) as (parent, last):
            lock = os.open(last, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | _NO_LINKS, 0o666, dir_fd=parent)
        try:
            self._take(lock)
            yield
        finally:
            os.close(lock)

    def _take(self, lock: int) -> None:
        busy = UserError(f"another process is working on {self.path}: wait for it or stop it")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise busy from None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise DiskError(f"cannot lock {self.path}: {error.strerror}", error.errno) from error
            said = f"the file system of {self.path} has no locks: let no other process work on it meanwhile"
            warnings.warn(said, RunWarning, stacklevel=3)
        # a process that removed the folder meanwhile has removed this lock, and others may have made a new one
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock), os.lstat(self.path / LOCK)):
                return
        raise busy

    @contextmanager
    def _parent(self, name: str, make: bool = False) -> Iterator[tuple[int, str]]:
        """A descriptor of the folder that a name lies in, and the last part of the name."""
        *above, last = name.split("/")
        if any(part in ("", ".", "..") for part in above) or last in ("", ".."):
            raise UserError(f"{name!r} is no name of a file in {self.path}")
        opened = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in above:
                below = _below(opened, part, make)
                os.close(opened)
                opened = below
            yield opened, last
        finally:
            os.close(opened)


def _below(folder: int, name: str, make: bool) -> int:
    """A descriptor of a folder in a folder, which is made if it is not there."""
    flags = os.O_RDONLY | os.O_DIRECTORY | _NO_LINKS
    try:
        return os.open(name, flags, dir_fd=folder)
    except FileNotFoundError:
        if not make:
            raise
    with suppress(FileExistsError):  # another process may be as quick
        os.mkdir(name, dir_fd=folder)
    return os.open(name, flags, dir_fd=folder)


OWNER = r"\.((?P<host>[0-9a-f]{8})-)?(?P<pid>\d+)(-\d+)?\.tmp"  # whose temporary it is
TEMPORARY = rf"\..+?{OWNER}"


def is_temporary(name: str) -> bool:
    """Whether a file of this name is what an interrupted `write` leaves.

    >>> is_temporary(".config.json.0123abcd-17-18.tmp"), is_temporary(".config.json.17.tmp"), is_temporary("notes.tmp")
    (True, True, False)
    """
    return re.fullmatch(TEMPORARY, name) is not None


def _put(parent: int, name: str, content: bytes) -> None:
    """A new file with this content, on the disk; what an earlier process of the same number left is removed first."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINKS
    try:
        file = os.open(name, flags, 0o666, dir_fd=parent)
    except FileExistsError:
        os.unlink(name, dir_fd=parent)
        file = os.open(name, flags, 0o666, dir_fd=parent)
    try:
        _write_all(file, content)
        os.fsync(file)
    finally:
        os.close(file)


def _write_all(file: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(file, rest) :]  # a disk that is nearly full takes only a part


def _sync_folder(folder: int) -> None:
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno != errno.EINVAL:  # on file systems whose folders cannot be synced
            raise


def _host() -> str:
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


@contextmanager
def _failing(verb: str, path: Path) -> Iterator[None]:
    """Turn what the system refuses into one line; a link says so."""
    try:
        yield
    except FileNotFoundError as error:
        raise DiskError(f"cannot {verb} {path}: {error.strerror}", error.errno) from error
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR) and any(map(os.path.islink, (path, path.parent))):
            raise UserError(
                f"{path} lies behind a link, and a run is never followed out of its folder: put the file itself there"
            ) from error
        raise DiskError(f"cannot {verb} {path}: {error.strerror or error}", error.errno) from error
