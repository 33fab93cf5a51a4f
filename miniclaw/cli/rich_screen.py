"""The screen of a person at a terminal: Markdown that is rendered block by block, and what is going on."""

from __future__ import annotations

import re
import time
from typing import Any, Final

from rich.console import Console, Group
from rich.live import Live
from rich.markdown import Markdown
from rich.text import Text

from miniclaw.cli.screen import HARMLESS, Screen, State
from miniclaw.text import TURNING

__all__ = ["Blocks", "RichScreen"]

_FENCE: Final = re.compile(r" {0,3}(`{3,}|~{3,})")
_ITEM: Final = re.compile(r" {0,3}([-+*]|\d{1,9}[.)])( |$)")


class Blocks:
    """Cuts a growing Markdown text where a top-level block has ended, so that it can be rendered for good.

    A block ends at a blank line that is in no code fence; a list goes on as long as what follows is indented
    or a further item. However the text arrives, the pieces joined are the text.
    """

    def __init__(self) -> None:
        self._tail = ""
        self._lines: list[str] = []
        self._fence = ""
        self._is_list = False

    def feed(self, delta: str) -> list[str]:
        """Take more text; the blocks that it finished."""
        *lines, self._tail = (self._tail + delta).split("\n")
        finished: list[str] = []
        for line in lines:
            if self._begins_anew(line):
                finished.append("".join(self._lines))
                self._lines = []
            if not any(map(str.strip, self._lines)) and line.strip():
                self._is_list = _ITEM.match(line) is not None
            self._lines.append(line + "\n")
            self._look_for_fence(line)
        return finished

    @property
    def open(self) -> str:
        """What belongs to no finished block yet."""
        return "".join(self._lines) + self._tail

    def end(self) -> str:
        """The rest, and begin a new text."""
        rest = self.open
        self.__init__()  # type: ignore[misc]  # its own
        return rest

    def _begins_anew(self, line: str) -> bool:
        before = self._lines[-1:]
        if self._fence or not before or before[0].strip() or not line.strip():
            return False
        if not any(map(str.strip, self._lines)):
            return False
        return not (self._is_list and (line[0] in " \t" or _ITEM.match(line)))

    def _look_for_fence(self, line: str) -> None:
        found = _FENCE.match(line)
        if found is None:
            return
        mark = found[1]
        if not self._fence:
            self._fence = mark
        elif mark.startswith(self._fence) and not line.strip(" \t" + mark[0]):
            self._fence = ""


class _Working:
    """The line that shows that a turn runs, and for how long; with room behind it for the `^C` of a terminal."""

    def __init__(self, state: State, columns: int) -> None:
        self._state = state
        self._columns = max(1, columns - 4)
        self._began = time.monotonic()

    def __rich__(self) -> Text:
        line = f"… {time.monotonic() - self._began:.0f} s · {self._state.line()}"
        text = Text(line.translate(HARMLESS), style="dim")
        text.truncate(self._columns, overflow="ellipsis")
        return text


class RichScreen(Screen):
    """Shows a reply as rendered Markdown: finished blocks stay, the open one is plain until it ends."""

    def __init__(self) -> None:
        super().__init__()
        self._console = Console(highlight=False, soft_wrap=False)
        self._blocks = Blocks()
        self._live: Live | None = None
        self._working: _Working | None = None

    def show_state(self, state: State) -> None:
        self._working = _Working(state, self._console.width) if state.phase == "running" else None
        self._hide_open()
        if state.phase == "waiting_approval":
            self._dim(f"[{state.phase}]")
        self._show_open()

    def show_event(self, payload: dict[str, Any]) -> None:
        super().show_event(payload)
        self._show_open()

    def _change(self, line: str) -> None:
        style = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")
        self._console.print(Text(line.translate(HARMLESS).translate(TURNING), style=style))

    def close(self) -> None:
        self._hide_open()  # which shows the cursor again

    def _write(self, text: str, *, is_ours: bool = False) -> None:
        """Text of the model goes through the blocks; what is a line, already without controls, as it is."""
        if is_ours:
            super()._write(text, is_ours=True)
            return
        for block in self._blocks.feed(text.translate(HARMLESS)):
            self._print(block)
        self._column = 1 if self._blocks.open else 0
        self._show_open()

    def _end_line(self) -> None:
        self._hide_open()
        self._print(self._blocks.end())
        self._column = 0

    def _line(self, text: str) -> None:
        self._end_line()
        Screen._write(self, text.translate(HARMLESS) + "\n", is_ours=True)

    def _print(self, block: str) -> None:
        if block.strip():
            self._hide_open()
            self._console.print(Markdown(block, hyperlinks=False))
            self._console.print()

    def _show_open(self) -> None:
        text = self._blocks.open
        if not text.strip() and self._working is None:
            return
        rows = max(1, self._console.height - 4)
        lines = Text(text.rstrip("\n")).wrap(self._console, self._console.width)[-rows:]
        shown = Group(*lines, *filter(None, [self._working]))
        if self._live is None:
            self._live = Live(shown, console=self._console, refresh_per_second=2, transient=True)
            self._live.start()
        self._live.update(shown, refresh=True)

    def _hide_open(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
