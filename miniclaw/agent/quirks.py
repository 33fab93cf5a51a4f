"""What a model takes, learned from what it refused. No I/O."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from miniclaw.agent.overflow import room_for_answer
from miniclaw.agent.report import Report

__all__ = ["LENGTHS", "Quirks", "images_in"]

logger = logging.getLogger(__name__)

TEACHING: Final = frozenset({
    *("refused", "server", "stream_error", "endpoint_missing", "model_not_found", "context_overflow")
})  # fmt: skip
"""Kinds of failures that may come of a request that the server does not take, before an answer begins."""
_CORE: Final = frozenset({"model", "messages", "input"})
LENGTHS: Final = ("max_tokens", "max_completion_tokens", "max_output_tokens")
"""Names of the longest answer: of Chat Completions, old and new, and of the Responses API."""
_NOT: Final = (
    r"(?:not (?:be )?(?:support|allow|enabl|permit|available)|n't support|unsupported|不支持|不允许|未启用)"
)
_NO_TOOLS: Final = re.compile(
    rf"(?<!parallel )(?:tools?|functions?)(?: call(?:s|ing)?| use|参数)?\W{{0,3}}(?:is |are |do |does )?{_NOT}"
    r"|(?:unrecognized|unexpected|unknown|extra|unsupported) [\w ]{0,40}\W{1,3}tools(?![\w\[.])"
    r"|'body', 'tools'\W.{0,20}extra inputs"
    rf"|{_NOT}\w* ?(?:\w+ )?\W?(?:(?:tools?|functions?)(?![a-z0-9_])|工具|函数)|support tool use"
    r"|tool(?:s|_choice)?\W{0,3}(?:param\w* )?requires? \W?--|enable-auto-tool-choice|tools参数(?:非法|错误|有误)"
)
_NO_STREAM: Final = re.compile(
    rf"\bcannot use (?:tools?|functions?) with stream|\bstream(?:ing)?\b(?! options).{{0,30}}{_NOT}|{_NOT}\w* ?\w*\s?stream(?:ing)?\b(?! options)",
    re.ASCII,
)
"""ASCII, here and below: a Chinese sentence has no space around a name."""
_NO_THINKING: Final = re.compile(
    r"(?:not|n't) support (?:the |extended )?(?:thinking|reasoning)\b(?! content| effort)"
    r"|\b(?:thinking|reasoning)\W{0,3}(?:mode )?(?:is |are )?(?:not |un)supported|不支持(?:开启|启用|深度)*思考(?!模式下|内容)"
    r"|\b(?:thinking|reasoning) (?:level|budget)(?: \W?[\w.-]+\W?)? (?:is )?not supported"
    r"|expected \W?thinking\W? or \W?redacted_thinking\b"
    r"|\b(?:thinking|reasoning)\b(?: is mandatory\b|[\w ,]{0,60} cannot be disabled)"
)
_ROLES: Final = ("system", "developer")
_ALTERNATE: Final = r"alternate|consecutive.*(?:role|user|assistant)|role order"
_ALLOWED: Final = re.compile(
    r"\bexpected|one of|should be|must be|supported (?:values|roles)|\bonly\b|allowed"
)
_TOO_LARGE: Final = re.compile(
    r"(?:at most|maximum (?:value )?(?:is|of)|less than or equal to|<=|\[\d+, ?|max_tokens of)[ `]*(\d+)"
)


@dataclass(slots=True)
class Quirks:
    """What one model of one server does not take."""

    dropped: set[str] = field(default_factory=set)
    """Parameters that are left out."""
    length: str = ""
    """The name of the parameter for the longest answer, where it is not the usual one."""
    longest: int | None = None
    tool_choice: bool = True
    """Whether anything but `auto` is taken."""
    schemas: Literal["full", "loose", "simple"] = "full"
    """`loose`: without `strict`; `simple`: only what every server knows of JSON Schema."""
    names: bool = False
    """Whether the names of calls in the history are fitted too, though all tools have fitting ones."""
    ids: bool = False
    """Whether call ids are nine letters and digits."""
    roles: dict[str, str] = field(default_factory=dict)
    one_system: bool = False
    alternate: bool = False
    content: Literal["any", "null", "text", "mark"] = "any"
    """What stands in place of a content that an assistant message with calls does not have."""
    beside: Literal["any", "one", "none"] = "any"
    """What calls have beside them: text and thoughts, `one` of both, or `none` of a text."""
    one_call: bool = False
    """Whether each call has a message of its own."""
    thoughts: Literal["own", "calls", "always", "never"] = "own"
    """Which messages carry their thoughts back: those with calls that have some, all with calls, all, none."""
    no_thoughts: str = ""
    """What stands in place of thoughts that a message does not have."""
    images: Literal["taken", "not now", "never"] = "taken"
    """`not now`: one of those in this request is not; that says nothing of others."""
    data: bool = True
    """Whether what only this server understands goes back to it."""
    signed: bool = False
    """Whether calls that the model has not signed get the word that stands for a signature."""
    _tried: set[str] = field(default_factory=set)

    def taught(self, kind: str, report: Report, body: Mapping[str, Any]) -> Quirks | None:
        """These with what a refusal of this kind teaches; `None` when that is nothing."""
        if kind not in TEACHING:
            return None
        trial = deepcopy(self)
        learn = trial.learn_room if kind == "context_overflow" else trial.learn
        if not (change := learn(report, body)):
            return None
        logger.warning("model %s refused a request, so now with: %s", body.get("model"), change)
        return trial

    def learn(self, report: Report, body: Mapping[str, Any]) -> str:
        """Change what a refusal of `body` names; returns what was changed, empty when nothing was.

        A change that was made before is not made again, so learning comes to an end.
        """
        words = report.words
        names = [name for name in body if re.search("think|reasoning", name) and _NO_THINKING.search(words)]
        if found := [name for name in names if self.is_new(name)]:  # first: a model may be called `vision`
            self.dropped.update(found)
            return f"no {', '.join(found)}"
        for pattern, name, value in _LESSONS:
            if name == "schemas" and not _has_tools(body, strict=value == "loose"):
                continue
            if name == "one_system" and not any(role in _ROLES for role in _roles(body)[1:]):
                continue
            if name == "images" and not (images_in(body) and self.images == "taken"):
                continue
            if (
                getattr(self, name) != value
                and re.search(pattern, words, re.A)
                and self.is_new(f"{name}={value}")
            ):
                setattr(self, name, value)
                return f"{name}={value}"
        return (
            self._learn_role(words, _roles(body))
            or self._learn_length(report, body)
            or self._learn_parameter(report, body)
        )

    def learn_room(self, report: Report, body: Mapping[str, Any]) -> str:
        """Ask for a shorter answer where it is what does not fit into the model's window; as `learn`."""
        sent = next((name for name in LENGTHS if name in body), "")
        if not sent or (most := room_for_answer(report, body[sent])) is None:
            return ""
        self.longest = most
        return f"{sent}={most}"

    def forget_passing(self) -> None:
        """Forget what was learned of one request only."""
        if self.images == "not now":
            self.images = "taken"
            self._tried.discard("images=not now")

    def is_new(self, change: str) -> bool:
        """Whether this comes up for the first time."""
        if change in self._tried:
            return False
        self._tried.add(change)
        return True

    def _learn_role(self, words: str, sent: list[str]) -> str:
        """Another role for one that is refused: named before what is allowed, or not among that."""
        head, allowed, tail = words, "", ""
        if (found := _ALLOWED.search(words)) is not None:
            head, allowed, tail = words[: found.start()], found[0], words[found.end() :]
        is_instruction = "instruction" in head and re.search(_NOT, words) is not None
        if not is_instruction and not re.search(
            r"(?<!last )\brole|角色|variant|(?:system|developer)\W? message", words
        ):
            return ""
        named = {name for name in _ROLES if name in head}
        for role in [role for role in _ROLES if role in sent]:
            is_missing = allowed and "user" in tail and not named and role not in tail
            is_meant = named and named.isdisjoint(sent)  # by a template that has one name for both
            is_named = (
                role in named or is_meant or re.search(rf"\b(?:input\W{{1,4}}|got ){role}", tail) is not None
            )
            if not (is_named or is_missing or is_instruction):
                continue
            for other in ("system" if role == "developer" else "developer", "user"):
                if self.is_new(f"{role}={other}"):
                    self.is_new(f"{other}={role}")  # not back to what was refused
                    roles = {own: other for own in _ROLES if self.roles.get(own, own) == role}
                    self.roles = self.roles | roles
                    return f"{role}={other}"
        return ""

    def _learn_length(self, report: Report, body: Mapping[str, Any]) -> str:
        words = report.words
        sent = next((name for name in LENGTHS if name in body), "")
        if not sent or not any(name in words for name in LENGTHS):
            return ""
        other = next((name for name in LENGTHS[:2] if name != sent), "")
        if (most := _TOO_LARGE.search(words)) is not None and 0 < int(most[1]) < body[sent]:
            self.longest = int(most[1])
            return f"{sent}={self.longest}"
        if room := self.learn_room(report, body):
            return room
        if sent != LENGTHS[2] and self.is_new(f"length={other}"):
            self.length = other
            return other
        return ""

    def _learn_parameter(self, report: Report, body: Mapping[str, Any]) -> str:
        words, message = report.words, report.message.lower()
        for name in [name for name in body if name not in _CORE]:
            if name == "stream":
                is_named = report.param == name or _NO_STREAM.search(words) is not None
            elif name == "tools":
                is_named = report.param == name or _NO_TOOLS.search(words) is not None
            else:
                is_named = report.param.split(".")[0].split("[")[0] == name or _is_about(
                    name, body[name], message
                )
            if not is_named:
                continue
            if name == "tool_choice" and body[name] != "auto" and self.tool_choice:
                self.tool_choice = False
                return "tool_choice=auto"
            if self.is_new(name):
                self.dropped.add(name)
                return f"no {name}"
        return ""


