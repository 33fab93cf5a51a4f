"""`miniclaw serve`: everything, until a signal says stop."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from miniclaw.app import MiniClaw
    from miniclaw.config import LoadedSettings

__all__ = ["add_arguments", "run", "serve_until_signal"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    port = "a number, 0 = any free one, none = not at all"
    parser.add_argument("--port", type=_port, help=f"web chat, HTTP API, webhooks (default 8080): {port}")
    parser.add_argument("--gateway-port", type=_port, help=f"raw WebSocket gateway (default 8765): {port}")


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM (exit 0) or SIGINT (exit 130); a second signal ends at once."""
    from miniclaw import failpoints
    from miniclaw.cli.start import load, run_async, set_up_logging

    arguments: dict[str, Any] = {}
    if args.host is not None:
        arguments = {"web.host": args.host, "gateway.host": args.host}
    if args.port is not None:
        arguments["web.port"] = None if args.port == "none" else args.port
    if args.gateway_port is not None:
        arguments["gateway.port"] = None if args.gateway_port == "none" else args.gateway_port
    failpoints.arm(os.environ.get("MINICLAW_TEST_FAIL_AT"))
    loaded = load(args, arguments)
    set_up_logging(loaded)
    return run_async(_serve(loaded))


async def _serve(loaded: LoadedSettings) -> int:
    from miniclaw.app import MiniClaw

    return await serve_until_signal(MiniClaw(loaded), _greet)


async def serve_until_signal(claw: MiniClaw, greet: Callable[[MiniClaw], None]) -> int:
    """Run a gateway until a signal says stop, or a part of it breaks; returns the exit code."""
    from miniclaw.collector import collect_thoroughly, small_collections
    from miniclaw.notify import Notifier

    stopped: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def stop(code: int) -> None:
        if stopped.done():
            os._exit(code or 143)
        stopped.set_result(code)

    loop = asyncio.get_running_loop()
    for number, code in ((signal.SIGTERM, 0), (signal.SIGINT, 130)):
        try:
            loop.add_signal_handler(number, stop, code)
        except NotImplementedError:  # Windows has no signal handlers on the loop
            signal.signal(number, lambda *_, code=code: loop.call_soon_threadsafe(stop, code))
    manager = Notifier(os.environ)
    async with claw:
        greet(claw)
        manager.send("READY=1")
        alive = loop.create_task(manager.keep_alive())
        tidy = loop.create_task(collect_thoroughly(lambda: not claw.live.all()))
        broken = loop.create_task(claw.broken.wait())
        either: list[asyncio.Future[Any]] = [stopped, broken]
        with small_collections():
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        for task in (broken, alive, tidy):
            task.cancel()
        manager.send("STOPPING=1")
        code = stopped.result() if stopped.done() else 1
        print("stopping: running turns may finish; a second signal ends at once", flush=True)
    return code


def _greet(claw: MiniClaw) -> None:
    model = claw.provider.info
    kind = (
        " (the built-in demo: set OPENAI_API_KEY or OPENAI_BASE_URL for a real model)" if model.demo else ""
    )
    print(f"miniclaw serves {claw.data_dir} with model {model.name}{kind}")
    if claw.gateway is not None:
        print(f"gateway   ws://{claw.settings.gateway.host}:{claw.gateway.port}/")
    if claw.web is not None:
        print(f"web chat  {claw.web.url}/?token={claw.token}")
    sys.stdout.flush()


def _port(text: str) -> Any:
    if text.lower() == "none":
        return "none"
    if not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError("a port is 0 to 65535, or none")
    return int(text)
