"""Who speaks: users, their tokens, browser logins, and the people of platforms."""

from __future__ import annotations

import hashlib
import re
import secrets
import sqlite3
from typing import Any, Final

from miniclaw.config import Clock
from miniclaw.db import Database
from miniclaw.errors import ConfigError, StorageError
from miniclaw.gateway.protocol import new_id

__all__ = ["OWNER", "USER_ID", "Identities", "hash_of", "is_user_id"]

OWNER: Final = "owner"
"""The user whose token is `MINICLAW_TOKEN`; an admin."""
USER_ID: Final = re.compile(r"[a-z][a-z0-9_-]{0,31}")
LOGIN_LIFETIME: Final = 90 * 24 * 3600.0
"""Seconds after which a browser must open the URL with the token again."""
PAIRING_LIFETIME: Final = 24 * 3600.0
PAIRING_ALPHABET: Final = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"
"""Without signs that are taken for each other."""

_PERSON: Final = "SELECT user_id FROM identities WHERE channel = ? AND account = ? AND platform_user = ?"


def is_user_id(value: str) -> bool:
    """Whether a text has the form of a user id; that of a group is none."""
    return USER_ID.fullmatch(value) is not None and not value.startswith("grp_")


def hash_of(secret: str) -> str:
    """What is kept of a token or a cookie."""
    # A peer may send anything as a token; what is not sound UTF-8 is nobody's.
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


