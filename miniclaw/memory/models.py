"""What a memory record is, and its form as a Markdown file that a person can read and edit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, StringConstraints, ValidationError

from miniclaw.errors import MemoryStoreError
from miniclaw.front_matter import FrontMatterProblem, parse_front_matter
from miniclaw.gateway.protocol import format_time, plain_text

__all__ = [
    "Category",
    "MemoryRecord",
    "MemorySearchResult",
    "MemorySource",
    "MemoryType",
    "check_memory_id",
    "is_group",
    "local_day",
    "make_record",
    "parse_record",
    "render_record",
    "scope_parts",
]

MemoryType = Literal["episodic", "semantic", "procedural"]
Category = Literal["fact", "preference", "task", "sensitive"]
MemorySource = Literal["user", "agent", "tool"]

MAX_CHARS: Final = 16_384
"""Characters of a content or of a context; memory keeps facts, not documents."""

_MEMORY_ID = re.compile(r"mem_[a-z0-9]{1,64}")
_WORD = re.compile(r"[a-z]{3,20}")
_NO_WORDS: Final = frozenset({"yes", "off", "true", "false", "null"})
_TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]{8,12}Z")
_WORDS: Final = frozenset({"memory_type", "category", "source", "status"})
"""Fields of known words; a person may write them with capitals."""
_MAYBE: Final = frozenset({"superseded_by", "expires_at", "created_at", "updated_at"})
"""Fields in which YAML's words for nothing are no words."""
_USER_ID = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_GROUP_ID = re.compile(r"grp_[a-z0-9]+")


def _known_type(value: object) -> object:
    return value if value in get_args(MemoryType) else "semantic"


