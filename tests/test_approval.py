"""Who may run a write tool: rules, questions and their answers, in a whole gateway."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from miniclaw.agent.approval import Decision
from miniclaw.agent.providers import LLMResponse
from miniclaw.agent.scripted import Script, ScriptedProvider
from miniclaw.app import MiniClaw
from miniclaw.channel.questions import question_text
from miniclaw.cli.screen import Screen
from miniclaw.errors import ProtocolError
from miniclaw.tools.base import ToolResult
from miniclaw.tools.context import ToolContext
from tests.support.agent import (
    Zap,
    eventually,
    is_asking,
    log_of,
    outcome,
    question,
    result_in,
    say,
    send,
    zap,
)
from tests.support.claw import running_claw
from tests.support.inside import database_of

DONE = LLMResponse(text="done")


@asynccontextmanager
async def with_zap(
    tmp_path: Path, script: list[Script], *, tool: Zap | None = None, **arguments: Any
) -> AsyncIterator[tuple[MiniClaw, Zap, ScriptedProvider]]:
    """A gateway with a write tool."""
    tool, provider = tool or Zap(), ScriptedProvider(script)
    given = {name.replace("__", "."): value for name, value in arguments.items()}
    async with running_claw(tmp_path, provider, arguments={"limits.drain_seconds": 0, **given}) as claw:
        claw.registry.register(tool)
        yield claw, tool, provider


async def refused(
    claw: MiniClaw, reference: str, user_id: str, decision: Decision = "once", session_id: str | None = None
) -> str:
    """The code with which an answer is refused."""
    with pytest.raises(ProtocolError) as raised:
        await claw.desk.decide(reference, user_id, decision, session_id)
    return raised.value.code


# --- rules ------------------------------------------------------------------------------------------------


async def test_a_write_is_asked_for_shown_and_runs_after_a_yes(tmp_path: Path) -> None:
    async with with_zap(tmp_path, [zap("a"), DONE]) as (claw, tool, _):
        receipt = await send(claw)
        asked = await question(claw)
        assert (asked.tool, asked.arguments, asked.turn_id) == ("zap", {"at": "a"}, receipt.turn_id)
        assert asked.short_id == asked.approval_id[-6:]
        await eventually(lambda: is_asking(claw, receipt.session_id or ""))
        assert tool.ran == []
        await claw.desk.decide(asked.short_id, "owner", "once")
        await outcome(claw, receipt.turn_id)
        assert tool.ran == ["a"]
        assert await claw.desk.open_for("owner") == []


async def test_an_answer_without_an_id_is_one_to_the_only_open_question_of_its_session(
    tmp_path: Path,
) -> None:
    async with with_zap(tmp_path, [zap("a"), DONE]) as (claw, tool, _):
        receipt = await send(claw)
        asked = await question(claw)
        same = "turn_id, session_id, user_id, call_id, tool, arguments, state, expires_at, digest, created_at"
        other = f"INSERT INTO approvals (approval_id, short_id, {same}) SELECT 'apr_o', 'o', {same} FROM approvals"
        await database_of(claw).write(lambda c: c.execute(other).rowcount)
        for session_id, code in ((None, "approval_not_found"), (receipt.session_id, "bad_arguments")):
            assert await refused(claw, "", "owner", session_id=session_id) == code
        await claw.desk.decide("o", "owner", "deny")
        assert (await claw.desk.decide("", "owner", "once", receipt.session_id)).call_id == asked.call_id
        await outcome(claw, receipt.turn_id)
        assert tool.ran == ["a"]


async def test_a_tool_of_the_default_list_runs_unasked_unless_the_operator_denies_it(tmp_path: Path) -> None:
    for number, deny in enumerate([(), ("memory_save",)]):
        tool = Zap(name="memory_save")
        provider = ScriptedProvider([zap("a", name="memory_save"), DONE])
        arguments = {"approval.deny": deny}
        async with running_claw(tmp_path / str(number), provider, arguments=arguments) as claw:
            claw.registry.remove("memory_save")
            claw.registry.register(tool)
            await say(claw)
        assert tool.ran == ([] if deny else ["a"])
    assert "operator does not allow `memory_save`" in result_in(provider.requests[1])


async def test_what_the_operator_allows_runs_unasked_and_what_he_denies_is_denied_even_so(
    tmp_path: Path,
) -> None:
    async with with_zap(tmp_path / "1", [zap("a"), DONE], approval__allow=("zap",)) as (claw, tool, _):
        await say(claw)
        assert tool.ran == ["a"]
    both: dict[str, Any] = {"approval__allow": ("zap",), "approval__deny": ("zap",)}
    async with with_zap(tmp_path / "2", [zap("a"), DONE], **both) as (claw, tool, provider):
        await say(claw)
        assert tool.ran == []
        assert "operator does not allow" in result_in(provider.requests[1])


async def test_once_is_for_one_call_and_the_next_one_is_asked_for(tmp_path: Path) -> None:
    async with with_zap(tmp_path, [zap("a"), zap("b", call_id="c2"), DONE]) as (claw, tool, _):
        receipt = await send(claw)
        first = await question(claw)
        await claw.desk.decide(first.approval_id, "owner", "once")
        second = await question(claw)
        assert second.arguments == {"at": "b"}
        await claw.desk.decide(second.approval_id, "owner", "once")
        await outcome(claw, receipt.turn_id)
        assert tool.ran == ["a", "b"]


async def test_a_rule_for_the_session_holds_there_and_nowhere_else(tmp_path: Path) -> None:
    async with with_zap(tmp_path, [zap("a"), DONE, zap("b"), DONE, zap("c"), DONE]) as (claw, tool, _):
        receipt = await send(claw)
        await claw.desk.decide((await question(claw)).approval_id, "owner", "session")
        await outcome(claw, receipt.turn_id)
        await say(claw, session_id=receipt.session_id)
        assert tool.ran == ["a", "b"]
        await send(claw)
        assert (await question(claw)).arguments == {"at": "c"}


async def test_a_rule_for_always_holds_in_every_session_of_that_user_and_after_a_restart(
    tmp_path: Path,
) -> None:
    async with with_zap(tmp_path, [zap("a"), DONE, zap("b"), DONE]) as (claw, tool, _):
        receipt = await send(claw)
        await claw.desk.decide((await question(claw)).approval_id, "owner", "always")
        await outcome(claw, receipt.turn_id)
        await say(claw)
        assert tool.ran == ["a", "b"]
    async with with_zap(tmp_path, [zap("c"), DONE, zap("d"), DONE]) as (claw, tool, _):
        await say(claw)
        assert tool.ran == ["c"]
        await claw.identities.ensure("ann")
        await send(claw, user_id="ann")
        assert (await question(claw, "ann")).arguments == {"at": "d"}


# --- answers ----------------------------------------------------------------------------------------------


async def test_a_denial_is_told_and_holds_for_the_same_call_in_the_turn_only(tmp_path: Path) -> None:
    script: list[Script] = [zap("a"), zap("a", call_id="c2"), zap("b", call_id="c3"), DONE, zap("a"), DONE]
    async with with_zap(tmp_path, script) as (claw, tool, provider):
        receipt = await send(claw)
        first = await question(claw)
        await claw.desk.decide(first.approval_id, "owner", "deny")
        other = await question(claw)
        assert other.arguments == {"at": "b"}, "the same call was asked for again"
        assert [result_in(request)[:29] for request in provider.requests[1:]] == [
            "Error: the user said no to th"
        ] * 2
        await claw.desk.decide(other.approval_id, "owner", "deny")
        await outcome(claw, receipt.turn_id)
        await send(claw, session_id=receipt.session_id)
        assert (await question(claw)).arguments == {"at": "a"}
        assert tool.ran == []


async def test_the_same_call_id_with_other_arguments_is_asked_for_again(tmp_path: Path) -> None:
    """A yes to something harmless is no yes to whatever comes under the same id."""
    async with with_zap(tmp_path, [zap("harmless"), zap("everything"), DONE]) as (claw, tool, _):
        receipt = await send(claw)
        await claw.desk.decide((await question(claw)).approval_id, "owner", "once")
        second = await question(claw)
        assert (tool.ran, second.arguments) == (["harmless"], {"at": "everything"})
        await claw.desk.decide(second.approval_id, "owner", "deny")
        await outcome(claw, receipt.turn_id)
        assert tool.ran == ["harmless"]


async def test_a_question_that_nobody_answers_in_time_is_a_no(tmp_path: Path) -> None:
    async with with_zap(tmp_path, [zap("a"), DONE], approval__timeout=0.3) as (claw, tool, provider):
        receipt = await send(claw)
        asked = await question(claw)
        await outcome(claw, receipt.turn_id)
        assert "nobody answered" in result_in(provider.requests[1])
        assert tool.ran == []
        assert await refused(claw, asked.approval_id, "owner") == "approval_not_found"


@pytest.mark.parametrize("first", ["once", "deny"])
async def test_of_two_answers_at_once_the_first_wins_and_the_other_is_told(
    tmp_path: Path, first: Decision
) -> None:
    second: Decision = "deny" if first == "once" else "once"
    async with with_zap(tmp_path, [zap("a"), DONE]) as (claw, tool, _):
        receipt = await send(claw)
        reference = (await question(claw)).approval_id
        answers = await asyncio.gather(
            *(claw.desk.decide(reference, "owner", decision) for decision in (first, second)),
            return_exceptions=True,
        )
        assert not isinstance(answers[0], BaseException)
        assert isinstance(answers[1], ProtocolError) and answers[1].code == "approval_not_found"
        await outcome(claw, receipt.turn_id)
        assert tool.ran == (["a"] if first == "once" else [])


@pytest.mark.parametrize("order", [("deny", "always"), ("always", "deny")])
async def test_of_deny_and_always_at_once_one_wins_and_only_always_makes_a_rule(
    tmp_path: Path, order: tuple[Decision, Decision]
) -> None:
    async with with_zap(tmp_path, [zap("a"), DONE, zap("b"), DONE]) as (claw, tool, _):
        receipt = await send(claw)
        reference = (await question(claw)).approval_id
        answers = (claw.desk.decide(reference, "owner", decision) for decision in order)
        await asyncio.gather(*answers, return_exceptions=True)
        await outcome(claw, receipt.turn_id)
        receipt = await send(claw)
        if order[0] == "always":
            await outcome(claw, receipt.turn_id)
            assert tool.ran == ["a", "b"]
        else:
            assert (await question(claw)).arguments == {"at": "b"}
            assert tool.ran == []


async def test_an_answer_that_was_committed_before_the_time_ran_out_counts(tmp_path: Path) -> None:
    """The loop sees both at once; what the database took first is what the turn does."""
    async with with_zap(tmp_path, [zap("a"), DONE], approval__timeout=0.3) as (claw, tool, _):
        receipt = await send(claw)
        asked = await question(claw)

        def past_the_end(connection: sqlite3.Connection) -> None:
            time.sleep(max(0.0, asked.expires_at - time.time()) + 0.01)

        slow = database_of(claw).write(past_the_end)
        await claw.desk.decide(asked.approval_id, "owner", "once")
        await slow
        await outcome(claw, receipt.turn_id)
        assert tool.ran == ["a"]


async def test_the_question_of_a_turn_that_was_cancelled_is_closed(tmp_path: Path) -> None:
    async with with_zap(tmp_path, [zap("a")]) as (claw, tool, _):
        receipt = await send(claw)
        asked = await question(claw)
        await claw.commands.cancel(receipt.turn_id or "", "owner")
        assert (await outcome(claw, receipt.turn_id))["name"] == "turn.cancelled"
        assert await refused(claw, asked.approval_id, "owner") == "approval_not_found"
        assert tool.ran == []


class AsksTwice(Zap):
    """Asks in the middle of its call, gives the question up as soon as it is let, and asks the same again."""

    wants_context = True

    def __init__(self, let: Callable[[], Awaitable[object]]) -> None:
        super().__init__("read")
        self._let = let

    async def execute(
        self, *, at: str | None = None, tool_context: ToolContext | None = None, **_: Any
    ) -> ToolResult:
        assert tool_context is not None and tool_context.confirm is not None
        ask = partial(tool_context.confirm, "zap", {"at": "x"}, "sure?")
        first = asyncio.ensure_future(ask())
        await self._let()
        first.cancel()
        if at == "twice":  # as when a server takes its question back and at once answers the call
            await asyncio.sleep(0)
            first.cancel()
        await asyncio.wait([first])
        self.ran.append(at)
        return ToolResult(content=f"{first.cancelled()} {(await ask())[0]}")


@pytest.mark.parametrize("at", ["once", "twice"])
async def test_a_question_that_its_call_gives_up_is_closed_and_may_be_asked_anew(
    tmp_path: Path, at: str
) -> None:
    let = asyncio.Event()
    async with with_zap(tmp_path, [zap(at), DONE], tool=AsksTwice(let.wait)) as (claw, _, provider):
        told: list[Any] = []
        claw.bus.subscribe("session.*", lambda topic, event: told.append((event.name, event.data)))
        receipt = await send(claw)
        first = await question(claw)
        let.set()
        second = await question(claw, but=first.approval_id)
        assert await refused(claw, first.approval_id, "owner") == "approval_not_found"
        assert ("approval.resolved", {"approval_id": first.approval_id, "decision": "expired"}) in told
        await claw.desk.decide("", "owner", "once", receipt.session_id)
        await outcome(claw, receipt.turn_id)
        assert second.tool == "zap" and result_in(provider.requests[1]) == "True approved"


class AsksForm(Zap):
    """Asks for a number in the middle of its call."""

    wants_context = True

    async def execute(self, *, tool_context: ToolContext | None = None, **_: Any) -> ToolResult:
        assert tool_context is not None and tool_context.confirm is not None
        form = {"properties": {"age": {"type": "integer", "maximum": 99}}, "required": ["age"]}
        return ToolResult(content=str(await tool_context.confirm("zap", {"form": form}, "How old?")))


@pytest.mark.parametrize(
    ("typed", "result"),
    [("/approve {id} 7", "('approved', {'age': 7})"), ("/deny", "('denied', {})")],
)
async def test_a_form_is_filled_in_where_people_type_and_stays_open_until_it_fits(
    tmp_path: Path, typed: str, result: str
) -> None:
    async with with_zap(tmp_path, [zap("a"), DONE], tool=AsksForm("read")) as (claw, _, provider):
        receipt = await send(claw)
        asked = await question(claw)
        said = partial(send, claw, session_id=receipt.session_id, typed=True)
        for wrong in (
            "/approve",
            "/approve {id}",
            "/approve {id} 100",
            "/approve age=x",
            "/approve {id} session",
        ):
            refusal = await said(wrong.format(id=asked.short_id))
            assert refusal.code == "bad_arguments" and "`age`" in refusal.message
        assert [one.approval_id for one in await claw.desk.open_for("owner")] == [asked.approval_id]
        assert "age=…" in question_text(asked.to_dict())
        assert (await said(typed.format(id=asked.short_id))).status == "answered"
        await outcome(claw, receipt.turn_id)
        assert result_in(provider.requests[1]) == result


async def test_a_question_without_a_form_takes_no_answer(tmp_path: Path) -> None:
    async with with_zap(tmp_path, [zap("a"), DONE]) as (claw, tool, _):
        receipt = await send(claw)
        asked = await question(claw)
        with pytest.raises(ProtocolError, match="yes"):
            await claw.desk.decide(asked.short_id, "owner", "once", answer="twice")
        assert tool.ran == []
        await claw.desk.decide(asked.short_id, "owner", "once")
        await outcome(claw, receipt.turn_id)


class AsksOther(Zap):
    """Asks two questions in the middle of its call that differ in their words alone."""

    wants_context = True

    async def execute(self, *, tool_context: ToolContext | None = None, **_: Any) -> ToolResult:
        assert tool_context is not None and tool_context.confirm is not None
        said = [await tool_context.confirm("zap", {}, text) for text in ("delete?", "copy?", "delete?")]
        return ToolResult(content=" ".join(state for state, _ in said))


async def test_a_no_to_one_question_is_none_to_another_of_the_same_tool(tmp_path: Path) -> None:
    async with with_zap(tmp_path, [zap("a"), DONE], tool=AsksOther("read")) as (claw, _, provider):
        receipt = await send(claw)
        first = await question(claw)
        await claw.desk.decide(first.approval_id, "owner", "deny")
        second = await question(claw, but=first.approval_id)
        await claw.desk.decide(second.approval_id, "owner", "once")
        await outcome(claw, receipt.turn_id)
        assert (first.summary, second.summary) == ("delete?", "copy?")
        assert result_in(provider.requests[1]) == "denied approved denied", "the same was asked again"


async def test_a_question_that_is_given_up_while_it_is_stored_does_not_stay(tmp_path: Path) -> None:
    async def let() -> None:
        for _ in range(len(tool.ran)):
            await asyncio.sleep(0)

    tool = AsksTwice(let)
    script: list[Script] = [*(zap(str(n), call_id=f"c{n}") for n in range(5)), DONE]
    async with with_zap(tmp_path, script, tool=tool) as (claw, _, provider):
        receipt = await send(claw)
        for rounds in range(1, 6):
            await eventually(lambda n=rounds: len(tool.ran) == n)  # type: ignore[misc]
            asked = await question(claw)
            await claw.desk.decide(asked.approval_id, "owner", "once")
        await outcome(claw, receipt.turn_id)
        assert [result_in(request) for request in provider.requests[1:]] == ["True approved"] * 5


async def test_an_open_question_is_asked_again_under_the_same_id_after_a_restart(tmp_path: Path) -> None:
    async with with_zap(tmp_path, [zap("a")]) as (claw, tool, _):
        receipt = await send(claw)
        before = await question(claw)
    async with with_zap(tmp_path, [DONE], tool=tool) as (claw, _, provider):
        shown: list[str] = []
        claw.bus.subscribe(f"session.{receipt.session_id}", lambda topic, event: shown.append(event.name))
        await eventually(lambda: claw.live.get(receipt.session_id or ""))
        after = await question(claw)
        assert (after.approval_id, after.expires_at) == (before.approval_id, before.expires_at)
        await eventually(lambda: is_asking(claw, receipt.session_id or ""))
        await claw.desk.decide(after.approval_id, "owner", "once")
        assert (await outcome(claw, receipt.turn_id))["data"]["text"] == "done"
        assert (tool.ran, len(provider.requests)) == (["a"], 1)
        assert shown[-1] == "turn.finished"


async def test_an_answer_given_just_before_a_restart_is_not_asked_for_again(tmp_path: Path) -> None:
    """The answer is committed, the process ends before the turn goes on: the call runs after the restart."""
    async with with_zap(tmp_path, [zap("a")]) as (claw, tool, _):
        receipt = await send(claw)
        asked = await question(claw)
        await claw.mailbox.stop(0)
        await claw.desk.decide(asked.approval_id, "owner", "once")
        assert tool.ran == []
    async with with_zap(tmp_path, [DONE], tool=tool) as (claw, _, _):
        await outcome(claw, receipt.turn_id)
        assert tool.ran == ["a"]


async def test_a_question_whose_time_ended_while_the_process_was_down_takes_no_answer(tmp_path: Path) -> None:
    now, tool, options = [time.time()], Zap(), {"limits.drain_seconds": 0}
    async with running_claw(
        tmp_path, ScriptedProvider([zap("a")]), arguments=options, clock=lambda: now[0]
    ) as claw:
        claw.registry.register(tool)
        receipt = await send(claw)
        asked = await question(claw)
        await claw.mailbox.stop(0)
        now[0] += 3600
        assert await refused(claw, asked.approval_id, "owner", "always") == "approval_not_found"
    async with running_claw(tmp_path, ScriptedProvider([DONE]), clock=lambda: now[0]) as claw:
        claw.registry.register(tool)
        await outcome(claw, receipt.turn_id)
        assert (tool.ran, await claw.desk.open_for("owner")) == ([], [])


# --- who is asked -----------------------------------------------------------------------------------------


async def test_where_nobody_can_be_asked_the_model_is_told_how_the_tool_can_be_allowed(
    tmp_path: Path,
) -> None:
    async with with_zap(tmp_path, [zap("a"), DONE]) as (claw, tool, provider):
        await say(claw, asks=False)
        assert "nobody is there to approve" in result_in(provider.requests[1])
        assert "`--allow zap`" in result_in(provider.requests[1])
        assert tool.ran == []


async def test_a_program_that_cannot_ask_anybody_answers_so_and_the_model_is_told_the_same(
    tmp_path: Path,
) -> None:
    async with with_zap(tmp_path, [zap("a"), DONE]) as (claw, tool, provider):
        receipt = await send(claw)
        await claw.desk.decide((await question(claw)).approval_id, "owner", "unattended")
        await outcome(claw, receipt.turn_id)
        assert "`--allow zap`" in result_in(provider.requests[1])
        assert tool.ran == []


async def test_only_the_user_answers_a_question_of_a_direct_session_not_even_an_admin(tmp_path: Path) -> None:
    async with with_zap(tmp_path, [zap("a"), DONE]) as (claw, tool, _):
        await claw.identities.ensure("ann")
        receipt = await send(claw, user_id="ann")
        asked = await question(claw, "ann")
        assert claw.identities.is_admin("owner") and await claw.desk.open_for("owner") == []
        assert await refused(claw, asked.approval_id, "owner") == "approval_not_found"
        await claw.desk.decide(asked.approval_id, "ann", "once")
        await outcome(claw, receipt.turn_id)
        assert tool.ran == ["a"]


@pytest.mark.parametrize("who", ["sender", "owner"])
async def test_in_a_group_the_sender_or_an_admin_answers_and_another_member_does_not(
    tmp_path: Path, who: str
) -> None:
    group: dict[str, Any] = {"channel": "chat", "conversation": "team", "direct": False, "user_id": None}
    async with with_zap(tmp_path, [LLMResponse(text="hi"), zap("a"), DONE]) as (claw, tool, _):
        first = await send(claw, sender="bob", **group)
        await outcome(claw, first.turn_id)
        receipt = await send(claw, sender="ann", **group)
        assert receipt.session_id == first.session_id
        users = {}
        for name, turn_id in (("bob", first.turn_id), ("sender", receipt.turn_id)):
            turn = claw.turns.get(turn_id or "")
            assert turn is not None and turn.scope.startswith("grp_")
            users[name] = turn.user_id
        asked = await question(claw, users["sender"])
        assert await claw.desk.open_for("owner") == [asked]
        assert await claw.desk.open_for(users["bob"]) == []
        for decision in ("once", "deny", "always"):
            assert await refused(claw, asked.short_id, users["bob"], decision) == "approval_not_found"
        await claw.desk.decide(asked.approval_id, users.get(who, who), "once")
        await outcome(claw, receipt.turn_id)
        assert tool.ran == ["a"]
        assert [entry.message["role"] for entry in await log_of(claw, receipt.session_id)][-3:] == [
            "assistant",
            "tool",
            "assistant",
        ]


class Quits(Zap):
    """Somebody else's tool that tries to end the program before it is even run."""

    asked = 0

    def risk_of(self, arguments: Any) -> Any:
        self.asked += 1
        if arguments["at"] == "hang":
            threading.Event().wait()
        elif arguments["at"] == "quit":
            raise SystemExit(4)
        return None if arguments["at"] == "none" else "read"

    async def describe(self, arguments: Any, context: Any) -> Any:
        if arguments["at"] == "quit":
            raise SystemExit(3)


