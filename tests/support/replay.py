"""Plays a transcript of `tests/data/llm-streams` as a model server on a real socket, and checks requests."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from aiohttp import web

Case = dict[str, Any]
Body = dict[str, Any]

DATA = Path(__file__).parent.parent / "data" / "llm-streams"


def load_cases() -> dict[str, Case]:
    """All transcripts by name."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(DATA.glob("*.json"))}


# --- what a strict server refuses -------------------------------------------------------------------------


def _messages(body: Body) -> list[Body]:
    return body.get("messages") or []


def _assistants(body: Body) -> list[Body]:
    return [message for message in _messages(body) if message["role"] == "assistant"]


def _with_calls(body: Body) -> list[Body]:
    return [message for message in _assistants(body) if message.get("tool_calls")]


def _functions(body: Body) -> list[Body]:
    return [tool.get("function", tool) for tool in body.get("tools") or ()]


def _has_orphan(body: Body, rule: Body) -> bool:
    known: set[str] = set()
    for message in _messages(body):
        known |= {call["id"] for call in message.get("tool_calls") or ()}
        if message["role"] == "tool" and message["tool_call_id"] not in known:
            return True
    return False


def _has_unanswered(body: Body, rule: Body) -> bool:
    waiting: set[str] = set()
    for message in _messages(body):
        if message["role"] == "tool":
            waiting.discard(message["tool_call_id"])
        elif waiting:
            return True
        waiting |= {call["id"] for call in message.get("tool_calls") or ()}
    return bool(waiting)


def _has_stray_system(body: Body, rule: Body) -> bool:
    return any(m["role"] == "system" for m in _messages(body)[1:])


def _repeats_role(body: Body, rule: Body) -> bool:
    roles = [m["role"] for m in _messages(body) if m["role"] not in {"system", "tool"}]
    return any(one == next_one for one, next_one in zip(roles, roles[1:], strict=False))


def _has_key(value: object, keys: list[str], *, is_named: bool = False) -> bool:
    """Whether a schema has one of these keys; the names of properties are none."""
    if isinstance(value, dict):
        own = not is_named and not value.keys().isdisjoint(keys)
        return own or any(_has_key(item, keys, is_named=key == "properties") for key, item in value.items())
    return isinstance(value, list) and any(_has_key(item, keys) for item in value)


CHECKS: Mapping[str, Callable[[Body, Body], bool]] = {
    "assistant_tool_call_without_reasoning_content": lambda body, rule: any(
        "reasoning_content" not in message for message in _with_calls(body)
    ),
    "any_assistant_without_reasoning_content": lambda body, rule: any(
        "reasoning_content" not in message for message in _assistants(body)
    ),
    "any_message_has_reasoning_content": lambda body, rule: any(
        "reasoning_content" in message for message in _messages(body)
    ),
    "assistant_without_content_key": lambda body, rule: any("content" not in m for m in _assistants(body)),
    "assistant_tool_call_with_empty_string_content": lambda body, rule: any(
        message.get("content") == "" for message in _with_calls(body)
    ),
    "assistant_tool_call_with_null_content": lambda body, rule: any(
        message.get("content") is None for message in _with_calls(body)
    ),
    "orphan_tool_message": _has_orphan,
    "unanswered_tool_call": _has_unanswered,
    "system_not_single_first": _has_stray_system,
    "consecutive_same_role": _repeats_role,
    "tool_call_id_regex": lambda body, rule: any(
        not re.fullmatch(rule["regex"], call["id"])
        for message in _with_calls(body)
        for call in message["tool_calls"]
    ),
    "tool_name_regex": lambda body, rule: any(
        not re.fullmatch(rule["regex"], function["name"])
        for function in [
            *_functions(body),
            *(c["function"] for m in _with_calls(body) for c in m["tool_calls"]),
        ]
    ),
    "tools_empty_list": lambda body, rule: body.get("tools") == [],
    "tool_strict_true": lambda body, rule: any(function.get("strict") for function in _functions(body)),
    "schema_has_key": lambda body, rule: any(
        _has_key(f.get("parameters"), rule["keys"]) for f in _functions(body)
    ),
    "reasoning_item_without_encrypted_content": lambda body, rule: any(
        item.get("type") == "reasoning" and not item.get("encrypted_content")
        for item in body.get("input") or ()
    ),
}
"""Names of what a transcript's `reject_if` may ask for."""


def _values(value: object, path: list[str]) -> Iterator[object]:
    if not path:
        yield value
    elif path[0].endswith("[*]"):
        inner = value.get(path[0][:-3]) if isinstance(value, dict) else None
        for item in inner if isinstance(inner, list) else ():
            yield from _values(item, path[1:])
    elif isinstance(value, dict) and path[0] in value:
        yield from _values(value[path[0]], path[1:])


