"""Forms in questions: told in words, and filled in from what a person types.

A form is `{"properties": {name: field}, "required": [name]}` with one level of texts, numbers, switches and choices,
as https://modelcontextprotocol.io/specification/2025-11-25/client/elicitation has it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import date, datetime
from typing import Any, Final
from urllib.parse import urlsplit

from miniclaw.errors import ProtocolError

__all__ = ["KINDS", "kind_of", "fill", "form_in", "needed_in", "switches", "wording"]

LINE_CHARS: Final = 160
KINDS: Final = ("string", "number", "integer", "boolean", "array")
_SWITCH: Final = {
    **dict.fromkeys(("true", "yes", "y", "on", "1", "是", "对", "开"), True),
    **dict.fromkeys(("false", "no", "n", "off", "0", "否", "不", "关"), False),
}


def form_in(question: Mapping[str, Any]) -> dict[str, Any]:
    """The form of a question as `approval.requested` tells it; empty where there is none."""
    arguments, is_asked = question.get("arguments"), str(question.get("call_id")).startswith("ask_")
    form = arguments.get("form") if is_asked and isinstance(arguments, dict) else None
    return form if isinstance(form, dict) else {}


def needed_in(question: Mapping[str, Any]) -> list[str]:
    """The fields of such a question that yes does not fill in."""
    form = form_in(question)
    by_yes = switches(form) if form else []
    return [n for n in form.get("required", ()) if n not in by_yes and "default" not in form["properties"][n]]


def switches(form: Mapping[str, Any]) -> list[str]:
    """The fields that a plain yes sets."""
    return [n for n, f in form["properties"].items() if f.get("type") == "boolean" and "default" not in f]


def wording(form: Mapping[str, Any]) -> str:
    """A line about each field, the required ones first: its name, kind, choices, and what the server says of it."""
    lines = []
    for name, field in sorted(form["properties"].items(), key=lambda one: one[0] not in form["required"]):
        choices = _choices(field)
        kind = " | ".join(choices) if choices else str(field.get("format") or kind_of(field))
        many = ", several" if kind_of(field) == "array" else ""
        state = (
            f"= {field['default']}" if "default" in field else "" if name in form["required"] else "optional"
        )
        about = ": ".join(str(field[key]) for key in ("title", "description") if field.get(key))
        told = f"{name} ({', '.join(filter(None, (kind + many, state)))})"
        lines.append(" ".join((f"{told} {about}" if about else told).split())[:LINE_CHARS])
    return "\n".join(lines)


def fill(form: Mapping[str, Any], answer: str | Mapping[str, Any]) -> dict[str, Any]:
    """The content of the form: from `name=value …`, the one value that is wanted, values by name, or a plain yes.

    Raises:
        ProtocolError: `bad_arguments`: something is missing or does not fit; the text says what.
    """
    fields: Mapping[str, Any] = form["properties"]
    given = _read(form, answer.strip()) if isinstance(answer, str) else dict(answer)
    if unknown := [name for name in given if name not in fields]:
        raise _bad(f"There is no field `{unknown[0]}`; there are: {', '.join(fields)}.")
    content = {name: _value(name, fields[name], value) for name, value in given.items()}
    missing = [n for n in form["required"] if n not in content and "default" not in fields[n]]
    if missing:
        example = " ".join(f"{name}=…" for name in missing)
        raise _bad(f"This needs {', '.join(f'`{n}`' for n in missing)}: answer with `/approve {example}`.")
    return content


def _read(form: Mapping[str, Any], text: str) -> dict[str, Any]:
    fields: Mapping[str, Any] = form["properties"]
    if not text:
        return dict.fromkeys(switches(form), True)
    names = "|".join(re.escape(name) for name in sorted(fields, key=len, reverse=True))
    found = list(re.finditer(rf"(?:^|(?<=\s))({names})\s*[=＝]\s*", text)) if fields else []
    if found and found[0].start() == 0:
        ends = [*(one.start() for one in found[1:]), len(text)]
        pairs = [(one[1], text[one.end() : end].strip()) for one, end in zip(found, ends, strict=True)]
        if len(dict(pairs)) < len(pairs):
            raise _bad("A field is given twice.")
        return {name: _unquoted(value) for name, value in pairs}
    wanted = [name for name in form["required"] if "default" not in fields[name]] or list(fields)
    if len(wanted) != 1:
        raise _bad(f"Say which field is meant, as `name=value`; there are: {', '.join(fields) or 'none'}.")
    return {wanted[0]: _unquoted(text)}


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text


def _value(name: str, field: Mapping[str, Any], value: Any) -> Any:
    """A value of the field's type, from what was typed or given."""
    match kind_of(field):
        case "boolean":
            value = _SWITCH.get(value.lower()) if isinstance(value, str) else value
            if not isinstance(value, bool):
                raise _bad(f"`{name}` must be yes or no.")
        case "number" | "integer":
            value = _number(name, value, whole=field["type"] == "integer")
            _within(name, field, value, "imum", "")
        case "array":
            parts = re.split(r"[,，、]", value) if isinstance(value, str) else value
            if not isinstance(parts, list):
                raise _bad(f"`{name}` must be a list.")
            value = [
                _text(name, field, part.strip() if isinstance(part, str) else part) for part in parts if part
            ]
            _within(name, field, len(value), "Items", " choices")
        case _:
            value = _text(name, field, value)
            _within(name, field, len(value), "Length", " characters")
    return value