async def test_a_tool_whose_risk_or_description_quits_hangs_or_is_nothing_is_asked_for_as_a_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("miniclaw.tools.risk.SECONDS", 0.1)
    for at in ("quit", "hang", "none"):
        async with with_zap(tmp_path / at, [zap(at), DONE], tool=Quits()) as (claw, tool, provider):
            saying = asyncio.create_task(say(claw))
            asked = await question(claw)
            assert asked.summary == "" and tool.ran == []
            await claw.desk.decide(asked.approval_id, "owner", "once")
            await saying
            assert result_in(provider.requests[1]) == f"zapped {at}"
            assert isinstance(tool, Quits) and tool.asked == 1


async def test_a_forbidden_tool_is_as_if_it_were_not_there_and_one_forbidden_call_is_refused(
    tmp_path: Path,
) -> None:
    class Sometimes(Zap):
        def risk_of(self, arguments: Any) -> Any:
            return "forbidden" if arguments.get("at") == "roof" else "read"

    script: list[Script] = [zap("roof"), zap("floor", call_id="c2"), DONE]
    async with with_zap(tmp_path, script, tool=Sometimes()) as (claw, tool, provider):
        await say(claw)
        assert "may not be used" in result_in(provider.requests[1])
        assert tool.ran == ["floor"]


async def test_what_turns_text_round_is_an_escape_wherever_somebody_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Writes(Zap):
        async def describe(self, arguments: Any, context: Any) -> Any:
            return f"writes {arguments['at']}"

    async with with_zap(tmp_path, [zap("x\u202egpj.exe"), DONE], tool=Writes()) as (claw, _, _):
        saying = asyncio.create_task(say(claw))
        asked = (await question(claw)).to_dict()
        Screen().question(asked)
        for shown in (asked["summary"], question_text(asked), capsys.readouterr().out):
            assert "\u202e" not in shown and r"x\u202egpj.exe" in shown
        await claw.desk.decide(asked["approval_id"], "owner", "deny")
        await saying
