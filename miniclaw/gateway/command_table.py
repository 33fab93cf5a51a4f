"""The commands of the protocol: their names, their arguments, and how they are read from typed text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from miniclaw.errors import ProtocolError
from miniclaw.gateway.pages import MAX_PAGE
from miniclaw.gateway.protocol import CommandPayload

__all__ = ["COMMANDS", "ENTERING", "SCOPES", "Args", "Command", "read_command", "validate"]


class Args(BaseModel):
    """No arguments."""

    model_config = ConfigDict(extra="forbid", frozen=True)


_NO_ARGS: Final = Args()


class InSession(Args):
    """A session; the current one when left out."""

    session_id: str | None = None


class Sessions(Args):
    """All, or the messages that hold a text."""

    query: str = Field(default="", max_length=200)


class Rename(Args):
    """A session and its title."""

    title: str = Field(max_length=1000)
    session_id: str | None = None


class Fork(Args):
    """A session, and the message behind which the new one goes on."""

    position: int | None = Field(default=None, ge=-1)
    session_id: str | None = None


class Delete(Args):
    """A session; never the current one by default."""

    session_id: str


class Resume(Args):
    """Where the reader stands."""

    session_id: str | None = None
    turn_id: str | None = None
    attempt: int | None = None
    after_seq: int | None = Field(default=None, ge=0)


class History(Args):
    """A page of a log."""

    session_id: str | None = None
    before: int | None = Field(default=None, ge=0)
    limit: int = Field(default=50, ge=1, le=MAX_PAGE)


class Cancel(Args):
    """A turn; the running one when left out."""

    turn_id: str | None = None
    session_id: str | None = None


class Trace(Args):
    """A turn; the last one of the session when left out."""

    turn_id: str | None = None


class Approve(Args):
    """Yes to a question, and for how long; the only one of the session when left out."""

    approval_id: str = ""
    scope: Literal["once", "session", "always"] = "once"
    answer: Annotated[str, Field(max_length=4000)] | dict[str, Any] = ""
    """What a form is filled in with: `name=value …`, the one value that is wanted, or values by name."""


class Deny(Args):
    """No to a question; the only one of the session when left out."""

    approval_id: str = ""
    unattended: bool = False
    """Nobody is there to be asked; the model is told how the tool can be allowed."""


class Skills(Args):
    """All, or a skill to switch on or off in a session."""

    activate: str = Field(default="", max_length=200)
    deactivate: str = Field(default="", max_length=200)
    session_id: str | None = None


class Memories(Args):
    """All, or those that fit a query; or remove them all."""

    action: Literal["list", "clear"] = "list"
    query: str = ""
    limit: int = Field(default=100, ge=1, le=1000)


class Remember(Args):
    """What to keep."""

    content: str = Field(min_length=1, max_length=4000)
    context: str = Field(default="", max_length=2000)


class Forget(Args):
    """Which memory."""

    memory_id: str


class Tools(Args):
    """Only list them, or read the operator's own anew (admins)."""

    action: Literal["list", "reload"] = "list"


class Mcp(Args):
    """Only list the MCP servers; read `mcp.json` anew; switch one on or off."""

    action: Literal["list", "reload", "enable", "disable"] = "list"
    name: str = Field(default="", max_length=200)


class Users(Args):
    """What an admin does with users; `person` and its place are for `link`, a code as `person` for `pair`.

    `again` adds one that was removed and whose data are still there; `wipe` removes them with the user.
    """

    action: Literal["list", "add", "token", "link", "pair", "remove"] = "list"
    again: bool = False
    wipe: bool = False
    user_id: str = Field(default="", max_length=64)
    channel: str = Field(default="", max_length=64)
    account: str = Field(default="", max_length=200)
    person: str = Field(default="", max_length=200)


class TimerArgs(Args):
    """All, or one to cancel."""

    action: Literal["list", "cancel"] = "list"
    timer_id: str = Field(default="", max_length=64)


class Compact(Args):
    """What a summary should pay attention to."""

    focus: str = ""
    session_id: str | None = None


class Model(Args):
    """The model to switch to; none = only tell."""

    name: str | None = None
    session_id: str | None = None


@dataclass(frozen=True, slots=True)
class Command:
    """How a command is read and where it runs."""

    args: type[Args]
    about: str
    changes: bool = False
    queued: bool = False
    text: str | None = None
    """The argument that a command typed as text gives its words to."""


