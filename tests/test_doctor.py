"""`miniclaw doctor` finds what is wrong, says how to mend it, and changes nothing."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sqlite3
import sys
import time
from contextlib import closing
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from miniclaw.agent.scripted import ScriptedProvider
from miniclaw.app import MiniClaw
from miniclaw.cli import doctor_command, main
from miniclaw.config import load_settings
from miniclaw.db import Database
from miniclaw.errors import StorageError
from miniclaw.session.outbox import Outbox
from tests.support.core import FakeClock, open_database
from tests.support.model import FakeModel, Message, Reply
from tests.test_outbox import delivery

Checks = dict[str, list[dict[str, str]]]


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No model server of this machine, no key of whoever runs the tests."""
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_API_BASE", "OPENAI_MODEL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MINICLAW_MODEL__PROBE_LOCAL", "false")
    monkeypatch.setenv("MINICLAW_GATEWAY__PORT", "none")
    monkeypatch.setenv("MINICLAW_WEB__PORT", "none")


def doctor(directory: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, Checks]:
    code = main(["doctor", "--json", "--data-dir", str(directory)])
    found: Checks = {}
    for check in json.loads(capsys.readouterr().out):
        found.setdefault(check["name"], []).append(check)
    return code, found


def test_a_new_machine_passes_and_stays_untouched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = doctor(tmp_path / "new", capsys)
    assert code == 0
    assert found["model"][0]["state"] == "warning" and "OPENAI_API_KEY" in found["model"][0]["mend"]
    assert {check["state"] for name in found if name != "model" for check in found[name]} == {"ok"}
    assert not (tmp_path / "new").exists()


def test_a_broken_setting_is_named_with_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "miniclaw.toml").write_text("[limits]\nruning = 3\n", encoding="utf-8")
    code, found = doctor(tmp_path, capsys)
    assert code == 1 and set(found) == {"settings"}
    assert (
        "limits.runing" in found["settings"][0]["result"]
        and "miniclaw.toml" in found["settings"][0]["result"]
    )


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="this user may write everywhere")
def test_a_directory_that_cannot_be_written_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tmp_path.chmod(0o500)
    try:
        code, found = doctor(tmp_path / "x", capsys)
    finally:
        tmp_path.chmod(0o700)
    assert code == 1 and "--data-dir" in found["data"][0]["mend"]


def test_a_file_in_the_place_of_the_directory_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    code, found = doctor(tmp_path / "file", capsys)
    assert code == 1 and found["data"][0]["state"] == "failed"


def test_little_room_on_the_disk_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_command, "LOW_DISK_BYTES", 1 << 60)
    code, found = doctor(tmp_path, capsys)
    assert code == 0 and found["disk"][0]["state"] == "warning" and "make room" in found["disk"][0]["mend"]


async def test_dead_letters_are_listed_with_the_way_to_send_them_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with open_database(tmp_path) as database:
        outbox = Outbox(database, clock=FakeClock())
        rows = [delivery(number) for number in range(12)]
        await outbox.notice(rows)
        for row in rows[1:]:
            await outbox.dead(row, "channel_not_found")
        code, found = await asyncio.to_thread(doctor, tmp_path, capsys)
    first, *named = found["delivery"]
    assert code == 0 and first["state"] == "warning"
    assert first["result"].startswith("11 ") and "/api/deliveries/KEY/retry" in first["mend"]
    assert len(named) == 10 and "channel_not_found" in named[0]["result"]
    assert "turn_0.0" not in json.dumps(found)


async def test_a_damaged_database_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "miniclaw.db").write_bytes(b"SQLite format 3\x00" + b"x" * 5000)
    code, found = await asyncio.to_thread(doctor, tmp_path, capsys)
    assert (
        code == 1 and "damaged" in found["database"][0]["result"] and "backup" in found["database"][0]["mend"]
    )
    assert "delivery" not in found


async def test_a_sound_database_is_only_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with open_database(tmp_path):
        pass
    before = (tmp_path / "miniclaw.db").read_bytes()
    code, found = await asyncio.to_thread(doctor, tmp_path, capsys)
    assert code == 0 and "schema" in found["database"][0]["result"]
    assert (tmp_path / "miniclaw.db").read_bytes() == before
    with closing(sqlite3.connect(tmp_path / "miniclaw.db")) as connection:
        assert connection.execute("SELECT value FROM meta WHERE key = 'epoch'").fetchone()[0] == "1"


async def test_a_database_of_a_newer_version_fails_with_the_sentence_that_serve_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with open_database(tmp_path):
        pass
    with closing(sqlite3.connect(tmp_path / "miniclaw.db")) as connection:
        connection.execute("PRAGMA user_version=999")
    with pytest.raises(StorageError) as said:
        await Database(tmp_path / "miniclaw.db").open()
    code, found = await asyncio.to_thread(doctor, tmp_path, capsys)
    assert code == 1 and [check["result"] for check in found["database"]] == [str(said.value)]


