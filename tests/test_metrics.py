"""What an operator watches: numbers for Prometheus, and log lines that machines read."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from pathlib import Path

import aiohttp
import pytest

from miniclaw.agent.providers import LLMResponse
from miniclaw.agent.scripted import ScriptedProvider
from miniclaw.cli.start import set_up_logging
from miniclaw.config import load_settings
from miniclaw.errors import ModelError
from miniclaw.logs import log_ids
from miniclaw.metrics import Counter, Histogram, gauge
from tests.support.agent import Zap, outcome, say, send, zap
from tests.support.claw import TOKEN, running_claw
from tests.support.client import raw_client
from tests.support.inside import database_of
from tests.support.receiver import SECRET, Receiver, receiving, signed_headers

SAMPLE = re.compile(r'^[a-z_]+(\{[a-z]+="[^"\n]*"(,[a-z]+="[^"\n]*")*\})? [0-9.e+-]+$')


def test_the_text_is_what_prometheus_reads() -> None:
    counter, histogram = Counter("a_total", "About."), Histogram("b", "About.", [1, 0.5])
    counter.add(code='"\\\n')
    counter.add(2, code='"\\\n')
    for value in (0.5, 0.7, 9):
        histogram.observe(value)
    assert counter.lines() == [
        "# HELP a_total About.",
        "# TYPE a_total counter",
        'a_total{code="\\"\\\\\\n"} 3',
    ]
    assert histogram.lines()[2:] == [
        *('b_bucket{le="0.5"} 1', 'b_bucket{le="1"} 2', 'b_bucket{le="+Inf"} 3'),
        *("b_sum 10.2", "b_count 3"),
    ]
    assert gauge("c", "About.", {(): 1_000_001})[-1] == "c 1000001"


async def test_the_page_counts_turns_tokens_cost_errors_tools_deliveries_and_connections(
    tmp_path: Path,
) -> None:
    answers = [
        zap("moon"),
        LLMResponse(text="ok"),
    ]
    model = ScriptedProvider([*answers, ModelError("model_auth", "no"), LLMResponse(text="sent")])
    given = {
        "prices": {"scripted": {"input": 1e6, "output": 0}},
        "channels.generic.secret": SECRET,
        "channels.generic.user": "monitor",
    }
    receiver = Receiver()
    async with receiving(receiver) as port:
        given["channels.generic.reply_hosts"] = (f"127.0.0.1:{port}",)
        async with running_claw(tmp_path, model, web=True, arguments=given) as claw:
            claw.registry.register(Zap("read"))
            assert claw.web is not None and claw.gateway is not None
            url = f"http://127.0.0.1:{claw.web.port}"
            await say(claw)
            await outcome(claw, (await send(claw)).turn_id)
            assert (await send(claw, session_id="ses_none")).code == "session_not_found"
            body = json.dumps({"text": "x", "reply_url": f"http://127.0.0.1:{port}/reply"}).encode()
            async with aiohttp.ClientSession() as http, raw_client(claw.gateway.port or 0):
                async with http.post(
                    f"{url}/webhooks/in", data=body, headers=signed_headers(body)
                ) as response:
                    assert response.status == 202
                await receiver.wait(1)
                async with asyncio.timeout(20):
                    while "miniclaw_deliveries_total{" not in (text := await claw.observer.text()):
                        await asyncio.sleep(0.005)
                sums = "SELECT sum(input_tokens), sum(output_tokens) FROM usage"
                ((sent, got),) = database_of(claw).read(sums)
                headers = {"Authorization": f"Bearer {TOKEN}"}
                async with http.get(f"{url}/metrics", headers=headers) as response:
                    assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
                    text = await response.text()
    lines = text.splitlines()
    assert [line for line in lines if not line.startswith("# ") and not SAMPLE.fullmatch(line)] == []
    for line in (
        *('miniclaw_turns_total{state="finished"} 2', 'miniclaw_turns_total{state="failed"} 1'),
        *('miniclaw_errors_total{kind="turn",code="model_auth"} 1', "miniclaw_connections 1"),
        'miniclaw_errors_total{kind="refused",code="session_not_found"} 1',
        *(f'miniclaw_tokens_total{{kind="input"}} {sent}', f'miniclaw_tokens_total{{kind="output"}} {got}'),
        *(f"miniclaw_cost_usd_total {sent}", 'miniclaw_tool_calls_total{ok="true"} 1'),
        *('miniclaw_deliveries_total{state="sent"} 1', "miniclaw_deliveries_waiting 0"),
        *("miniclaw_first_token_seconds_count 3", 'miniclaw_queue_turns{state="running"} 0'),
    ):
        assert line in lines, text
    assert claw.observer._accepted == {}


async def test_json_lines_carry_the_ids_of_request_session_and_turn(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    arguments = {"log.file": str(file), "log.format": "json"}
    set_up_logging(load_settings(env={}, data_dir=str(tmp_path), arguments=arguments))
    model = ScriptedProvider([zap("moon"), *(LLMResponse(text="ok") for _ in range(4))])
    generic = {"channels.generic.secret": SECRET, "channels.generic.user": "monitor"}
    async with running_claw(tmp_path, model, web=True, arguments=generic) as claw:
        claw.registry.register(Zap("read"))
        receipt = await send(claw)
        await outcome(claw, receipt.turn_id)
        assert claw.web is not None
        async with aiohttp.ClientSession() as http:
            async with http.get(f"http://127.0.0.1:{claw.web.port}/api/status") as response:
                assert response.status == 401
            url, owner = f"http://127.0.0.1:{claw.web.port}", {"Authorization": f"Bearer {TOKEN}"}
            chat, hook = {"messages": [{"role": "user", "content": "x"}]}, b'{"text": "x"}'
            for path, given in (
                ("api/messages?wait=20", {"headers": owner, "json": {"text": "x"}}),
                ("v1/chat/completions", {"headers": owner, "json": {"model": "miniclaw", **chat}}),
                ("webhooks/in", {"headers": signed_headers(hook), "data": hook}),
            ):
                async with http.post(f"{url}/{path}", **given) as response:
                    assert response.status in (200, 202)
    try:
        raise ValueError("猫")
    except ValueError:
        logging.getLogger("miniclaw").exception("two\nlines")
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    (tool,) = [row for row in rows if row["message"].startswith("tool zap:")]
    assert (tool["session_id"], tool["turn_id"]) == (receipt.session_id, receipt.turn_id)
    accepted, *over_http = [row for row in rows if row["message"].endswith("accepted")]
    ended = {row["turn_id"]: row.get("request_id") for row in rows if row["message"].endswith(": finished")}
    assert ended == {row["turn_id"]: row.get("request_id") for row in (accepted, *over_http)}
    assert "request_id" not in accepted and len(over_http) == 3
    assert len({row["request_id"] for row in over_http}) == len({row["turn_id"] for row in over_http}) == 3
    assert accepted["turn_id"] == receipt.turn_id and accepted["msg_id"].startswith("msg_")
    (refused,) = [row for row in rows if "/api/status refused" in row["message"]]
    assert refused["request_id"].startswith("req_") and refused["level"] == "info"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", refused["time"])
    assert rows[-1]["message"] == "two\nlines" and "ValueError: 猫" in rows[-1]["exception"]
    assert "turn_id" not in rows[-1]


def test_ids_are_those_of_the_place_and_of_what_is_around_it() -> None:
    from miniclaw.logs import JsonFormatter

    record = logging.LogRecord("x", logging.INFO, "", 0, "m", (), None)
    with log_ids(session_id="s"), log_ids(turn_id="t"):
        inner = json.loads(JsonFormatter().format(record))
    assert (inner["session_id"], inner["turn_id"]) == ("s", "t")
    assert "session_id" not in json.loads(JsonFormatter().format(record))


@pytest.mark.parametrize(("max_bytes", "files"), [(1000, 3), (0, 1)])
def test_a_log_file_is_put_aside_when_it_is_large(tmp_path: Path, max_bytes: int, files: int) -> None:
    arguments = {"log.file": str(tmp_path / "log"), "log.max_bytes": max_bytes, "log.keep": 2}
    set_up_logging(load_settings(env={}, data_dir=str(tmp_path), arguments=arguments))
    for _ in range(100):
        logging.getLogger("miniclaw").info("x" * 100)
    assert len(list(tmp_path.glob("log*"))) == files
