"""How a user is removed, and all that is kept of them."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from miniclaw.agent.core import Core
from miniclaw.errors import ConfigError, ProtocolError
from miniclaw.gateway.events import SHUT_OUT
from miniclaw.identity import is_user_id
from miniclaw.session.ports import TurnQueue

__all__ = ["Wiping"]

LOOKS: Final = 200
LOOK_SECONDS: Final = 0.05
"""Between two looks at whether the turns of a user have ended: ten seconds in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiping:
    """Shuts users out and deletes what is theirs."""

    core: Core
    mailbox: TurnQueue
    cancel: Callable[[str, str], Awaitable[bool]]
    """Ends a turn of a user."""
    drop: Callable[[str], Awaitable[None]]
    """Ends what goes on behind the turns of a user that have ended."""

    async def remove(self, user_id: str) -> None:
        """Shut a user out, with the connections that are open; what they wrote stays.

        Raises:
            ConfigError: there is no such user, or it is the owner.
        """
        try:
            await self.core.identities.remove(user_id)
        finally:
            if self.core.identities.is_gone(user_id):
                self.core.live.bus.publish(f"user.{user_id}", SHUT_OUT)

    async def wipe(self, user_id: str) -> None:
        """Shut a user out and delete all that is kept of them; also of one that was removed before.

        What they said in a group stays the group's, and so do files in a workspace that the settings name.

        Raises:
            ConfigError: it is no user's id or the owner's, or a directory cannot be removed.
            ProtocolError: `session_busy`: a cancelled turn of theirs does not end; the rest waits for a repeat.
        """
        if self.core.identities.exists(user_id) or not is_user_id(user_id):
            await self.remove(user_id)
        await self._delete_sessions(user_id)
        await self.core.sessions.finish_deletes()
        await self.drop(user_id)
        await self.core.memory.clear(user_id)
        await asyncio.to_thread(_remove_directory, self.core.data_dir / "users" / user_id)
        await self.core.identities.wipe(user_id)
        await self.core.sessions.scrub()

    async def _delete_sessions(self, user_id: str) -> None:
        """Until there is none: what was on its way when the user was shut out may still make one."""
        sessions, cancelled = self.core.sessions, set[str]()
        for _ in range(LOOKS):
            if not (left := await sessions.storage.list(user_id)):
                return
            for session_id in [session.session_id for session in left]:
                current = await self.mailbox.current(session_id)
                waiting = await self.mailbox.waiting(session_id)
                turns = {turn.turn_id for turn in (current, *waiting) if turn is not None} - cancelled
                cancelled |= turns
                for turn_id in turns:
                    with contextlib.suppress(ProtocolError):  # it has ended
                        await self.cancel(turn_id, user_id)
                if not await self.mailbox.has_turns(session_id):
                    await self.drop(user_id)
                    await sessions.delete(session_id)
            await asyncio.sleep(LOOK_SECONDS)
        raise ProtocolError("session_busy", f"A turn of `{user_id}` does not end; repeat the command later.")


def _remove_directory(path: Path) -> None:
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"`{path.name}` cannot be removed whole: {error.strerror or error}.") from error
