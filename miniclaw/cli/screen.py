"""What the terminal shows: plain streamed text, one line a tool, questions in the user's language."""

from __future__ import annotations

import json
import locale
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from miniclaw.agent.command_text import command_text
from miniclaw.agent.replies import memory_line
from miniclaw.channel.forms import needed_in
from miniclaw.cli import HARMLESS, json_text, say
from miniclaw.gateway.command_table import read_command
from miniclaw.text import TURNING

__all__ = ["HARMLESS", "JsonScreen", "Screen", "State", "is_capable"]

_TOLD = frozenset(
    "about approve cancel clear compact delete deny forget fork help mcp memories model new remember rename"
    " resume sessions skills stats timers tools trace".split()
)
"""Commands that come to a sentence or rows of their own; of the others every value is shown."""

_ANSWERS: Final = {
    **dict.fromkeys(("y", "yes", "是"), "once"),
    **{"s": "session", "a": "always"},
    **dict.fromkeys(("", "n", "no", "不", "否"), "deny"),
}


@dataclass
class State:
    """What `miniclaw chat` knows of its conversation, and shows below the prompt and in `/stats`."""

    cwd: Path
    workspace_root: Path | None = None
    """`None` = on another machine."""
    session_id: str | None = None
    model: str = ""
    phase: str = "idle"
    """`idle`, `running` or `waiting_approval`."""
    total_input_tokens: int = 0
    total_output_tokens: int = 0
    total_cost_usd: float | None = 0.0
    """`None` = unknown, since a model has no price."""

    def count(self, usage: dict[str, Any]) -> None:
        """Add what a turn used."""
        self.model = usage.get("model") or self.model
        self.total_input_tokens += usage.get("input_tokens", 0)
        self.total_output_tokens += usage.get("output_tokens", 0)
        cost = usage.get("cost")
        if self.total_cost_usd is not None and isinstance(cost, int | float):
            self.total_cost_usd += cost
        else:
            self.total_cost_usd = None

    def line(self) -> str:
        """In one line."""
        cost = "$?" if self.total_cost_usd is None else f"${self.total_cost_usd:.4f}"
        parts = [self.phase, self.model, f"↑{self.total_input_tokens} ↓{self.total_output_tokens}", cost]
        return " · ".join(filter(None, [*parts, self.session_id or ""]))


def is_capable() -> bool:
    """Whether the terminal can be drawn on."""
    return os.environ.get("TERM", "") not in ("", "dumb", "unknown")


