"""What an MCP server asks in the middle of a call, asked of the person in the turn and of the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from miniclaw.agent.approval import Decision
from miniclaw.agent.providers import LLMResponse
from miniclaw.agent.scripted import ScriptedProvider
from miniclaw.errors import MCPError, ModelError
from miniclaw.mcp.client.questions import MAX_SAMPLES, Questions
from miniclaw.tools.context import ToolContext
from tests.support.agent import eventually, is_asking, outcome, question, result_in, send, zap
from tests.support.claw import running_claw
from tests.support.mcp_servers import program, until, write_config

ASKING = """
asked = {}
def call(message):
    asked["call"] = message
    send({"id": "q", "method": METHOD, "params": PARAMS})
def other(message):
    if message.get("id") == "q":
        text(asked["call"], json.dumps(message.get("result") or message["error"]["code"]))
"""
FORM = {
    "message": "Delete it?",
    "requestedSchema": {
        "type": "object",
        "properties": {"sure": {"type": "boolean"}, "where": {"type": "string", "default": "here"}},
        "required": ["sure"],
    },
}
SAMPLE = {"messages": [{"role": "user", "content": {"type": "text", "text": "2+2?"}}], "maxTokens": 100}


@pytest.mark.parametrize(
    ("method", "params", "decision", "expected"),
    [
        ("elicitation/create", FORM, "once", '"content": {"where": "here", "sure": true}'),
        ("elicitation/create", FORM, "deny", '{"action": "decline"}'),
        ("sampling/createMessage", SAMPLE, "once", '"text": "four"'),
        ("sampling/createMessage", SAMPLE, "deny", "-1"),
    ],
)
async def test_a_servers_question_is_asked_where_the_person_is_and_goes_back_to_it(
    method: str, params: dict[str, Any], decision: Decision, expected: str, tmp_path: Path
) -> None:
    body = ASKING.replace("METHOD", repr(method)).replace("PARAMS", repr(params))
    write_config(tmp_path, fake=program(tmp_path, body))
    script = [LLMResponse(text="four")] if "four" in expected else []
    call = zap("x", name="mcp__fake__say")
    provider = ScriptedProvider([call, *script, LLMResponse(text="done")])
    allow = {"approval.allow": ["mcp__fake__say"]}
    async with running_claw(tmp_path, provider, arguments=allow) as claw:
        await until(lambda: claw.servers.status()[0]["state"] == "ready")
        receipt = await send(claw)
        asked = await question(claw)
        assert asked.tool == "mcp__fake" and ("here" in json.dumps(asked.arguments) or "2+2" in str(asked))
        assert "fake" in asked.summary
        await eventually(lambda: is_asking(claw, receipt.session_id or ""))
        await claw.desk.decide(asked.approval_id, "owner", decision)
        await outcome(claw, receipt.turn_id)
    assert expected in result_in(provider.requests[-1])


def context(answer: bool) -> ToolContext:
    async def confirm(about: str, shown: dict[str, Any], summary: str) -> bool:
        return answer

    place = {"user_id": "u", "scope": "u", "session_id": "s", "turn_id": "t", "workspace": Path("w")}
    return ToolContext(confirm=confirm, **place)  # type: ignore[arg-type]


async def four(messages: list[dict[str, Any]]) -> tuple[str, str]:
    return "four " * 100, "m"


async def test_a_form_that_yes_does_not_fill_in_is_cancelled_and_nobody_there_is_a_no() -> None:
    questions = Questions(four)
    text = {"requestedSchema": {"properties": {"name": {"type": "string"}}, "required": ["name"]}}
    host = questions.host("s", (), context(True))
    assert await host.answer("elicitation/create", text) == {"action": "cancel"}
    assert await questions.host("s", ()).answer("elicitation/create", FORM) == {"action": "decline"}
    with pytest.raises(MCPError, match="Outside a turn"):
        await questions.host("s", ()).answer("sampling/createMessage", SAMPLE)
    with pytest.raises(MCPError, match="Only forms"):
        await host.answer("elicitation/create", {"mode": "url", "url": "https://a.test"})


async def test_sampling_has_a_budget_and_takes_only_text() -> None:
    host = Questions(four).host("s", (), context(True))
    image = {"messages": [{"role": "user", "content": {"type": "image"}}]}
    wrong: list[dict[str, Any]] = [{}, {"messages": []}, image]
    for params in wrong:
        with pytest.raises(MCPError):
            await host.answer("sampling/createMessage", params)
    cut = await host.answer("sampling/createMessage", {**SAMPLE, "maxTokens": 1, "systemPrompt": "short"})
    assert (cut["content"]["text"], cut["stopReason"]) == ("four", "maxTokens")
    for _ in range(MAX_SAMPLES - 1):
        await host.answer("sampling/createMessage", SAMPLE)
    with pytest.raises(MCPError, match="enough"):
        await host.answer("sampling/createMessage", SAMPLE)


async def test_a_model_that_fails_is_told_to_the_server() -> None:
    async def broken(messages: list[dict[str, Any]]) -> tuple[str, str]:
        raise ModelError("model_error", "out of order")

    with pytest.raises(MCPError, match="did not answer"):
        await Questions(broken).host("s", (), context(True)).answer("sampling/createMessage", SAMPLE)
