"""The Responses API: a history as typed items, and its events put together. No I/O.

Nothing is left with the server: the whole history is sent each time, with the server's sealed thoughts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from miniclaw.agent.adapt import fit_content, own_data, short_id, wire_name
from miniclaw.agent.answer import AnswerBuilder, RawCall, cut_error
from miniclaw.agent.failures import error_inside
from miniclaw.agent.providers import MOST_CALLS, NO_OUTPUT, LLMChunk, LLMResponse, Message
from miniclaw.agent.quirks import Quirks
from miniclaw.agent.report import is_error

__all__ = ["ResponsesAssembler", "responses_body"]

MOST_ITEMS: Final = 1000
"""Items of an answer that are kept."""
_STATELESS: dict[str, Any] = {"store": False, "include": ["reasoning.encrypted_content"]}


def responses_body(
    messages: Sequence[Message],
    tools: Sequence[Message],
    parameters: Mapping[str, Any],
    quirks: Quirks,
    *,
    by: str,
) -> dict[str, Any]:
    """The body of a request, without model and stream.

    Args:
        messages: the history as Chat Completions messages, the system prompt first.
        tools: as Chat Completions lists them.
        parameters: further ones; `store: true` leaves the answer with the server.
        quirks: what the server does not take.
        by: marks what only this server understands.
    """
    head = messages[0] if messages and messages[0]["role"] in {"system", "developer"} else None
    items = [item for m in messages[head is not None :] for item in _items(m, quirks, by)]
    for place, item in enumerate(items):
        if item.get("role") == "assistant":  # the id is required, and may not stand there twice
            item["id"] = f"msg_{place}"
    body: dict[str, Any] = {"input": items}
    if head is not None:
        body["instructions"] = head["content"]
    if tools:
        body["tools"] = [{"type": "function", "strict": False, **tool["function"]} for tool in tools]
    stateless = {} if parameters.get("store") else _STATELESS
    return (
        body
        | {key: value for key, value in stateless.items() if key not in quirks.dropped}
        | dict(parameters)
    )


def _items(message: Message, quirks: Quirks, by: str) -> Iterator[Message]:
    role, content = message["role"], message.get("content")
    if role == "tool":
        yield {
            "type": "function_call_output",
            "call_id": _id(message["tool_call_id"], quirks),
            "output": content if str(content or "").strip() else NO_OUTPUT,
        }
    elif role != "assistant":
        yield {"type": "message", "role": role, "content": _parts(fit_content(content, quirks))}
    else:
        text = [_text_item(content)] if content and not content.isspace() else []
        calls = [_call_item(call, quirks) for call in message.get("tool_calls") or ()]
        for item in own_data(message, quirks, by).get("items") or ():
            if isinstance(item, dict):
                yield item
            elif own := text if item == "text" else calls:
                yield own.pop(0)
        yield from text + calls


def _text_item(text: str) -> Message:
    """A text of the model with all that OpenAI's schema requires of it, as vLLM and OpenRouter do; llama.cpp goes by the type."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "role": "assistant", "status": "completed", "content": content}


def _parts(content: Any) -> Any:
    """Parts of a content by the names that they have here."""
    if not isinstance(content, list):
        return content
    return [
        {"type": "input_image", "image_url": part["image_url"]["url"]}
        if "image_url" in part
        else {"type": "input_text", "text": part["text"]}
        for part in content
    ]


def _call_item(call: Message, quirks: Quirks) -> Message:
    function = call["function"]
    call_id, name = _id(call["id"], quirks), wire_name(function["name"])
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": function["arguments"]}


def _id(call_id: str, quirks: Quirks) -> str:
    return short_id(call_id) if quirks.ids else call_id


