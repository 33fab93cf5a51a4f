"""The `run_command` tool: a program in the workspace, without a shell; in bubblewrap where that is installed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from miniclaw.errors import ToolError
from miniclaw.tools.base import Tool, ToolResult
from miniclaw.tools.context import ToolContext
from miniclaw.tools.function import tool
from miniclaw.tools.process import clean_environment, run_program

__all__ = ["run_command_tool"]

MAX_SECONDS: Final = 600
MAX_BYTES: Final = 500_000
INSIDE: Final = "/workspace"
_SYSTEM: Final = (
    "/usr /bin /sbin /lib /lib32 /lib64 /etc/alternatives /etc/ld.so.cache /etc/localtime /etc/ssl /etc/passwd"
    " /etc/group"
).split()
"""What a sandboxed program sees of the machine, read-only; neither homes nor the data directory."""


def run_command_tool(*, bwrap: str | None = None, environ: Mapping[str, str] = os.environ) -> Tool:
    """The tool.

    What a command may do is decided by a person, by an exact rule and by the sandbox, never by looking at
    the text of the command: links, variables and interpreters make any such check hollow.

    Args:
        bwrap: the program of bubblewrap; looked up in `PATH` when left out, and empty = no sandbox.
        environ: where the few variables come from that a command gets.
    """
    sandbox = shutil.which("bwrap") if bwrap is None else bwrap

    @tool(timeout=MAX_SECONDS + 10)
    async def run_command(
        context: ToolContext,
        command: Annotated[
            list[str],
            Field(min_length=1, max_length=200, description="the program and its arguments, one an item"),
        ],
        seconds: Annotated[int, Field(ge=1, le=MAX_SECONDS, description="how long it may take")] = 60,
    ) -> ToolResult:
        """Run a program in the workspace; no shell reads the arguments, so `|`, `>` and `*` mean nothing."""
        workspace = context.workspace
        workspace.mkdir(parents=True, exist_ok=True)
        env = clean_environment(workspace, environ)
        given = command
        if sandbox:
            given = [*_sandboxed(sandbox, workspace), *command]
            env["HOME"] = INSIDE
        done = await run_program(
            given, cwd=workspace, env=env, seconds=seconds, max_bytes=MAX_BYTES, name=command[0]
        )
        if done.reason:
            raise ToolError(f"`{command[0]}` was killed: {done.reason}. It wrote:\n{done.output}".rstrip())
        content = f"{done.output.rstrip()}\n[exit code {done.code}]".lstrip()
        error = None if done.code == 0 else f"`{command[0]}` ended with exit code {done.code}."
        return ToolResult(ok=done.code == 0, content=content, data={"exit_code": done.code}, error=error)

    run_command.asks_always = True
    return run_command


def _sandboxed(bwrap: str, workspace: Path) -> list[str]:
    system = [word for path in _SYSTEM for word in ("--ro-bind-try", path, path)]
    return [
        *(bwrap, "--unshare-all", "--die-with-parent", "--new-session", *system),
        *("--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"),
        *("--bind", str(workspace), INSIDE, "--chdir", INSIDE, "--"),
    ]