class Screen:
    """Writes events to standard output; with `quiet` nothing of a turn, with `watched` each change of the state."""

    def __init__(self, *, quiet: bool = False, watched: bool = False) -> None:
        self._quiet = quiet
        self._watched = watched
        if (reconfigure := getattr(sys.stdout, "reconfigure", None)) is not None:  # or what stands before it
            reconfigure(errors="replace")  # a console of another encoding shows ? instead of failing
        self._color = sys.stdout.isatty() and is_capable() and "NO_COLOR" not in os.environ
        asked = (os.environ.get(name) for name in ("LC_ALL", "LC_MESSAGES", "LANG"))  # in the order of POSIX
        language = next(filter(None, asked), None) or locale.getlocale()[0] or ""
        self._chinese = language.lower().startswith(("zh", "chinese"))
        self._column = 0

    def banner(
        self, told: Mapping[str, Any], state: State, home: Path, tools: int, gateway: str | None
    ) -> None:
        """Who is there, with what, and how to leave; `told` is what the command `about` came to."""
        leave = (
            "Ctrl+C 停止回答，再按一次退出；/help 看命令"
            if self._chinese
            else "Ctrl+C stops, twice leaves; /help"
        )
        self._line(f"miniclaw {told['version']} · {told['user_id']} · {state.model} · {leave}")
        names = ("目录", "工作区", "记忆", "工具", "网关")
        if not self._chinese:
            names = ("cwd", "workspace", "memory", "tools", "gateway")
        memory = f"{home / told['memory']} ({told['memories']})"
        for name, value in zip(names, (state.cwd, state.workspace_root, memory, tools, gateway), strict=True):
            if value is not None:
                self._dim(f"  {name}: {value}")

    def show_event(self, payload: dict[str, Any]) -> None:
        """Show one event of the turn, from its payload."""
        self.show(payload["name"], payload["data"])

    def show_state(self, state: State) -> None:
        """Show that the conversation is in another phase."""
        if self._watched:
            self._dim(f"[{state.line() if state.phase == 'idle' else state.phase}]")

    def note(self, text: str) -> None:
        """Show a line that is no answer."""
        if text:
            self._line(text)

    def confirm(self, chinese: str, english: str) -> None:
        """Put a question that only yes lets through."""
        self._line(f"? {chinese if self._chinese else english} [y/n]")

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
            case "tool.progress":
                of = "" if data["total"] is None else f"/{data['total']:g}"
                self._dim(f"  … {data['progress']:g}{of} {data['message']}")
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
        call = str(data["tool"])
        call += "" if needed_in(data) else f" {json.dumps(data['arguments'], ensure_ascii=False)}"
        about = f"\n  {data['summary']}" if data.get("summary") else ""
        self._line(f"? {call.translate(TURNING)}{about}")
        for line in data.get("changes") or ():
            self._change(line)
        self.choices(data)

    def _change(self, line: str) -> None:
        self._line(line.translate(TURNING))

    def choices(self, question: Mapping[str, Any]) -> None:
        """Show what may be answered to the question of a tool call."""
        chinese, english = (
            "允许吗？ [y] 这次 / [s] 本会话 / [a] 总是 / [n] 不 / /cancel 停止回答",
            "Allow? [y] once / [s] this session / [a] always / [n] no / /cancel stops",
        )
        if needed_in(question):
            chinese, english = (
                "填：名字=值 …（n 不填）/ /cancel 停止回答",
                "Fill in: name=value … (n declines) / /cancel stops",
            )
        self._line(f"  {chinese if self._chinese else english}")

    def settled(self, decision: str) -> None:
        """Tell that a question ended without an answer of this terminal."""
        chinese, english = {
            "approved": ("别处同意了", "approved elsewhere"),
            "expired": ("没有等到回答", "nobody answered in time, or the call was given up"),
        }.get(decision, ("别处拒绝了", "denied elsewhere"))
        self._dim(f"（{chinese}）" if self._chinese else f"({english})")

    @staticmethod
    def decision(answer: str | None, question: Mapping[str, Any] | None = None) -> str | None:
        """What an answer means: once, session, always, deny, or cancel of the turn; `None` = none of these.

        An empty line and the end of input are no. `/approve` and `/deny` may name the `question`, but no other.
        """
        text = (answer or "").strip()
        command = read_command(text)
        if command is None:
            return _ANSWERS.get(text.lower())
        named = command.args.get("approval_id", "")
        if named and named not in [(question or {}).get(name) for name in ("short_id", "approval_id")]:
            return None
        if command.name == "approve":
            scope = command.args.get("scope", "once")
            return scope if scope in _ANSWERS.values() and "answer" not in command.args else None
        return command.name if command.name in ("deny", "cancel") else None

    @staticmethod
    def filled(answer: str | None, question: Mapping[str, Any]) -> str | None:
        """What an answer fills a form in with; `None` = there is none, or it is a no or a command."""
        text = (answer or "").strip()
        command = read_command(text)
        if not needed_in(question):
            return None
        if command is not None:
            named = command.args.get("approval_id", question["short_id"])
            is_this = command.name == "approve" and named in (question["short_id"], question["approval_id"])
            return str(command.args.get("answer", "")) if is_this else None
        return text if _ANSWERS.get(text.lower()) != "deny" else None

    def result(self, name: str, result: dict[str, Any]) -> None:
        """Show what a command came to."""
        if name in _TOLD:
            self._line(command_text(name, result, most=1000))
            return
        if name == "history":
            for message in result["messages"]:
                self._line(f"{message['role']}: {message['content']}")
            return
        for key, value in result.items():
            if isinstance(value, list):
                self._line(f"{key}:")
                for item in value:
                    self._line("  " + (_row(item) if isinstance(item, dict) else str(item)))
            else:
                self._line(f"{key}: {value}")

    def close(self) -> None:
        """Leave the terminal as it was."""

    def error(self, message: str) -> None:
        """One sentence on standard error."""
        self._end_line()
        say(f"miniclaw: {message}", file=sys.stderr)
        sys.stderr.flush()

    def _finish(self, data: dict[str, Any]) -> None:
        if data.get("stopped_by"):
            self._end_line()
            self._write(data["text"])
        self._end_line()
        if line := memory_line(data, chinese=self._chinese):
            self._dim(line)

    def _write(self, text: str, *, is_ours: bool = False) -> None:
        """Write; what others wrote cannot command the terminal."""
        sys.stdout.write(text if is_ours else text.translate(HARMLESS))
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
        plain = text.translate(HARMLESS)
        self._write((f"\x1b[2m{plain}\x1b[0m" if self._color else plain) + "\n", is_ours=True)


class JsonScreen(Screen):
    """Each event as a line of JSON, for programs that read along."""

    def __init__(self) -> None:
        super().__init__(quiet=True)

    def show_event(self, payload: dict[str, Any]) -> None:
        print(json_text(payload), flush=True)

    def note(self, text: str) -> None:
        self.show_event({"name": "note", "data": {"text": text}})

    def result(self, name: str, result: dict[str, Any]) -> None:
        self.show_event({"name": "command.result", "data": {"name": name, "ok": True, "result": result}})


def _row(item: dict[str, Any]) -> str:
    return " · ".join(str(value) for value in item.values() if value not in (None, "", []))
