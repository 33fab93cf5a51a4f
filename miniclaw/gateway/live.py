"""Live events for readers that want HTML: Markdown is rendered once a turn, block by block."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from miniclaw.agent.command_text import command_text
from miniclaw.gateway.events import LiveEvent, LiveTurns, TurnFeed
from miniclaw.gateway.markdown import judged, plain, render, render_markdown, split_lines, top_level
from miniclaw.gateway.protocol import TERMINAL_EVENTS

__all__ = ["BlockRenderer", "LiveHtml", "with_text"]

if TYPE_CHECKING:
    from markdown_it.token import Token

Block = tuple[int, str, str]

SCAN_FACTOR: Final = 8
"""How often, on average, a character of a stream may be scanned for block ends; makes the cost linear."""

_CLOSED_BY_BLANK: Final = frozenset(
    {"paragraph_open", "heading_open", "table_open", "blockquote_open", "math_block"}
)


class BlockRenderer:
    """Renders a growing text so that a finished block is rendered once and never changes again.

    A top-level block is finished when the next one has begun; paragraphs, tables and quotes already with the
    blank line behind them; rules, headings and closed code fences at once. However the text is cut into deltas, the blocks are the same, and joined they equal
    `render_markdown` of the whole text, with one exception that CommonMark forces: a link reference
    definition does not reach back to blocks that were finished before it. A list stays open as long as it
    goes on, since a late blank line makes all of its items loose.

    The cost is linear in the text: only the open block is scanned, only when a line has ended, and not
    while an open code fence goes on.
    """

    def __init__(self) -> None:
        self._blocks: list[str] = []
        self._lines: list[str] = []
        self._tail: list[str] = []
        self._size = 0
        self._credit = 0
        self._fence_end: re.Pattern[str] | None = None
        self._env: dict[str, Any] = {}

    def feed(self, delta: str) -> list[tuple[int, str, str]]:
        """Take more text; returns the newly finished blocks as `(index, html, rest)`.

        `rest` is the open text behind the block. Where several blocks finish together only the last one
        carries it and the others have `""`: each `rest` replaces the one before.
        """
        self._tail.append(delta)
        if "\n" not in delta:
            return []
        text = "".join(self._tail)
        cut = text.rindex("\n") + 1
        self._tail = [text[cut:]]
        lines = split_lines(text[:cut])
        self._lines += lines
        self._size += cut
        self._credit += SCAN_FACTOR * cut
        return self._advance() if self._worth_a_scan(lines) else []

    def finish(self) -> list[tuple[int, str, str]]:
        """Render what is open; the text is at its end."""
        self._lines += split_lines("".join(self._tail))
        self._tail = []
        finished = self._close(top_level("".join(self._lines)))
        self._lines, self._size, self._fence_end = [], 0, None
        return [(index, html, "") for index, html in finished]

    def blocks(self) -> list[str]:
        """The HTML of all finished blocks."""
        return list(self._blocks)

    @property
    def rest(self) -> str:
        """The open text behind the last finished block."""
        return "".join(self._lines) + "".join(self._tail)

    def _worth_a_scan(self, lines: list[str]) -> bool:
        if self._fence_end is not None:
            return any(map(self._fence_end.fullmatch, lines))
        return self._size <= self._credit

    def _advance(self) -> list[tuple[int, str, str]]:
        self._credit -= self._size
        found = top_level("".join(self._lines))
        self._fence_end = None
        if found and not self._is_complete(found[-1][0]):
            token, _ = found.pop()
            self._fence_end = _fence_end(token) if token.type == "fence" else None
        finished = self._close(found)
        last = len(finished) - 1
        return [(index, html, self.rest if i == last else "") for i, (index, html) in enumerate(finished)]

    def _close(self, found: list[tuple[Token, int]]) -> list[tuple[int, str]]:
        """Render these blocks and forget their source."""
        first = len(self._blocks)
        for is_dear, source in judged(self._lines, found, self._env):
            self._blocks.append(plain(source) if is_dear else render(source, self._env))
        if found:
            del self._lines[: found[-1][1]]
            self._size = sum(map(len, self._lines))
        return list(enumerate(self._blocks[first:], first))

    def _is_complete(self, token: Token) -> bool:
        """Whether no further line can change this last block."""
        start, end = token.map or (0, 0)
        if token.type in _CLOSED_BY_BLANK and end < len(self._lines):
            return True
        if token.type == "fence":
            return end - start > 1 and _fence_end(token).fullmatch(self._lines[end - 1]) is not None
        if token.type == "heading_open" and token.markup.startswith("#"):
            return "|" not in self._lines[start]  # else the next line may make it a table's head
        return token.type == "hr"


def _fence_end(token: Token) -> re.Pattern[str]:
    return re.compile(rf" {{0,3}}{re.escape(token.markup[0])}{{{len(token.markup)},}}[ \t]*\n?")


@dataclass(slots=True)
class _Rendering:
    """The text segment that is being written, as far as it is rendered."""

    attempt: int
    end: int
    """How far into the text of the whole turn."""
    seq: int = 0
    blocks: BlockRenderer = field(default_factory=BlockRenderer)

    def take(self, event: LiveEvent, feed: TurnFeed) -> list[Block]:
        """Feed a delta, and before it whatever nobody read and so nobody rendered."""
        text = str(event.data["text"]) if event.seq == self.seq + 1 else self._missed(feed)
        self.seq = event.seq
        self.end += len(text)
        return self.blocks.feed(text)

    def finish(self, event: LiveEvent, feed: TurnFeed) -> list[Block]:
        """The last blocks of the segment that the event ends; then a new one begins."""
        missed = self._missed(feed, 1 if event.name == "tool.started" else 0)
        last = self.blocks.feed(missed) + self.blocks.finish()
        self.end, self.blocks = self.end + len(missed), BlockRenderer()
        return last

    def _missed(self, feed: TurnFeed, back: int = 0) -> str:
        """What is not rendered from the segment on; one before it, whose end nobody read, is given up."""
        if self.end < (start := feed.segment_start(back)):
            self.end, self.blocks = start, BlockRenderer()
        return feed.text[self.end :]


class LiveHtml:
    """Adds `text.block` events behind deltas, and HTML to snapshots and final answers.

    Works only while somebody reads HTML. All readers of an event share its frames; what is sent again to
    one reader leaves the others' blocks as they are.
    """

    def __init__(self, live: LiveTurns) -> None:
        self._live = live
        self._renderings: dict[str, _Rendering] = {}
        self._latest: tuple[LiveEvent, tuple[str, ...]] | None = None

    def frames(self, event: LiveEvent) -> tuple[str, ...]:
        """What an HTML reader is sent for an event."""
        if self._latest is None or self._latest[0] is not event:
            self._latest = (event, self._render(event))
        return self._latest[1]

    def _render(self, event: LiveEvent) -> tuple[str, ...]:
        if event.name == "turn.snapshot":
            return self._snapshot(event)
        if event.name == "command.result":
            return (event.encode(with_text(event.data)),)
        feed = self._live.get(event.session_id)
        if feed is not None and (feed.turn_id, feed.seq) != (event.turn_id, event.seq):
            feed = None  # an event of the past
        if event.name in TERMINAL_EVENTS:
            return self._terminal(event, feed)
        if event.name == "text.delta" and feed is not None:
            return (event.frame, *self._blocks(event, self._rendering_of(feed).take(event, feed)))
        if event.name == "tool.started" and feed is not None:
            return (*self._blocks(event, self._last_blocks(event, feed)), event.frame)
        return (event.frame,)

    def _rendering_of(self, feed: TurnFeed) -> _Rendering:
        rendering = self._renderings.get(feed.turn_id)
        if rendering is None or rendering.attempt != feed.attempt:
            running = {each.turn_id for each in self._live.all()}  # readers may leave before a turn ends
            self._renderings = {t: r for t, r in self._renderings.items() if t in running}
            rendering = self._renderings[feed.turn_id] = _Rendering(feed.attempt, feed.segment_start())
        return rendering

    def _last_blocks(self, event: LiveEvent, feed: TurnFeed) -> list[Block]:
        """The last blocks of what this attempt has written; none where nobody read it."""
        rendering = self._renderings.get(feed.turn_id)
        return rendering.finish(event, feed) if rendering and rendering.attempt == feed.attempt else []

    def _snapshot(self, event: LiveEvent) -> tuple[str, ...]:
        """A snapshot is one reader's: it is rendered aside."""
        blocks = BlockRenderer()
        blocks.feed(event.data["segment"])
        data = {**event.data, "html": blocks.blocks(), "rest": blocks.rest}
        return (event.encode(data),)

    def _terminal(self, event: LiveEvent, feed: TurnFeed | None) -> tuple[str, ...]:
        last = self._blocks(event, self._last_blocks(event, feed)) if feed else ()
        self._renderings.pop(event.turn_id, None)
        text = event.data.get("text")
        data = {**event.data, "html": render_markdown(text)} if text else event.data
        return (*last, event.encode(data))

    @staticmethod
    def _blocks(event: LiveEvent, finished: list[Block]) -> tuple[str, ...]:
        return tuple(
            LiveEvent(
                "text.block",
                {"index": index, "html": html, "rest": rest},
                session_id=event.session_id,
                turn_id=event.turn_id,
                attempt=event.attempt,
                seq=event.seq,
                target=event.target,
            ).frame
            for index, html, rest in finished
        )


def with_text(told: dict[str, Any]) -> dict[str, Any]:
    """The data of a `command.result` with its `text`, as the page shows it."""
    return {**told, "text": command_text(told["name"], told["result"])} if "result" in told else told
