"""The only way to a user's files: every path is walked from the workspace down, and no link is ever followed.

A directory is held open while what is in it is opened by name, so a link that is swapped in at any moment is
refused instead of followed. Where the system cannot do that (Windows), each step is checked instead.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from miniclaw.errors import ToolError
from miniclaw.tools.paths import MAX_DEPTH, read_path

__all__ = ["RESULTS", "Found", "Workspace"]

RESULTS: Final = ".results"
"""Where whole results are kept; left out of lists."""

MAX_FOUND: Final = 50_000
"""Entries that a walk looks at."""

_SAFELY: Final = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_READ: Final = os.O_RDONLY | _SAFELY | getattr(os, "O_NONBLOCK", 0)
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFELY
_LINK_TAGS: Final = (0xA000000C, 0xA0000003)
"""What Windows calls a symbolic link and a junction; it has other reparse points that are plain files."""
_LOCKS: Final = tuple(threading.RLock() for _ in range(64))
"""Changes of one workspace come one after the other; a workspace always has the same of these."""

_REASONS: Final = {
    errno.ENOENT: "does not exist; `list_files` shows what there is",
    errno.ENOTDIR: "leads through a file or a link; links are not followed",
    errno.ELOOP: "is a link; links are not followed",
    errno.EISDIR: "is a directory",
    errno.ENXIO: "is no regular file, but a pipe, a socket or a device",
    errno.EACCES: "may not be opened",
    errno.ENAMETOOLONG: "is too long",
    errno.ENOSPC: "cannot be written: the disk is full",
}


@dataclass(frozen=True, slots=True)
class Found:
    """A file or directory of a walk; its path is relative to where the walk began."""

    path: tuple[str, ...]
    is_dir: bool
    size: int
    changed: int


class _Directory:
    """An open directory."""

    def __init__(self, fd: int | None, path: Path) -> None:
        self.fd = fd
        self.path = path

    def at(self, name: str) -> str:
        return name if self.fd is not None else str(self.path / name)

    def lstat(self, name: str) -> os.stat_result:
        return os.stat(self.at(name), dir_fd=self.fd, follow_symlinks=False)

    def open(self, name: str, flags: int, mode: int = 0o600) -> int:
        if self.fd is None and not flags & os.O_EXCL and _is_link(self.lstat(name)):
            raise OSError(errno.ELOOP, "link")
        return os.open(self.at(name), flags, mode, dir_fd=self.fd)

    def enter(self, name: str) -> _Directory:
        if self.fd is not None:
            flags = os.O_RDONLY | os.O_DIRECTORY | _SAFELY
            return _Directory(os.open(name, flags, dir_fd=self.fd), self.path / name)
        found = self.lstat(name)
        if _is_link(found) or not stat.S_ISDIR(found.st_mode):
            raise OSError(errno.ENOTDIR, "no directory")
        return _Directory(None, self.path / name)

    def close(self) -> None:
        if self.fd is not None:
            os.close(self.fd)


class Workspace:
    """The files of one user or group.

    Every method blocks and belongs into a thread. A failure is a `ToolError` that names the path as the
    caller wrote it, and nothing of this machine.

    Args:
        root: the directory; made by the first write.
        file_bytes: the size of the largest file that is read or written.
        total_bytes: what all files may take together.
        by_descriptor: whether names are opened relative to an open directory.
    """

    def __init__(
        self,
        root: Path,
        *,
        file_bytes: int = 10_000_000,
        total_bytes: int = 1_000_000_000,
        by_descriptor: bool = os.open in os.supports_dir_fd,
    ) -> None:
        self.root = root
        self.file_bytes = file_bytes
        self._total_bytes = total_bytes
        self._by_descriptor = by_descriptor

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Keep other changes of this workspace out, so that what was read is what is replaced."""
        with _LOCKS[hash(self.root) % len(_LOCKS)]:
            yield

    def read(self, path: str) -> bytes:
        """The whole file."""
        return self._read(path, self._file(path))

    def _read(self, path: str, names: tuple[str, ...]) -> bytes:
        *parents, name = names
        with _explained(path), self._directory(parents) as directory:
            return self._content(path, directory, name)

    def write(self, path: str, data: bytes) -> bool:
        """Put a file in place as a whole, or not at all; directories are made. Whether it is a new one."""
        *parents, name = self._writable(path)
        if len(data) > self.file_bytes:
            raise ToolError(f"`{path}` would have {len(data):,} bytes; {self.file_bytes:,} are allowed.")
        with self.changing(), _explained(path), self._directory(parents, make=True) as directory:
            before = None
            with contextlib.suppress(FileNotFoundError):
                before = directory.lstat(name)
            if before is not None and not stat.S_ISREG(before.st_mode):
                raise OSError(_kind(before), "no file")
            self._check_quota(len(data) - (before.st_size if before else 0))
            _replace(directory, name, data, before.st_mode & 0o777 if before else 0o600)
            return before is None

    def walk(self, path: str, *, deep: bool = True) -> Iterator[Found]:
        """What is in a directory, by name, at most `MAX_FOUND` entries; links and special files are left out."""
        left = [MAX_FOUND]
        with _explained(path), self._directory(read_path(path, is_new=False)) as directory:
            yield from _walk(directory, (), deep, left)

    def read_each(self, path: str, wanted: Callable[[Found], bool]) -> Iterator[tuple[Found, bytes | None]]:
        """The files of a walk that are wanted, with their content; `None` for one that cannot be read."""
        base = read_path(path, is_new=False)
        for found in self.walk(path):
            if not found.is_dir and wanted(found):
                data = None
                if found.size <= self.file_bytes:
                    with contextlib.suppress(ToolError):  # gone or swapped since it was listed
                        data = self._read("/".join(found.path), (*base, *found.path))
                yield found, data

    def keep_newest(self, path: str, count: int) -> None:
        """Delete the oldest files of a directory until `count` are left."""
        files = sorted((f for f in self.walk(path, deep=False) if not f.is_dir), key=lambda f: f.changed)
        with self.changing(), _explained(path), self._directory(read_path(path, is_new=False)) as directory:
            for old in files[:-count]:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(directory.at(old.path[-1]), dir_fd=directory.fd)

    def remove(self, path: str) -> None:
        """Delete a file, if it is there."""
        *parents, name = self._file(path)
        with self.changing(), _explained(path), self._directory(parents) as directory:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(directory.at(name), dir_fd=directory.fd)

    def _file(self, path: str) -> tuple[str, ...]:
        names = read_path(path, is_new=False)
        if not names:
            raise ToolError("Name a file, such as `notes.md`.")
        return names

    def _writable(self, path: str) -> tuple[str, ...]:
        """The names of a file to write; only one that is there may be called as no new one may be."""
        *parents, name = names = self._file(path)
        try:
            return read_path(path)
        except ToolError:
            with contextlib.suppress(OSError), self._directory(parents) as directory:
                directory.lstat(name)
                return names
            raise

    def _content(self, path: str, directory: _Directory, name: str) -> bytes:
        with open(directory.open(name, _READ), "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise OSError(_kind(found), "no file")
            data = file.read(self.file_bytes + 1)
        if len(data) > self.file_bytes:
            raise ToolError(f"`{path}` has {found.st_size:,} bytes; at most {self.file_bytes:,} can be read.")
        return data

    def _check_quota(self, more: int) -> None:
        if more <= 0 or not self.root.exists():
            return
        used, entries = 0, 0
        for found in self.walk("."):
            used, entries = used + found.size, entries + 1
        if used + more > self._total_bytes or entries >= MAX_FOUND:
            raise ToolError(
                f"The workspace is full: {used:,} bytes in {entries:,} entries of {self._total_bytes:,} bytes."
                " Ask the user to delete something."
            )

    @contextlib.contextmanager
    def _directory(self, names: list[str] | tuple[str, ...], *, make: bool = False) -> Iterator[_Directory]:
        if make or not names:  # before the first write it is empty, not missing
            self.root.mkdir(parents=True, exist_ok=True)
        fd = None
        if self._by_descriptor:
            fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | _SAFELY)
        elif _is_link(self.root.lstat()):
            raise OSError(errno.ELOOP, "link")
        directory = _Directory(fd, self.root)
        try:
            for name in names:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(directory.at(name), 0o700, dir_fd=directory.fd)
                outer, directory = directory, directory.enter(name)
                outer.close()
            yield directory
        finally:
            directory.close()


