"""The `schedule` tool: the model makes, lists and cancels timers for whom it talks with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from miniclaw.errors import ConfigError, ProtocolError, ToolError
from miniclaw.schedules import Schedule
from miniclaw.session.ports import Turns
from miniclaw.timers import Timers
from miniclaw.tools.base import Risk, Tool, ToolResult
from miniclaw.tools.context import ToolContext

__all__ = ["ScheduleTool"]


class ScheduleTool(Tool):
    """Works in the scope of the conversation; answers of a timer go to where it was made."""

    name = "schedule"
    is_outside = False
    description = (
        "Let yourself be told something at a time: a reminder, or a task to do then. When the time comes you get "
        "`text` as a message in a conversation that knows nothing of this one, and your answer goes to the user. "
        "Give exactly one of `at`, `every` and `cron`. Also lists and cancels timers."
    )
    parameters: dict[str, Any] = {
        "type": "object",
        "properties": {
            "action": {"type": "string", "enum": ["add", "list", "cancel"], "default": "add"},
            "text": {
                "type": "string",
                "maxLength": 4000,
                "description": "What you are to do then, understood without this conversation.",
            },
            "at": {
                "type": "string",
                "description": "Once: a local time such as 2027-03-28T09:00, or a span from now such as +10m.",
            },
            "every": {"type": "string", "description": "Again and again: a span such as 30m, 2h or 1d."},
            "cron": {"type": "string", "description": "Five fields of cron, such as 0 9 * * MON-FRI."},
            "zone": {
                "type": "string",
                "description": "The IANA time zone that it is meant in; left out = the user's.",
            },
            "missed": {
                "type": "string",
                "enum": ["once", "skip"],
                "default": "once",
                "description": "Runs that were missed while the gateway was down: made up for once, or left out.",
            },
            "timer_id": {"type": "string", "description": "What to cancel."},
        },
        "additionalProperties": False,
    }
    wants_context = True

    def __init__(self, timers: Timers, turns: Turns) -> None:
        self._timers = timers
        self._turns = turns

    def risk_of(self, arguments: Mapping[str, Any]) -> Risk:
        """Only a list changes nothing."""
        return "read" if arguments.get("action") == "list" else "write"

    async def execute(self, *, tool_context: ToolContext | None = None, **arguments: Any) -> ToolResult:
        if tool_context is None:
            raise ToolError("A timer belongs to a user: this works only inside a conversation.")
        try:
            match arguments.get("action", "add"):
                case "list":
                    return _listed([one.to_dict() for one in self._timers.list(tool_context.scope)])
                case "cancel":
                    timer_id = arguments.get("timer_id", "")
                    await self._timers.cancel(timer_id, tool_context.scope, tool_context.user_id)
                    return ToolResult(content=f"Cancelled {timer_id}.", data={"timer_id": timer_id})
                case _:
                    return await self._add(tool_context, arguments)
        except (ConfigError, ProtocolError) as error:
            raise ToolError(str(error)) from error

    async def describe(self, arguments: Mapping[str, Any], context: ToolContext) -> str:
        """When it would run first; cron fields tell that to few people."""
        if arguments.get("action", "add") == "cancel":
            found = [t for t in self._timers.list(context.scope) if t.timer_id == arguments.get("timer_id")]
            return found[0].text if found else ""
        try:
            schedule = self._schedule(arguments, context)
            following = schedule.after(self._timers.now, anchor=self._timers.now)
        except ConfigError:
            return ""
        return "" if following is None else f"{schedule}: {schedule.local(following)}"

    async def _add(self, context: ToolContext, arguments: Mapping[str, Any]) -> ToolResult:
        turn = await self._turns.find(context.turn_id)
        if not (text := arguments.get("text", "").strip()):
            raise ToolError("`text` must say what is to be done then.")
        timer = await self._timers.add(
            context.user_id,
            context.scope,
            self._schedule(arguments, context),
            text,
            missed=arguments.get("missed", "once"),
            message=turn.message if turn is not None else {},
        )
        row = timer.to_dict()
        return ToolResult(content=f"Timer {timer.timer_id} runs next at {row['next_local']}.", data=row)

    def _schedule(self, arguments: Mapping[str, Any], context: ToolContext) -> Schedule:
        zone = arguments.get("zone") or self._timers.zone(context.user_id)
        given = {name: arguments.get(name) for name in ("at", "every", "cron")}
        return Schedule.of(**given, zone=zone, now=self._timers.now)


def _listed(rows: list[dict[str, Any]]) -> ToolResult:
    lines = [f"- {r['timer_id']}: {r['schedule']}, next {r['next_local']}: {r['text']}" for r in rows]
    return ToolResult(content="\n".join(lines) or "There are no timers.", data=rows)
