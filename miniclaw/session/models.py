"""A session and the entries of its log."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, SkipValidation

from miniclaw.session.history import HistoryView

__all__ = ["PASSING", "Entry", "Session", "Turn", "TurnState", "Usage", "is_let_in", "title_of"]

TITLE_LENGTH: Final = 60
SAID_LENGTH: Final = 20_000
"""Characters of a waiting message that lists and events show; the rest comes when its turn begins."""
PASSING: Final = "passing"
"""In the metadata of a session for one answer: the id of its message, the only one that it takes; no list has it."""
RECENT: Final = 200
"""Entries at the end of a log among which a running turn has one if it has any."""

_CONTENT: Final = (str, list, NoneType)  # here, since a union is made anew wherever it is written
_CALLS: Final = (list, NoneType)
_TIME: Final = (int, float)
_META: Final = (dict, NoneType)

TurnState = Literal["waiting", "running", "finished", "failed", "cancelled"]


@dataclass(slots=True)
class Entry:
    """One step of a turn in the session's log; never changed once it is appended."""

    turn_id: str
    step: int
    """0 is the user's message; `(turn_id, step)` is unique, so a repeat is no second entry."""
    message: dict[str, Any]
    """The message in Chat Completions form: `role`, `content`, `tool_calls`, `tool_call_id`."""
    at: float = 0.0
    """Seconds since the epoch; for people, never for order."""
    meta: dict[str, Any] | None = None
    """What a model does not see: `reasoning`, `ok`, `ms`, `cancelled`, `stopped_by`, `warning`, `cut`, `shown`,
    and what the turn had `spent` (seconds) and used (`usage`) by then."""
    position: int = -1
    """Place in the log, from 0; set when it is appended."""
    passing: dict[str, Any] | None = field(default=None, compare=False)
    """What a model sees in place of the message until its turn ends; never stored, never shown elsewhere."""

    def body(self) -> dict[str, Any]:
        """What is stored beside `turn_id`, `step` and `position`."""
        body: dict[str, Any] = {"message": self.message, "at": self.at}
        if self.meta:
            body["meta"] = self.meta
        return body

    @classmethod
    def from_body(cls, turn_id: str, step: int, position: int, body: dict[str, Any]) -> Entry:
        """The entry of a stored body; unknown fields are ignored.

        Raises:
            ValueError, KeyError, TypeError: it is damaged.
        """
        message, at, meta = body["message"], body.get("at") or 0.0, body.get("meta")
        if not (isinstance(message, dict) and isinstance(message.get("role"), str)):
            raise TypeError("its message has no role")
        sound = isinstance(message.get("content"), _CONTENT) and isinstance(message.get("tool_calls"), _CALLS)
        if not sound:
            raise TypeError("no message of a conversation")
        if not (isinstance(at, _TIME) and isinstance(meta, _META)):
            raise TypeError("a time or notes of another type")
        return cls(turn_id, step, message, at, meta, position)


class Session(BaseModel):
    """A conversation: whose it is, where it is held, and its log."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    session_id: str
    user_id: str
    """The user, or the group scope (`grp_…`), that it belongs to."""
    channel: str
    key: str | None = None
    """The platform's conversation key, where the channel has one."""
    thread: str | None = None
    created_at: float = 0.0
    updated_at: float = 0.0
    messages: SkipValidation[list[Entry]] = Field(default_factory=list, exclude=True)
    metadata: dict[str, Any] = Field(default_factory=dict)
    """`title`, `model`, `skills` (active ones), `summary`."""
    _view: HistoryView = PrivateAttr(default_factory=HistoryView)
    _viewed: int = PrivateAttr(default=0)
    _start: int = PrivateAttr(default=0)
    _passing: list[Entry] = PrivateAttr(default_factory=list)

    @property
    def title(self) -> str:
        """What a list shows; empty until the first message gave it one."""
        return str(self.metadata.get("title") or "")

    def extend(self, entries: list[Entry]) -> None:
        """Take entries that were stored into the loaded log; one that is there already is passed over."""
        turns = {entry.turn_id for entry in entries}
        have = {(entry.turn_id, entry.step) for turn_id in turns for entry in self.steps_of(turn_id)}
        for entry in entries:
            if (key := (entry.turn_id, entry.step)) not in have:
                have.add(key)
                entry.position = max(entry.position, self.next_position)
                self.messages.append(entry)

    @property
    def next_position(self) -> int:
        """Where the next entry of the loaded log goes."""
        return self.messages[-1].position + 1 if self.messages else 0

    @property
    def start(self) -> int:
        """The position from which on a model sees the log: after a `/clear` or behind the summary."""
        summary = self.metadata.get("summary") or {}
        return max(int(self.metadata.get("cleared") or 0), int(summary.get("position") or 0))

    def history(self) -> HistoryView:
        """The legal history as a model may see it; costs only the entries that are new."""
        if self._passing and self._passing[-1].turn_id != self.messages[-1].turn_id:
            for entry in self._passing:
                entry.passing = None
            self._passing, self._start = [], -1
        if self.start != self._start:
            self._view, self._start = HistoryView(), self.start
            # By position: a damaged entry that was passed over leaves a gap.
            self._viewed = bisect_left(self.messages, self.start, key=lambda entry: entry.position)
        if self._viewed < len(self.messages):
            fresh = self.messages[self._viewed :]
            self._passing += [entry for entry in fresh if entry.passing is not None]
            self._view.extend(entry.passing or entry.message for entry in fresh)
            self._viewed = len(self.messages)
        return self._view

    def steps_of(self, turn_id: str) -> list[Entry]:
        """The entries of a turn, oldest first; of one that ended long ago none may be found."""
        steps: list[Entry] = []
        for age, entry in enumerate(reversed(self.messages)):
            if entry.turn_id == turn_id:
                steps.append(entry)
            if (entry.turn_id == turn_id and entry.step == 0) or (age > RECENT and not steps):
                break
        return steps[::-1]


