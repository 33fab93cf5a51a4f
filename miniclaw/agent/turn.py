"""One turn from its row to its end: context in, events out, every step stored before the next begins."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol

from miniclaw import failpoints
from miniclaw.agent.automatic import AutomaticMemory
from miniclaw.agent.budget import Stop
from miniclaw.agent.compactor import Compactor, ask_model
from miniclaw.agent.core import Core
from miniclaw.agent.delegate import PARENT, Parent
from miniclaw.agent.ending import TurnEnding
from miniclaw.agent.gate import TurnGate
from miniclaw.agent.opening import TurnOpening
from miniclaw.agent.patience import until_stored
from miniclaw.agent.progress import Outcome, Pause, Progress, report, show_chunk, show_tool
from miniclaw.agent.providers import Ask, LLMChunk, LLMResponse
from miniclaw.agent.replies import limit_sentence, stopped_note
from miniclaw.agent.runtime import AgentRuntime, Finished, ToolFinished, ToolStarted
from miniclaw.agent.transcript import SessionTranscript
from miniclaw.errors import MiniClawError, ModelError, ProtocolError, StorageUnavailable
from miniclaw.gateway.events import TurnFeed
from miniclaw.gateway.protocol import MessageType
from miniclaw.memory.context import Layer, joined
from miniclaw.session.models import Session, Turn
from miniclaw.settings import Moment
from miniclaw.tools.base import ToolBox

__all__ = ["MailboxCommands", "TurnRunner"]

logger = logging.getLogger(__name__)

BROKEN: Final = "Something broke inside miniclaw; the log says what."


class MailboxCommands(Protocol):
    """Commands that wait their turn in the mailbox: `clear`, `compact`, `model`."""

    async def run_queued(
        self, session: Session, name: str, args: Mapping[str, Any], ask: Ask
    ) -> dict[str, Any]:
        """Carry one out and return its result; raises `ProtocolError` to refuse."""
        ...


class TurnRunner:
    """Runs turns; the mailbox calls `run` for one turn of a session at a time.

    A cancel interrupts the attempt only, never the committing of an end: each turn ends exactly once.
    """

    def __init__(
        self, core: Core, commands: MailboxCommands, *, pause: Callable[[str, bool], None] | None = None
    ) -> None:
        settings = core.settings
        self._c = core
        self._runtime = AgentRuntime(core.provider, settings.agent)
        self._ending = TurnEnding(core)
        self._opening = TurnOpening(core, titled=lambda s, turn: self._ending.show_phase(s, turn, "running"))
        self._commands = commands
        self._compactor = Compactor(core)
        self._automatic = AutomaticMemory(core)
        self._pause = pause
        self._cancelled: set[str] = set()
        self._attempts: dict[str, asyncio.Task[Outcome]] = {}
        self._progress: dict[str, Progress] = {}

    async def run(self, turn: Turn) -> None:
        """Carry the turn to its end, or leave it open for the next start when the process is stopping."""
        begun = await until_stored(lambda: self._c.turns.begin(turn, fence=self._c.fence(turn.session_id)))
        if begun is None:
            await self.settle_cancelled(turn)
        else:
            await self._ending.unless_damaged(begun, self._run)

    async def _run(self, turn: Turn) -> None:
        logger.info("turn %s of session %s: attempt %d", turn.turn_id, turn.session_id, turn.attempt)
        session = await until_stored(lambda: self._c.sessions.get(turn.session_id))
        if session is None:
            logger.info("turn %s: its session was deleted", turn.turn_id)
            return
        feed = self._c.live.open(turn.session_id, turn.turn_id, turn.attempt, turn.channel)
        try:
            self._ending.show_phase(session, turn, "running")
            outcome = await self._outcome(turn, session, feed)
            progress = self._progress.get(turn.turn_id)
            if not await self._ending.end(turn, session, feed, outcome, progress):
                outcome = await self._cancelled_outcome(turn, session, feed)
                await self._ending.end(turn, session, feed, outcome, progress)
            if outcome.state == "finished" and progress is not None and turn.message["msg_type"] == "text":
                self._automatic.look_at(turn, session, progress, outcome.data["text"])
            if (reason := await self._hook("after_turn", turn, state=outcome.state)) is not None:
                logger.warning("turn %s: a hook says after its end: %s", turn.turn_id, reason)
        finally:
            self._c.live.close(feed)
            self._progress.pop(turn.turn_id, None)
            self._cancelled.discard(turn.turn_id)

    async def close(self, user_id: str | None = None) -> None:
        """End what goes on behind turns that have ended, of one user or of all."""
        await self._automatic.close(user_id)

    def interrupt(self, turn_id: str) -> None:
        """The turn's cancel flag is committed: end its attempt, now or as soon as it begins."""
        self._cancelled.add(turn_id)
        if (attempt := self._attempts.get(turn_id)) is not None:
            attempt.cancel()

    async def settle_cancelled(self, turn: Turn) -> None:
        """End a turn that was cancelled before it began; does nothing if it has ended."""
        try:
            await self._ending.unless_damaged(turn, self._settle)
        finally:
            self._cancelled.discard(turn.turn_id)  # no earlier: until the end another cancel may come

    async def _settle(self, turn: Turn) -> None:
        stored = await until_stored(lambda: self._c.turns.find(turn.turn_id))
        session = await until_stored(lambda: self._c.sessions.get(turn.session_id))
        if stored is None or session is None or not stored.cancel_requested or stored.outcome:
            return
        # A feed of its own: the session's may be that of the turn that runs.
        feed = TurnFeed(
            self._c.live.bus,
            session_id=turn.session_id,
            turn_id=turn.turn_id,
            attempt=stored.attempt,
            channel=turn.channel,
        )
        await self._ending.end(turn, session, feed, Outcome("cancelled", {"text": ""}), None)

    async def _outcome(self, turn: Turn, session: Session, feed: TurnFeed) -> Outcome:
        """What the attempt comes to; a task of its own, which is all that a cancel interrupts."""
        attempt = asyncio.get_running_loop().create_task(self._attempt(turn, session, feed))
        self._attempts[turn.turn_id] = attempt
        if turn.turn_id in self._cancelled:
            attempt.cancel()
        try:
            await asyncio.wait([attempt])
        except asyncio.CancelledError:
            attempt.cancel()
            await asyncio.wait([attempt])
            await self._c.turns.put_back(turn, fence=self._c.fence(turn.session_id))
            raise
        finally:
            del self._attempts[turn.turn_id]
        if not attempt.cancelled():
            return attempt.result()
        if turn.turn_id in self._cancelled:
            return await self._cancelled_outcome(turn, session, feed)
        logger.error("turn %s was interrupted by something that is no cancel", turn.turn_id)
        return Outcome("failed", {"code": "internal", "message": BROKEN})

    async def _attempt(self, turn: Turn, session: Session, feed: TurnFeed) -> Outcome:
        try:
            progress = await until_stored(lambda: Progress.of(self._c, turn, session))
            self._progress[turn.turn_id] = progress
            if turn.tries > self._c.settings.limits.attempts:
                raise ModelError(
                    "abandoned", f"This message was given up after {self._c.settings.limits.attempts} tries."
                )
            if turn.message["msg_type"] == MessageType.COMMAND:
                return await self._run_command(turn, session, progress)
            return await self._converse(turn, session, feed, progress)
        except StorageUnavailable:
            raise  # the mailbox begins it again
        except (ModelError, ProtocolError) as error:
            return Outcome("failed", {"code": error.code, "message": str(error)})
        except MiniClawError as error:
            logger.warning("turn %s failed: %s", turn.turn_id, error)
            return Outcome("failed", {"code": "internal", "message": str(error)})
        except Exception:  # boundary: whatever breaks in a turn ends that turn and nothing else
            logger.exception("turn %s broke", turn.turn_id)
            return Outcome("failed", {"code": "internal", "message": BROKEN})

    async def _run_command(self, turn: Turn, session: Session, progress: Progress) -> Outcome:
        payload = turn.message["payload"]
        ask = partial(ask_model, self._c, turn, session, progress)
        result = await self._commands.run_queued(session, payload["name"], payload.get("args", {}), ask)
        data = {"reply_to": turn.message["msg_id"], "name": payload["name"], "ok": True, "result": result}
        return Outcome("finished", data)

    def _show_phase(self, session: Session, turn: Turn, phase: str) -> None:
        if self._pause is not None:
            self._pause(session.session_id, phase == "waiting_approval")
        self._ending.show_phase(session, turn, phase)

    async def _hook(self, moment: Moment, turn: Turn, **more: Any) -> str | None:
        """What a hook of the operator has against it; `None` = nothing."""
        if (hooks := self._c.registry.hooks) is None:
            return None
        about = {"user_id": turn.user_id, "session_id": turn.session_id, "turn_id": turn.turn_id}
        return await hooks.run(moment, {**about, "text": turn.text, **more})

    async def _converse(self, turn: Turn, session: Session, feed: TurnFeed, progress: Progress) -> Outcome:
        await self._opening.prepare(turn, session, feed, progress)
        if (reason := await self._hook("before_turn", turn)) is not None:
            return self._finished(turn, feed, progress, Finished(LLMResponse(text=reason)))
        tools = await self._opening.tools(session, progress)
        ask = partial(ask_model, self._c, turn, session, progress)
        layers = await until_stored(lambda: self._layers(turn, session, progress, tools, ask))
        chosen = session.metadata.get("model")
        info = (self._c.provider.with_model(chosen) if chosen else self._c.provider).info
        transcript = SessionTranscript(
            session,
            turn,
            sessions=self._c.sessions,
            window=self._c.window,
            system=joined(layers),
            model=info.name,
            now=info.now,
            tools=tools.get_openai_tools(),
            clock=self._c.clock,
            images=await self._opening.images(session, progress),
        )
        seconds = self._c.settings.agent.turn_timeout
        try:
            async with asyncio.timeout(seconds - progress.seconds) as timer:
                pause = Pause(timer, lambda phase: self._show_phase(session, turn, phase))
                progress.budget.spent = lambda: seconds - pause.left()
                gate = TurnGate(
                    turn,
                    feed,
                    self._c.desk,
                    self._c.turns,
                    find=self._c.registry.find,
                    pause=pause,
                    fence=self._c.fence(turn.session_id),
                    context=progress.context,
                )
                progress.trace = progress.trace.part("answer", layers, schemas=transcript.schemas)
                finished = await self._listen(transcript, tools, gate, feed, progress, chosen, ask)
        except TimeoutError:
            if not timer.expired():
                raise
            finished = Finished(LLMResponse(), Stop("seconds"))
            await until_stored(lambda: self._c.sessions.refresh(session))
        if transcript.is_cut:
            cut = "Your message is longer than what the model takes; it saw only its beginning."
            progress.warning = " ".join(filter(None, (progress.warning, cut)))
        return self._finished(turn, feed, progress, finished)

    async def _layers(
        self, turn: Turn, session: Session, progress: Progress, tools: ToolBox, ask: Ask
    ) -> list[Layer]:
        """The system prompt, after the conversation was made to fit beside it, in half of the turn's time at most."""
        layers = self._opening.layers(session, turn, progress)
        half, began = (self._c.settings.agent.turn_timeout - progress.seconds) / 2, time.monotonic()
        made = self._compactor.make_room(
            session, joined(layers), tools.get_openai_tools(), ask, seconds=max(0.0, half)
        )
        try:
            return self._opening.layers(session, turn, progress) if await made else layers
        finally:
            progress.seconds += time.monotonic() - began

    async def _listen(
        self,
        transcript: SessionTranscript,
        tools: ToolBox,
        gate: TurnGate,
        feed: TurnFeed,
        progress: Progress,
        model: str | None,
        ask: Ask,
    ) -> Finished:
        """Run the agent and show what it says and does."""
        finished = Finished(LLMResponse())
        given: dict[str, Any] = {"budget": progress.budget, "trace": progress.trace, "model": model}
        own: dict[str, Any] = {"window": self._c.window, "model_name": model or self._c.provider.info.name}
        parent = Parent(runtime=self._runtime, toolbox=tools, gate=gate, **own, **given)
        outer = PARENT.set(parent)
        try:
            show = partial(feed.emit, "tool.progress")
            context = replace(progress.context, confirm=gate.confirm, ask=ask, show=show)
            async for event in self._runtime.run(transcript, tools, gate, context=context, **given):
                match event:
                    case LLMChunk():
                        show_chunk(feed, event)
                        failpoints.hit("mid-stream")
                    case ToolStarted() | ToolFinished():
                        show_tool(feed, event, progress)
                    case Finished():
                        finished = event
        finally:
            PARENT.reset(outer)  # or the task would hold the turn, and the turn the task
        return finished

    def _finished(self, turn: Turn, feed: TurnFeed, progress: Progress, finished: Finished) -> Outcome:
        response, stop = finished.response, finished.stop
        text = response.text
        meta: dict[str, Any] = {"reasoning": response.reasoning} if response.reasoning else {}
        data: dict[str, Any] = {"text": text, **report(progress)}
        if warning := " ".join(filter(None, (response.warning, progress.warning))):
            data["warning"] = meta["warning"] = warning
        if stop is not None:
            text = limit_sentence(stop, turn.text, progress.last_result, feed.segment.rstrip())
            data |= {"text": text, "stopped_by": stop.by}
            meta["stopped_by"] = stop.by
        return Outcome("finished", data, {**response.to_message(), "content": text}, meta)

    async def _cancelled_outcome(self, turn: Turn, session: Session, feed: TurnFeed) -> Outcome:
        await until_stored(lambda: self._c.sessions.refresh(session))
        text = feed.segment.rstrip()
        note = stopped_note(turn.text)
        message = {"role": "assistant", "content": f"{text}\n\n{note}" if text else note}
        progress = self._progress.get(turn.turn_id)
        data = {"text": text, **(report(progress) if progress else {})}
        return Outcome("cancelled", data, message, {"cancelled": True, "shown": text})
