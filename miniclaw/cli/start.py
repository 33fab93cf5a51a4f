"""What every command that runs the program does first: settings, logging, event loop."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Coroutine, Mapping
from logging.handlers import RotatingFileHandler
from typing import Any, Final

from miniclaw.cli import HARMLESS
from miniclaw.config import LoadedSettings, load_settings
from miniclaw.errors import ConfigError
from miniclaw.logs import JsonFormatter

__all__ = ["load", "run_async", "set_up_logging"]

END_SECONDS: Final = 3.0
"""How long what was told to end is waited for."""


def load(args: argparse.Namespace, arguments: Mapping[str, Any] | None = None) -> LoadedSettings:
    """The settings with the common arguments and those of a command applied."""
    given = dict(arguments or {})
    if args.log_level:
        given["log.level"] = args.log_level
    if args.log_format:
        given["log.format"] = args.log_format
    if args.log_file:
        given["log.file"] = args.log_file
    return load_settings(arguments=given, data_dir=args.data_dir, config_file=args.config)


class _Harmless(logging.Formatter):
    """What another formatter writes, without control characters: a line may hold words of others."""

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        return self._inner.format(record).translate(HARMLESS)


def set_up_logging(loaded: LoadedSettings, *, default: str | None = None) -> None:
    """Log to the file that is set, else to standard error; never to standard output."""
    log = loaded.settings.log
    level = default if default and "log.level" not in loaded.origins else log.level
    handler: logging.Handler
    if log.file:
        try:
            handler = RotatingFileHandler(
                log.file, maxBytes=log.max_bytes, backupCount=log.keep, encoding="utf-8"
            )
        except OSError as error:
            raise ConfigError(f"The log file `{log.file}` cannot be written: {error.strerror}.") from error
    else:
        handler = logging.StreamHandler(sys.stderr)
    lines = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(_Harmless(JsonFormatter() if log.format == "json" else lines))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(level.upper())
    for noisy in (
        "httpx",
        "httpx2",
        "httpcore2",
    ):  # they log whole URLs, and some platforms put secrets there
        logging.getLogger(noisy).setLevel(logging.WARNING)
    if level != "debug":
        for noisy in ("openai", "websockets", "aiohttp.access"):
            logging.getLogger(noisy).setLevel(logging.WARNING)
        # What breaks in our handlers is logged by them; what is left here is malformed HTTP of strangers.
        logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)


def run_async(work: Coroutine[Any, Any, int]) -> int:
    """Run a command's coroutine, on uvloop where the platform has it."""
    factory = None
    with contextlib.suppress(ImportError):
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(_to_the_end(work))


async def _to_the_end(work: Coroutine[Any, Any, int]) -> int:
    """A command's work, and then the end of the process, whatever still runs: an own tool may not want to end."""
    code = await work
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left and (await asyncio.wait(left, timeout=END_SECONDS))[1]:
        logging.getLogger("miniclaw").warning(
            "something does not end when it is told to; the process ends without it"
        )
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code
