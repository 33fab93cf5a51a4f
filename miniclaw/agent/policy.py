"""What the operator's rules say of a tool call, before any person is asked."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, Literal

from miniclaw.settings import ApprovalRule, ApprovalSettings
from miniclaw.tools.base import Risk, Tool

__all__ = ["Verdict", "verdict_of"]

Verdict = Literal["allow", "ask", "deny"]

ALLOWED_BY_DEFAULT: Final = frozenset({"memory_save", "memory_update", "todo", "load_skill"})
"""Write tools with a built-in allow rule; `approval.deny` and `approval.rules` come before it."""


def verdict_of(
    settings: ApprovalSettings, tool: Tool, arguments: Mapping[str, Any], risk: Risk, user_id: str
) -> Verdict | None:
    """`deny`, then the first rule that fits, then `allow`; `None` where nothing is said of the call."""
    if tool.name in settings.deny:
        return "deny"
    for rule in settings.rules:
        if _fits(rule, tool, arguments, risk, user_id):
            return rule.action
    allowed = not tool.asks_always and (tool.name in settings.allow or tool.name in ALLOWED_BY_DEFAULT)
    return "allow" if allowed else None


def _fits(rule: ApprovalRule, tool: Tool, arguments: Mapping[str, Any], risk: Risk, user_id: str) -> bool:
    allows = rule.action == "allow"
    if allows and tool.asks_always and not _is_exact(rule, arguments):
        return False
    return (
        rule.risk in (None, risk)
        and _pattern(rule.tool, False).fullmatch(tool.name) is not None
        and _pattern(rule.user, False).fullmatch(user_id) is not None
        and all(
            name in arguments and _matches(pattern, arguments[name], allows)
            for name, pattern in rule.arguments.items()
        )
    )


def _is_exact(rule: ApprovalRule, arguments: Mapping[str, Any]) -> bool:
    """Whether the rule names each argument of the call, and nothing in it stands for anything else."""
    patterns = (rule.tool, *rule.arguments.values())
    return rule.arguments.keys() == arguments.keys() and not any(c in p for p in patterns for c in "*?")


def _matches(pattern: str, value: object, allows: bool) -> bool:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if allows and ".." in text and ".." not in pattern:
        return False
    return _pattern(pattern, allows).fullmatch(text) is not None


@lru_cache(maxsize=1024)
def _pattern(pattern: str, allows: bool) -> re.Pattern[str]:
    """A pattern as an expression; one that allows must not let a second command in, one that denies none out."""
    any_one = r"[^;&|$`<>()\r\n]" if allows else "."
    parts = {"*": f"{any_one}*", "?": any_one}
    text = "".join(parts.get(character) or re.escape(character) for character in pattern)
    return re.compile(text, re.DOTALL if allows else re.DOTALL | re.IGNORECASE)
