"""What an MCP server asks in the middle of a call, asked of the person in the turn and of the model."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from miniclaw.agent.approval import Decision
from miniclaw.agent.openai_provider import OpenAIProvider
from miniclaw.agent.providers import LLMResponse, ToolCall
from miniclaw.agent.scripted import ScriptedProvider
from miniclaw.errors import MCPError, ModelError
from miniclaw.mcp.client.questions import MAX_SAMPLES, Questions
from miniclaw.session.models import Usage
from miniclaw.tools.context import ToolContext
from tests.support.agent import eventually, is_asking, outcome, question, result_in, send, zap
from tests.support.claw import running_claw
from tests.support.mcp_servers import program, until, write_config
from tests.support.model import FakeModel, Message, Reply
from tests.test_limits import trace_of

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
    ("method", "params", "decision", "answer", "expected"),
    [
        ("elicitation/create", FORM, "once", "", '"content": {"where": "here", "sure": true}'),
        ("elicitation/create", FORM, "once", "sure=no where=there", '{"where": "there", "sure": false}'),
        ("elicitation/create", FORM, "deny", "", '{"action": "decline"}'),
        ("sampling/createMessage", SAMPLE, "once", "", '"text": "four"'),
        ("sampling/createMessage", SAMPLE, "deny", "", "-1"),
    ],
)
async def test_a_servers_question_is_asked_where_the_person_is_and_goes_back_to_it(
    method: str, params: dict[str, Any], decision: Decision, answer: str, expected: str, tmp_path: Path
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
        await claw.desk.decide(asked.approval_id, "owner", decision, answer=answer)
        await outcome(claw, receipt.turn_id)
    assert expected in result_in(provider.requests[-1])


@pytest.mark.parametrize("method", ["resources/read", "prompts/get"])
async def test_what_is_asked_while_a_resource_or_a_prompt_is_got_is_asked_and_its_progress_shown(
    method: str, tmp_path: Path
) -> None:
    body = """
asked = {}
def initialize(message):
    reply(message, protocolVersion="2025-11-25", capabilities={"tools": {}, "resources": {}, "prompts": {}},
          serverInfo={"name": "fake", "version": "1"})
def other(message):
    if message.get("method") in ("resources/read", "prompts/get"):
        asked["read"] = message
        token = message["params"]["_meta"]["progressToken"]
        send({"method": "notifications/progress",
              "params": {"progressToken": token, "progress": 1, "message": "halfway"}})
        send({"id": "q", "method": "elicitation/create", "params": PARAMS})
    elif message.get("id") == "q":
        said = {"text": json.dumps(message["result"]), "type": "text", "uri": "x://1"}
        reply(asked["read"], contents=[said], messages=[{"role": "user", "content": said}])
    elif "id" in message:
        reply(message)