def is_let_in(metadata: str, msg_id: str) -> bool:
    """Whether a session with this metadata, as JSON, takes a message; one for one answer takes its own alone."""
    mark = f'"{PASSING}":'
    return mark not in metadata or f'{mark}"{msg_id}"' in metadata


def title_of(text: str) -> str:
    """The first line of a message, shortened, as the title of its session."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= TITLE_LENGTH else line[: TITLE_LENGTH - 1] + "…"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """An accepted message: the inbox row is the turn row."""

    n: int
    """Rises over all turns; orders everything."""
    turn_id: str
    session_id: str
    user_id: str
    """Who sent it; budget and approvals are theirs, also in a group."""
    scope: str
    """Whose session it is: `user_id`, or the group's `grp_…`."""
    channel: str
    message: dict[str, Any]
    """The inbound message with its envelope, as stored."""
    state: TurnState = "waiting"
    attempt: int = 0
    """Rises with each beginning; events are numbered within it."""
    tries: int = 0
    """Beginnings that did not end by a stop of ours: what a crash interrupted."""
    cancel_requested: bool = False
    outcome: dict[str, Any] | None = None
    """`{"name": "turn.finished", "data": {…}}` of an ended turn."""

    @property
    def text(self) -> str:
        """What the user said; empty for a command."""
        return str(self.message["payload"].get("text", ""))

    @property
    def said(self) -> dict[str, Any]:
        """What the user said, as a list of what waits shows it: `text`, of a command as it is typed, and `attachments`."""
        payload, files = self.message["payload"], self.message.get("files") or ()
        words = (f"/{payload['name']}", *payload["args"].values()) if "name" in payload else (self.text,)
        return {
            "text": " ".join(str(word) for word in words if word)[:SAID_LENGTH],
            "attachments": [{"id": file["id"], "name": file.get("name") or file["id"]} for file in files],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens that model calls used; counted by user, day and model."""

    model: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    """The part of the input that the server had in its cache."""
    calls: int = 0
    ms: int = 0
    """How long the calls took together, in milliseconds."""
    cost: float | None = 0.0
    """US dollars; `None` = unknown, since a model has no price."""

    @property
    def tokens(self) -> int:
        """Input and output together."""
        return self.input_tokens + self.output_tokens

    def plus(self, other: Usage) -> Usage:
        """Both together; the model is the later one's."""
        return Usage(
            model=other.model or self.model,
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            calls=self.calls + other.calls,
            ms=self.ms + other.ms,
            cost=None if self.cost is None or other.cost is None else self.cost + other.cost,
        )

    def to_dict(self) -> dict[str, Any]:
        """As events show it; a cost that is not known is never shown as 0."""
        return {
            "model": self.model,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "cached_tokens": self.cached_tokens,
            "calls": self.calls,
            "ms": self.ms,
            "cost": "unknown" if self.cost is None else round(self.cost, 6),
        }

    @classmethod
    def from_dict(cls, shown: Mapping[str, Any]) -> Usage:
        """What `to_dict` showed."""
        known = {name: shown[name] for name in cls.__dataclass_fields__ if name in shown}
        return cls(**{**known, "cost": None if known.get("cost") == "unknown" else known.get("cost", 0.0)})
