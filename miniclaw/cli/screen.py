"""What the terminal shows: plain streamed text, one line a tool, questions in the user's language."""

from __future__ import annotations

import io
import json
import locale
import os
import sys
from typing import Any, Final

from miniclaw import __version__
from miniclaw.agent.command_text import command_text
from miniclaw.agent.replies import memory_line

__all__ = ["Screen"]


_HARMLESS: Final = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
"""Control characters, by which a model's text could clear the screen or feign a question."""


class Screen:
    """Writes events to standard output; with `quiet` it writes nothing of a turn."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(
                errors="replace"
            )  # a console of another encoding shows ? instead of failing
        self._color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        asked = (os.environ.get(name) for name in ("LC_ALL", "LC_MESSAGES", "LANG"))  # in the order of POSIX
        language = next(filter(None, asked), None) or locale.getlocale()[0] or ""
        self._chinese = language.lower().startswith(("zh", "chinese"))
        self._column = 0

    def banner(self, where: str) -> None:
        """Who is there, and how to leave."""
        leave = (
            "Ctrl+C 停止回答，再按一次退出；/help 看命令"
            if self._chinese
            else "Ctrl+C stops, twice leaves; /help"
        )
        self._line(f"miniclaw {__version__} · {where} · {leave}")

    def show(self, name: str, data: dict[str, Any]) -> None:
        """Show one event of the turn."""
        if self._quiet:
            return
        match name:
            case "text.delta":
                self._write(data["text"])
            case "turn.snapshot":
                self._end_line()
                self._write(data["text"])
            case "turn.queued":
                self._dim(f"… {data['position']} " + ("条在前面" if self._chinese else "before this one"))
            case "tool.started":
                self._dim(f"⚙ {data['name']} {json.dumps(data['arguments'], ensure_ascii=False)}")
            case "tool.finished":
                mark = "✓" if data["ok"] else "✗"
                first = (data["content"].strip().splitlines() or [""])[0]
                self._dim(f"  {mark} {first[:200]} ({data['ms']} ms)")
            case "turn.cancelled":
                self._dim("（已停止）" if self._chinese else "(stopped)")
            case "turn.finished":
                self._finish(data)
            case _:
                pass

    def question(self, data: dict[str, Any]) -> None:
        """Show a tool call that wants to be approved."""
        call = f"{data['tool']} {json.dumps(data['arguments'], ensure_ascii=False)}"
        chinese, english = (
            "允许吗？ [y] 这次 / [s] 本会话 / [a] 总是 / [n] 不",
            ("Allow? [y] once / [s] this session / [a] always / [n] no"),
        )
        about = f"  {data['summary']}\n" if data.get("summary") else ""
        self._line(f"? {call}\n{about}  {chinese if self._chinese else english}")

    @staticmethod
    def decision(answer: str | None) -> str:
        """What an answer means: once, session, always or, if it is anything else, deny."""
        meanings = {"y": "once", "yes": "once", "s": "session", "a": "always", "是": "once"}
        return meanings.get((answer or "").strip().lower(), "deny")

    def result(self, name: str, result: dict[str, Any]) -> None:
        """Show what a command came to."""
        if name in ("memories", "stats", "timers"):
            self._line(command_text(name, result))
            return
        for key, value in result.items():
            if isinstance(value, list):
                self._line(f"{key}:")
                for item in value:
                    self._line("  " + (_row(item) if isinstance(item, dict) else str(item)))
            else:
                self._line(f"{key}: {value}")

    def error(self, message: str) -> None:
        """One sentence on standard error."""
        self._end_line()
        print(f"miniclaw: {message}", file=sys.stderr, flush=True)

    def _finish(self, data: dict[str, Any]) -> None:
        if data.get("stopped_by"):
            self._end_line()
            self._write(data["text"])
        self._end_line()
        if line := memory_line(data, chinese=self._chinese):
            self._dim(line)

    def _write(self, text: str, *, is_ours: bool = False) -> None:
        """Write; what others wrote cannot command the terminal."""
        sys.stdout.write(text if is_ours else text.translate(_HARMLESS))
        sys.stdout.flush()
        if text:
            self._column = 0 if text.endswith("\n") else 1

    def _end_line(self) -> None:
        if self._column and not self._quiet:
            self._write("\n")

    def _line(self, text: str) -> None:
        self._end_line()
        self._write(text + "\n")

    def _dim(self, text: str) -> None:
        self._end_line()
        plain = text.translate(_HARMLESS)
        self._write((f"\x1b[2m{plain}\x1b[0m" if self._color else plain) + "\n", is_ours=True)


def _row(item: dict[str, Any]) -> str:
    return " · ".join(str(value) for value in item.values() if value not in (None, "", []))
