"""Starts servers as programs: in a group and with an environment of their own, and none outlives us."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from miniclaw.errors import MCPUnavailable

__all__ = ["Guard", "clean_environment", "end_group", "find_program"]

_PASSED_ON: Final = (
    *("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR"),
    *("APPDATA", "COMSPEC", "HOMEDRIVE", "HOMEPATH", "LOCALAPPDATA", "PATHEXT", "PROCESSOR_ARCHITECTURE"),
    *(
        "PROGRAMDATA",
        "PROGRAMFILES",
        "SYSTEMDRIVE",
        "SYSTEMROOT",
        "TEMP",
        "USERNAME",
        "USERPROFILE",
        "WINDIR",
    ),
)
"""All that a server gets of our environment; everything else may be a secret, and is given by `env`."""


def clean_environment(more: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """A server's environment."""
    passed = {
        name: environ[name] for name in _PASSED_ON if name in environ and not environ[name].startswith("()")
    }
    return {"PATH": os.defpath, **passed, "PYTHONUTF8": "1", "PYTHONIOENCODING": "utf-8", **more}


def find_program(command: Sequence[str], env: Mapping[str, str], cwd: Path | None) -> list[str]:
    """The command with the program's whole path, such as that of `npx.cmd` on Windows.

    Raises:
        MCPUnavailable: there is no such program, or no such directory.
    """
    if cwd is not None and not cwd.is_dir():
        raise MCPUnavailable(f"The directory `{cwd}` does not exist; mend `cwd`.")
    program = command[0]
    if cwd is not None and os.sep in program and not os.path.isabs(program):
        program = str(cwd / program)
    found = shutil.which(program, path=env.get("PATH"))
    if found is None:
        raise MCPUnavailable(
            f"The program `{command[0]}` was not found; install it, or give its whole path as `command`."
        )
    return [found, *command[1:]]


class Guard:
    """The small program that ends our servers when we are killed; one for all of them, started with the first."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._groups: set[int] = set()

    def add(self, pid: int) -> None:
        """A process group is ours."""
        if sys.platform == "win32":
            return
        told = {pid}
        self._groups.add(pid)
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(Path(__file__).with_name("guard.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
            told = self._groups
        self._tell("".join(f"+{one}\n" for one in told))

    def remove(self, pid: int) -> None:
        """It has ended; without any left the guard ends too."""
        self._groups.discard(pid)
        if self._process is None:
            return
        self._tell(f"-{pid}\n")
        if not self._groups:
            process, self._process = self._process, None
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.close()
            process.wait()

    def _tell(self, lines: str) -> None:
        assert self._process is not None and self._process.stdin is not None
        with contextlib.suppress(OSError):  # it was killed: the next server starts another
            self._process.stdin.write(lines.encode())
            self._process.stdin.flush()


async def end_group(pid: int, ended: asyncio.Event, *, grace: float) -> None:
    """Ask a process group to end, and make it when it does not within `grace` seconds."""
    if sys.platform == "win32":
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGTERM)
        await ended.wait()
        return
    from miniclaw.tools.process import end_program

    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGTERM)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(ended.wait(), grace)
    end_program(pid)
    await ended.wait()
