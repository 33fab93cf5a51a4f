"""A scope's memory that is loaded, and who may use it now: one task of one process at a time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Literal, TypeVar

from miniclaw.memory.index import ScopeStore

__all__ = ["LoadedScope", "Mode"]

T = TypeVar("T")

Mode = Literal["quick", "read", "write"]
"""`quick` reads and is done at once; `write` keeps other processes from writing meanwhile."""


class LoadedScope:
    """A loaded scope and what keeps it to one user at a time."""

    def __init__(self, store: ScopeStore) -> None:
        self.store = store
        self._turn = asyncio.Lock()
        self.users = 0
        self._working = threading.Lock()

    @property
    def is_idle(self) -> bool:
        return self.users == 0 and not self._working.locked()

    async def do(self, work: Callable[[ScopeStore], T], mode: Mode) -> T:
        """What `work` comes to; in a thread, unless it is quick and finds the store so."""
        async with self._turn:
            if mode == "quick" and self._working.acquire(blocking=False):
                try:
                    if self.store.is_quick():
                        return work(self.store)
                finally:
                    self._working.release()
            return await asyncio.to_thread(self._run, work, mode == "write")

    def _run(self, work: Callable[[ScopeStore], T], writes: bool) -> T:
        # A cancelled caller gives up its turn while its thread is still at work; the next one waits here.
        with self._working:
            if not writes:
                self.store.refresh()
                return work(self.store)
            with self.store.locked():
                return work(self.store)
