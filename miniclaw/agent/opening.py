"""What a turn begins with: the user's message with its files, memories, and the layers of the system prompt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any, Final

from miniclaw.agent.core import Core
from miniclaw.agent.incoming import load_images, take_in
from miniclaw.agent.patience import until_stored
from miniclaw.agent.progress import Progress, keep_steps
from miniclaw.gateway.events import TurnFeed
from miniclaw.memory.context import Layer, SystemPromptBuilder, project_instructions
from miniclaw.session.models import Entry, Session, Turn, title_of
from miniclaw.tools.base import ToolBox
from miniclaw.tools.context import workspace_of
from miniclaw.tools.workspace import Workspace
from miniclaw.tools.wrappers import FilteredTools

__all__ = ["TurnOpening"]


RUNS: Final = 4
"""Earlier runs of a timer that the model sees."""


class TurnOpening:
    """Prepares turns; keeps nothing of them. `titled` is told of a session that got its title."""

    def __init__(self, core: Core, *, titled: Callable[[Session, Turn], None]) -> None:
        self._c = core
        self._titled = titled
        self._prompt = SystemPromptBuilder(
            core.settings.agent.system_prompt, recall_tokens=core.settings.memory.recall_tokens
        )

    async def prepare(self, turn: Turn, session: Session, feed: TurnFeed, progress: Progress) -> None:
        """Store the user's message, recall, and tell readers that the turn begins."""
        steps = session.steps_of(turn.turn_id)
        if not steps:
            if turn.channel == "timer":
                await self._pass_over_old_runs(session)
            message, meta = await self._said(turn, progress)
            entry = Entry(turn.turn_id, 0, message, self._c.clock(), meta)
            await until_stored(lambda: self._c.sessions.append(session, [entry]))
            if not session.title:
                title = title_of(turn.text or message["content"])
                await until_stored(lambda: self._c.sessions.update(session, title=title))
                self._titled(session, turn)
        if recall := self._c.settings.memory.recall:
            search = partial(self._c.memory.search, turn.scope, turn.text, recall)
            progress.memories = await until_stored(search)
        await self._c.servers.settle()
        keep_steps(feed, steps)
        began = {"text": turn.text, "msg_id": turn.message["msg_id"]}
        feed.emit("turn.started", {**turn.said, **began})
        if turn.attempt > 1:
            self._c.live.bus.publish(f"session.{turn.session_id}", feed.snapshot())

    async def _pass_over_old_runs(self, session: Session) -> None:
        """Let the model see a few earlier runs of a timer, so that its hundredth costs what its tenth did."""
        said = (e for e in session.messages if e.position >= session.start and e.message["role"] == "user")
        begins = [entry.position for entry in said]
        if len(begins) > RUNS:
            await until_stored(lambda: self._c.sessions.update(session, cleared=begins[-RUNS], summary=None))

    async def _said(self, turn: Turn, progress: Progress) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """The text, and what is told of each file that came with it; and what a person sees of that."""
        message: dict[str, Any] = {"role": "user", "content": turn.text}
        if not turn.message.get("files"):
            return message, None
        taken = await take_in(turn, self._c.push.get(turn.channel), self._workspace(progress))
        message["content"] = "\n".join([turn.text, "", *taken.lines]).strip()
        if taken.images:
            message["images"] = taken.images
        meta: dict[str, Any] = {"attachments": taken.shown}
        return message, {**meta, "shown": turn.text} if turn.message["payload"].get("attachments") else meta

    async def images(self, session: Session, progress: Progress) -> dict[str, str]:
        """Data URLs of the images that the model is shown, by their paths."""
        if not any("images" in entry.message for entry in session.messages):
            return {}
        return await asyncio.to_thread(load_images, session.messages[:], self._workspace(progress))

    def _workspace(self, progress: Progress) -> Workspace:
        settings = self._c.settings.tools
        return Workspace(
            progress.context.workspace, file_bytes=settings.file_bytes, total_bytes=settings.workspace_bytes
        )

    def layers(self, session: Session, turn: Turn, progress: Progress) -> list[Layer]:
        """The system prompt, layer by layer."""
        skills, active = self._c.skills, session.metadata.get("skills") or ()
        window = self._c.window.size(session.metadata.get("model") or self._c.provider.info.name)
        progress.memories = self._prompt.fitting(progress.memories, window=window)
        return self._prompt.layers(
            skills=skills.prompt(active, token_limit=self._c.settings.skills.prompt_tokens),
            memories=progress.memories,
            today=datetime.fromtimestamp(self._c.clock()).astimezone(),
            summary=(session.metadata.get("summary") or {}).get("text", ""),
            hint=skills.hint(turn.text, active),
            project=project_instructions(
                progress.context.workspace, workspace_of(self._c.data_dir, turn.scope, {}).parent
            ),
            window=window,
        )

    async def tools(self, session: Session, progress: Progress) -> ToolBox:
        """The tools of this turn: all, or those that the session's skills are content with.

        What changed on disk is taken in first: own tools, then the skills that may count on them.
        """
        registry, before = self._c.registry, session.metadata.get("narrowed") or []
        await registry.reload(only_changed=True)
        self._c.skills.reload_if_changed()
        allowed, progress.warning = self._c.skills.narrowing(session.metadata.get("skills") or (), before)
        if not progress.warning and (now := sorted(allowed or ())) != before:
            await until_stored(lambda: self._c.sessions.update(session, narrowed=now or None))
        box: ToolBox = registry if allowed is None else FilteredTools(registry, allowed.__contains__)
        model = session.metadata.get("model") or self._c.provider.info.name
        if too_many := frozenset(self._c.window.too_many(box.get_openai_tools(), model=model)):
            what = (
                f"{len(too_many)} tools do not fit into the window of {self._c.window.size(model):,} tokens"
            )
            more = f"{what} and were left out, `{min(too_many)}` among them; raise context.max_tokens, or offer fewer."
            progress.warning = " ".join(filter(None, (progress.warning, more)))
            box = FilteredTools(box, lambda name: name not in too_many)
        return box
