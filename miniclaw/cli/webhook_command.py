"""`miniclaw webhook simulate`: a platform's event without the platform, to a gateway that runs."""

from __future__ import annotations

import argparse
import importlib
import time
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode, urlsplit

from miniclaw.cli import add_common, say

if TYPE_CHECKING:
    from miniclaw.channel.standins.base import Shown
    from miniclaw.config import LoadedSettings

__all__ = ["add_arguments", "run"]

PLATFORMS: Final = {
    "slack": "SLACK_API_BASE",
    "feishu": "FEISHU_API_BASE",
    "wecom": "WECOM_API_BASE",
    "generic": "",
}
"""What can be simulated, and the variable that points the gateway at a stand-in."""
QUIET_SECONDS: Final = 3.0
"""Without anything new for so long, and nothing that still grows, the answer is complete."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    simulate = actions.add_parser("simulate", help="post a correctly signed event to the running gateway")
    simulate.add_argument("platform", choices=sorted(PLATFORMS))
    simulate.add_argument("--text", required=True, help="what the person says")
    simulate.add_argument(
        "--with-fake-api",
        action="store_true",
        help="stand in for the platform and print what it would receive",
    )
    simulate.add_argument(
        "--wait", type=float, default=60.0, help="seconds to wait for the answer (default 60)"
    )
    add_common(simulate, nested=True)


def run(args: argparse.Namespace) -> int:
    """Post, and with a stand-in wait for the answer; 1 when the gateway refuses or nothing comes."""
    from miniclaw.cli.start import load, run_async, set_up_logging

    loaded = load(args)
    set_up_logging(loaded, default="error")
    return run_async(_run(loaded, args))


async def _run(loaded: LoadedSettings, args: argparse.Namespace) -> int:
    from miniclaw.errors import ConfigError
    from miniclaw.rundir import RunDir

    running = RunDir(loaded.data_dir).running()
    if running is None or running.web_port is None:
        raise ConfigError(
            f"No gateway with a web port runs on `{loaded.data_dir}`; start it with `miniclaw serve`."
        )
    base = f"http://127.0.0.1:{running.web_port}/webhooks/"
    if not args.with_fake_api:
        return await _post(base, loaded, args, None)
    module = importlib.import_module(f"miniclaw.channel.standins.{args.platform}")
    standin = module.standin_of(loaded.settings)
    await standin.start(_port(loaded, args.platform))
    try:
        code = await _post(base, loaded, args, standin)
        return code or await _watch(standin, args.wait)
    finally:
        await standin.stop()


def _settings_of(loaded: LoadedSettings, platform: str) -> Any:
    return getattr(loaded.settings.channels, platform)


def _port(loaded: LoadedSettings, platform: str) -> int:
    """Where the gateway sends to: the stand-in must be there."""
    from miniclaw.errors import ConfigError

    variable = PLATFORMS[platform]
    if not variable:
        return 0
    parts = urlsplit(_settings_of(loaded, platform).api_base)
    if parts.hostname not in ("127.0.0.1", "localhost") or parts.port is None:
        raise ConfigError(
            f"Set {variable}=http://127.0.0.1:8199 for the gateway and for this command, and restart it."
        )
    return int(parts.port)


async def _post(base: str, loaded: LoadedSettings, args: argparse.Namespace, standin: Any) -> int:
    import httpx

    module = importlib.import_module(f"miniclaw.channel.standins.{args.platform}")
    more = {"reply_url": f"{standin.url}/reply"} if args.platform == "generic" and standin else {}
    event = module.event_of(_settings_of(loaded, args.platform), args.text, now=time.time(), **more)
    query = f"?{urlencode(event.query)}" if event.query else ""
    async with httpx.AsyncClient(trust_env=False, timeout=10.0) as client:
        response = await client.post(f"{base}{event.path}{query}", content=event.body, headers=event.headers)
    say(f"{args.platform}: {response.status_code} {response.text}".rstrip())
    if more and response.status_code == 400:
        say(
            'Add "127.0.0.1" to `channels.generic.reply_hosts`, where the stand-in is, and restart the gateway.'
        )
    return int(not response.is_success)


async def _watch(standin: Any, seconds: float) -> int:
    """Print what people would see, as soon as it is complete."""
    import asyncio

    async def complete() -> None:
        await standin.until(lambda: standin.shown, seconds)
        while True:
            before = len(standin.calls)
            await asyncio.sleep(QUIET_SECONDS)
            if len(standin.calls) == before and not any(message.is_open for message in standin.shown):
                return

    try:
        async with asyncio.timeout(seconds):
            await complete()
    except TimeoutError:
        say("nothing came in time; the gateway's log says why")
        return 1
    shown: list[Shown] = standin.shown
    for message in shown:
        say(f"→ {message.conversation}{f' in {message.thread}' if message.thread else ''}: {message.text}")
    return 0
