"""The operator's rules about tool calls: which fits, what it says, and that nothing slips through a pattern."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miniclaw.agent.policy import verdict_of
from miniclaw.agent.providers import LLMResponse
from miniclaw.agent.scripted import Script, ScriptedProvider
from miniclaw.settings import ApprovalSettings
from miniclaw.tools.base import Risk
from miniclaw.tools.context import ToolContext
from tests.support.agent import Zap, outcome, question, result_in, say, send, zap
from tests.support.claw import running_claw
from tests.support.inside import database_of

DONE = LLMResponse(text="done")


def verdict(
    rules: list[dict[str, Any]],
    arguments: Mapping[str, Any] | None = None,
    *,
    risk: Risk = "write",
    user: str = "owner",
    tool: Zap | None = None,
    **lists: tuple[str, ...],
) -> str | None:
    settings = ApprovalSettings.model_validate({"rules": rules, **lists})
    return verdict_of(settings, tool or Zap(), arguments or {}, risk, user)


def test_the_first_rule_that_fits_decides_behind_deny_and_before_allow() -> None:
    rules = [{"tool": "z*", "user": "ann", "action": "deny"}, {"tool": "zap", "action": "ask"}]
    assert verdict(rules, user="ann") == "deny"
    assert verdict(rules, allow=("zap",)) == "ask"
    assert verdict(rules, deny=("zap",)) == "deny"
    assert verdict([{"tool": "zip", "action": "deny"}], allow=("zap",)) == "allow"
    assert verdict([]) is None


def test_a_rule_may_look_at_the_risk_of_the_call() -> None:
    rules = [{"risk": "read", "action": "ask"}, {"risk": "write", "action": "deny"}]
    assert (verdict(rules, risk="read"), verdict(rules, risk="write")) == ("ask", "deny")


def test_a_rule_fits_only_if_each_argument_that_it_names_fits() -> None:
    rules = [{"arguments": {"at": "a*", "n": "1"}, "action": "allow"}]
    assert verdict(rules, {"at": "abc", "n": 1, "more": True}) == "allow"
    assert verdict(rules, {"at": "abc", "n": 12}) is None
    assert verdict(rules, {"at": "abc"}) is None
    assert verdict([{"arguments": {"at": '["git", "status"]'}, "action": "allow"}], {"at": ["git", "status"]})


@pytest.mark.parametrize(
    "command",
    [
        "echo ok; rm -rf /",
        "echo a && b",
        "echo a | sh",
        "echo $(id)",
        "echo `id`",
        "echo a\nrm b",
        "echo a\rb",
    ]
    + ["echo > /etc/passwd", "echo $HOME", "xecho a", "echo ../../etc/passwd"],
)
def test_a_pattern_that_allows_lets_no_second_command_in(command: str) -> None:
    """HKUDS/nanobot#4514: an allow pattern that looked at the beginning only let `echo ok; rm` pass."""
    rules = [{"arguments": {"at": "echo *"}, "action": "allow"}]
    assert verdict(rules, {"at": "echo hello world"}) == "allow"
    assert verdict(rules, {"at": command}) is None


@pytest.mark.parametrize("value", ["RM -rf /", "x; rm y", "a\nrm b", "$(rm c)"])
def test_a_pattern_that_denies_is_not_dodged_by_case_lines_or_signs(value: str) -> None:
    assert verdict([{"arguments": {"at": "*rm *"}, "action": "deny"}], {"at": value}) == "deny"


@given(st.text(max_size=30))
def test_a_pattern_without_wildcards_allows_itself_and_nothing_else(value: str) -> None:
    rules = [{"arguments": {"at": value.replace("*", "x").replace("?", "x")}, "action": "allow"}]
    assert verdict(rules, {"at": rules[0]["arguments"]["at"]}) == "allow"  # type: ignore[index]  # it is a dict
    assert verdict(rules, {"at": value + "y"}) is None


class Careful(Zap):
    """Asks every time, unless there is a rule for exactly this call."""

    asks_always = True


def test_a_tool_that_always_asks_is_allowed_by_nothing_but_a_rule_for_exactly_this_call() -> None:
    tool, arguments = Careful(), {"at": "a"}
    assert verdict([], arguments, tool=tool, allow=("zap",)) is None
    assert verdict([{"tool": "zap", "action": "allow"}], arguments, tool=tool) is None
    assert (
        verdict([{"tool": "zap", "arguments": {"at": "*"}, "action": "allow"}], arguments, tool=tool) is None
    )
    exact = [{"tool": "zap", "arguments": {"at": "a"}, "action": "allow"}]
    assert verdict(exact, arguments, tool=tool) == "allow"
    assert verdict(exact, {"at": "a", "more": 1}, tool=tool) is None


