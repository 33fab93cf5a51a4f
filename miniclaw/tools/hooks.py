"""What an operator wants to happen before and after tool calls, turns and compactions; nothing by default."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, Final

from miniclaw.errors import ConfigError, ToolError
from miniclaw.gateway.protocol import plain_text
from miniclaw.settings import Hook, Moment
from miniclaw.tools.foreign import (
    contained,
    finished,
    in_thread,
    is_cancelled,
    prints_aside,
    tasks_contained,
    trace_of,
)
from miniclaw.tools.loading import load_file, place_of
from miniclaw.tools.process import clean_environment, run_program

__all__ = ["Hooks"]

logger = logging.getLogger(__name__)

MAX_BYTES: Final = 100_000
"""What a command may write."""
MAX_REASON: Final = 1_000


class Hooks:
    """Runs the hooks of a moment in the order of the file; the first that blocks is the last that runs.

    A command gets the payload as JSON on its standard input and blocks by an exit code other than 0, with
    what it wrote as the reason. A callable gets the payload and blocks by returning a text. A hook that
    breaks or takes too long blocks, since nobody knows what it would have said.

    Args:
        hooks: the hooks of each moment.
        data_dir: where commands run and where files of callables are.

    Raises:
        ConfigError: a callable cannot be found.
    """

    def __init__(self, hooks: Mapping[Moment, Sequence[Hook]], data_dir: Path) -> None:
        self._data_dir = data_dir
        self.hide: Callable[[str], str] = str
        """Takes the operator's secrets out of what is logged and told."""
        self._hooks = {
            moment: [(hook, _callable(hook.call, data_dir) if hook.call else None) for hook in of_moment]
            for moment, of_moment in hooks.items()
        }

    async def run(self, moment: Moment, payload: Mapping[str, Any]) -> str | None:
        """The reason why a hook blocks, or `None` = go on. A hook with `tools` sees only those."""
        for hook, function in self._hooks.get(moment, ()):
            if hook.tools and payload.get("tool") not in hook.tools:
                continue
            reason = await self._one(hook, function, {"moment": moment, **payload})
            if reason is not None:
                logger.info("hook %s blocks at %s", _name(hook), moment)
                return self.hide(plain_text(reason))[:MAX_REASON]
        return None

    async def _one(
        self, hook: Hook, function: Callable[..., Any] | None, payload: dict[str, Any]
    ) -> str | None:
        try:
            if function is None:
                return await self._command(hook, payload)
            call = partial(function, deepcopy(payload))
            async with asyncio.timeout(hook.timeout) as limit:
                answer = call() if inspect.iscoroutinefunction(function) else await in_thread(call)
                if inspect.iscoroutine(answer):
                    with prints_aside(), tasks_contained():
                        answer = await contained(answer)
            if limit.expired():  # it went on when it was told to end
                raise TimeoutError
            return None if answer is None else str(answer) or "a hook says no"
        except BaseException as error:  # boundary: an operator's code ends neither turn nor program
            if is_cancelled(error):
                raise
            logger.error("hook %s failed\n%s", _name(hook), self.hide(trace_of(error)))
            return f"the hook `{_name(hook)}` failed ({type(error).__name__})"

    async def _command(self, hook: Hook, payload: dict[str, Any]) -> str | None:
        done = await run_program(
            hook.command,
            cwd=self._data_dir,
            env=clean_environment(self._data_dir),
            seconds=hook.timeout,
            max_bytes=MAX_BYTES,
            text=plain_text(json.dumps(payload, ensure_ascii=False, default=str)),
        )
        if done.code == 0:
            return None
        if done.reason:
            logger.error("hook %s was killed: %s", _name(hook), done.reason)
            return f"the hook `{_name(hook)}` was killed: {done.reason}"
        return done.output.strip() or f"the hook `{_name(hook)}` says no (exit code {done.code})"


def _name(hook: Hook) -> str:
    return hook.call or hook.command[0]


def _callable(call: str, data_dir: Path) -> Callable[..., Any]:
    module, _, name = call.rpartition(":")
    load = (
        partial(load_file, data_dir / module)
        if module.endswith(".py")
        else partial(importlib.import_module, module)
    )
    try:
        loaded = finished(load)
    except ToolError as error:
        raise ConfigError(f"The hook `{call}` cannot be loaded: {error}") from error
    failure = loaded.exception()
    if isinstance(failure, ImportError | ToolError) or (failure and not module):
        raise ConfigError(f"The hook `{call}` cannot be found: {str(failure).rstrip('.')}.") from failure
    if failure is not None:  # its text may hold a secret
        raise ConfigError(f"The hook `{call}` fails when it is loaded ({place_of(failure)}).") from failure
    function: object = getattr(loaded.result(), name, None)
    if function is None:
        raise ConfigError(f"The hook `{call}` cannot be found: there is no `{name}`.")
    if not callable(function):
        raise ConfigError(f"The hook `{call}` is no function.")
    return function
