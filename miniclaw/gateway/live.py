"""Live events for readers that want HTML: Markdown is rendered once a turn, block by block."""

from __future__ import annotations

from dataclasses import dataclass, field

from miniclaw.gateway.events import LiveEvent, LiveTurns, TurnFeed
from miniclaw.gateway.markdown import BlockRenderer, render_markdown
from miniclaw.gateway.protocol import TERMINAL_EVENTS

__all__ = ["LiveHtml"]

Block = tuple[int, str, str]


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
        text = str(event.data["text"]) if event.seq == self.seq + 1 else feed.text[self.end :]
        self.seq = event.seq
        self.end += len(text)
        return self.blocks.feed(text)

    def finish(self, feed: TurnFeed) -> list[Block]:
        """The last blocks of the segment; then a new one begins."""
        missed = feed.text[self.end :]
        self.end += len(missed)
        last = self.blocks.feed(missed) + self.blocks.finish()
        self.blocks = BlockRenderer()
        return last


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
        if self._latest is not None and self._latest[0] is event:
            return self._latest[1]
        frames = self._render(event)
        self._latest = (event, frames)
        return frames

    def _render(self, event: LiveEvent) -> tuple[str, ...]:
        if event.name == "turn.snapshot":
            return self._snapshot(event)
        feed = self._live.get(event.session_id)
        if feed is not None and (feed.turn_id, feed.seq) != (event.turn_id, event.seq):
            feed = None  # an event of the past
        if event.name in TERMINAL_EVENTS:
            return self._terminal(event, feed)
        if event.name == "text.delta" and feed is not None:
            return (event.frame, *self._blocks(event, self._rendering_of(feed).take(event, feed)))
        if event.name == "tool.started" and feed is not None:
            return (*self._blocks(event, self._last_blocks(feed)), event.frame)
        return (event.frame,)

    def _rendering_of(self, feed: TurnFeed) -> _Rendering:
        rendering = self._renderings.get(feed.turn_id)
        if rendering is None or rendering.attempt != feed.attempt:
            running = {each.turn_id for each in self._live.all()}  # readers may leave before a turn ends
            self._renderings = {t: r for t, r in self._renderings.items() if t in running}
            start = len(feed.text) - len(feed.segment)
            rendering = self._renderings[feed.turn_id] = _Rendering(feed.attempt, start)
        return rendering

    def _last_blocks(self, feed: TurnFeed) -> list[Block]:
        """The last blocks of what this attempt has written; none where nobody read it."""
        rendering = self._renderings.get(feed.turn_id)
        return rendering.finish(feed) if rendering and rendering.attempt == feed.attempt else []

    def _snapshot(self, event: LiveEvent) -> tuple[str, ...]:
        """A snapshot is one reader's: it is rendered aside."""
        blocks = BlockRenderer()
        blocks.feed(event.data["segment"])
        data = {**event.data, "html": blocks.blocks(), "rest": blocks.rest}
        return (event.encode(data),)

    def _terminal(self, event: LiveEvent, feed: TurnFeed | None) -> tuple[str, ...]:
        last = self._blocks(event, self._last_blocks(feed)) if feed else ()
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
