"""Runs a program of its own process group with bounded time, bounded output and no secrets in its environment."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from miniclaw.errors import ToolError

__all__ = ["Finished", "clean_environment", "end_program", "run_program"]

_PASSED_ON: Final = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "SSL_CERT_FILE", "SYSTEMROOT")
"""All that a child gets of our environment; everything else may be a secret."""
LAST_WORDS: Final = 1.0
"""Seconds for what a killed group wrote; who left the group may hold the pipe open for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """How a program ended."""

    code: int | None
    """`None` = it was killed at a limit; negative = a signal ended it."""
    output: str
    """Standard output and errors together."""
    reason: str = ""
    """Which limit it was."""


def clean_environment(home: Path, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """A child's environment: `home` holds no profile that a shell could read secrets from."""
    passed = {name: environ[name] for name in _PASSED_ON if name in environ}
    return {"PATH": os.defpath, **passed, "HOME": str(home), "TERM": "dumb", "PYTHONIOENCODING": "utf-8"}


async def run_program(
    command: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    seconds: float,
    max_bytes: int,
    text: str = "",
    name: str = "",
) -> Finished:
    """Run to the end or to a limit; whatever it started in its group ends with it, also on cancellation.

    Args:
        command: the program and its arguments; no shell reads them.
        cwd: where it runs.
        env: its whole environment.
        seconds: how long it may take.
        max_bytes: how much it may write.
        text: what it reads.
        name: what it is called in errors; empty = by the command's first word.

    Raises:
        ToolError: it cannot be started.
    """
    if sys.platform == "win32":
        raise ToolError("Programs run on Linux and macOS only: elsewhere a group of them cannot be stopped.")
    process, stdout, pipe = await _start(command, cwd, env, text, name or command[0])
    output = bytearray()
    try:
        reason = await _watch(process, stdout, output, seconds, max_bytes)
    finally:
        pipe.close()
    shown = bytes(output[:max_bytes]).decode("utf-8", "replace")
    return Finished(code=None if reason else process.returncode, output=shown, reason=reason)


async def _watch(
    process: asyncio.subprocess.Process,
    stdout: asyncio.StreamReader,
    output: bytearray,
    seconds: float,
    max_bytes: int,
) -> str:
    """Collect what it writes until it ends; the limit at which it was killed, if it was."""
    loop = asyncio.get_running_loop()
    reading = loop.create_task(_read(stdout, output, max_bytes))
    ending = loop.create_task(process.wait())
    reason = ""
    try:
        async with asyncio.timeout(seconds):
            await asyncio.wait({reading, ending}, return_when=asyncio.FIRST_COMPLETED)
            if len(output) <= max_bytes:  # else it is killed now
                await ending
    except TimeoutError:
        reason = f"it took more than {seconds:g} s"
    finally:
        end_program(process.pid)
        await asyncio.wait({reading, ending}, timeout=LAST_WORDS)
        reading.cancel()
    return f"it wrote more than {max_bytes:,} bytes" if len(output) > max_bytes else reason


def end_program(top: int) -> None:
    """End a program, its group and what left the group."""
    left = _below(top)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(top, signal.SIGKILL)
    for pid in left:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _below(top: int) -> list[int]:
    """What a program started, with what that started: one that left the group is found on Linux by its parent."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):  # it has just ended
            parent = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1]
            children.setdefault(int(parent), []).append(int(path.parent.name))
    found = [top]
    for pid in found:
        found += children.get(pid, [])
    return found[1:]


async def _start(
    command: Sequence[str], cwd: Path, env: Mapping[str, str], text: str, name: str
) -> tuple[asyncio.subprocess.Process, asyncio.StreamReader, asyncio.ReadTransport]:
    """Start it with a pipe of our own: asyncio's `wait` waits for whoever inherited one of its pipes."""
    stdout = asyncio.StreamReader()
    read_end, write_end = os.pipe()
    pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stdout), os.fdopen(read_end, "rb", 0)
    )
    try:
        with tempfile.TemporaryFile() as stdin:
            stdin.write(text.encode())
            stdin.seek(0)
            process = await _spawn(
                asyncio.create_subprocess_exec(
                    *command,
                    cwd=cwd,
                    env=env,
                    stdin=stdin,
                    stdout=write_end,
                    stderr=asyncio.subprocess.STDOUT,
                    start_new_session=True,
                )
            )
    except (OSError, ValueError) as error:
        pipe.close()
        raise ToolError(f"`{name[:100]}` cannot be started: {_reason(error)}.") from error
    except asyncio.CancelledError:
        pipe.close()
        raise
    finally:
        os.close(write_end)
    return process, stdout, pipe


async def _spawn(
    start: Coroutine[object, object, asyncio.subprocess.Process],
) -> asyncio.subprocess.Process:
    """Wait for its start; cancelled meanwhile, end it with what it started: asyncio would leave that running."""
    starting = asyncio.ensure_future(start)
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        process = await starting
        end_program(process.pid)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), LAST_WORDS)
        raise


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror or "it failed") if isinstance(error, OSError) else "an argument holds a NUL"


async def _read(stdout: asyncio.StreamReader, output: bytearray, max_bytes: int) -> None:
    while len(output) <= max_bytes and (piece := await stdout.read(65_536)):
        output += piece
