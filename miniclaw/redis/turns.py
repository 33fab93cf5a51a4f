"""The inbox in Redis: a hash a turn, a list of waiting ones a session, and a stream of sessions that are ready."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from miniclaw.config import Clock
from miniclaw.errors import ProtocolError
from miniclaw.gateway.protocol import Inbound, new_id
from miniclaw.redis.link import RedisLink
from miniclaw.redis.outbox import row_of
from miniclaw.redis.storage import pairs, rows_of, text_of
from miniclaw.redis.uploads import RedisUploads
from miniclaw.session.models import Entry, Turn, TurnState, Usage
from miniclaw.session.outbox import Delivery
from miniclaw.session.ports import Accepted
from miniclaw.session.rows import note_key, session_key
from miniclaw.session.turns import DEDUPE_LIFETIME, TOLD
from miniclaw.settings import LimitSettings
from miniclaw.upload_store import KEEP_UNSENT, named_uploads, no_upload

__all__ = ["RedisTurns", "turn_of", "usage_rows"]

KNOWN: Final = 4096
"""Turns that this process remembers to have looked up."""

_REFUSALS: Final = {
    "session_not_found": "There is no such session.",
    "pairing": "the sender is not known here",
    "ignored": "the sender is not known here",
    "told": TOLD,
    "unknown": "it does not name the agent, nor is its conversation known",
    "overloaded": "Too many messages are waiting; send it again in a moment.",
    "session_busy": "This session has too many messages waiting; wait for answers.",
}


def turn_of(turn_id: str, row: Mapping[str, str]) -> Turn:
    """The turn of a hash."""
    return Turn(
        n=int(row["n"]),
        turn_id=turn_id,
        session_id=row["session_id"],
        user_id=row["user_id"],
        scope=row["scope"],
        channel=row["channel"],
        message=json.loads(row["message"]),
        state=row["state"],  # type: ignore[arg-type]  # written by our functions alone
        attempt=int(row["attempt"]),
        tries=int(row["tries"]),
        cancel_requested=row.get("cancel") == "1",
        outcome=json.loads(row["outcome"]) if "outcome" in row else None,
    )


def usage_rows(used: Iterable[Usage]) -> list[dict[str, Any]]:
    """Usage as `count_usage` of `functions.lua` takes it."""
    names = ("model", "input_tokens", "output_tokens", "cached_tokens", "calls", "ms", "cost")
    rows = [{name: getattr(usage, name) for name in names} for usage in used]
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


class RedisTurns:
    """See `TurnStore` for what each method promises."""

    def __init__(self, link: RedisLink, limits: LimitSettings, *, clock: Clock) -> None:
        self._link = link
        self._limits = limits
        self._uploads = RedisUploads(link, clock=clock)
        self._clock = clock
        self._known: OrderedDict[str, Turn] = OrderedDict()
        self.accepting: Callable[[str, bool], None] = lambda turn_id, begins: None
        """Told before a turn is stored, and when that is over."""
        self.expect: Callable[[str, str], None] = lambda session_id, turn_id: None
        """Told of a turn whose end somebody here waits for."""

    async def accept(self, inbound: Inbound, reserve: Callable[[str], None]) -> Accepted:
        """See `TurnStore.accept`; the bounds are those of all gateways together."""
        reserve("")
        message = (await self._uploads.with_files(inbound)).model_dump(mode="json", exclude_none=True)
        more = {
            "dedupe": list(inbound.dedupe or (inbound.msg_id,)),
            "max_waiting": self._limits.waiting,
            "per_session": self._limits.waiting_per_session,
            "remember": int(DEDUPE_LIFETIME * 1000),
            "new_session": new_id("ses"),
            "uploads": named_uploads(inbound),
            "keep_unsent": KEEP_UNSENT,
            "new_turn": (new_turn := new_id("turn")),
        }
        envelope = json.dumps({**self._envelope(inbound), **more})
        self.accepting(new_turn, True)
        try:
            answer = await self._link.call("accept", envelope, text_of(message), waits=False)
        finally:
            self.accepting(new_turn, False)
        if answer[0] == "error":
            raise no_upload(answer[2], inbound) if len(answer) > 2 else _refused(answer[1], inbound)
        session_id, turn_id = answer[1], answer[2]
        if answer[0] == "duplicate":
            first = await self.find(turn_id)  # whoever sent it again may want its end
            if first is not None and first.outcome is None:
                self.expect(session_id, turn_id)
            return Accepted(session_id=session_id, turn_id=turn_id, turn=None)
        turn = Turn(
            n=int(answer[5]),
            turn_id=turn_id,
            session_id=session_id,
            user_id=answer[3],
            scope=answer[4],
            channel=inbound.channel,
            message=message,
        )
        self.remember(turn)
        self.expect(session_id, turn_id)
        return Accepted(session_id=session_id, turn_id=turn_id, turn=turn, ahead=int(answer[6]))

    async def identify(self, inbound: Inbound) -> Inbound:
        """See `TurnStore.identify`."""
        if inbound.user_id is not None and inbound.conversation is None:
            return inbound
        answer = await self._link.call("identify", json.dumps(self._envelope(inbound)), waits=False)
        if answer[0] == "error":
            raise _refused(answer[1], inbound)
        found = {"user_id": answer[1], "scope": answer[2], "session_id": answer[3] or None}
        return inbound.model_copy(update=found)

    async def enter(self, inbound: Inbound, session_id: str | None) -> str:
        """See `TurnStore.enter`."""
        scope, entered, moment = (
            inbound.scope or inbound.user_id,
            session_id or new_id("ses"),
            repr(self._clock()),
        )
        place = {
            "key": session_key(inbound, scope or ""),
            "thread": inbound.thread,
            "channel": inbound.channel,
        }
        fields = {**place, "user_id": scope, "created_at": moment, "updated_at": moment}
        given = json.dumps({name: value for name, value in fields.items() if value is not None})
        if not await self._link.call("enter", entered, given, "" if session_id else "new", waits=False):
            raise _refused("session_not_found", inbound)
        return entered

    def _envelope(self, inbound: Inbound) -> dict[str, Any]:
        names = ("channel", "account", "sender", "user_id", "scope", "conversation", "thread", "session_id")
        given = {name: getattr(inbound, name) for name in (*names, "direct", "strangers", "only_known")}
        minted = {"new_user": new_id("u"), "new_group": new_id("grp"), "now": repr(self._clock())}
        minted |= {"note": note_key(inbound) if inbound.typed else "", "msg_id": inbound.msg_id}
        return {**{name: value for name, value in given.items() if value is not None}, **minted}

    async def begin(self, turn: Turn, *, fence: int | None) -> Turn | None:
        """See `TurnStore.begin`."""
        counts = await self._link.call("begin", turn.turn_id, "" if fence is None else fence)
        if counts is None:
            return None
        begun = replace(turn, attempt=int(counts[0]), tries=int(counts[1]), state="running")
        self.remember(begun)
        return begun

    async def put_back(self, turn: Turn, *, fence: int | None = None) -> None:
        """See `TurnStore.put_back`."""
        await self._link.call("put_back", turn.turn_id, "" if fence is None else fence)

    async def mark_started(self, turn_id: str, call_id: str, *, fence: int | None) -> None:
        """See `TurnStore.mark_started`."""
        await self._link.call("started", turn_id, call_id, "" if fence is None else fence)

    async def was_started(self, turn_id: str, call_id: str) -> bool:
        """See `TurnStore.was_started`."""
        return bool(await self._link.run("SISMEMBER", f"{self._link.prefix}c:{turn_id}", call_id))

    async def was_only_asked(self, turn_id: str, call_id: str) -> bool:
        """See `TurnStore.was_only_asked`."""
        asked = await self._link.run("HKEYS", f"{self._link.prefix}at:{turn_id}")
        is_asked = any(key.partition("\x1f")[2] == call_id for key in asked)
        return is_asked and not await self.was_started(turn_id, call_id)

    async def started_calls(self, turn_id: str) -> set[str]:
        """See `TurnStore.started_calls`."""
        return set(await self._link.run("SMEMBERS", f"{self._link.prefix}c:{turn_id}"))

    async def end(
        self,
        turn: Turn,
        state: TurnState,
        outcome: dict[str, Any],
        *,
        fence: int | None,
        entries: Sequence[Entry] = (),
        deliveries: Sequence[Delivery] = (),
        usage: Iterable[Usage] = (),
    ) -> bool:
        """See `TurnStore.end`."""
        moment = self._clock()
        more = {
            "entries": rows_of(entries),
            "deliveries": [row_of(row) for row in deliveries],
            "usage": usage_rows(usage),
            "day": day_of(moment),
        }
        given = (state, text_of(outcome), repr(moment), json.dumps(more))
        ended = await self._link.call("end", turn.turn_id, "" if fence is None else fence, *given)
        if ended:
            self.remember(replace(turn, state=state, outcome=outcome))
        return bool(ended)

    async def request_cancel(self, turn_id: str) -> bool:
        """See `TurnStore.request_cancel`; whoever runs it is told."""
        return bool(await self._link.call("cancel", turn_id))

    async def open_turns(self, channels: Collection[str]) -> list[Turn]:
        """None that this process would have to queue: they stand in the stream."""
        return []

    async def has_session(self, session_id: str) -> bool:
        """See `TurnStore.has_session`."""
        return bool(await self._link.run("HEXISTS", f"{self._link.prefix}s:{session_id}", "user_id"))

    async def ids_of(self, session_id: str) -> set[str]:
        """See `TurnStore.ids_of`."""
        return set(await self._link.run("LRANGE", f"{self._link.prefix}ts:{session_id}", 0, -1))

    def get(self, turn_id: str) -> Turn | None:
        """See `Turns.get`."""
        return self._known.get(turn_id)

    async def find(self, turn_id: str) -> Turn | None:
        """See `Turns.find`."""
        row = pairs(await self._link.run("HGETALL", f"{self._link.prefix}t:{turn_id}"))
        if "n" not in row:
            return None
        turn = turn_of(turn_id, row)
        self.remember(turn)
        return turn

    def remember(self, turn: Turn) -> None:
        """Let `get` know it, as long as not many others come after it."""
        self._known[turn.turn_id] = turn
        self._known.move_to_end(turn.turn_id)
        if len(self._known) > KNOWN:
            self._known.popitem(last=False)

    async def forget_old(self) -> int:
        """Redis forgets de-duplication keys by itself."""
        return 0


def day_of(moment: float) -> str:
    """The day (UTC) that usage is counted for."""
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d}"


def _refused(code: str, inbound: Inbound) -> ProtocolError:
    reply_to = inbound.msg_id if code == "session_not_found" else None
    known = "ignored" if code in ("unknown", "told") else code
    return ProtocolError(known, _REFUSALS[code], reply_to=reply_to)