def refuses(rule: Body, body: Body) -> bool:
    """Whether a rule of `reject_if` refuses a request."""
    if "check" in rule:
        return CHECKS[rule["check"]](body, rule)
    found = [value for value in _values(body, rule["path"].split(".")) if value is not None]
    if "exists" in rule:
        return bool(found) is rule["exists"]
    if "equals" in rule:
        return rule["equals"] in found
    return found[:1] != [rule["not_equals"]]


# --- the server -------------------------------------------------------------------------------------------


class ReplayServer:
    """Answers each request as its transcript says; a request that carries results gets a plain answer.

    Attributes:
        requests: the bodies received, oldest first.
        answered: bodies of those that the transcript answered with its stream.
    """

    def __init__(
        self, case: Case, *, whole: bool = False, cut: int = 0, models: tuple[str, ...] = ("fake",)
    ) -> None:
        """Play `case`.

        Args:
            case: the transcript.
            whole: answer in one JSON body instead of a stream.
            cut: send the bytes of a stream in pieces of so many.
            models: what the server lists.
        """
        self._case = case
        self._rules = case["request_expectations"]
        self._whole = whole
        self._cut = cut
        self._models = models
        self.requests: list[Body] = []
        self.answered: list[Body] = []
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_post("/v1/chat/completions", self._answer)
        app.router.add_post("/v1/responses", self._answer)
        app.router.add_get("/v1/models", self._list)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    async def _list(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": name} for name in self._models]})

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        http = self._case.get("http")
        refused = len(self.requests) <= self._rules.get("fail_first", 0) or any(
            refuses(rule, body) for rule in self._rules.get("reject_if", ())
        )
        if http is not None and (refused or "sse_chunks" not in self._case):
            content = http["body"] if isinstance(http["body"], str) else json.dumps(http["body"])
            headers = {
                "Content-Type": "application/json",
                **{k.title(): v for k, v in http["headers"].items()},
            }
            return web.Response(body=content.encode(), status=http["status"], headers=headers)
        self.answered.append(body)
        chunks = self._case["sse_chunks"]
        if len(self.answered) > 1 and _is_result(body) and not self._rules.get("repeat"):
            chunks = PLAIN[self._case["api"]]
        if self._whole and (completion := in_one_piece(chunks)) is not None:
            return web.json_response(completion)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Connection": "close"})
        await response.prepare(request)
        try:
            async for piece in _pieces(chunks, self._cut):
                await response.write(piece)
        except ConnectionError:
            pass  # who asked has gone
        return response


def _is_result(body: Body) -> bool:
    last = (body.get("messages") or body.get("input") or [{}])[-1]
    return bool(last.get("role") == "tool" or last.get("type") == "function_call_output")


async def _pieces(chunks: list[Any], size: int) -> AsyncIterator[bytes]:
    texts = [c if isinstance(c, str) else f"data: {json.dumps(c, ensure_ascii=False)}" for c in chunks]
    events = [f"{text}\n\n".encode() for text in texts]
    if size:
        whole = b"".join(events)
        events = [whole[start : start + size] for start in range(0, len(whole), size)]
    for event in events:
        yield event
        await asyncio.sleep(0)


def in_one_piece(chunks: list[Any]) -> Body | None:
    """The completion, not streamed, that well-formed chunks stand for; `None` where there is none."""
    if any(isinstance(chunk, str) and chunk != "data: [DONE]" for chunk in chunks):
        last = chunks[-1].partition("data: ")[2]
        return json.loads(last)["response"] if '"response.completed"' in last else None
    message: Body = {"role": "assistant", "content": ""}
    finish, usage = None, None
    for chunk in chunks:
        if isinstance(chunk, str):
            continue
        usage = chunk.get("usage") or usage
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            finish = choice.get("finish_reason") or finish
            for name in ("content", "reasoning_content", "reasoning"):
                if delta.get(name):
                    message[name] = message.get(name, "") + delta[name]
            if "tool_calls" in delta:
                message["content"] = message["content"] or None
                message.setdefault("tool_calls", []).extend(delta["tool_calls"])
    if finish is None:
        return None
    return {"choices": [{"index": 0, "message": message, "finish_reason": finish}], "usage": usage}


def chunk(delta: Body | None = None, finish: str | None = None, **more: Any) -> Body:
    """A chunk of a chat completion with one choice."""
    return {"choices": [{"index": 0, "delta": delta or {}, "finish_reason": finish}], **more}


def event(kind: str, **fields: Any) -> str:
    """An event of the Responses API."""
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields}, ensure_ascii=False)}"


def text_stream(text: str) -> list[Any]:
    """A plain streamed answer."""
    return [chunk({"role": "assistant", "content": text}), chunk(finish="stop"), "data: [DONE]"]


def response_item(text: str) -> Body:
    """A whole response of the Responses API that is a plain text."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}
    return {"id": "resp_1", "object": "response", "status": "completed", "output": [item], "error": None}


PLAIN: Mapping[str, list[Any]] = {
    "chat": text_stream("done"),
    "responses": [event("response.completed", response=response_item("done"))],
}
"""What follows on a round of calls."""
