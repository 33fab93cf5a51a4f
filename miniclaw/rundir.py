"""The data directory's `run/`: who holds it, and how others of the same user reach the holder."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Final

from miniclaw.errors import ConfigError, DirectoryBusy

__all__ = [
    "RESTORE_MARK",
    "RESTORING",
    "RunDir",
    "RunningGateway",
    "check_restored",
    "private_directory",
    "read_or_make_token",
    "try_lock",
]

RESTORE_MARK: Final = "run/restore.json"
"""Is there while a restore moves files."""
RESTORING: Final = "run/restoring"
"""Where the files of a backup are until then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningGateway:
    """Where the holder of a data directory listens."""

    pid: int
    gateway_port: int | None
    web_port: int | None
    token: str
    mcp_port: int | None = None
    """Where `/mcp` is served, if not on the web port."""


class RunDir:
    """One process at a time writes a data directory; its holder tells the others where it listens.

    Gateways that share everything else through Redis may share the directory too (`shared`): they keep out
    one that does not, and the last one that started is the one that others find.
    """

    def __init__(self, data_dir: Path, *, shared: bool = False) -> None:
        self._directory = data_dir / "run"
        self._lock: IO[str] | None = None
        self._nodes: IO[str] | None = None
        self._shared = shared

    def acquire(self) -> None:
        """Take the lock for the life of this process.

        Raises:
            DirectoryBusy: another process holds it.
            ConfigError: the directory cannot be written.
        """
        try:
            private_directory(self._directory.parent)
            private_directory(self._directory)
            self._lock = (self._directory / "lock").open("a", encoding="utf-8")
            if self._shared:
                self._nodes = (self._directory / "nodes").open("a", encoding="utf-8")
        except OSError as error:
            raise ConfigError(
                f"`{self._directory.parent}` cannot be written: {error.strerror}; choose another --data-dir."
            ) from error
        tries = 5
        while not (locked := self._take(self._lock)) and (tries := tries - 1):
            time.sleep(0.02)  # another process may just be looking whether somebody holds it
        if not locked:
            self._close()
            raise DirectoryBusy(
                f"Another miniclaw is running on `{self._directory.parent}`; stop it, attach to it with "
                "`miniclaw chat`, or choose another --data-dir."
            )
        # What a process that was killed left: until this one announces itself, nobody can attach.
        if not self._shared:
            (self._directory / "gateway.json").unlink(missing_ok=True)

    def _take(self, lock: IO[str]) -> bool:
        if not try_lock(lock, shared=self._shared):
            return False
        return self._nodes is None or try_lock(self._nodes, shared=True)

    def announce(self, gateway: RunningGateway) -> None:
        """Write `run/gateway.json`, readable by this user only."""
        path = self._directory / "gateway.json"
        temporary = path.with_suffix(".tmp")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            known = {name: value for name, value in asdict(gateway).items() if name != "mcp_port" or value}
            json.dump(known, file)  # versions that know no such port read it too
        temporary.replace(path)

    def release(self) -> None:
        """Let others have the directory; may be called again."""
        if self._lock is not None:
            path = self._directory / "gateway.json"
            if not self._shared or f'"pid": {os.getpid()},' in (
                path.read_text(encoding="utf-8") if path.exists() else ""
            ):
                path.unlink(missing_ok=True)
            self._close()

    def _close(self) -> None:
        for lock in (self._lock, self._nodes):
            if lock is not None:
                lock.close()
        self._lock = self._nodes = None

    def running(self) -> RunningGateway | None:
        """The process that holds the directory now, or `None`; a file left by a crash counts for nothing."""
        with contextlib.suppress(OSError, ValueError, TypeError):
            raw = json.loads((self._directory / "gateway.json").read_text(encoding="utf-8"))
            if self.is_held():
                return RunningGateway(**raw)
        return None

    def is_held(self) -> bool:
        """Whether a process holds the directory, even if it does not listen yet."""
        for name in ("lock", "nodes"):  # one process holds the first alone, or many hold the second together
            with contextlib.suppress(OSError), (self._directory / name).open("a", encoding="utf-8") as lock:
                if not try_lock(lock, shared=name == "lock"):
                    return True
        return False


def private_directory(path: Path) -> None:
    """Make a directory that only this user can enter."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.stat().st_mode & 0o077:
        path.chmod(0o700)  # it may be older, and open to others


def check_restored(data_dir: Path, *, because: str = "") -> None:
    """Refuse a directory of which a restore has moved only a part.

    Raises:
        ConfigError: it is one.
    """
    mark = data_dir / RESTORE_MARK
    if os.path.exists(mark):
        aside = data_dir / json.loads(mark.read_text(encoding="utf-8"))["aside"]
        raise ConfigError(
            f"A restore stopped in the middle{because}: what was there is in `{aside}` or still in `{data_dir}`, "
            f"what is to come in `{data_dir / RESTORING}`; run `miniclaw restore` again, which first ends it."
        )


def read_or_make_token(data_dir: Path, configured: str | None) -> str:
    """The owner's token: the configured one, else a new one that is kept in the data directory's `.env`.

    Raises:
        ConfigError: the file cannot be written.
    """
    if configured:
        return configured
    token = secrets.token_urlsafe(32)
    path = data_dir / ".env"
    try:
        path.touch(mode=0o600)
        path.chmod(0o600)  # it may be older, and readable by others
        with path.open("r+b") as file:
            before = file.read()
            begin = b"\n" if before and not before.endswith(b"\n") else b""
            file.write(begin + f"MINICLAW_TOKEN={token}\n".encode())
    except OSError as error:
        raise ConfigError(f"`{path}` cannot be written: {error.strerror}; set MINICLAW_TOKEN.") from error
    return token


if sys.platform == "win32":

    def try_lock(file: IO[Any], *, shared: bool = False) -> bool:
        """Lock an open file if nobody else has; until it is closed. `False` also where locks are unknown."""
        import msvcrt

        file.seek(0)
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:

    def try_lock(file: IO[Any], *, shared: bool = False) -> bool:
        """Lock an open file if nobody else has; until it is closed. `False` also where locks are unknown."""
        import fcntl

        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError:
            return False
        return True