COMMANDS: Final[dict[str, Command]] = {
    "ping": Command(Args, "tells that the gateway is there"),
    "help": Command(Args, "lists the commands"),
    "about": Command(Args, "tells version, model, workspace and where your memories are"),
    "new": Command(Args, "begins a new session", changes=True),
    "sessions": Command(Sessions, "lists your sessions, or finds a text in them", text="query"),
    "rename": Command(Rename, "gives the session a title", changes=True, text="title"),
    "fork": Command(Fork, "begins a new session with the messages so far", changes=True),
    "delete": Command(Delete, "removes a session with everything in it", changes=True, text="session_id"),
    "resume": Command(
        Resume, "goes on with a session and brings you up to date", changes=False, text="session_id"
    ),
    "history": Command(History, "shows a page of the session"),
    "seen": Command(InSession, "marks the session as read", changes=True),
    "cancel": Command(Cancel, "stops the running turn", changes=True, text="turn_id"),
    "approve": Command(Approve, "lets a tool call run", changes=True, text="approval_id"),
    "deny": Command(Deny, "refuses a tool call", changes=True, text="approval_id"),
    "tools": Command(Tools, "lists the tools; `reload` reads your own anew (admins)", text="action"),
    "skills": Command(
        Skills, "lists the skills; NAME switches one on in this session, -NAME off", text="activate"
    ),
    "mcp": Command(
        Mcp, "lists the MCP servers; `reload`, `enable NAME`, `disable NAME` (admins)", text="action"
    ),
    "stats": Command(Args, "shows the tokens that you used and their cost"),
    "trace": Command(Trace, "shows what the last turn, or that of an id, did call by call", text="turn_id"),
    "memories": Command(Memories, "lists or searches your memories; `clear` removes all", text="query"),
    "remember": Command(Remember, "saves a memory", changes=True, text="content"),
    "forget": Command(Forget, "deletes a memory", changes=True, text="memory_id"),
    "timers": Command(TimerArgs, "lists your timers; `cancel ID` ends one", text="action"),
    "users": Command(Users, "lists and keeps users (admins)"),
    "clear": Command(InSession, "lets the model forget the conversation", changes=True, queued=True),
    "compact": Command(Compact, "puts a summary in the place of the conversation", True, True, "focus"),
    "model": Command(Model, "shows the models or switches this session", True, True, "name"),
}


SCOPES: Final = ("once", "session", "always")
"""For how long a call is approved."""
ENTERING: Final = frozenset({"new", "resume", "fork"})
"""Commands after which their session is the connection's current one."""


def read_command(text: str) -> CommandPayload | None:
    """The command of a typed text such as `/remember I like tea`; `None` when it is none of ours."""
    if text[:1] not in ("/", "!"):
        return None
    word = text[1:].split(maxsplit=1)[0] if text[1:].strip() else ""
    command = COMMANDS.get(word)
    if command is None or not text.startswith(word, 1):
        return None
    rest = text[1 + len(word) :].strip()
    args: dict[str, Any] = {command.text: rest} if command.text and rest else {}
    if word == "skills" and rest.startswith("-"):
        args = {"deactivate": rest[1:].strip()}
    if word == "memories" and rest == "clear":
        args = {"action": "clear"}
    if word in ("mcp", "timers") and rest:
        second = "name" if word == "mcp" else "timer_id"
        args = dict(zip(("action", second), rest.split(maxsplit=1), strict=False))
    if word == "approve" and rest:
        reference, said = (*rest.split(maxsplit=1), "")[:2]
        if rest in SCOPES or "=" in reference:  # no id is or holds one
            reference, said = "", rest
        args = {"approval_id": reference, "scope" if said in SCOPES else "answer": said}
        args = {name: value for name, value in args.items() if value}
    return CommandPayload(name=word, args=args)


def validate(command: Command, payload: CommandPayload) -> Args:
    """The arguments of a command as its model.

    Raises:
        ProtocolError: `bad_arguments`; the message names the argument.
    """
    if command.args is Args and not payload.args:
        return _NO_ARGS
    try:
        return command.args.model_validate(payload.args)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "args"
        if first["type"] == "missing":
            text = f"`{payload.name}` needs `{where}`, such as `/{payload.name} {where.upper()}`."
            raise ProtocolError("bad_arguments", text) from error
        raise ProtocolError("bad_arguments", f"`{payload.name}`: `{where}`: {first['msg']}.") from error
