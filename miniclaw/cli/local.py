"""Commands of the terminal itself: they go nowhere, or ask the gateway several things."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Protocol

from miniclaw.cli.trace_command import table
from miniclaw.errors import ConfigError, ProtocolError
from miniclaw.gateway.protocol import CommandPayload

__all__ = ["LOCAL", "needs_yes", "run_local"]

LOCAL: Final = {
    "exit": "leaves; so do exit, quit and Ctrl+D",
    "export": "writes the session as Markdown into a file: /export [FILE]",
}
PAGE: Final = 1000


def needs_yes(command: CommandPayload) -> tuple[str, str] | None:
    """The question, in two languages, that comes before a command that clears; `None` for any other."""
    if command.name == "clear":
        return "清空这次对话？", "Clear this conversation?"
    if command.name == "memories" and command.args.get("action") == "clear":
        return "忘记所有记忆？", "Forget all memories?"
    return None


class Commanding(Protocol):
    """What is needed of a conversation."""

    session_id: str | None

    async def command(self, name: str, args: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a command and return its result."""
        ...


async def run_local(conversation: Commanding, line: str) -> str | None:
    """Carry out a local command and return what to show; `None` when the line is none.

    Raises:
        ConfigError: it cannot be done.
        ProtocolError: the gateway refused a part of it.
    """
    word, _, rest = line.partition(" ")
    if word == "/export":
        return await _export(conversation, rest.strip())
    if word == "/trace":
        found = await conversation.command("trace", {"turn_id": rest.strip()} if rest.strip() else {})
        return table(found["records"])
    return None


async def _export(conversation: Commanding, file: str) -> str:
    if conversation.session_id is None:
        raise ProtocolError("session_not_found", "There is nothing to export yet; say something first.")
    messages: list[dict[str, Any]] = []
    before: int | None = None
    while True:
        page = {"session_id": conversation.session_id, "limit": PAGE} | ({"before": before} if before else {})
        found = await conversation.command("history", page)
        messages = [*found["messages"], *messages]
        if not found["more"]:
            break
        before = found["messages"][0]["position"]
    said = [m for m in messages if m["role"] in ("user", "assistant") and m["content"]]
    text = "\n".join(f"## {m['role']}\n\n{m['content']}\n" for m in said)
    return f"{_written(file or f'{conversation.session_id}.md', text)} ({len(said)})"


def _written(file: str, text: str) -> Path:
    path = Path(file).expanduser().absolute()
    try:
        with path.open("x", encoding="utf-8") as out:
            out.write(text)
    except OSError as error:
        raise ConfigError(f"`{path}` cannot be written: {error.strerror}; name another file.") from error
    return path
