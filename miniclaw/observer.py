"""What `/metrics` shows: counted from the bus since the start of the process, or looked up at the moment."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from miniclaw.gateway.events import EventBus, LiveEvent
from miniclaw.gateway.protocol import TERMINAL_EVENTS, Receipt
from miniclaw.metrics import Counter, Histogram, Labels, gauge
from miniclaw.session.models import Turn
from miniclaw.session.ports import Deliveries

__all__ = ["Observer"]

SECONDS: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class Observer:
    """Listens to everything, keeps nothing of what was said, and costs a dictionary look-up an event."""

    def __init__(self, bus: EventBus, outbox: Deliveries, load: Callable[[], Mapping[str, int]]) -> None:
        self._outbox = outbox
        self._load = load
        self._connections = 0
        self._accepted: dict[str, float] = {}
        """When the turns came in that have shown nothing yet."""
        self.model = "ok"
        """Or the code of the last turn's failure, when the model was to blame."""
        self.channels: dict[str, str] = {}
        """Of each push channel that was used: `ok`, or that its last answer `failed` or is `dead`."""
        self._turns = Counter("miniclaw_turns_total", "Turns that ended, by how.")
        self._errors = Counter("miniclaw_errors_total", "Failed turns and refused messages, by code.")
        self._tokens = Counter("miniclaw_tokens_total", "Tokens of model calls in turns that ended.")
        self._cost = Counter("miniclaw_cost_usd_total", "What they cost in US dollars, where it is known.")
        self._tools = Counter("miniclaw_tool_calls_total", "Tool calls, by whether they worked.")
        self._sent = Counter("miniclaw_deliveries_total", "Tries to deliver an answer, by what came of them.")
        self._first = Histogram(
            "miniclaw_first_token_seconds", "From the receipt to the first text or the end.", SECONDS
        )
        bus.subscribe("session.*", self._on_event)
        bus.subscribe("message.inbound", self._on_message)
        bus.subscribe("system.delivery", self._on_delivery)
        bus.subscribe("connection.opened", lambda topic, event: self._connected(1))
        bus.subscribe("connection.closed", lambda topic, event: self._connected(-1))

    def refused(self, receipt: Receipt) -> None:
        """Count a message that was not taken."""
        self._errors.add(kind="refused", code=receipt.code or "internal")

    async def text(self) -> str:
        """All of it as Prometheus reads it."""
        counted = (self._turns, self._errors, self._tokens, self._cost, self._tools, self._sent, self._first)
        lines = [line for one in counted for line in one.lines()]
        queue: dict[Labels, float] = {(("state", name),): number for name, number in self._load().items()}
        lines += gauge("miniclaw_queue_turns", "Turns that run and that wait.", queue)
        lines += gauge("miniclaw_connections", "Open connections.", {(): self._connections})
        left: dict[Labels, float] = {(): await self._outbox.waiting()}
        lines += gauge("miniclaw_deliveries_waiting", "Parts of answers that are not delivered yet.", left)
        return "\n".join(lines) + "\n"

    def _on_delivery(self, topic: str, event: tuple[str, str]) -> None:
        channel, state = event
        self._sent.add(state=state)
        self.channels[channel] = "ok" if state == "sent" else state

    def _connected(self, change: int) -> None:
        self._connections += change

    def _on_message(self, topic: str, turn: Turn) -> None:
        self._accepted[turn.turn_id] = time.monotonic()

    def _on_event(self, topic: str, event: Any) -> None:
        if not isinstance(event, LiveEvent):
            return
        if event.name == "text.delta" or event.name in TERMINAL_EVENTS:
            if (accepted := self._accepted.pop(event.turn_id, None)) is not None:
                self._first.observe(time.monotonic() - accepted)
        elif event.name == "tool.finished":
            self._tools.add(ok=str(bool(event.data.get("ok"))).lower())
        elif event.name in ("command.result", "error"):
            self._accepted.pop(event.turn_id, None)
        if event.name in TERMINAL_EVENTS:
            self._ended(event)

    def _ended(self, event: LiveEvent) -> None:
        self._turns.add(state=event.name.removeprefix("turn."))
        code = str(event.data.get("code", "internal")) if event.name == "turn.failed" else ""
        if code:
            self._errors.add(kind="turn", code=code)
        if event.name == "turn.finished" or code.startswith("model_"):
            self.model = code or "ok"
        used = event.data.get("usage") or {}
        for kind in ("input", "output"):
            self._tokens.add(used.get(f"{kind}_tokens", 0), kind=kind)
        if isinstance(cost := used.get("cost"), int | float):
            self._cost.add(cost)
