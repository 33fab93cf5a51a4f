"""`miniclaw doctor`: look at everything that a running gateway needs; changes nothing."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import socket
import sqlite3
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from miniclaw.cli import say
from miniclaw.damage import is_damaged
from miniclaw.errors import ConfigError, ModelError, way_out
from miniclaw.schema import NEWER, SCHEMA, SCHEMA_VERSION

if TYPE_CHECKING:
    from miniclaw.agent.providers import LLMProvider
    from miniclaw.config import LoadedSettings

__all__ = ["add_arguments", "run"]

LOW_DISK_BYTES: Final = 500 * 1024 * 1024
"""Free space below which a warning is due."""
MOST_LETTERS: Final = 10
"""Dead letters that are named one by one."""
CLOCK_SECONDS: Final = 60.0
MODEL_SECONDS: Final = 10.0
"""How long the model server may take to list its models."""
ANSWER_SECONDS: Final = 20.0
SHORTEST: Final = {
    "chat": 1,
    "responses": 16,
}  # tokens; https://platform.openai.com/docs/api-reference/responses
_RETRY: Final = "mend the cause, then POST /api/deliveries/KEY/retry for each that is still wanted"
_SIGNS: Final = {"ok": "ok  ", "warning": "warn", "failed": "FAIL"}


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    state: Literal["ok", "warning", "failed"]
    result: str
    mend: str = ""
    """What to do, where something is wrong."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--json", action="store_true", help="print the checks as one JSON list")
    parser.add_argument("--public-url", metavar="URL", help="send each platform's challenge to this address")


def run(args: argparse.Namespace) -> int:
    """Print every check; 1 when one failed."""
    from miniclaw.cli.start import load, set_up_logging

    try:
        loaded = load(args)
    except ConfigError as error:
        checks = [Check("settings", "failed", str(error), "mend that line, then run doctor again")]
    else:
        set_up_logging(loaded, default="error")
        checks = list(_checks(loaded, args.public_url))
    if args.json:
        say(json.dumps([asdict(check) for check in checks], ensure_ascii=False, indent=2))
    else:
        for check in checks:
            say(f"{_SIGNS[check.state]}  {check.name:9}  {check.result}")
            if check.mend:
                say(f"{'':17}→ {check.mend}")
    return int(any(check.state == "failed" for check in checks))


def _checks(loaded: LoadedSettings, public_url: str | None) -> Iterator[Check]:
    count = len(loaded.origins)
    yield Check("settings", "ok", f"{count} values set, the rest are defaults")
    yield from _directory(loaded.data_dir)
    if loaded.settings.redis.url is None:
        yield from _database(loaded.data_dir / "miniclaw.db")
    else:
        yield from _redis(loaded)
    yield from _ports(loaded)
    yield from _model(loaded)
    yield from _clock(loaded)
    yield from _mcp(loaded)
    from miniclaw.cli.doctor_webhooks import look

    yield from look(loaded.settings.channels, public_url)


def _directory(directory: Path) -> Iterator[Check]:
    above = next(path for path in (directory, *directory.parents) if path.exists())
    if not os.access(above, os.W_OK | os.X_OK) or not above.is_dir():
        mend = "give this user write access, or choose another --data-dir"
        yield Check("data", "failed", f"{directory} cannot be written", mend)
        return
    yield Check("data", "ok", f"{directory}{'' if directory.exists() else ' (made at the first start)'}")
    free = shutil.disk_usage(above).free
    if free < LOW_DISK_BYTES:
        yield Check(
            "disk", "warning", f"{free >> 20} MB free", "make room: on a full disk nothing is accepted"
        )
    else:
        yield Check("disk", "ok", f"{free >> 30} GB free")


def _redis(loaded: LoadedSettings) -> Iterator[Check]:
    from miniclaw.redis.health import look

    async def found() -> list[Check]:
        return [Check("redis", state, said, mend) async for state, said, mend in look(loaded.settings)]

    yield from asyncio.run(found())


def _database(path: Path) -> Iterator[Check]:
    for left in sorted(path.parent.glob(f"{path.name}.corrupt*")):
        mend = "look at the disk; delete the file when nothing in it is missed"
        yield Check("damage", "warning", f"{left.name} holds what could not be read", mend)
    if is_damaged(path):
        yield Check("damage", "warning", "damage was met since the start", "restart: what is sound is kept")
    if not path.exists():
        yield Check("database", "ok", "none yet")
        return
    try:
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        try:
            verdict = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
            known = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version > SCHEMA_VERSION:
                mend = "upgrade miniclaw or choose another --data-dir"
                yield Check("database", "failed", NEWER.format(path, version), mend)
                return
            if version == SCHEMA_VERSION and (lost := set(re.findall(r"CREATE TABLE (\w+)", SCHEMA)) - known):
                verdict = f"without the tables {', '.join(sorted(lost))}"
            letters = connection.execute(
                "SELECT key, channel, conversation, error FROM deliveries WHERE state = 'dead' ORDER BY n DESC"
            ).fetchall()
        finally:
            connection.close()
    except sqlite3.Error as error:
        if way := way_out(error):
            yield Check("database", "failed", f"{path} cannot be read: {error}", way)
            return
        verdict, version, letters = str(error), 0, []
    if verdict != "ok":
        mend = "stop the gateway and put a backup of the file in its place"
        yield Check("database", "failed", f"{path} is damaged: {verdict}", mend)
        return
    yield Check("database", "ok", f"{path.stat().st_size >> 10} kB, schema {version}")
    yield from _dead(letters)