""".replace("PARAMS", repr(FORM))
    write_config(tmp_path, fake=program(tmp_path, body))
    action = (
        {"action": "read", "uri": "x://1"}
        if method == "resources/read"
        else {"action": "prompt", "name": "p"}
    )
    call = ToolCall.of("c1", "mcp__fake__library", action)
    answer = LLMResponse(tool_calls=(call,), finish="tool_calls")
    provider = ScriptedProvider([answer, LLMResponse(text="done")])
    async with running_claw(tmp_path, provider) as claw:
        await until(lambda: claw.servers.status()[0]["state"] == "ready")
        shown: list[str] = []
        claw.bus.subscribe("session.*", lambda topic, event: shown.append(json.dumps(event.data)))
        receipt = await send(claw)
        asked = await question(claw)
        await claw.desk.decide(asked.approval_id, "owner", "once")
        await outcome(claw, receipt.turn_id)
    assert '"action": "accept"' in result_in(provider.requests[-1]).replace("\\", "")
    assert any("halfway" in one for one in shown)


async def four(purpose: str, messages: list[dict[str, Any]]) -> LLMResponse:
    return LLMResponse(text="four " * 100, usage=Usage(model="m"))


SAYS = {"prompt_tokens": 1000, "completion_tokens": 10}


async def test_an_answer_for_a_server_is_counted_recorded_and_limited_with_the_turn(tmp_path: Path) -> None:
    body = ASKING.replace("METHOD", repr("sampling/createMessage")).replace("PARAMS", repr(SAMPLE))
    write_config(tmp_path, fake=program(tmp_path, body))
    much = {"prompt_tokens": 500_000, "completion_tokens": 100_000}

    def script(messages: list[Message], number: int) -> Reply:
        is_asked = messages[-1]["role"] == "user" and "2+2" in str(messages[-1]["content"])
        return (
            {"text": "four", "usage": much}
            if is_asked
            else {"calls": [("mcp__fake__say", {"at": "x"})], "usage": SAYS}
        )

    limits = {"approval.allow": ["mcp__fake__say"], "agent.max_tokens_per_turn": 50_000}
    async with FakeModel(script) as model:
        provider = OpenAIProvider("m", api_key="k", base_url=model.url)
        async with running_claw(tmp_path, provider, arguments=limits) as claw:
            await until(lambda: claw.servers.status()[0]["state"] == "ready")
            receipt = await send(claw)
            asked = await question(claw)
            await eventually(lambda: is_asking(claw, receipt.session_id or ""))
            await claw.desk.decide(asked.approval_id, "owner", "once")
            data = (await outcome(claw, receipt.turn_id))["data"]
            assert data["stopped_by"] == "tokens" and len(model.requests) == 2
            assert (data["usage"]["calls"], data["usage"]["output_tokens"]) == (2, 100_010)
            purposes = [r["purpose"] for r in await trace_of(claw) if r["kind"] == "model"]
            assert purposes == ["answer", "sampling"]
            (row,) = await claw.commands._c.usage.rows("owner")
            assert row["calls"] == 2
        await provider.close()


@pytest.mark.parametrize("ends_by", ["cancel", "time limit", "the server"])
async def test_a_model_that_answers_a_server_ends_and_is_counted_with_the_call_it_is_for(
    ends_by: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What the server asked for is over, and in the turn's numbers, before the turn ends."""
    body = ASKING.replace("METHOD", repr("sampling/createMessage")).replace("PARAMS", repr(SAMPLE))
    log = tmp_path / "told"
    body += f"    open({str(log)!r}, 'a').write(json.dumps(message) + chr(10))\n"
    if (
        ends_by == "the server"
    ):  # which answers the call, once it is let, without the answer that it asked for
        os.mkfifo(tmp_path / "let")
        early = f"lambda: text(message, open({str(tmp_path / 'let')!r}).read())"
        body = body.replace("    send(", f"    threading.Thread(target={early}).start()\n    send(")
        body = "import threading\n" + body

    def script(messages: list[Message], number: int) -> Reply:
        if messages[-1]["role"] == "tool":
            return {"text": "done", "usage": SAYS}
        if "2+2" in str(messages[-1]["content"]):
            return {"forever": {"content": "word "}, "pause": 0.02}
        return {"calls": [("mcp__fake__say", {"at": "x"})], "usage": SAYS}

    write_config(tmp_path, fake=program(tmp_path, body))
    settings: dict[str, Any] = {"approval.allow": ["mcp__fake__say"]}
    if ends_by == "time limit":
        settings["agent.turn_timeout"] = 2.0
    async with FakeModel(script) as model:
        provider = OpenAIProvider("m", api_key="k", base_url=model.url)
        async with running_claw(tmp_path, provider, arguments=settings) as claw:
            await until(lambda: claw.servers.status()[0]["state"] == "ready")
            receipt = await send(claw)
            asked = await question(claw)
            await eventually(lambda: is_asking(claw, receipt.session_id or ""))
            await claw.desk.decide(asked.approval_id, "owner", "once")
            await until(lambda: model.open_streams == 1)
            if ends_by == "the server":
                (tmp_path / "let").write_text("early", encoding="utf-8")
            elif ends_by == "cancel":
                await claw.commands.cancel(receipt.turn_id or "", "owner")
            data = (await outcome(claw, receipt.turn_id))["data"]
            calls = 3 if ends_by == "the server" else 2
            assert data["usage"]["calls"] == calls
            assert "sampling" in [r["purpose"] for r in await trace_of(claw) if r["kind"] == "model"]
            (row,) = await claw.commands._c.usage.rows("owner")
            assert row["calls"] == calls
            await until(lambda: model.open_streams == 0)
            await until(lambda: log.exists() and '"error"' in log.read_text(encoding="utf-8"))
        await provider.close()
    assert "question broke" not in caplog.text and "never retrieved" not in caplog.text


def context(state: str, ask: Any = four) -> ToolContext:
    async def confirm(about: str, shown: dict[str, Any], summary: str) -> tuple[str, dict[str, Any]]:
        return state, {}

    place = {"user_id": "u", "scope": "u", "session_id": "s", "turn_id": "t", "workspace": Path("w")}
    return ToolContext(confirm=confirm, ask=ask, **place)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("state", "action"), [("expired", "cancel"), ("denied", "decline"), ("unattended", "decline")]
)
async def test_a_form_that_nobody_filled_in_in_time_is_cancelled_and_a_no_declines_it(
    state: str, action: str
) -> None:
    text = {"requestedSchema": {"properties": {"name": {"type": "string"}}, "required": ["name"]}}
    host = Questions().host("s", (), context(state))
    assert await host.answer("elicitation/create", text) == {"action": action}


async def test_nobody_there_is_a_no() -> None:
    questions = Questions()
    host = questions.host("s", (), context("approved"))
    assert await questions.host("s", ()).answer("elicitation/create", FORM) == {"action": "decline"}
    with pytest.raises(MCPError, match="Outside a turn"):
        await questions.host("s", ()).answer("sampling/createMessage", SAMPLE)
    with pytest.raises(MCPError, match="Only forms"):
        await host.answer("elicitation/create", {"mode": "url", "url": "https://a.test"})


async def test_sampling_has_a_budget_and_takes_only_text() -> None:
    host = Questions().host("s", (), context("approved"))
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
    async def broken(purpose: str, messages: list[dict[str, Any]]) -> LLMResponse:
        raise ModelError("model_error", "out of order")

    with pytest.raises(MCPError, match="did not answer"):
        await Questions().host("s", (), context("approved", broken)).answer("sampling/createMessage", SAMPLE)