_MISSING: Final = r"reasoning_content.*(?:must be|required|missing|pass)|missing.*reasoning_content"
_EMPTY: Final = (
    r"content.*\b(?:blank|empty|non-?empty|whitespace)\b|(?:blank|empty|non-?empty)\b.*\bcontent\b|at least one character"
    r"|\bmessage\b.{0,60}must not be empty|\bcontent\W{0,3}(?:不能|不可|不允许)为?空"
)
_LESSONS: Final[tuple[tuple[str, str, Any], ...]] = (
    (r"missing.{0,60}thought.?signature|thought.?signature.{0,40}(?:missing|required)", "signed", True),
    (r"both content and (?:thinking|reasoning)", "beside", "one"),  # the template of gpt-oss
    (r"(?:either|both) content (?:or|and) tool.?calls", "beside", "none"),  # those of Mistral
    (r"single tool.?calls? at once|only one tool.?call|multiple tool.?calls? (?:is |are )?not supp", "one_call", True),
    (r"image.{0,120}(?:too (?:large|big|small|many)|exceed|dimension|corrupt|damaged|base64|format|media type)"
     r"|(?:process|decode|load|parse|invalid|download).{0,30}\bimage(?!_url| input)\b", "images", "not now"),
    (r"image|vision|multi-?modal|content.*\b(?:string|str|text|type)\b", "images", "never"),
    (_MISSING, "thoughts", "calls"),
    (r"reasoning_content.*missing.*tool.?call", "no_thoughts", " "),  # Moonshot, to which an empty one is missing
    (_MISSING, "thoughts", "always"),
    (_MISSING, "no_thoughts", " "),
    (r"reasoning_content", "thoughts", "never"),
    (r"item .*not found|encrypted.content.*(?:verif|decrypt|parse)", "data", False),
    (r"extra_content|reasoning_details|thinking_blocks|without its required following item|(?:corrupt\w*|invalid) thought.?signature"
     r"|thought.?signature\W? is (?:not valid|invalid)|invalid \W?signature|cannot contain \W?thinking\b", "data", False),
    (_ALTERNATE, "alternate", True),
    (r"roles are supported, got system|system.*(?:beginning|first|once|single|only one|multiple|首|after)|(?:multiple|more than one|only one) system"
     r"|developer\W? after|role order|order of (?:messages|roles)", "one_system", True),
    (_ALTERNATE, "one_system", True),
    (_ALTERNATE, "roles", dict.fromkeys(_ROLES, "user")),  # Gemma 2, Mistral 7B: no role but the user's may be first
    (r"\bstrict\b|required' is required to be supplied|additionalproperties.* required to be", "schemas", "loose"),
    (r"(?:function|tool)s?\W*(?:call\W*)?name.*(?:pattern|invalid|must|match|length)|(?:invalid|illegal).*function\W*name",
     "names", True),
    (r"tool[ _]?(?:call|use)[ _.]?s?(?:\[\d+\])?[ _.]?id.*(?:pattern|length|must be|too long|invalid)"
     r"|call_id.*(?:pattern|too long|length)|tool_use\.id", "ids", True),
    (r"schema|tools参数(?:非法|错误|有误)|unknown name .*(?:parameters|tools)|\btools?\b.*parameters|function_declarations"
     r"|additionalproperties|\$ref|description.*(?:too long|length)|grammar|initialize samplers|unrecognized type",
     "schemas", "simple"),
    (_EMPTY, "content", "null"),
    (r"\bcontent\b.*(?:null|none|<nil>|required|missing|valid string|a string|expected string)"
     r"|(?:null|none|missing).*\bcontent\b|invalid type: null", "content", "text"),
    (_EMPTY, "content", "text"),
    (_EMPTY, "content", "mark"),
)  # fmt: skip
"""Words of a refusal, and what it teaches, the surest first."""