def _number(name: str, value: Any, *, whole: bool) -> int | float:
    with suppress(ValueError, OverflowError):
        number = (
            float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else math.nan
        )
        if math.isfinite(number) and (not whole or number.is_integer()):
            return int(number) if whole else number
    raise _bad(f"`{name}` must be a {'whole ' if whole else ''}number.")


def _within(name: str, field: Mapping[str, Any], size: float, ending: str, unit: str) -> None:
    for word, least in (("min", True), ("max", False)):
        bound = field.get(word + ending)
        if isinstance(bound, int | float) and (size < bound if least else size > bound):
            raise _bad(f"`{name}` must be at {'least' if least else 'most'} {bound}{unit}.")


def _text(name: str, field: Mapping[str, Any], value: Any) -> str:
    if not isinstance(value, str):
        raise _bad(f"`{name}` must be a text.")
    if choices := _choices(field):
        by_title = {title: choice for choice, title in choices.items()}
        if (chosen := value if value in choices else by_title.get(value)) is None:
            raise _bad(f"`{name}` must be one of: {', '.join(choices)}.")
        return chosen
    kind = str(field.get("format"))
    if kind in _FORMATS and not _has_format(kind, value):
        raise _bad(f"`{name}` must be {_FORMATS[kind]}.")
    return value


_FORMATS: Final = {
    "email": "an e-mail address",
    "uri": "an address such as https://example.com",
    "date": "a date such as 2026-01-31",
    "date-time": "a date and time such as 2026-01-31T12:00:00Z",
}


def _has_format(kind: str, value: str) -> bool:
    try:
        match kind:
            case "email":
                return re.fullmatch(r"[^@\s]+@[^@\s]+", value) is not None
            case "uri":
                return bool(urlsplit(value).scheme) and not re.search(r"\s", value)
            case "date":
                return len(value) == 10 and bool(date.fromisoformat(value))
            case _:
                return "T" in value.upper() and datetime.fromisoformat(value).tzinfo is not None
    except ValueError:
        return False


def kind_of(field: Mapping[str, Any]) -> str:
    """The type of a field's value; one of `KINDS`, if it can be filled in."""
    return str(field.get("type", "string"))


def _choices(field: Mapping[str, Any]) -> dict[str, str]:
    """Value and title of what can be chosen."""
    items = field.get("items")
    field = items if kind_of(field) == "array" and isinstance(items, dict) else field
    names, values = field.get("enumNames"), field.get("enum")
    if isinstance(values, list):
        titles = names if isinstance(names, list) and len(names) == len(values) else values
        return {str(value): str(title) for value, title in zip(values, titles, strict=True)}
    rows = field.get("oneOf") or field.get("anyOf")
    rows = [row for row in rows if isinstance(row, dict) and "const" in row] if isinstance(rows, list) else []
    return {str(row["const"]): str(row.get("title", row["const"])) for row in rows}


def _bad(text: str) -> ProtocolError:
    return ProtocolError("bad_arguments", text)
