"""Live events for readers that want HTML: Markdown is rendered once a turn, block by block."""

from __future__ import annotations

from dataclasses import dataclass, field

from miniclaw.gateway.events import LiveEvent, LiveTurns
from miniclaw.gateway.markdown import BlockRenderer, render_markdown
from miniclaw.gateway.protocol import TERMINAL_EVENTS

__all__ = ["LiveHtml"]


@dataclass(slots=True)
class _Rendering:
    """The text segment that is being written, as far as it is rendered."""

    attempt: int
    seq: int = 0
    fed: int = 0
    blocks: BlockRenderer = field(default_factory=BlockRenderer)

    def restart(self) -> None:
        """A new segment begins."""
        self.fed, self.blocks = 0, BlockRenderer()


class LiveHtml:
    """Adds `text.block` events behind deltas, and HTML to snapshots and final answers.

    Works only while somebody reads HTML. All readers of an event share its frames.
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
        if event.name in TERMINAL_EVENTS:
            return self._terminal(event)
        if event.name == "turn.snapshot":
            return self._snapshot(event)
        if event.name == "text.delta":
            rendering = self._rendering_of(event)
            return (event.frame, *self._blocks(event, self._take(event, rendering)))
        if event.name == "tool.started" and (begun := self._renderings.get(event.turn_id)):
            last = self._blocks(event, begun.blocks.finish())
            begun.restart()
            begun.seq = event.seq
            return (*last, event.frame)
        return (event.frame,)

    def _rendering_of(self, event: LiveEvent) -> _Rendering:
        rendering = self._renderings.get(event.turn_id)
        if rendering is None or rendering.attempt != event.attempt:
            running = {feed.turn_id for feed in self._live.all()}  # readers may leave before a turn ends
            self._renderings = {t: r for t, r in self._renderings.items() if t in running}
            rendering = self._renderings[event.turn_id] = _Rendering(event.attempt)
        return rendering

    def _take(self, event: LiveEvent, rendering: _Rendering) -> list[tuple[int, str, str]]:
        """Feed the delta, and before it whatever nobody read and so nobody rendered."""
        if event.seq <= rendering.seq:
            return []
        text = str(event.data["text"])
        feed = self._live.get(event.session_id)
        if event.seq != rendering.seq + 1 and feed is not None and feed.turn_id == event.turn_id:
            segment = feed.segment
            if len(segment) < rendering.fed:
                rendering.restart()
            text = segment[rendering.fed :]
        rendering.seq = event.seq
        rendering.fed += len(text)
        return rendering.blocks.feed(text)

    def _snapshot(self, event: LiveEvent) -> tuple[str, ...]:
        """A snapshot is one reader's: it is rendered aside, the others' blocks go on."""
        blocks = BlockRenderer()
        blocks.feed(event.data["segment"])
        data = {**event.data, "html": blocks.blocks(), "rest": blocks.rest}
        return (event.encode(data),)

    def _terminal(self, event: LiveEvent) -> tuple[str, ...]:
        ended = self._renderings.pop(event.turn_id, None)
        last = self._blocks(event, ended.blocks.finish()) if ended else ()
        text = event.data.get("text")
        data = {**event.data, "html": render_markdown(text)} if text else event.data
        return (*last, event.encode(data))

    @staticmethod
    def _blocks(event: LiveEvent, finished: list[tuple[int, str, str]]) -> tuple[str, ...]:
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