class Identities:
    """Maps tokens, logins and platform users to our users; kept in the database, cached in memory."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._db = database
        self._clock = clock
        self._tokens: dict[str, str] = {}
        self._gone: set[str] = set()

    async def start(self, owner_token: str) -> None:
        """Make `owner` with this token and read all others.

        Raises:
            ConfigError: the token is another user's.
        """

        def operation(connection: sqlite3.Connection) -> list[tuple[str, str]]:
            query = "SELECT user_id FROM users WHERE token_hash = ? AND user_id != ?"
            if other := connection.execute(query, (hash_of(owner_token), OWNER)).fetchone():
                raise ConfigError(f"MINICLAW_TOKEN is the token of the user `{other[0]}`; set another one.")
            # Whoever changes the token after a leak means to shut out every browser that it let in.
            same = connection.execute(
                "SELECT 1 FROM users WHERE user_id = ? AND token_hash = ?", (OWNER, hash_of(owner_token))
            ).fetchone()
            if same is None:
                connection.execute("DELETE FROM logins WHERE user_id = ?", (OWNER,))
            connection.execute(
                "INSERT INTO users VALUES (?, 'admin', ?, ?) "
                "ON CONFLICT (user_id) DO UPDATE SET token_hash = excluded.token_hash",
                (OWNER, hash_of(owner_token), self._clock()),
            )
            oldest = self._clock() - LOGIN_LIFETIME
            connection.execute("DELETE FROM logins WHERE created_at < ?", (oldest,))
            return connection.execute(
                "SELECT token_hash, user_id FROM users WHERE token_hash IS NOT NULL"
            ).fetchall()

        self._tokens = dict(await self._db.write(operation))

    def user_of_token(self, token: str) -> str | None:
        """The user of a bearer token, or `None`. Only hashes are compared, so timing tells nothing."""
        return self._tokens.get(hash_of(token)) if token else None

    def is_admin(self, user_id: str) -> bool:
        """Whether the user may act for others in groups."""
        return bool(self._db.read("SELECT 1 FROM users WHERE user_id = ? AND role = 'admin'", (user_id,)))

    def exists(self, user_id: str) -> bool:
        """Whether there is such a user."""
        return bool(self._db.read("SELECT 1 FROM users WHERE user_id = ?", (user_id,)))

    def is_gone(self, user_id: str) -> bool:
        """Whether the user was removed while this process runs, and not added again."""
        return user_id in self._gone

    async def ensure(self, user_id: str) -> None:
        """Make a user without a token if it is not there, such as the one of a webhook.

        Raises:
            ConfigError: the id does not have the form of one.
        """
        if not is_user_id(user_id):
            raise ConfigError(f"`{user_id}` is no user id: a-z first, then a-z, 0-9, `_`, `-`, 32 at most.")
        statement = "INSERT INTO users VALUES (?, 'user', NULL, ?) ON CONFLICT DO NOTHING"
        await self._db.write(lambda c: c.execute(statement, (user_id, self._clock())).rowcount)
        self._gone.discard(user_id)

    async def add(self, user_id: str, *, again: bool = False) -> str:
        """Make a user and return the token, which is not kept in the clear; `again` one that was removed.

        Raises:
            ConfigError: the id does not have the form of one, or is taken.
        """
        if self.exists(user_id):
            raise ConfigError(f"There is a user `{user_id}` already; `users token` gives a new token.")
        if not again and await self._has_left_something(user_id):
            raise ConfigError(
                f"What a former user `{user_id}` wrote is still there, and the new one would see it; choose "
                f"another name, or `users add {user_id} --again` for the same person."
            )
        await self.ensure(user_id)
        return await self.new_token(user_id)

    async def _has_left_something(self, user_id: str) -> bool:
        left = " OR ".join(
            f"EXISTS (SELECT 1 FROM {t} WHERE user_id = ?1)" for t in ("sessions", "turns", "usage")
        )
        return bool(self._db.read(f"SELECT 1 WHERE {left}", (user_id,)))

    async def new_token(self, user_id: str) -> str:
        """A fresh token for a user; the old one and every browser that it let in are out.

        Raises:
            ConfigError: there is no such user, or it is the owner, whose token is `MINICLAW_TOKEN`.
        """
        self._check_is_other(user_id)
        token = secrets.token_urlsafe(32)

        def operation(connection: sqlite3.Connection) -> None:
            statement = "UPDATE users SET token_hash = ? WHERE user_id = ?"
            connection.execute(statement, (hash_of(token), user_id))
            connection.execute("DELETE FROM logins WHERE user_id = ?", (user_id,))

        await self._db.write(operation)
        self._tokens = {h: user for h, user in self._tokens.items() if user != user_id}
        self._tokens[hash_of(token)] = user_id
        return token

    async def link(self, user_id: str, channel: str, account: str, person: str) -> None:
        """Let a platform's person be this user from now on.

        Raises:
            ConfigError: there is no such user.
        """
        if not self.exists(user_id):
            raise ConfigError(f"There is no user `{user_id}`; `users add` makes one.")
        row = (channel, account, person, user_id)
        statement = (
            "INSERT INTO identities VALUES (?, ?, ?, ?) "
            "ON CONFLICT (channel, account, platform_user) DO UPDATE SET user_id = excluded.user_id"
        )
        await self._db.write(lambda c: c.execute(statement, row).rowcount)

    async def pairing_code(self, channel: str, account: str, person: str) -> str:
        """A code by which the operator links a stranger within a day; the same until then."""

        def operation(connection: sqlite3.Connection) -> str:
            connection.execute(
                "DELETE FROM pairings WHERE created_at < ?", (self._clock() - PAIRING_LIFETIME,)
            )
            key = (channel, account, person)
            query = "SELECT code FROM pairings WHERE channel = ? AND account = ? AND platform_user = ?"
            if row := connection.execute(query, key).fetchone():
                return str(row[0])
            code = "".join(secrets.choice(PAIRING_ALPHABET) for _ in range(8))
            connection.execute("INSERT INTO pairings VALUES (?, ?, ?, ?, ?)", (code, *key, self._clock()))
            return code

        return await self._db.write(operation)

    async def pair(self, user_id: str, code: str) -> None:
        """Link the stranger who was shown this code.

        Raises:
            ConfigError: there is no such user, or no such code that is not a day old.
        """
        query = "SELECT channel, account, platform_user FROM pairings WHERE code = ? AND created_at > ?"
        rows = self._db.read(query, (code.strip().upper(), self._clock() - PAIRING_LIFETIME))
        if not rows:
            raise ConfigError(f"There is no pairing code `{code[:16]}`; it is good for a day.")
        await self.link(user_id, *rows[0])
        statement = "DELETE FROM pairings WHERE code = ?"
        await self._db.write(lambda c: c.execute(statement, (code.strip().upper(),)).rowcount)

    async def remove(self, user_id: str) -> None:
        """Shut a user out: token, browsers, platform identities and timers; what they wrote stays.

        Raises:
            ConfigError: there is no such user, or it is the owner.
        """
        self._check_is_other(user_id)

        def operation(connection: sqlite3.Connection) -> None:
            for table in ("logins", "identities", "timers", "users"):
                connection.execute(f"DELETE FROM {table} WHERE user_id = ?", (user_id,))

        self._gone.add(user_id)  # first: whatever is accepted after this is refused
        try:
            await self._db.write(operation)
        except StorageError:
            self._gone.discard(user_id)
            raise
        self._tokens = {h: user for h, user in self._tokens.items() if user != user_id}

    async def wipe(self, user_id: str) -> None:
        """Delete what is kept of a user beside sessions and files: uploads, usage, deliveries, rules, timers, logins."""

        def operation(connection: sqlite3.Connection) -> None:
            for table in ("uploads", "usage", "deliveries", "approval_rules", "timers", "logins"):
                connection.execute(f"DELETE FROM {table} WHERE user_id = ?", (user_id,))

        await self._db.write(operation)

    async def list(self) -> list[dict[str, Any]]:
        """All users, whether they have a token, and the platform people that they are."""
        users = self._db.read(
            "SELECT user_id, role, token_hash IS NOT NULL FROM users ORDER BY user_id LIMIT 1000"
        )
        people = self._db.read("SELECT user_id, channel, account, platform_user FROM identities LIMIT 10000")
        links: dict[str, list[str]] = {}
        for user_id, *place in people:
            links.setdefault(user_id, []).append(":".join(part for part in place if part))
        return [
            {"user_id": row[0], "role": row[1], "token": bool(row[2]), "identities": links.get(row[0], [])}
            for row in users
        ]

    def _check_is_other(self, user_id: str) -> None:
        if user_id == OWNER:
            raise ConfigError("The owner's token is MINICLAW_TOKEN; change it there.")
        if not self.exists(user_id):
            raise ConfigError(f"There is no user `{user_id}`; `users add` makes one.")

    async def login(self, token: str) -> str | None:
        """A fresh cookie value for a browser that shows this token, or `None` when it is nobody's any more."""
        if self.user_of_token(token) is None:
            return None
        value = secrets.token_urlsafe(32)
        # Memory may be behind a removal or a new token that is being written: the row says who has the token.
        statement = "INSERT INTO logins SELECT ?, user_id, ? FROM users WHERE token_hash = ?"
        row = (hash_of(value), self._clock(), hash_of(token))
        return value if await self._db.write(lambda c: c.execute(statement, row).rowcount) else None

    async def user_of_login(self, value: str) -> str | None:
        """The user of a browser's cookie, or `None` when it is unknown or too old."""
        rows = self._db.read(
            "SELECT user_id FROM logins l JOIN users USING (user_id) WHERE id_hash = ? AND l.created_at > ?",
            (hash_of(value), self._clock() - LOGIN_LIFETIME),
        )
        return str(rows[0][0]) if rows else None

    def user_for(self, connection: sqlite3.Connection, channel: str, account: str, person: str) -> str:
        """The user of a platform's person, inside the caller's transaction; a stranger gets one minted."""
        return self._mapped(connection, channel, account, person, prefix="u", user=True)

    @staticmethod
    def known(connection: sqlite3.Connection, channel: str, account: str, person: str) -> str | None:
        """The user of a platform's person, or `None` for a stranger."""
        row = connection.execute(_PERSON, (channel, account, person)).fetchone()
        return str(row[0]) if row else None

    async def user_of_person(self, channel: str, account: str, person: str) -> str | None:
        """The user of a platform's person, or `None` for a stranger; nobody is minted."""
        rows = self._db.read(_PERSON, (channel, account, person))
        return str(rows[0][0]) if rows else None

    def group_for(self, connection: sqlite3.Connection, channel: str, account: str, group: str) -> str:
        """The `grp_…` scope of a platform's group, inside the caller's transaction; minted when new."""
        # Groups are kept apart by the channel's name, which is ours: a person may be called anything.
        return self._mapped(connection, f"{channel} group", account, group, prefix="grp", user=False)

    def _mapped(
        self,
        connection: sqlite3.Connection,
        channel: str,
        account: str,
        person: str,
        *,
        prefix: str,
        user: bool,
    ) -> str:
        key = (channel, account, person)
        if (known := self.known(connection, *key)) is not None:
            return known
        minted = new_id(prefix)
        connection.execute("INSERT INTO identities VALUES (?, ?, ?, ?)", (*key, minted))
        if user:
            connection.execute("INSERT INTO users VALUES (?, 'user', NULL, ?)", (minted, self._clock()))
        return minted