async def test_always_said_of_a_tool_that_always_asks_holds_for_that_call_only(tmp_path: Path) -> None:
    tool = Careful()
    async with running_claw(tmp_path, ScriptedProvider([zap("a"), zap("a", call_id="c2"), DONE])) as claw:
        claw.registry.register(tool)
        receipt = await send(claw)
        first = await question(claw)
        await claw.desk.decide(first.approval_id, "owner", "always")
        second = await question(claw, but=first.approval_id)
        await claw.desk.decide(second.approval_id, "owner", "once")
        await outcome(claw, receipt.turn_id)
    assert tool.ran == ["a", "a"]


async def test_where_nobody_is_there_the_model_is_told_of_the_rule_that_would_allow_such_a_call(
    tmp_path: Path,
) -> None:
    provider = ScriptedProvider([zap("a"), DONE])
    async with running_claw(tmp_path, provider) as claw:
        claw.registry.register(Careful())
        await say(claw, asks=False)
    assert "[[approval.rules]]" in result_in(provider.requests[1])


async def test_reads_that_a_rule_asks_about_are_asked_one_after_another_and_denied_ones_do_not_run(
    tmp_path: Path,
) -> None:
    both = LLMResponse(tool_calls=(*zap("a").tool_calls, *zap("b", call_id="c2").tool_calls))
    rules = [{"tool": "zap", "arguments": {"at": "c"}, "action": "deny"}, {"tool": "zap", "action": "ask"}]
    provider = ScriptedProvider([both, zap("c", call_id="c3"), DONE])
    tool = Zap("read")
    async with running_claw(tmp_path, provider, arguments={"approval.rules": rules}) as claw:
        claw.registry.register(tool)
        receipt = await send(claw)
        first = await question(claw)
        await claw.desk.decide(first.approval_id, "owner", "once")
        second = await question(claw, but=first.approval_id)
        await claw.desk.decide(second.approval_id, "owner", "deny")
        await outcome(claw, receipt.turn_id)
    assert tool.ran == [first.arguments["at"]]
    assert "the operator does not allow `zap`" in result_in(provider.requests[2])


async def test_a_call_that_nobody_answered_in_time_is_not_asked_for_again_in_the_turn(tmp_path: Path) -> None:
    script: list[Script] = [zap("a"), zap("a", call_id="c2"), DONE]
    provider = ScriptedProvider(script)
    async with running_claw(tmp_path, provider, arguments={"approval.timeout": 0.3}) as claw:
        claw.registry.register(Zap())
        await say(claw)
        (asked,) = database_of(claw).read("SELECT COUNT(*) FROM approvals")[0]
    assert asked == 1 and "nobody answered" in result_in(provider.requests[2])


async def test_a_question_about_a_memory_shows_what_is_to_be_forgotten(tmp_path: Path) -> None:
    async with running_claw(tmp_path, ScriptedProvider([])) as claw:
        known = await claw.memory.save("owner", "the key is under the mat", source="user")
        call = (
            zap("x", name="memory_delete")
            .tool_calls[0]
            .of("c1", "memory_delete", {"memory_id": known.memory_id})
        )
        claw.provider._script[:] = [LLMResponse(tool_calls=(call,)), DONE]  # type: ignore[attr-defined]
        shown: list[dict[str, Any]] = []
        claw.bus.subscribe(
            "session.*",
            lambda topic, event: shown.append(event.data) if event.name == "approval.requested" else None,
        )
        receipt = await send(claw)
        asked = await question(claw)
        assert shown[0]["summary"] == asked.to_dict()["summary"] == "the key is under the mat"
        await claw.desk.decide(asked.approval_id, "owner", "deny")
        await outcome(claw, receipt.turn_id)


@pytest.mark.parametrize("breaks", [True, False])
async def test_a_tool_that_cannot_describe_a_call_is_asked_about_all_the_same(
    tmp_path: Path, breaks: bool
) -> None:
    class Describes(Zap):
        async def describe(self, arguments: Mapping[str, Any], context: ToolContext) -> str:
            if breaks:
                raise ValueError("no")
            return f"{context.user_id} zaps {arguments['at']}"

    async with running_claw(tmp_path, ScriptedProvider([zap("a"), DONE])) as claw:
        claw.registry.register(Describes())
        receipt = await send(claw)
        asked = await question(claw)
        assert asked.summary == ("" if breaks else "owner zaps a")
        await claw.desk.decide(asked.approval_id, "owner", "once")
        await outcome(claw, receipt.turn_id)


async def test_a_call_by_another_name_of_a_tool_is_judged_by_the_tools_own(tmp_path: Path) -> None:
    tool = Zap()
    tool.aliases = ("doZap",)
    script: list[Script] = [zap("a", name="doZap"), zap("b", call_id="c2", name="doZap"), DONE]
    rule = {"tool": "zap", "arguments": {"at": "b"}, "action": "deny"}
    async with running_claw(tmp_path, ScriptedProvider(script), arguments={"approval.rules": [rule]}) as claw:
        claw.registry.register(tool)
        receipt = await send(claw)
        asked = await question(claw)
        assert asked.tool == "zap"
        await claw.desk.decide(asked.approval_id, "owner", "once")
        await outcome(claw, receipt.turn_id)
    assert tool.ran == ["a"]