class ResponsesAssembler:
    """Assembles the events of one response, or a response in one piece; the last event is the truth."""

    def __init__(self, answer: AnswerBuilder | None = None) -> None:
        self._answer = answer or AnswerBuilder()
        self._items: dict[int, dict[str, Any]] = {}
        self._arguments: dict[int, list[str]] = {}
        self._places: dict[str, int] = {}
        """Places of items by their ids, for servers that leave the index out."""
        self._body: dict[str, Any] | None = None

    @property
    def began(self) -> bool:
        """Whether anything of the answer has come."""
        return bool(self._answer.began or self._items)

    @property
    def ended(self) -> bool:
        """Whether the server said that the answer is complete."""
        return self._body is not None

    def feed(self, event: Any) -> LLMChunk | None:
        """Take one event; returns what it adds to what can be shown.

        Raises:
            ModelError: the event says that the response failed.
        """
        if not isinstance(event, dict):
            return None
        kind = str(event.get("type") or event.get("object") or "")
        if is_error(event.get("error")) or kind == "error":
            raise error_inside(event)
        place, delta = self._place(event, kind), event.get("delta")
        delta = delta if isinstance(delta, str) else ""
        match kind:
            case "response.output_text.delta" | "response.refusal.delta":
                return self._answer.take(delta) or LLMChunk(hidden=len(delta))
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                return self._answer.take("", delta) or LLMChunk(hidden=len(delta))
            case "response.reasoning_summary_part.added" if event.get("summary_index"):
                return self._answer.take("", "\n\n")
            case "response.output_item.added" | "response.output_item.done":
                self._keep(place, _dict(event.get("item")))
                return LLMChunk(hidden=len(str(event.get("item"))))
            case "response.function_call_arguments.delta":
                self._arguments.setdefault(place, []).append(delta)
                return LLMChunk(hidden=len(delta) or 1)
            case "response.function_call_arguments.done" if isinstance(event.get("arguments"), str):
                self._arguments[place] = [event["arguments"] or "".join(self._arguments.get(place, ()))]
            case "response.output_text.done" | "response.content_part.done" if not self._answer.has_text:
                part = _dict(event.get("part") or event)
                return self._answer.take(
                    "".join(_texts([part] if part.get("type") != "reasoning_text" else []))
                )
            case "response.completed" | "response.incomplete" | "response.failed" | "response":
                return self._take_whole(_dict(event.get("response")) if kind != "response" else event)
        return None

    def _keep(self, place: int, item: dict[str, Any]) -> None:
        if place in self._items or len(self._items) < MOST_ITEMS:
            self._items[place] = item
            if isinstance(item_id := item.get("id"), str) and item_id:
                self._places[item_id] = place

    def _place(self, event: dict[str, Any], kind: str) -> int:
        """Which item an event is about: by its index, its id, or the last one."""
        place = event.get("output_index")
        if isinstance(place, int):
            return place
        last = len(self._items) - (kind != "response.output_item.added")
        item_id = event.get("item_id") or _dict(event.get("item")).get("id")
        return self._places.get(item_id, last) if isinstance(item_id, str) else last

    def end(self) -> None:
        """The server said that nothing more comes; only its last event says that the answer is complete."""

    def rest(self) -> LLMChunk | None:
        """The stream has ended: what was held back and can be shown."""
        return self._answer.rest()

    def finish(self) -> LLMResponse:
        """The whole answer, after `rest`.

        Raises:
            ModelError: the stream ended without saying that the answer did.
        """
        if self._body is None:
            raise cut_error(began=self.began)
        calls: list[RawCall] = []
        kept: list[Any] = []
        for place, item in self._output():
            if item.get("type") == "function_call" and len(calls) < MOST_CALLS:
                place = self._places.get(str(item.get("id") or ""), place)
                raw = item.get("arguments") or "".join(self._arguments.get(place, ()))
                raw = raw if isinstance(raw, str) else json.dumps(raw, ensure_ascii=False)
                calls.append(
                    (str(item.get("call_id") or item.get("id") or ""), str(item.get("name") or ""), raw)
                )
                kept.append("call")
            elif item.get("type") == "message":
                kept.append("text")
            elif item.get("type") == "reasoning" and item.get("encrypted_content"):
                kept.append(
                    {"summary": [], **{k: v for k, v in item.items() if k != "status" and v is not None}}
                )
        reason = str(_dict(self._body.get("incomplete_details")).get("reason") or "")
        if self._body.get("status") == "incomplete" and not reason:
            reason = "max_output_tokens"
        data = {"items": kept} if any(isinstance(item, dict) for item in kept) else None
        return self._answer.finish([call for call in calls if call[1]], reason, self._body.get("usage"), data)

    def _take_whole(self, body: dict[str, Any]) -> LLMChunk | None:
        """Take the whole response; shows what no event had shown."""
        if body.get("status") == "failed" or is_error(body.get("error")):
            raise error_inside({"error": body.get("error") or {"message": "the response failed"}})
        self._body = body
        items = [item for _, item in self._output()]
        text = thoughts = ""
        for item in items:
            if item.get("type") == "message" and not self._answer.has_text:
                text += "".join(_texts(item.get("content")))
            elif item.get("type") == "reasoning" and not self._answer.has_thoughts:
                parts = [*_texts(item.get("summary")), *_texts(item.get("content"))]
                thoughts += ("\n\n" if thoughts and parts else "") + "\n\n".join(parts)
        if not text and not self._answer.has_text and isinstance(body.get("output_text"), str):
            text = body["output_text"]
        return self._answer.take(text, thoughts)

    def _output(self) -> list[tuple[int, dict[str, Any]]]:
        output = self._body.get("output") if self._body else None
        if isinstance(output, list) and output:
            return [(place, _dict(item)) for place, item in enumerate(output)]
        return sorted(self._items.items(), key=lambda pair: pair[0])


def _texts(parts: object) -> list[str]:
    """The texts, and refusals, of a list of content parts."""
    if isinstance(parts, str):
        return [parts]
    found = [_dict(part) for part in parts] if isinstance(parts, list) else []
    return [text for part in found if isinstance(text := part.get("text") or part.get("refusal"), str)]


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
