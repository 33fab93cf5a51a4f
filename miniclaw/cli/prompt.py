"""The line that a person types into: history, several lines, completion, and the state below it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output.plain_text import PlainTextOutput

from miniclaw.cli.screen import State, is_capable

__all__ = ["Prompt", "WordCompleter"]


class WordCompleter(Completer):
    """Commands at the beginning of the line; names of files behind `./`, `../`, `~/` or `/`."""

    def __init__(self, commands: Sequence[tuple[str, str]]) -> None:
        self._commands = commands
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        before = document.text_before_cursor
        if before.startswith("/") and not any(map(str.isspace, before)):
            for name, about in self._commands:
                if f"/{name}".startswith(before):
                    yield Completion(f"/{name}", start_position=-len(before), display_meta=about)
            return
        word = before.split()[-1] if before[-1:].strip() else ""
        if word.startswith(("./", "../", "~/", "/")):
            yield from self._paths.get_completions(Document(word, len(word)), complete_event)


def _session(message: str, **options: Any) -> PromptSession[str]:
    """A prompt; on a terminal that cannot be drawn on without the controls that it shows a cursor by."""
    with create_app_session(output=None if is_capable() else PlainTextOutput(sys.stdout)):
        return PromptSession(message, **options)


class Prompt:
    """Reads what a person types; Alt+Enter begins a further line.

    Args:
        state: is shown below the line.
        commands: names and meanings, for completion.
    """

    def __init__(self, state: State, commands: Sequence[tuple[str, str]]) -> None:
        keys = KeyBindings()

        @keys.add("escape", "enter")
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        self._history = InMemoryHistory()  # a file would keep what a deleted session said
        self._session = _session(
            "› ",
            history=self._history,
            completer=WordCompleter(commands),
            complete_while_typing=False,
            key_bindings=keys,
            bottom_toolbar=state.line,
            prompt_continuation="· ",
        )

    def remember(self, texts: Iterable[str]) -> None:
        """Let the up key find what was said before."""
        for text in texts:
            self._history.append_string(text)

    async def read(self) -> str | None:
        """A text; `None` at the end of input."""
        try:
            return await self._session.prompt_async()
        except EOFError:
            return None

    async def ask(self) -> str | None:
        """The answer to a question, which is not remembered."""
        once = _session("? ", history=InMemoryHistory())
        try:
            return await once.prompt_async()
        except EOFError:
            return None
