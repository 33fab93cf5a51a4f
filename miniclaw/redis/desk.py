"""Questions, results of commands, and usage in Redis; what is done with them is the same as on one machine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, cast

from miniclaw.agent.approval import Approval, ApprovalDesk, Decision, State, digest_of
from miniclaw.agent.providers import ToolCall
from miniclaw.config import ApprovalSettings, Clock
from miniclaw.gateway.protocol import new_id
from miniclaw.redis.link import RedisLink
from miniclaw.redis.storage import pairs
from miniclaw.redis.turns import day_of, usage_rows
from miniclaw.session.models import Turn, Usage
from miniclaw.session.once import OnceOnly
from miniclaw.session.turns import DEDUPE_LIFETIME
from miniclaw.session.usage import UsageLedger, priced, told
from miniclaw.settings import Price

__all__ = ["RedisDesk", "RedisLedger", "RedisOnce"]

LIVE_MS: Final = 2 * 24 * 3600 * 1000


class RedisDesk(ApprovalDesk):
    """See `ApprovalDesk`; an answer that was given on another node wakes the turn by a message."""

    def __init__(
        self,
        link: RedisLink,
        settings: ApprovalSettings,
        *,
        is_admin: Callable[[str], bool],
        clock: Clock,
    ) -> None:
        self._link = link
        self._settings = settings
        self._is_admin = is_admin
        self._clock = clock
        self._waiting: dict[str, asyncio.Future[tuple[State, str]]] = {}
        self._summaries: dict[str, str] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def look_again(self) -> None:
        """Wake the turns whose questions were answered while no message came through."""
        for approval_id in list(self._waiting):
            state, scope = await self._link.run(
                "HMGET", f"{self._link.prefix}a:{approval_id}", "state", "scope"
            )
            if state not in (None, "asked"):
                self.wake(approval_id, cast("State", state), scope or "")

    async def open_for(self, user_id: str) -> list[Approval]:
        rows = await self._link.call("questions", *self._about(user_id))
        found = sorted((pairs(row) for row in rows), key=lambda row: float(row["created_at"]))
        return [_approval(row) for row in found[:100]]

    def _about(self, user_id: str) -> tuple[str, int]:
        return user_id, int(self._is_admin(user_id))

    async def _has_rule(self, turn: Turn, tool: str) -> bool:
        rules = [f"{session}\x1f{tool}" for session in ("", turn.session_id)]
        return any(await self._link.run("SMISMEMBER", f"{self._link.prefix}ar:{turn.user_id}", *rules))

    async def _decide(
        self, reference: str, user_id: str, decision: Decision, state: State, completed: str
    ) -> Approval | None:
        rule = decision if decision in ("session", "always") else ""
        given = (reference, *self._about(user_id), state, rule, repr(self._clock()), completed)
        row = await self._link.call("decide", *given, waits=False)
        return _approval(pairs(row)) if row else None

    async def _arguments(self, approval_id: str) -> dict[str, Any]:
        given = await self._link.run("HGET", f"{self._link.prefix}a:{approval_id}", "arguments")
        found: dict[str, Any] = json.loads(given or "{}")
        return found

    async def _open(self, turn: Turn, call: ToolCall, summary: str) -> Approval:
        moment = self._clock()
        question = {
            "approval_id": new_id("apr"),
            "turn_id": turn.turn_id,
            "session_id": turn.session_id,
            "user_id": turn.user_id,
            "call_id": call.id,
            "tool": call.name,
            "arguments": json.dumps(call.arguments, ensure_ascii=False),
            "summary": summary,
            "digest": digest_of(call, summary),
            "state": "asked",
            "created_at": repr(moment),
            "expires_at": repr(moment + self._settings.timeout),
        }
        stands = _approval(pairs(await self._link.call("ask", json.dumps(question))))
        return replace(stands, again=stands.approval_id != question["approval_id"])

    async def _expire(self, approval_id: str, *, given_up: bool = False) -> State:
        return cast("State", await self._link.call("expire", approval_id, int(given_up)) or "expired")


class RedisOnce(OnceOnly):
    """See `OnceOnly`; two nodes that get the same command at the same moment both carry it out."""

    def __init__(self, link: RedisLink) -> None:
        self._link = link
        self._at_work: dict[str, asyncio.Future[None]] = {}

    async def _find(self, key: str) -> str | None:
        found: str | None = await self._link.run("HGET", f"{self._link.prefix}d:{key}", "result", waits=False)
        return found

    async def _store(self, key: str, result: dict[str, Any]) -> None:
        text, session_id = json.dumps(result, ensure_ascii=False), str(result.get("session_id") or "")
        await self._link.call("remember", key, text, session_id, int(DEDUPE_LIFETIME * 1000))


class RedisLedger(UsageLedger):
    """See `UsageLedger`; what running turns use is counted for all nodes at once, and looked up before each call."""

    def __init__(self, link: RedisLink, prices: Mapping[str, Price], *, clock: Clock) -> None:
        self._link = link
        self._clock = clock
        self._today: dict[str, dict[str, Usage]] = {}
        self._held: dict[str, list[Usage]] = {}
        self._let_go = asyncio.Event()
        self.prices = prices

    is_shared = True

    async def rows(self, user_id: str) -> list[dict[str, Any]]:
        days = sorted(await self._link.run("SMEMBERS", f"{self._link.prefix}usd:{user_id}"), reverse=True)
        asked = [self._link.run("HGETALL", f"{self._link.prefix}us:{user_id}:{day}") for day in days[:200]]
        found = [(day, _used(pairs(await row))) for day, row in zip(days, asked, strict=False)]
        return [{"day": day, **used.to_dict()} for day, models in found for _, used in sorted(models.items())]

    async def report(self, user_id: str, session_id: str | None) -> dict[str, list[dict[str, Any]]]:
        ids = await self._link.run("LRANGE", f"{self._link.prefix}ts:{session_id}", 0, -1)
        asked = [self._link.run("HMGET", f"{self._link.prefix}t:{one}", "user_id", "outcome") for one in ids]
        ends = [
            json.loads(end)["data"] for owner, end in [await row for row in asked] if end and owner == user_id
        ]
        return told([end["usage"] for end in ends if end.get("usage")]) | {"usage": await self.rows(user_id)}

    async def look(self, user_id: str) -> None:
        name = f"{self._link.prefix}ul:{user_id}:{day_of(self._clock())}"
        found = _used(pairs(await self._link.run("HGETALL", name)))
        if len(self._today) > 1000:
            self._today.clear()
        self._today[user_id] = {
            model: priced(used, self.prices) if used.cost is None else used for model, used in found.items()
        }

    def today(self, user_id: str) -> Iterable[Usage]:
        return self._today.get(user_id, {}).values()

    def spend(self, user_id: str, usage: Usage) -> None:
        models = self._today.setdefault(user_id, {})
        models[usage.model] = models.get(usage.model, Usage()).plus(usage)
        told = self._use(user_id, [usage], "live")  # made before the next `look`
        told.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def store(self, user_id: str, used: Iterable[Usage]) -> None:
        await self._use(user_id, used, "stored")

    def _use(self, user_id: str, used: Iterable[Usage], kind: str) -> asyncio.Future[Any]:
        rows, day = json.dumps(usage_rows(used)), day_of(self._clock())
        return self._link.call("use", user_id, day, rows, kind, LIVE_MS, new_id("use"), self._link.repeats_ms)


def _used(row: Mapping[str, str]) -> dict[str, Usage]:
    models: dict[str, dict[str, Any]] = {}
    for name, value in row.items():
        model, _, column = name.rpartition("\x1f")
        models.setdefault(model, {})[column] = float(value) if column == "cost" else int(value)
    for given in models.values():
        if given.pop("unknown", 0):
            given["cost"] = None
    return {model: Usage(model=model, **given) for model, given in models.items()}


def _approval(row: Mapping[str, str]) -> Approval:
    return Approval(
        approval_id=row["approval_id"],
        short_id=row["approval_id"][-6:],
        turn_id=row["turn_id"],
        session_id=row["session_id"],
        user_id=row["user_id"],
        call_id=row["call_id"],
        tool=row["tool"],
        arguments=json.loads(row["arguments"]),
        state=cast("State", row["state"]),
        expires_at=float(row["expires_at"]),
        summary=row["summary"],
    )
