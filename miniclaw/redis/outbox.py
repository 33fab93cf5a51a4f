"""The delivery rows in Redis: a hash a row, and a sorted set of open ones a conversation, which one node works off."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from miniclaw.config import Clock
from miniclaw.gateway.protocol import ReplyTarget
from miniclaw.redis.link import RedisLink
from miniclaw.redis.storage import pairs
from miniclaw.session.outbox import Delivery

__all__ = ["RedisOutbox", "row_of"]

KEEP_SENT_MS: Final = 7 * 24 * 3600 * 1000
LISTED: Final = 100


def row_of(row: Delivery) -> dict[str, Any]:
    """A row as `insert_delivery` of `functions.lua` takes it."""
    names = ("key", "n", "part", "turn_id", "user_id", "channel", "account", "conversation", "text", "state")
    given = {name: getattr(row, name) for name in (*names, "attempts", "handle", "error")}
    more = {"target": row.target.model_dump_json(), "uncertain": int(row.uncertain)}
    times = {"next_at": repr(row.next_at), "created_at": repr(row.created_at)}
    return {name: value for name, value in {**given, **more, **times}.items() if value is not None}


class RedisOutbox:
    """See `Outbox` for what each method promises.

    Args:
        node: the name of this gateway, which holds the conversations that it delivers to.
        lease: seconds after which a conversation goes to another one.
    """

    def __init__(self, link: RedisLink, *, node: str, lease: float, clock: Clock) -> None:
        self._link = link
        self._node = node
        self._lease = int(lease * 1000)
        self._clock = clock
        self._held: set[str] = set()

    async def conversations(self, channels: Collection[str]) -> list[tuple[str, str, str]]:
        """See `Outbox.conversations`."""
        places = await self._link.run("SMEMBERS", f"{self._link.prefix}dopen")
        found = [place.split("\x1f", 2) for place in places]
        return [(one[0], one[1], one[2]) for one in found if one[0] in channels]

    async def next_of(self, channel: str, account: str, conversation: str) -> Delivery | None:
        """See `Outbox.next_of`; none as long as another gateway delivers to that conversation."""
        place = "\x1f".join((channel, account, conversation))
        row = await self._link.call("next_delivery", place, self._node, self._lease)
        if row is None:
            self._held.discard(place)
            return None
        self._held.add(place)
        return _delivery(pairs(row))

    async def keep(self) -> None:
        """Renew the leases of the conversations that this gateway delivers to."""
        if self._held:
            await self._link.call("keep_places", self._node, self._lease, json.dumps(list(self._held)))

    async def has(self, key: str) -> bool:
        """See `Outbox.has`."""
        return bool(await self._link.run("EXISTS", f"{self._link.prefix}dl:{key}"))

    async def of_user(self, user_id: str | None) -> list[Delivery]:
        """See `Outbox.of_user`."""
        name = "du" if user_id is None else f"du:{user_id}"
        keys = await self._link.run("ZREVRANGE", self._link.prefix + name, 0, LISTED - 1)
        asked = [self._link.run("HGETALL", f"{self._link.prefix}dl:{key}") for key in keys]
        rows = [pairs(await row) for row in asked]
        return sorted((_delivery(row) for row in rows if "key" in row), key=lambda d: (-d.n, d.part))

    async def waiting(self) -> int:
        """See `Outbox.waiting`."""
        places = await self._link.run("SMEMBERS", f"{self._link.prefix}dopen")
        asked = [self._link.run("ZCARD", f"{self._link.prefix}dc:{place}") for place in places]
        return sum([int(await count) for count in asked])

    async def open_stream(self, row: Delivery) -> Delivery | None:
        """See `Outbox.open_stream`."""
        known = await self._link.call("open_stream", json.dumps(row_of(row)))
        if known is None:
            return None
        return _delivery(pairs(known)) if known else row

    async def expect_stream(self, key: str, handle: str) -> None:
        """See `Outbox.expect_stream`."""
        await self._change(key, {"handle": handle}, "open", by_anybody=True)

    async def keep_stream(self, key: str, handle: str | None) -> None:
        """See `Outbox.keep_stream`."""
        await self._change(key, {"handle": handle or "", "uncertain": 0}, "open", by_anybody=True)

    async def notice(self, rows: Sequence[Delivery], *, unless: Collection[str] = ()) -> bool:
        """See `Outbox.notice`."""
        given = (json.dumps([row_of(row) for row in rows]), json.dumps(list(unless)))
        return bool(await self._link.call("notice", *given, waits=False))

    async def begin(self, delivery: Delivery) -> bool:
        """See `Outbox.begin`; refused where another gateway has taken over."""
        return await self._change(
            delivery.key, {"state": "sending", "uncertain": max(1, delivery.uncertain)}, "begun"
        )

    async def sent(self, delivery: Delivery, handle: str | None) -> None:
        """See `Outbox.sent`."""
        await self._change(delivery.key, {"state": "sent", "handle": handle or "", "error": ""}, "sent")

    async def retry(self, delivery: Delivery, error: str, *, at: float, uncertain: int) -> None:
        """See `Outbox.retry`."""
        changes = {"state": "pending", "error": error, "next_at": repr(at), "uncertain": int(uncertain)}
        await self._change(delivery.key, changes, "open")

    async def dead(self, delivery: Delivery, error: str) -> None:
        """See `Outbox.dead`."""
        await self._change(delivery.key, {"state": "dead", "error": error}, "dead")

    async def revive(self, key: str, user_id: str | None) -> Delivery | None:
        """See `Outbox.revive`."""
        row = await self._link.call("revive", key, user_id or "", repr(self._clock()))
        return _delivery(pairs(row)) if row else None

    async def forget_sent(self, *, before: float) -> int:
        """Redis forgets sent rows by itself."""
        return 0

    async def _change(
        self, key: str, changes: Mapping[str, Any], becomes: str, *, by_anybody: bool = False
    ) -> bool:
        node = "" if by_anybody else self._node
        found = await self._link.call("delivery", key, node, json.dumps(changes), becomes, KEEP_SENT_MS)
        return bool(found)


def _delivery(row: Mapping[str, str]) -> Delivery:
    return Delivery(
        key=row["key"],
        n=int(row["n"]),
        part=int(row["part"]),
        turn_id=row["turn_id"],
        user_id=row["user_id"],
        channel=row["channel"],
        account=row["account"],
        conversation=row["conversation"],
        target=ReplyTarget.model_validate_json(row["target"]),
        text=row["text"],
        state=row["state"],  # type: ignore[arg-type]  # written by our functions alone
        attempts=int(row["attempts"]),
        uncertain=int(row["uncertain"]),
        next_at=float(row["next_at"]),
        handle=row.get("handle"),
        error=row.get("error"),
        created_at=float(row["created_at"]),
    )
