"""The two back ends as `app.py` sees them: the parts that keep something, and their start and stop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from miniclaw.agent.approval import ApprovalDesk
from miniclaw.config import Clock, Settings
from miniclaw.db import Database
from miniclaw.gateway.events import LiveTurns
from miniclaw.identity import Identities
from miniclaw.memory.conversations import Conversations
from miniclaw.session.mailbox import Mailbox
from miniclaw.session.models import Turn
from miniclaw.session.once import OnceOnly
from miniclaw.session.outbox import Outbox
from miniclaw.session.ports import Deliveries, FenceOf, TurnQueue, Turns
from miniclaw.session.search import SearchesText, SQLiteSearch
from miniclaw.session.sqlite import SQLiteStorage
from miniclaw.session.storage import SessionStorage
from miniclaw.session.turns import TurnStore
from miniclaw.session.usage import UsageLedger
from miniclaw.timer_store import TimerStore
from miniclaw.upload_store import UploadStore

if TYPE_CHECKING:
    from miniclaw.agent.turn import TurnRunner
    from miniclaw.gateway.dispatcher import Dispatcher

__all__ = ["Backend", "SQLiteBackend", "backend_of"]

Run = Callable[[Turn], Awaitable[None]]


class Searches(SearchesText, Conversations, Protocol):
    """What a back end offers to those who look for what was said."""


class Backend(Protocol):
    """Everything that is kept, in one place; the parts are there once it is open."""

    @property
    def identities(self) -> Identities: ...
    @property
    def storage(self) -> SessionStorage: ...
    @property
    def search(self) -> Searches: ...
    @property
    def turns(self) -> Turns: ...
    @property
    def outbox(self) -> Deliveries: ...
    @property
    def once(self) -> OnceOnly: ...
    @property
    def usage(self) -> UsageLedger: ...
    @property
    def desk(self) -> ApprovalDesk: ...
    @property
    def timers(self) -> TimerStore: ...
    @property
    def uploads(self) -> UploadStore: ...
    @property
    def fence(self) -> FenceOf: ...

    async def open(self) -> None:
        """Connect; raises `StorageError`."""
        ...

    async def check(self) -> None:
        """Write something; raises `StorageUnavailable` with the reason."""
        ...

    async def scrub(self) -> bool:
        """Let what was deleted be gone from the files too; `False`: it must be tried again."""
        ...

    def mailbox(self, run: Run) -> TurnQueue:
        """Where turns wait for `run`."""
        ...

    def start(self, runner: TurnRunner, dispatcher: Dispatcher) -> None:
        """Take work that other gateways may have left, and hear of theirs."""
        ...

    async def quiet(self) -> None:
        """Hear and say no more; what is kept can still be reached."""
        ...

    async def close(self) -> None:
        """Let go; may be called again."""
        ...


class SQLiteBackend:
    """One process, one file."""

    def __init__(self, settings: Settings, data_dir: Path, *, clock: Clock) -> None:
        self._settings = settings
        db = self.db = Database(data_dir / "miniclaw.db", sync=settings.storage.sync)
        self.open, self.check, self.scrub, self.close = db.open, db.check, db.scrub, db.close
        self.fence: FenceOf = lambda session_id: db.epoch
        self.identities = Identities(db, clock=clock)
        self.storage = SQLiteStorage(db)
        self.search = SQLiteSearch(db)
        self.turns = TurnStore(db, self.identities, clock=clock)
        self.outbox = Outbox(db, clock=clock)
        self.once = OnceOnly(db, clock=clock)
        self.usage = UsageLedger(db, settings.prices, clock=clock)
        self.desk = ApprovalDesk(db, settings.approval, is_admin=self.identities.is_admin, clock=clock)
        self.timers = TimerStore(db, clock=clock)
        self.uploads = UploadStore(db, clock=clock)

    def mailbox(self, run: Run) -> TurnQueue:
        """Where turns wait for `run`."""
        limits = self._settings.limits
        return Mailbox(
            run,
            running=limits.running,
            waiting=limits.waiting,
            per_session=limits.waiting_per_session,
        )

    def start(self, runner: TurnRunner, dispatcher: Dispatcher) -> None:
        """There is nobody else."""

    async def quiet(self) -> None:
        """There is nobody else."""


def backend_of(settings: Settings, data_dir: Path, live: LiveTurns, *, clock: Clock) -> Backend:
    """Redis where its URL is set, else SQLite."""
    if settings.redis.url is None:
        return SQLiteBackend(settings, data_dir, clock=clock)
    from miniclaw.redis.backend import RedisBackend

    return RedisBackend(settings, live, clock=clock)
