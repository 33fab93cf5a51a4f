"""What a terminal shows before the first word, and the trace of a turn: each user's own, and no other's."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from miniclaw import __version__
from miniclaw.agent.core import Core
from miniclaw.errors import ProtocolError
from miniclaw.memory.models import scope_parts
from miniclaw.session.models import Session
from miniclaw.tools.context import workspace_of

__all__ = ["about", "trace_of"]

RECORDS: Final = 200
"""Of a trace, the newest."""


async def about(core: Core, user_id: str, scope: str, session: Session | None) -> dict[str, Any]:
    """Version, user, model (of the session, if there is one), workspace and memory with their places.

    Where this machine keeps things is for admins: others see the place in the data directory, or nothing.
    """

    def place(path: Path) -> str:
        if core.identities.is_admin(user_id):
            return str(path)
        inside = path.is_relative_to(core.data_dir)
        return path.relative_to(core.data_dir).as_posix() if inside else ""

    info = core.provider.info
    model = (session.metadata.get("model") if session else None) or info.name
    return {
        "version": __version__,
        "user_id": user_id,
        "model": f"{model} (demo)" if info.demo else model,
        "workspace": place(workspace_of(core.data_dir, scope, core.settings.users)),
        "memory": place(core.data_dir.joinpath(*scope_parts(scope))),
        "memories": len(await core.memory.list(scope)),
    }


async def trace_of(core: Core, user_id: str, turn_id: str) -> dict[str, Any]:
    """The newest 200 records of a turn of this user, without prompts and results.

    Raises:
        ProtocolError: `turn_not_found`: there are none on this node.
    """
    found = [record for record in await core.traces.read(turn_id) if record["user_id"] == user_id]
    if not found:
        text = "There is no trace of such a turn of yours; is `trace.enabled` off, or the turn too old?"
        raise ProtocolError("turn_not_found", text)
    kept = [record for record in found if record["kind"] != "prompt"][-RECORDS:]
    shown = [{name: value for name, value in one.items() if name != "result"} for one in kept]
    return {"turn_id": turn_id, "session_id": found[0]["session_id"], "records": shown}