def _moment(value: object) -> object:
    """A time in any ISO 8601 form as RFC 3339 in UTC with milliseconds; without a zone it is UTC."""
    if not isinstance(value, str):
        return value
    try:
        moment = datetime.fromisoformat(value)
        return format_time((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError, OSError) as error:
        raise ValueError(f"{value!r} is not a time such as 2026-01-31T12:00:00Z") from error


def _plain(value: object) -> object:
    return plain_text(value) if isinstance(value, str) else value


_Moment = Annotated[str, BeforeValidator(_moment)]
_Text = Annotated[str, BeforeValidator(_plain), StringConstraints(max_length=MAX_CHARS)]


class MemoryRecord(BaseModel):
    """One thing that is remembered, in the words that are searched and shown."""

    model_config = ConfigDict(frozen=True)

    memory_id: Annotated[str, StringConstraints(pattern=r"^mem_[a-z0-9]{1,64}$")]
    content: Annotated[_Text, StringConstraints(pattern=r"\S")]
    context: _Text = ""
    """When, where or why it came up."""
    memory_type: Annotated[MemoryType, BeforeValidator(_known_type)] = "semantic"
    category: Category = "fact"
    key: Annotated[_Text, StringConstraints(min_length=1, max_length=200)] | None = None
    """What a preference is about; one active preference a key."""
    source: MemorySource = "user"
    status: Literal["active", "superseded", "proposed"] = "active"
    """`proposed`: the user has not said yes; never recalled until then."""
    superseded_by: str | None = None
    created_at: _Moment
    updated_at: _Moment
    expires_at: _Moment | None = None

    @property
    def text(self) -> str:
        """Type, content and context, a line each."""
        return "\n".join(part for part in (self.memory_type, self.content, self.context) if part)

    @property
    def marks(self) -> list[str]:
        """What a reader has to know before the words: that they are proposed, sensitive, or not the user's."""
        marks: list[str] = [self.status] if self.status != "active" else []
        if self.category == "sensitive":
            marks.append("sensitive")
        if self.source != "user":
            marks.append("noted by the assistant" if self.source == "agent" else "from a tool, not the user")
        return marks

    @property
    def line(self) -> str:
        """The record on one line as a model reads it: id, type, day, whose words they are, and the words."""
        marks = [self.memory_id, self.memory_type, local_day(self.updated_at), *self.marks]
        context = f" ({self.context})" if self.context else ""
        # Within the line: what goes on below it would look like another record.
        return " ".join(f"[{', '.join(marks)}] {self.content}{context}".split())

    def is_current(self, now: str) -> bool:
        """Whether it is neither replaced nor expired at `now`."""
        return self.status == "active" and (self.expires_at is None or self.expires_at > now)


@dataclass(frozen=True, slots=True)
class MemorySearchResult:
    """A record and how well it fits the query; higher is better, never 0."""

    record: MemoryRecord
    score: float


def is_group(scope: str) -> bool:
    """Whether the scope is a group's rather than a user's."""
    return scope.startswith("grp_")


def scope_parts(scope: str) -> tuple[str, str, str]:
    """The directory of a scope below the data directory, part by part.

    Raises:
        MemoryStoreError: `scope` is neither a user's nor a group's id.
    """
    pattern, top = (_GROUP_ID, "groups") if is_group(scope) else (_USER_ID, "users")
    if pattern.fullmatch(scope) is None:
        raise MemoryStoreError(f"{scope[:80]!r} is neither a user id nor a group id")
    return top, scope, "memory"


def is_memory_id(text: str) -> bool:
    """Whether a text has the form of a memory's id."""
    return _MEMORY_ID.fullmatch(text) is not None


def check_memory_id(memory_id: str) -> str:
    """The id itself.

    Raises:
        MemoryStoreError: it is not `mem_` and up to 64 small letters and digits.
    """
    if not is_memory_id(memory_id):
        raise MemoryStoreError(f"{memory_id[:80]!r} is no memory id; one looks like `mem_3f9c…`")
    return memory_id


def local_day(moment: str) -> str:
    """The day of a time in the zone of this machine, which is the one that the prompt tells."""
    try:
        return datetime.fromisoformat(moment).astimezone().date().isoformat()
    except (OverflowError, ValueError, OSError):  # at the very ends of the calendar
        return moment[:10]


def make_record(fields: Mapping[str, Any]) -> MemoryRecord:
    """A record of checked fields; unknown ones are ignored.

    Raises:
        MemoryStoreError: a field is missing or wrong; the text names it.
    """
    try:
        return MemoryRecord.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "record"
        reason = "it is empty" if where == "content" and "pattern" in first["type"] else first["msg"]
        raise MemoryStoreError(f"the memory's `{where}` cannot be used: {reason}") from error


def render_record(record: MemoryRecord) -> str:
    """The record as a Markdown file: what describes it in front, its content below, to the letter."""
    fields = record.model_dump(exclude={"memory_id", "content"}, exclude_none=True)
    head = "".join(f"{name}: {_scalar(value)}" for name, value in fields.items())
    return f"---\n{head}---\n{record.content}\n"


def _scalar(text: str) -> str:
    """A text as one line of YAML."""
    if _WORD.fullmatch(text) and text not in _NO_WORDS:  # the dumper takes ten times as long
        return f"{text}\n"
    if _TIME.fullmatch(text):
        return f"'{text}'\n"
    import yaml

    # Between double quotes every character has an escape; other styles lose some line ends of Unicode.
    style = None if text.isprintable() else '"'
    dumped = yaml.safe_dump(text, default_style=style, allow_unicode=True, width=float("inf"))
    return dumped.removesuffix("...\n")


def parse_record(text: str, *, memory_id: str, modified: float) -> MemoryRecord:
    """The record in a file; the file's name is its id, and times that are missing are the file's.

    A file without front matter is a fact in plain words.

    Raises:
        MemoryStoreError: the front matter or one of its fields cannot be used.
    """
    if not text.removeprefix("\ufeff").startswith("---"):
        fields, content = {}, text.removeprefix("\ufeff")  # no more than what is to be remembered
    else:
        parsed = parse_front_matter(text)
        if isinstance(parsed, FrontMatterProblem):
            raise MemoryStoreError(f"line {parsed.line}: {parsed.reason}")
        given, content = parsed.fields, parsed.body
        fields = {
            name: value.lower() if name in _WORDS and isinstance(value, str) else value
            for name, value in given.items()
            if value != "" and not (name in _MAYBE and value in ("null", "Null", "NULL", "~"))
        }
    moment, content = format_time(modified), content.removesuffix("\n")
    return make_record(
        {"created_at": moment, "updated_at": moment, **fields, "memory_id": memory_id, "content": content}
    )
