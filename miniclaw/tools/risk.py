"""The risk of a call, which somebody else's function may tell: one that breaks or hangs makes it a write."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from miniclaw.tools.base import Risk, Tool
from miniclaw.tools.foreign import in_thread, is_cancelled

__all__ = ["own_risk", "risk_of"]

logger = logging.getLogger(__name__)

SECONDS: Final = 2.0
"""How long a function of others may take to tell a risk."""


def own_risk(tool: Tool, arguments: Mapping[str, Any]) -> Risk | None:
    """The risk, where it is fixed or told by our own code; `None` where a function of others tells it."""
    told: Any = tool.risk_of
    if getattr(told, "__func__", None) is Tool.risk_of:
        if isinstance(tool.risk, str):
            return tool.risk
        told = tool.risk
    if not str(getattr(told, "__module__", "")).startswith("miniclaw."):
        return None
    try:
        return _checked(told(arguments))
    except Exception:  # boundary: it sees arguments before they are checked
        logger.exception("the risk of a call of %s cannot be told; it counts as a write", tool.name)
        return "write"


async def risk_of(tool: Tool, arguments: Mapping[str, Any], known: Risk | None = None) -> Risk:
    """The risk of a call; a function of others is asked for it once, `known` is what it said.

    It runs in a thread; whatever it does but answer in time makes the call a `write`.
    """
    if (risk := own_risk(tool, arguments) or known) is not None:
        return risk
    told = tool.risk_of
    try:
        async with asyncio.timeout(SECONDS):
            return _checked(await in_thread(partial(told, arguments)))
    except BaseException as error:  # boundary: a function of others
        if is_cancelled(error):
            raise
        logger.exception("the risk of a call of %s cannot be told; it counts as a write", tool.name)
        return "write"


def _checked(risk: object) -> Risk:
    return "read" if risk == "read" else "forbidden" if risk == "forbidden" else "write"