def _walk(directory: _Directory, above: tuple[str, ...], deep: bool, left: list[int]) -> Iterator[Found]:
    with os.scandir(directory.path if directory.fd is None else directory.fd) as entries:
        names = sorted(entry.name for entry in entries)
    for name in names:
        if left[0] <= 0:
            return
        left[0] -= 1
        with contextlib.suppress(OSError):  # gone, swapped or locked since it was listed
            found = directory.lstat(name)
            if _is_link(found) or not stat.S_ISDIR(found.st_mode):
                if stat.S_ISREG(found.st_mode):
                    yield Found((*above, name), False, found.st_size, found.st_mtime_ns)
                continue
            yield Found((*above, name), True, 0, found.st_mtime_ns)
            if deep and len(above) < MAX_DEPTH:
                inner = directory.enter(name)
                try:
                    yield from _walk(inner, (*above, name), deep, left)
                finally:
                    inner.close()


def _replace(directory: _Directory, name: str, data: bytes, mode: int) -> None:
    temporary = f".{name}.{secrets.token_hex(4)}"
    try:
        with open(directory.open(temporary, _CREATE, mode), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            if directory.fd is not None:
                os.fchmod(file.fileno(), mode)
        os.replace(
            directory.at(temporary), directory.at(name), src_dir_fd=directory.fd, dst_dir_fd=directory.fd
        )
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(directory.at(temporary), dir_fd=directory.fd)
        raise


def _kind(found: os.stat_result) -> int:
    return errno.EISDIR if stat.S_ISDIR(found.st_mode) else errno.ELOOP if _is_link(found) else errno.ENXIO


def _is_link(found: os.stat_result) -> bool:
    return stat.S_ISLNK(found.st_mode) or getattr(found, "st_reparse_tag", 0) in _LINK_TAGS


@contextlib.contextmanager
def _explained(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = _REASONS.get(error.errno or 0, f"cannot be used ({os.strerror(error.errno or errno.EIO)})")
        raise ToolError(f"`{path[:200]}` {reason}.") from error
