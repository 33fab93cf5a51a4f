"""Users, tokens and timers in Redis, with a copy in memory that is read anew when a node says that they changed."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from miniclaw.config import Clock
from miniclaw.errors import ConfigError
from miniclaw.identity import (
    LOGIN_LIFETIME,
    OWNER,
    PAIRING_ALPHABET,
    PAIRING_LIFETIME,
    Identities,
    hash_of,
    is_user_id,
)
from miniclaw.redis.link import RedisLink
from miniclaw.redis.storage import pairs
from miniclaw.timer_store import COLUMNS, Timer, TimerStore, row_of, timer_of

__all__ = ["RedisIdentities", "RedisTimers"]


class RedisIdentities(Identities):
    """See `Identities`; `people` and `users` are also written where a message is accepted."""

    def __init__(self, link: RedisLink, *, clock: Clock) -> None:
        self._link = link
        self._clock = clock
        self._tokens: dict[str, str] = {}
        self._users: dict[str, dict[str, Any]] = {}
        self._gone: set[str] = set()
        self._owner_token = ""
        self.changed: Callable[[str], None] = lambda kind: None
        """Tells the other nodes."""

    def _key(self, name: str) -> str:
        return self._link.prefix + name

    async def start(self, owner_token: str) -> None:
        await self.read()
        self._owner_token, token = owner_token, hash_of(owner_token)
        if (other := self._tokens.get(token, OWNER)) != OWNER:
            raise ConfigError(f"MINICLAW_TOKEN is the token of the user `{other}`; set another one.")
        if self._users.get(OWNER, {}).get("token_hash") != token:
            await self._shut_out(OWNER, {"role": "admin", "token_hash": token, "created_at": self._clock()})

    async def restore(self) -> bool:
        """Read anew; put the owner back into a Redis that came back empty, and tell whether it did."""
        await self.read()
        if is_empty := not self.exists(OWNER):
            await self.start(self._owner_token)
        return is_empty

    async def read(self) -> None:
        """Take over what other nodes wrote."""
        rows = pairs(await self._link.run("HGETALL", self._key("users")))
        self._gone = (self._gone | self._users.keys()) - rows.keys()
        self._users = {name: json.loads(row) for name, row in rows.items()}
        self._tokens = {row["token_hash"]: name for name, row in self._users.items() if row.get("token_hash")}

    async def _shut_out(self, user_id: str, row: dict[str, Any] | None) -> None:
        """Store or remove (`None`) the user, without a browser that the former token let in."""
        await self._link.call("shut_out", user_id, "" if row is None else json.dumps(row))
        await self.read()
        self.changed("people")

    def is_admin(self, user_id: str) -> bool:
        return self._users.get(user_id, {}).get("role") == "admin"

    def exists(self, user_id: str) -> bool:
        return user_id in self._users

    async def ensure(self, user_id: str) -> None:
        if not is_user_id(user_id):
            raise ConfigError(f"`{user_id}` is no user id: a-z first, then a-z, 0-9, `_`, `-`, 32 at most.")
        row = json.dumps({"role": "user", "created_at": self._clock()})
        if await self._link.run("HSETNX", self._key("users"), user_id, row):
            await self.read()
            self.changed("people")

    async def _has_left_something(self, user_id: str) -> bool:
        keys = [self._key(name + user_id) for name in ("su:", "usd:")]
        return bool(await self._link.run("EXISTS", *keys))

    async def new_token(self, user_id: str) -> str:
        self._check_is_other(user_id)
        token = secrets.token_urlsafe(32)
        await self._shut_out(user_id, {**self._users[user_id], "token_hash": hash_of(token)})
        return token

    async def link(self, user_id: str, channel: str, account: str, person: str) -> None:
        if not self.exists(user_id):
            raise ConfigError(f"There is no user `{user_id}`; `users add` makes one.")
        await self._link.run("HSET", self._key("people"), "\x1f".join((channel, account, person)), user_id)

    async def pairing_code(self, channel: str, account: str, person: str) -> str:
        who = "\x1f".join((channel, account, person))
        code = "".join(secrets.choice(PAIRING_ALPHABET) for _ in range(8))
        mine, seconds = self._key(f"pairing-of:{who}"), int(PAIRING_LIFETIME)
        if not await self._link.run("SET", mine, code, "NX", "EX", seconds):
            code = await self._link.run("GET", mine) or code
        await self._link.run("SET", self._key(f"pairing:{code}"), who, "NX", "EX", seconds)
        return code

    async def pair(self, user_id: str, code: str) -> None:
        key = self._key(f"pairing:{code.strip().upper()}")
        who = await self._link.run("GET", key)
        if who is None:
            raise ConfigError(f"There is no pairing code `{code[:16]}`; it is good for a day.")
        channel, account, person = who.split("\x1f", 2)
        await self.link(user_id, channel, account, person)
        await self._link.run("UNLINK", key, self._key(f"pairing-of:{who}"))

    async def remove(self, user_id: str) -> None:
        self._check_is_other(user_id)
        await self._shut_out(user_id, None)
        self.changed("timers")

    async def wipe(self, user_id: str) -> None:
        run, key = self._link.run, self._key
        days = await run("SMEMBERS", key(f"usd:{user_id}"))
        await self._link.call("drop_deliveries", user_id)
        await self._link.call("drop_logins", user_id)
        gone = [key(f"{kind}:{user_id}:{day}") for day in days for kind in ("us", "ul")]
        cursor = "0"
        while cursor != "-1":
            cursor, names = await run("SCAN", cursor, "MATCH", key("up:*"), "COUNT", 500)
            gone += [name for name in names if await run("HGET", name, "user_id") == user_id]
            cursor = cursor if str(cursor) != "0" else "-1"
        await run("UNLINK", *gone, *(key(f"{name}:{user_id}") for name in ("usd", "ar")))

    async def list(self) -> list[dict[str, Any]]:
        people = pairs(await self._link.run("HGETALL", self._key("people")))
        links: dict[str, list[str]] = {}
        for who, user_id in people.items():
            links.setdefault(user_id, []).append(":".join(part for part in who.split("\x1f") if part))
        return [
            {
                "user_id": name,
                "role": row["role"],
                "token": bool(row.get("token_hash")),
                "identities": links.get(name, []),
            }
            for name, row in sorted(self._users.items())
        ]

    async def login(self, token: str) -> str | None:
        if (user_id := self.user_of_token(token)) is None:
            return None
        value = secrets.token_urlsafe(32)
        known = (user_id, hash_of(token), hash_of(value), int(LOGIN_LIFETIME))
        return value if await self._link.call("login", *known) else None

    async def user_of_login(self, value: str) -> str | None:
        if not value:
            return None
        found: str | None = await self._link.call("user_of_login", hash_of(value), waits=False)
        return found

    async def user_of_person(self, channel: str, account: str, person: str) -> str | None:
        who = "\x1f".join((channel, account, person))
        found: str | None = await self._link.run("HGET", self._key("people"), who)
        return found


class RedisTimers(TimerStore):
    """See `TimerStore`; of several nodes that find a timer due, one has its run accepted."""

    def __init__(self, link: RedisLink, *, clock: Clock) -> None:
        self._link = link
        self._clock = clock
        self._timers: dict[str, Timer] = {}
        self.changed: Callable[[str], None] = lambda kind: None

    async def read(self) -> None:
        """Take over what other nodes wrote."""
        rows = pairs(await self._link.run("HGETALL", f"{self._link.prefix}timers"))
        found = [timer_of(_row(json.loads(row))) for row in rows.values()]
        self._timers = {timer.timer_id: timer for timer in found if timer is not None}

    def next_at(self) -> float | None:
        return min((t.next_at for t in self._timers.values() if t.next_at is not None), default=None)

    def due(self, moment: float) -> list[Timer]:
        return [t for t in self._sorted() if t.next_at is not None and t.next_at <= moment]

    def of(self, scope: str) -> list[Timer]:
        return [timer for timer in self._sorted() if timer.scope == scope]

    def configured(self) -> list[Timer]:
        return [timer for timer in self._sorted() if timer.configured]

    def _sorted(self) -> list[Timer]:
        return sorted(self._timers.values(), key=lambda t: (t.next_at is None, t.next_at or 0.0))

    async def save(self, timer: Timer) -> bool:
        row = dict(zip(COLUMNS.split(", "), row_of(timer), strict=True))
        row |= {name: repr(row[name]) for name in ("anchor", "next_at") if row[name] is not None}
        saved = await self._link.call("save_timer", timer.timer_id, timer.user_id, json.dumps(row))
        await self._told()
        return bool(saved)

    async def forget_left(self) -> None:
        if await self._link.call("drop_timers"):
            await self._told()

    async def delete(self, timer_id: str) -> None:
        await self._link.run("HDEL", f"{self._link.prefix}timers", timer_id)
        await self._told()

    async def end(self, timer_id: str) -> None:
        if (timer := self._timers.get(timer_id)) is not None and timer.next_at is not None:
            await self._link.call("move_on", timer_id, repr(timer.next_at), "", "", 0)
            await self.read()

    async def move_on(self, timer: Timer, planned: float, session_id: str | None) -> None:
        following = timer.schedule.after(max(planned, self._clock()), anchor=timer.anchor)
        goes = int(not timer.configured)
        after = "" if following is None else repr(following)
        await self._link.call("move_on", timer.timer_id, repr(planned), after, session_id or "", goes)
        await self.read()

    async def _told(self) -> None:
        await self.read()
        self.changed("timers")


def _row(stored: Mapping[str, Any]) -> tuple[Any, ...]:
    times = {name: float(stored[name]) for name in ("anchor", "next_at") if stored.get(name) is not None}
    return tuple({**stored, **times}.get(name) for name in COLUMNS.split(", "))