@pytest.mark.parametrize("section", ["GATEWAY", "WEB"])
def test_a_port_in_use_fails_with_the_option_that_helps(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    section: str,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv(f"MINICLAW_{section}__PORT", str(taken.getsockname()[1]))
        code, found = doctor(tmp_path, capsys)
    check = found[section.lower()][0]
    assert code == 1 and check["state"] == "failed" and "port 0" in check["mend"]


async def test_a_model_that_the_server_lists_passes_and_one_that_it_does_not_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with FakeModel() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        code, found = await asyncio.to_thread(doctor, tmp_path, capsys)
        assert code == 0 and found["model"][0]["result"] == f"fake-chat at {server.url}"
        monkeypatch.setenv("OPENAI_MODEL", "gone-9b")
        code, found = await asyncio.to_thread(doctor, tmp_path, capsys)
    assert code == 1 and "gone-9b" in found["model"][0]["result"] and "fake-chat" in found["model"][0]["mend"]


async def test_a_model_server_that_is_not_there_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with FakeModel() as gone:
        pass
    monkeypatch.setenv("OPENAI_BASE_URL", gone.url)
    monkeypatch.setenv("OPENAI_MODEL", "any")
    code, found = await asyncio.to_thread(doctor, tmp_path, capsys)
    assert code == 1 and "OPENAI_BASE_URL" in found["model"][0]["mend"]


async def test_a_wrong_key_fails_also_where_the_list_of_models_needs_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with FakeModel(lambda messages, number: {"status": 401}) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-wrong-key")
        code, found = await asyncio.to_thread(doctor, tmp_path, capsys)
    (check,) = found["answer"]
    assert code == 1 and check["state"] == "failed" and "OPENAI_API_KEY" in check["mend"]
    assert found["model"][0]["state"] == "ok" and "sk-wrong-key" not in json.dumps(found)
    assert [request["max_tokens"] for request in server.requests] == [1]


async def test_a_model_that_takes_no_answer_so_short_is_asked_as_a_turn_would(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def script(messages: list[Message], number: int) -> Reply:
        if not server.requests[-1].keys() & {"max_tokens", "max_completion_tokens"}:
            return {"text": "ok"} if answers else {"status": 400, "message": "No."}
        return {"status": 400, "message": "max_tokens must be larger."}

    monkeypatch.setenv("OPENAI_MODEL", "fake-chat")
    for answers in (True, False):
        async with FakeModel(script) as server:
            monkeypatch.setenv("OPENAI_BASE_URL", server.url)
            code, found = await asyncio.to_thread(doctor, tmp_path, capsys)
        (check,) = found["answer"]
        assert (code, check["state"]) == ((0, "ok") if answers else (1, "failed"))


async def test_a_model_that_gives_no_answer_in_time_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_command, "ANSWER_SECONDS", 0.2)
    async with FakeModel(lambda messages, number: {"text": "ok", "hold": asyncio.Event()}) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        code, found = await asyncio.to_thread(doctor, tmp_path, capsys)
    assert code == 0 and found["answer"][0]["state"] == "warning"


@pytest.mark.parametrize(("status", "code"), [(401, 1), (404, 0)])
async def test_a_refused_key_fails_and_a_server_without_a_list_does_not(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    code: int,
) -> None:
    async def refuse(request: web.Request) -> web.Response:
        return web.json_response({"error": {"message": "no"}}, status=status)

    async def answer(request: web.Request) -> web.Response:
        message = {"role": "assistant", "content": "ok"}
        return web.json_response({"choices": [{"message": message, "finish_reason": "stop"}]})

    app = web.Application()
    app.router.add_get("/v1/models", refuse)
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{runner.addresses[0][1]}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-key")
    monkeypatch.setenv("OPENAI_MODEL", "any")
    try:
        result = await asyncio.to_thread(doctor, tmp_path, capsys)
    finally:
        await runner.cleanup()
    assert result[0] == code
    assert "sk-secret-key" not in json.dumps(result[1])


def test_people_read_one_line_a_check_with_the_way_to_mend_it_under_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--data-dir", str(tmp_path)]) == 0
    lines: list[Any] = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("ok    settings")
    assert any(line.strip().startswith("→ set OPENAI_API_KEY") for line in lines)


def test_a_platform_without_its_secret_is_named_and_one_with_it_passes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLACK_BOT_TOKEN", "xoxb-1")
    monkeypatch.setenv("DINGTALK_APP_SECRET", "secret-secret")
    monkeypatch.setenv("FEISHU_ENCRYPT_KEY", "   ")
    code, found = doctor(tmp_path, capsys)
    assert code == 0
    assert found["slack"][0]["state"] == "warning" and "SLACK_SIGNING_SECRET" in found["slack"][0]["mend"]
    assert found["dingtalk"][0]["state"] == "ok" and "wecom" not in found


def test_of_wecom_a_bot_alone_lacks_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WECOM_BOT_TOKEN", "bot-token")
    monkeypatch.setenv("WECOM_BOT_ENCODING_AES_KEY", SECRETS["WECOM_ENCODING_AES_KEY"])
    code, found = doctor(tmp_path, capsys)
    assert code == 0 and "wecom" not in found
    assert [check["state"] for check in found["wecom-bot"]] == ["ok"]


def test_a_secret_of_the_wrong_form_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GENERIC_WEBHOOK_SECRET", "whsec_!!!")
    monkeypatch.setenv("MINICLAW_CHANNELS__GENERIC__USER", "monitor")
    code, found = doctor(tmp_path, capsys)
    assert code == 1 and "base64" in found["webhooks"][0]["result"]


SECRETS = {
    "SLACK_SIGNING_SECRET": "5f0c1d2e3b4a59687786a5b4c3d2e1f0",
    "FEISHU_ENCRYPT_KEY": "miniclaw-test-encrypt-key-01",
    "FEISHU_VERIFICATION_TOKEN": "vt_miniclaw",
    "WECOM_CORP_ID": "ww01",
    "WECOM_AGENT_ID": "1",
    "WECOM_SECRET": "secret-of-the-app",
    "WECOM_TOKEN": "miniclawTestToken01",
    "WECOM_ENCODING_AES_KEY": "abcdefghijklmnopqrstuvwxyz0123456789ABCDEFG",
    "DINGTALK_APP_SECRET": "dingtalk-secret",
    "GENERIC_WEBHOOK_SECRET": "whsec_bWluaWNsYXctZ2VuZXJpYy13ZWJob29rLXNlY3JldCE=",
    "MINICLAW_CHANNELS__GENERIC__USER": "monitor",
}


async def test_the_public_address_is_tried_with_each_platforms_own_challenge(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    for directory in (tmp_path / "server", tmp_path / "other"):
        directory.mkdir()
        further = '[channels.slack.accounts.acme]\nsigning_secret = "another-one"\n'
        (directory / "miniclaw.toml").write_text(further, encoding="utf-8")
    loaded = load_settings(
        env=dict(os.environ) | {"MINICLAW_WEB__PORT": "0"}, data_dir=str(tmp_path / "server"), arguments={}
    )
    async with MiniClaw(loaded, provider=ScriptedProvider([]), web=True) as claw:
        assert claw.web is not None
        url = f"http://127.0.0.1:{claw.web.port}"
        words = ["doctor", "--json", "--data-dir", str(tmp_path / "other"), "--public-url"]
        assert await asyncio.to_thread(main, [*words, url]) == 0
        found = [check for check in json.loads(capsys.readouterr().out) if url in check["result"]]
        assert {check["name"] for check in found} == {
            *("slack", "slack/acme", "feishu", "wecom", "wecom-bot", "dingtalk", "generic")
        }
        monkeypatch.setenv("SLACK_SIGNING_SECRET", "another-secret-than-the-gateways")
        assert await asyncio.to_thread(main, [*words, url]) == 1
        out = json.loads(capsys.readouterr().out)
        assert [check["name"] for check in out if check["state"] == "failed"] == ["slack"]


async def test_a_clock_that_is_wrong_is_told_with_its_seconds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def models(request: web.Request) -> web.Response:
        date = format_datetime(datetime.fromtimestamp(time.time() - 600, UTC), usegmt=True)
        return web.json_response({"data": [{"id": "m"}]}, headers={"Date": date})

    app = web.Application()
    app.router.add_get("/v1/models", models)
    app.router.add_post("/v1/chat/completions", models)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{runner.addresses[0][1]}/v1")
        _, found = await asyncio.to_thread(doctor, tmp_path, capsys)
    finally:
        await runner.cleanup()
    (check,) = found["clock"]
    assert check["state"] == "warning" and "NTP" in check["mend"]
    assert 595 <= int(check["result"].split()[0]) <= 660 and "ahead" in check["result"]


def test_a_dead_mcp_server_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    servers = {"mcpServers": {"gone": {"command": sys.executable, "args": ["-c", "raise SystemExit(3)"]}}}
    (tmp_path / "mcp.json").write_text(json.dumps(servers), encoding="utf-8")
    _, found = doctor(tmp_path, capsys)
    (check,) = found["mcp"]
    assert check["state"] == "warning" and check["result"].startswith("gone: ")
    assert check["mend"] == "try `miniclaw mcp check gone`"


def test_what_a_damaged_database_left_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "miniclaw.db.corrupt").touch()
    (tmp_path / "miniclaw.db.damaged").touch()
    _, found = doctor(tmp_path, capsys)
    left, met = found["damage"]
    assert "miniclaw.db.corrupt" in left["result"] and "restart" in met["mend"]
