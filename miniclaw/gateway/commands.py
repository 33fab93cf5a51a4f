"""Commands of the protocol: what they are called, what they take, and what they do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from miniclaw.agent.approval import Decision
from miniclaw.agent.compactor import Compactor
from miniclaw.agent.core import Core
from miniclaw.agent.patience import until_stored
from miniclaw.agent.providers import Ask
from miniclaw.agent.turn import TurnRunner
from miniclaw.errors import ConfigError, ProtocolError
from miniclaw.gateway.about import about, trace_of
from miniclaw.gateway.command_table import (
    COMMANDS,
    ENTERING,
    Approve,
    Args,
    Cancel,
    Delete,
    Deny,
    Forget,
    Fork,
    History,
    InSession,
    Memories,
    Remember,
    Rename,
    Resume,
    Sessions,
    Skills,
    TimerArgs,
    Tools,
    Trace,
    Users,
    validate,
)
from miniclaw.gateway.events import SHUT_OUT
from miniclaw.gateway.ingress import Ingress
from miniclaw.gateway.memory_actions import MemoryActions
from miniclaw.gateway.pages import message_page
from miniclaw.gateway.protocol import CommandPayload, Inbound, Receipt, has_unreadable, now
from miniclaw.gateway.session_actions import SessionActions
from miniclaw.gateway.wiping import Wiping
from miniclaw.memory.models import is_memory_id
from miniclaw.session.models import Session, Turn
from miniclaw.session.ports import TurnQueue
from miniclaw.timers import Timers
from miniclaw.tools.exports import tools_view

__all__ = ["Commands"]

Action = Callable[[Inbound, Any], Awaitable[dict[str, Any]]]


class Commands:
    """Carries out commands: most at once, past the mailbox; a few in it, in the order of the session."""

    def __init__(self, core: Core, mailbox: TurnQueue, timers: Timers) -> None:
        self._c = core
        self._timer_list = timers
        self._mailbox = mailbox
        self.sessions = SessionActions(core, mailbox)
        self._memory = MemoryActions(core.memory)
        self._compactor = Compactor(core)
        self._ingress: Ingress | None = None
        self._runner: TurnRunner | None = None

    def connect(self, ingress: Ingress, runner: TurnRunner) -> None:
        """Give the two parts that are made after this one."""
        self._ingress, self._runner = ingress, runner
        self._wiping = Wiping(core=self._c, mailbox=self._mailbox, cancel=self.cancel, drop=runner.close)

    async def handle(self, inbound: Inbound) -> Receipt:
        """Carry out a command or queue it.

        Raises:
            ProtocolError: it is unknown, its arguments do not fit, or it cannot be done.
        """
        payload = inbound.payload
        assert isinstance(payload, CommandPayload)
        command = COMMANDS.get(payload.name)
        if command is None:
            text = f"There is no command `{payload.name}`; there are: {', '.join(COMMANDS)}."
            raise ProtocolError("unknown_command", text)
        if has_unreadable((inbound.sender, inbound.account, payload.args)):
            raise ProtocolError("bad_message", "The command holds a lone surrogate or a NUL character.")
        inbound = await self._c.turns.identify(inbound)  # first: who is ignored is not told a mistake either
        args = validate(command, payload)
        if command.queued:
            return await self._queue(inbound)
        action: Action = getattr(self, f"_{payload.name}")
        if command.changes:
            key = (inbound.channel, inbound.account or _user(inbound), inbound.msg_id)
            result = await self._c.once.run(key, lambda: self._act(action, inbound, args))
        else:
            result = await self._act(action, inbound, args)
        session_id = result.get("session_id") if payload.name in ENTERING else None
        return Receipt(status="answered", name=payload.name, result=result, session_id=session_id)

    async def _act(self, action: Action, inbound: Inbound, args: Args) -> dict[str, Any]:
        """Carry it out; a platform's conversation goes on in the session that it was led to."""
        result = await action(inbound, args)
        if inbound.conversation is not None and action in (self._fork, self._resume):
            await self._c.turns.enter(inbound, result["session_id"])
        return result

    async def run_queued(
        self, session: Session, name: str, args: Mapping[str, Any], ask: Ask
    ) -> dict[str, Any]:
        """Carry out a command whose turn has come in the mailbox."""
        match name:
            case "clear":
                end = session.next_position
                await until_stored(lambda: self._c.sessions.update(session, cleared=end, summary=None))
                return {"session_id": session.session_id}
            case "compact":
                return await self._compact(session, str(args.get("focus", "")), ask)
            case _:
                return await self._switch_model(session, args.get("name"))

    async def _queue(self, inbound: Inbound) -> Receipt:
        if inbound.session_id is None:
            is_there = "Nothing has been said here yet" if inbound.typed else "There is no current session"
            more = "say something first" if inbound.typed else "name one as `session_id`"
            raise ProtocolError("bad_arguments", f"{is_there}; {more}.")
        assert self._ingress is not None
        return await self._ingress.accept(inbound)

    async def _ping(self, inbound: Inbound, args: Args) -> dict[str, Any]:
        return {"pong": True, "time": now()}

    async def _help(self, inbound: Inbound, args: Args) -> dict[str, Any]:
        return {"commands": [{"name": name, "about": c.about} for name, c in COMMANDS.items()]}

    async def _about(self, inbound: Inbound, args: Args) -> dict[str, Any]:
        session = await self._session(inbound, None) if inbound.session_id else None
        return await about(self._c, _user(inbound), _scope(inbound), session)

    async def _trace(self, inbound: Inbound, args: Trace) -> dict[str, Any]:
        turn_id = args.turn_id
        if turn_id is None:
            session = await self._session(inbound, None)
            page = await self._c.sessions.storage.load(session.session_id, last=1)
            turn_id = page.messages[-1].turn_id if page and page.messages else ""
        return await trace_of(self._c, _user(inbound), turn_id or "")

    async def _new(self, inbound: Inbound, args: Args) -> dict[str, Any]:
        if inbound.conversation is not None:
            return {"session_id": await self._c.turns.enter(inbound, None)}
        session = await self._c.sessions.get_or_create(_user(inbound), inbound.channel)
        return {"session_id": session.session_id}

    async def _sessions(self, inbound: Inbound, args: Sessions) -> dict[str, Any]:
        return await self.sessions.list(_scope(inbound), args.query)

    async def _rename(self, inbound: Inbound, args: Rename) -> dict[str, Any]:
        session = await self._session(inbound, args.session_id)
        return await self.sessions.rename(_scope(inbound), session.session_id, args.title)

    async def _fork(self, inbound: Inbound, args: Fork) -> dict[str, Any]:
        session = await self._session(inbound, args.session_id)
        return await self.sessions.fork(_scope(inbound), session.session_id, args.position)

    async def _delete(self, inbound: Inbound, args: Delete) -> dict[str, Any]:
        return await self.sessions.delete(_scope(inbound), args.session_id)

    async def _resume(self, inbound: Inbound, args: Resume) -> dict[str, Any]:
        session = await self._session(inbound, args.session_id)
        await self._c.live.look(session.session_id)
        running = await self._mailbox.current(session.session_id)
        if args.turn_id is not None:
            turn = await self._c.turns.find(args.turn_id)  # last: its end is not to come unseen
            if turn is None or turn.session_id != session.session_id:
                raise ProtocolError("turn_not_found", "There is no such turn in this session.")
        waiting = enumerate(await self._mailbox.waiting(session.session_id), 1 if running else 0)
        return {
            "session_id": session.session_id,
            "title": session.title,
            "state": await self.sessions.phase(session.session_id),
            "turn_id": running.turn_id if running else None,
            "waiting": [{"turn_id": one.turn_id, "position": n, **one.said} for n, one in waiting],
        }

    async def _history(self, inbound: Inbound, args: History) -> dict[str, Any]:
        session = await self._session(inbound, args.session_id)
        return await message_page(
            self._c.sessions, session.session_id, session.user_id, before=args.before, limit=args.limit
        )

    async def _seen(self, inbound: Inbound, args: InSession) -> dict[str, Any]:
        session = await self._session(inbound, args.session_id)
        return await self.sessions.seen(_scope(inbound), session.session_id)

    async def _cancel(self, inbound: Inbound, args: Cancel) -> dict[str, Any]:
        turn_id = args.turn_id
        if turn_id is None and (args.session_id or inbound.session_id):
            session = await self._session(inbound, args.session_id)
            running = await self._mailbox.current(session.session_id)
            turn_id = running.turn_id if running else None
        cancelled = turn_id is not None and await self.cancel(turn_id, _user(inbound))
        return {"turn_id": turn_id, "cancelled": cancelled}

    async def cancel(self, turn_id: str, user_id: str) -> bool:
        """End a turn of this user now; `False` when it has ended already.

        Raises:
            ProtocolError: `turn_not_found`: there is none, or it is another's.
        """
        turn = await self._c.turns.find(turn_id)
        if turn is None or not self._may_cancel(turn, user_id):
            raise ProtocolError("turn_not_found", "There is no such turn.")
        if not await self._c.turns.request_cancel(turn_id):
            return False
        assert self._runner is not None
        if self._mailbox.is_here(turn_id):
            self._runner.interrupt(turn_id)
        if (withdrawn := await self._mailbox.take_out(turn_id, turn.session_id)) is not None:
            await self._runner.settle_cancelled(withdrawn)
        return True

    def _may_cancel(self, turn: Turn, user_id: str) -> bool:
        """The sender, and an admin in a group."""
        is_group = turn.scope != turn.user_id
        return turn.user_id == user_id or (is_group and self._c.identities.is_admin(user_id))

    async def _approve(self, inbound: Inbound, args: Approve) -> dict[str, Any]:
        said = (args.approval_id, _user(inbound), args.scope, inbound.session_id, args.answer)
        return {"approval_id": (await self._c.desk.decide(*said)).approval_id, "decision": args.scope}

    async def _deny(self, inbound: Inbound, args: Deny) -> dict[str, Any]:
        decision: Decision = "unattended" if args.unattended else "deny"
        approval = await self._c.desk.decide(args.approval_id, _user(inbound), decision, inbound.session_id)
        return {"approval_id": approval.approval_id, "decision": "deny"}

    async def _tools(self, inbound: Inbound, args: Tools) -> dict[str, Any]:
        if args.action == "reload":
            self._only_admin(inbound)
            await self._c.registry.reload()
        is_admin = self._c.identities.is_admin(_user(inbound))
        return tools_view(self._c.registry, self._c.registry.source, is_admin)

    async def _mcp(self, inbound: Inbound, args: Any) -> dict[str, Any]:
        self._only_admin(inbound)
        return await self._c.servers.act(args.action, args.name)

    async def _skills(self, inbound: Inbound, args: Skills) -> dict[str, Any]:
        session = None
        if args.activate or args.deactivate or args.session_id or inbound.session_id:
            session = await self._session(inbound, args.session_id)
        return await self.sessions.skills(session, args.activate, args.deactivate)

    async def _stats(self, inbound: Inbound, args: Args) -> dict[str, Any]:
        return {**await self._c.usage.report(_user(inbound), inbound.session_id), **self._mailbox.load}

    async def _memories(self, inbound: Inbound, args: Memories) -> dict[str, Any]:
        if args.action == "clear":
            return await self._memory.clear(_scope(inbound))
        return await self._memory.list(_scope(inbound), args.query, args.limit)

    async def _remember(self, inbound: Inbound, args: Remember) -> dict[str, Any]:
        if is_memory_id(args.content.strip()):  # a proposed one, which is confirmed
            return await self._memory.confirm(_scope(inbound), args.content.strip())
        saved = await self._memory.save(_scope(inbound), args.content, context=args.context)
        return {name: saved[name] for name in ("memory_id", "similar")}

    async def _forget(self, inbound: Inbound, args: Forget) -> dict[str, Any]:
        await self._memory.delete(_scope(inbound), args.memory_id)
        return {"memory_id": args.memory_id}

    async def _timers(self, inbound: Inbound, args: TimerArgs) -> dict[str, Any]:
        scope = _scope(inbound)
        if args.action == "cancel":
            await self._timer_list.cancel(args.timer_id, scope, _user(inbound))
        return {"timers": [timer.to_dict() for timer in self._timer_list.list(scope)]}

    async def _users(self, inbound: Inbound, args: Users) -> dict[str, Any]:
        """Not remembered like other changes: a token must not stand in the database."""
        identities, user_id, told = self._c.identities, args.user_id, dict[str, Any]()
        self._only_admin(inbound)
        try:
            match args.action:
                case "add":
                    told = {"user_id": user_id, "token": await identities.add(user_id, again=args.again)}
                case "token":
                    told = {"user_id": user_id, "token": await identities.new_token(user_id)}
                case "link":
                    await identities.link(user_id, args.channel, args.account, args.person)
                case "pair":
                    await identities.pair(user_id, args.person)
                case "remove":
                    await (self._wiping.wipe(user_id) if args.wipe else self._wiping.remove(user_id))
        except ConfigError as error:
            raise ProtocolError("bad_arguments", str(error)) from error
        if args.action == "token":
            self._c.live.bus.publish(f"user.{user_id}", SHUT_OUT)
        return told or {"users": await identities.list()}

    async def _compact(self, session: Session, focus: str, ask: Ask) -> dict[str, Any]:
        history = session.history().messages()
        if not history:
            return {"session_id": session.session_id, "messages": 0}
        text = await self._compactor.summarise(session, history, session.next_position, ask, focus=focus)
        messages = len(history) - len(session.history().messages())
        return {"session_id": session.session_id, "messages": messages, "summary": text}

    async def _switch_model(self, session: Session, name: str | None) -> dict[str, Any]:
        offered = await self._c.provider.models()
        if name is not None:
            if offered and name not in offered:
                raise ProtocolError("not_found", f"The server has no model `{name}`.")
            await until_stored(lambda: self._c.sessions.update(session, model=name))
        return {"model": session.metadata.get("model") or self._c.provider.info.name, "models": offered}

    def _only_admin(self, inbound: Inbound) -> None:
        if not self._c.identities.is_admin(_user(inbound)):
            raise ProtocolError("forbidden", "Only an admin may do that.")

    async def _session(self, inbound: Inbound, session_id: str | None) -> Session:
        wanted = session_id or inbound.session_id
        session = await self._c.sessions.owned(wanted, _scope(inbound)) if wanted else None
        if session is None:
            raise ProtocolError("session_not_found", "There is no such session.")
        return session


def _scope(inbound: Inbound) -> str:
    return inbound.scope or _user(inbound)


def _user(inbound: Inbound) -> str:
    return inbound.user_id or inbound.sender
