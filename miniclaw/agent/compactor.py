"""Makes room in a conversation: a summary takes the place of its oldest turns. The log itself stays."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Final

from miniclaw.agent.budget import Stop
from miniclaw.agent.core import Core
from miniclaw.agent.model_call import ModelCall
from miniclaw.agent.patience import until_stored
from miniclaw.agent.progress import Progress
from miniclaw.agent.proposals import MemoryProposals
from miniclaw.agent.providers import Ask, LLMResponse, Message, unwatched
from miniclaw.agent.replies import limit_sentence
from miniclaw.errors import MiniClawError, ModelError, ProtocolError
from miniclaw.memory.compaction import compact, summary_request
from miniclaw.memory.context import Layer
from miniclaw.session.history import message_tokens
from miniclaw.session.models import Entry, Session, Turn
from miniclaw.settings import Moment

__all__ = ["Compactor", "ask_model"]

logger = logging.getLogger(__name__)

SECONDS: Final = 60.0
"""How long a turn waits for a summary; then its oldest turns are left out without one."""
LONG: Final = 1000
"""Messages from which on a thread looks at them."""
OFFER_SECONDS: Final = 30.0
"""How long is waited for what a model finds worth keeping of what goes into a summary."""
PAUSE: Final = 20
"""Entries that a log must grow by before a summary that failed is tried again; twice as many each time."""
STEPS: Final = 4
"""Requests for one summary; what even they do not show stays, and is cut, or summarised at a later turn."""
SUMMARY_CHARS: Final = 20_000
"""What is kept of a summary."""
MOST_FAILED: Final = 1000
"""Sessions whose failures are remembered."""


class Compactor:
    """Summarises when a person asks for it, and when a conversation does not fit its window any more."""

    def __init__(self, core: Core) -> None:
        self._c = core
        self._proposals = MemoryProposals(core)
        self._failed: OrderedDict[str, tuple[int, int]] = OrderedDict()
        """Sessions whose last summary failed: how long a log has to be for the next try, and the pause before it."""

    async def make_room(
        self, session: Session, system: str, tools: Sequence[Message] | None, ask: Ask, *, seconds: float
    ) -> bool:
        """Summarise the oldest turns if the conversation does not fit without; `False` = nothing changed.

        It takes `seconds` at most, with all that is asked of a model for it.

        When there is no summary, nothing is lost but from the model's sight: `ShortTermMemory` cuts.
        """
        window, history = self._c.window, session.history()
        room = window.room(system, model=self._model(session), tools=tools)
        again, pause = self._failed.get(session.session_id, (0, PAUSE // 2))
        if history.fits(room) or session.next_position < again:
            return False
        everything = history.messages()
        work = partial(compact, everything, room, may_clear=window.may_clear)
        found = await asyncio.to_thread(work) if len(everything) > LONG else work()
        if not found.older:
            return False
        position = _said(session)[found.turns].position
        try:
            async with asyncio.timeout(seconds):
                await self.summarise(session, found.older, position, ask, seconds=SECONDS)
        except (MiniClawError, TimeoutError) as error:
            reason = error or f"it took longer than {min(seconds, SECONDS):g} s"
            logger.warning("session %s has no summary of its beginning: %s", session.session_id, reason)
            self._failed[session.session_id] = (session.next_position + 2 * pause, 2 * pause)
            while len(self._failed) > MOST_FAILED:
                self._failed.popitem(last=False)
            return False
        self._failed.pop(session.session_id, None)
        return True

    async def summarise(
        self,
        session: Session,
        history: Sequence[Message],
        position: int,
        ask: Ask,
        *,
        focus: str = "",
        seconds: float | None = None,
    ) -> str:
        """Let a summary of `history` stand for the log before `position`, or for what could be shown; it is stored.

        What the user said that lasts is offered to the memory first, where `memory.automatic` is not off.

        Raises:
            ModelError: the model gave none.
            TimeoutError: nor within `seconds`.
            ProtocolError: a hook of the operator is against it.
        """
        if (reason := await self._hook("before_compaction", session)) is not None:
            raise ProtocolError("forbidden", reason)
        await self._offer(session, history, ask)
        text, done = str((session.metadata.get("summary") or {}).get("text", "")), 0
        try:
            async with asyncio.timeout(seconds):
                for _ in range(STEPS):
                    found, shown = await self._step(session, history[done:], text, focus, ask)
                    text, done = found, done + shown
                    if done >= len(history):
                        break
        except (ModelError, TimeoutError):
            if not done:
                raise
            logger.warning("session %s: its summary stands for a part only", session.session_id)
        if done < len(history):
            position = _said(session)[sum(m["role"] == "user" for m in history[:done])].position
        summary = {"text": text, "position": position}
        await until_stored(lambda: self._c.sessions.update(session, summary=summary))
        await self._hook("after_compaction", session, summary=text)
        return text

    async def _step(
        self, session: Session, history: Sequence[Message], earlier: str, focus: str, ask: Ask
    ) -> tuple[str, int]:
        """A summary of the oldest turns, as many as one request shows, and how many messages those are."""
        window, models = self._c.window, {self._model(session)}

        def request() -> tuple[list[Message], int]:
            return summary_request(
                history, window=min(map(window.size, models)), earlier=earlier, focus=focus
            )

        messages, shown = await asyncio.to_thread(request)
        try:
            response = await ask("compact", messages)
        except ModelError as error:
            models.add(refused := error.model or self._model(session))
            sent = sum(map(message_tokens, messages))
            lower = partial(window.lower, refused, error.limit, sent=sent)
            if error.code != "context_overflow" or not lower(lambda: sum(map(message_tokens, request()[0]))):
                raise
            messages, shown = await asyncio.to_thread(request)
            response = await ask("compact", messages)
        if not (text := response.text.strip()):
            raise ModelError("empty_answer", "The model gave no summary; the conversation is unchanged.")
        return text[:SUMMARY_CHARS], shown

    async def _offer(self, session: Session, history: Sequence[Message], ask: Ask) -> None:
        """Have what goes into a summary looked at for what is worth keeping, in the same parts."""
        if not self._proposals.are_wanted(session.user_id):
            return
        own, window = _said(session), self._c.window.size(self._model(session))
        try:
            async with asyncio.timeout(OFFER_SECONDS):
                for _ in range(STEPS):
                    messages, shown = await asyncio.to_thread(summary_request, history, window=window)
                    turns = sum(message["role"] == "user" for message in history[:shown])
                    said = "\n".join(
                        str((entry.meta or {}).get("shown", entry.message["content"]))
                        for entry in own[:turns]
                    )
                    exchange = messages[1]["content"]
                    await self._proposals.ask_for(session.user_id, said, exchange, ask, window=window)
                    history, own = history[shown:], own[turns:]
                    if not history:
                        break
        except (MiniClawError, TimeoutError) as error:
            reason = error or f"it took longer than {OFFER_SECONDS:g} s"
            logger.warning("session %s: nothing is kept of its beginning: %s", session.session_id, reason)

    def _model(self, session: Session) -> str:
        return session.metadata.get("model") or self._c.provider.info.name

    async def _hook(self, moment: Moment, session: Session, **more: Any) -> str | None:
        if (hooks := self._c.registry.hooks) is None:
            return None
        about = {"user_id": session.user_id, "session_id": session.session_id}
        return await hooks.run(moment, {**about, **more})


def _said(session: Session) -> list[Entry]:
    """What the user said in the part of the log that a model sees."""
    return [
        entry
        for entry in session.messages
        if entry.message["role"] == "user" and entry.position >= session.start
    ]


async def ask_model(
    core: Core, turn: Turn, session: Session, progress: Progress, purpose: str, messages: list[Message]
) -> LLMResponse:
    """Ask the session's model something beside the turn's answer; it is counted and traced with the turn.

    Raises:
        ModelError: there is no answer, or the turn or the day has no budget left.
    """
    model = session.metadata.get("model")
    provider = core.provider.with_model(model) if model else core.provider
    trace = progress.trace.part(purpose, [Layer(name=purpose, text=messages[0]["content"])])
    seconds = core.settings.agent.turn_timeout
    try:
        async with asyncio.timeout(seconds):
            if (stop := await progress.budget.admit(provider.info.name)) is not None:
                raise ModelError("model_quota", limit_sentence(stop, turn.text, ""))
            with ModelCall(progress.budget, trace, provider.info.name, messages) as call:
                async with aclosing(call.hear(unwatched(provider, messages))) as chunks:
                    async for _ in chunks:
                        pass
    except TimeoutError as error:
        text = f"The model did not answer within {seconds:g} s; try again later."
        raise ModelError("model_unreachable", text, retryable=True) from error
    if call.response is None:
        raise ModelError("model_quota", limit_sentence(call.stop or Stop("tokens"), turn.text, ""))
    return call.response