def _dead(letters: list[tuple[str, ...]]) -> Iterator[Check]:
    if not letters:
        yield Check("delivery", "ok", "no dead letters")
        return
    yield Check("delivery", "warning", f"{len(letters)} answers could not be delivered", _RETRY)
    for key, channel, conversation, reason in letters[:MOST_LETTERS]:
        yield Check("delivery", "warning", f"{key} to {channel} {conversation}: {reason}")


def _ports(loaded: LoadedSettings) -> Iterator[Check]:
    from miniclaw.rundir import RunDir

    running = RunDir(loaded.data_dir).running()
    if running is not None:
        result = f"running as process {running.pid}: web {running.web_port}, gateway {running.gateway_port}"
        yield Check("gateway", "ok", result)
        return
    settings = loaded.settings
    for name, host, port, option in (
        ("gateway", settings.gateway.host, settings.gateway.port, "--gateway-port"),
        ("web", settings.web.host, settings.web.port, "--port"),
    ):
        if not port:
            continue
        try:
            socket.create_server((host, port)).close()
        except OSError as error:
            mend = f"end what uses it, or start with `{option} 0` for any free port"
            result = f"{host}:{port} cannot be used: {error.strerror}"
            is_moved = name == "web" and "web.port" not in loaded.origins  # `serve` takes the next free one
            yield Check(name, "warning" if is_moved else "failed", result, mend)
        else:
            yield Check(name, "ok", f"{host}:{port} is free")


def _model(loaded: LoadedSettings) -> Iterator[Check]:
    from miniclaw.cli.start import run_async

    found: list[Check] = []

    async def look() -> int:
        from miniclaw.agent.select import choose_provider

        settings, agent = loaded.settings.model.model_copy(update={"fallback": ()}), loaded.settings.agent
        for length in (SHORTEST[settings.api], agent.max_tokens):
            provider = await choose_provider(settings, agent.model_copy(update={"max_tokens": length}))
            try:
                found[:] = [await _try_model(provider)]
                if found[0].state != "ok":
                    break
                if answer := await _try_answer(provider, is_tiny=length != agent.max_tokens):
                    found.append(answer)
                    break
            finally:
                await provider.close()
        return 0

    run_async(look())
    yield from found


def _clock(loaded: LoadedSettings) -> Iterator[Check]:
    from miniclaw.cli.doctor_clock import seconds_off

    model = loaded.settings.model
    if model.base_url is None and model.api_key is None:
        return
    off = seconds_off((model.base_url or "https://api.openai.com/v1").rstrip("/") + "/models")
    if off is None:
        return
    if abs(off) < CLOCK_SECONDS:
        yield Check("clock", "ok", "agrees with the model server's")
        return
    said = f"{abs(off):.0f} s {'ahead of' if off > 0 else 'behind'} the model server's"
    yield Check(
        "clock", "warning", said, "set it, or switch NTP on: from 5 minutes on, platforms' signatures fail"
    )


def _mcp(loaded: LoadedSettings) -> Iterator[Check]:
    from miniclaw.cli.mcp_servers import server_rows
    from miniclaw.cli.start import run_async

    rows: list[dict[str, Any]] = []

    async def look() -> int:
        rows.extend(await server_rows(loaded))
        return 0

    try:
        run_async(look())
    except ConfigError as error:
        yield Check("mcp", "warning", str(error), "look at `miniclaw mcp list`")
    for row in rows:
        name, tools = row["name"], f"{len(row['tools'])} tools"
        if row["state"] in ("ready", "off"):
            yield Check("mcp", "ok", f"{name}: {tools if row['state'] == 'ready' else 'switched off'}")
        else:
            advice = f"try `miniclaw mcp check {name}`"
            yield Check("mcp", "warning", f"{name}: {row['error'] or 'it does not answer yet'}", advice)


async def _try_model(provider: LLMProvider) -> Check:
    info = provider.info
    if info.demo:
        mend = "set OPENAI_API_KEY or OPENAI_BASE_URL, or start a model server such as Ollama"
        return Check("model", "warning", "none is configured: the built-in demo answers", mend)
    try:
        names = await asyncio.wait_for(provider.models(), MODEL_SECONDS)
    except TimeoutError:
        return Check("model", "failed", f"{info.where} does not answer", "check OPENAI_BASE_URL")
    except ModelError as error:
        if error.code == "model_not_found":  # the list itself: not every server has one
            return Check("model", "ok", f"{info.name} at {info.where}, which lists no models")
        return Check("model", "failed", str(error), "check OPENAI_BASE_URL and OPENAI_API_KEY")
    if names and info.name not in names:
        mend = f"set OPENAI_MODEL to one of: {', '.join(names[:8])}"
        return Check("model", "failed", f"{info.where} has no model `{info.name}`", mend)
    return Check("model", "ok", f"{info.name} at {info.where}")


async def _try_answer(provider: LLMProvider, *, is_tiny: bool) -> Check | None:
    """A shortest answer, since a list of models may be had without a key; `None`: perhaps it was too short."""
    request = [{"role": "user", "content": "Say ok."}]
    try:
        await asyncio.wait_for(provider.chat(request), ANSWER_SECONDS)
    except TimeoutError:
        mend = "try again when the server has loaded the model"
        return Check("answer", "warning", f"none within {ANSWER_SECONDS:g} s", mend)
    except ModelError as error:
        if is_tiny and error.code == "model_error":
            return None
        state: Literal["warning", "failed"] = "warning" if error.code == "model_rate_limited" else "failed"
        return Check("answer", state, str(error), "check OPENAI_API_KEY, OPENAI_BASE_URL and OPENAI_MODEL")
    return Check("answer", "ok", "the model answers with this key")