def _is_about(name: str, value: object, message: str) -> bool:
    """Whether a sentence is about a parameter: it has its name, a key of its value, or the value itself."""
    if "_" in name or name in {"temperature", "logprobs"}:
        about = rf"\b{name.replace('_', '[_ ]?')}\b"  # xAI writes `reasoningEffort`
    else:
        about = (
            rf"['\"`]{name}['\"`]|(?:supplied|parameter|argument|field|参数)\W{{1,3}}{name}\b"
            rf"|(?:parameter|argument)s? [a-z ]{{1,40}}: ?{name}\W*$|参数{name}\b|\b{name}\W{{0,3}}(?:is |are )?(?:{_NOT}|extra|unknown|参数)"
        )
    parts = list(value) if isinstance(value, dict) else [value] if isinstance(value, str) and value else []
    named = [rf"\b{part}\b" if "_" in part else rf"['\"`]{re.escape(part)}['\"`]" for part in map(str, parts)]
    if isinstance(value, dict):
        named += [rf"\b{name}[_ .]?{re.escape(str(key))}\b" for key in value]
    return re.search("|".join([about, *named]), message, re.ASCII) is not None


def _roles(body: Mapping[str, Any]) -> list[str]:
    sent = body.get("messages") or body.get("input") or ()
    return [str(message.get("role")) for message in sent]


def images_in(body: Mapping[str, Any]) -> list[str]:
    """The data URLs of all images of a request, to either API."""
    contents = [
        m.get("content") for m in body.get("messages") or body.get("input") or () if m.get("role") == "user"
    ]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    found = [part["image_url"] for part in parts if "image_url" in part]
    return [one["url"] if isinstance(one, dict) else one for one in found]


def _has_tools(body: Mapping[str, Any], *, strict: bool) -> bool:
    return any(not strict or tool.get("function", tool).get("strict") for tool in body.get("tools") or ())
