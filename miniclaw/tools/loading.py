"""Own tools: Python files of the data directory, and packages with an entry point in `miniclaw.tools`."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import logging
import sys
from collections.abc import Callable, Iterable
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from miniclaw.errors import ConfigError, ToolError
from miniclaw.tools.base import Tool, ToolProblem
from miniclaw.tools.function import FunctionTool
from miniclaw.tools.registry import ToolRegistry

__all__ = ["OwnTools", "load_file"]

logger = logging.getLogger(__name__)

GROUP: Final = "miniclaw.tools"
Signature = tuple[tuple[str, int, int], ...]


class OwnTools:
    """Keeps a registry in step with a directory of files; the state of the disk is the state of the registry.

    Each file stands for itself: all of its tools are there, or none of them and a `ToolProblem`. Files whose
    names begin with `_` are not read.

    Args:
        registry: where the tools go; it looks for changes whenever the tools are listed for a turn.
        directory: the files.
        packages: the entry points.
    """

    def __init__(
        self,
        registry: ToolRegistry,
        directory: Path,
        *,
        packages: Callable[[], Iterable[EntryPoint]] = lambda: entry_points(group=GROUP),
    ) -> None:
        self._registry = registry
        self._directory = directory
        self._packages = packages
        self._seen: Signature = ()
        self._names: list[str] = []
        self.problems: tuple[ToolProblem, ...] = ()
        self._apply(*self._read())
        registry.source = self

    def refresh(self) -> None:
        """Load the files anew if one was added, changed or removed; a look at the directory otherwise."""
        if self._signature() != self._seen:
            self._apply(*self._read())

    async def reload(self) -> None:
        """Load everything anew, in a thread."""
        self._apply(*await asyncio.to_thread(self._read))

    def _signature(self) -> Signature:
        try:
            files = [(path.name, path.stat()) for path in sorted(self._directory.glob("*.py"))]
        except OSError:  # removed while it was looked at
            return ()
        return tuple((name, found.st_mtime_ns, found.st_size) for name, found in files)

    def _read(self) -> tuple[Signature, dict[str, list[Tool] | str]]:
        """What each source gives: its tools, or why there are none."""
        seen = self._signature()
        found: dict[str, list[Tool] | str] = {}
        for name, _, _ in seen:
            if not name.startswith("_"):
                path = self._directory / name
                found[str(path)] = _attempt(partial(_of_file, path))
        for point in self._packages():
            source = f"{point.value} ({GROUP}: {point.name})"
            found[source] = _attempt(partial(_of_package, point))
        return seen, found

    def _apply(self, seen: Signature, found: dict[str, list[Tool] | str]) -> None:
        for name in self._names:
            self._registry.remove(name)
        self._seen, self._names, problems = seen, [], []
        for source, given in found.items():
            error = given if isinstance(given, str) else self._register(given)
            if error:
                logger.error("no tools from %s: %s", source, error)
                problems.append(ToolProblem(source, error))
        self.problems = tuple(problems)

    def _register(self, tools: list[Tool]) -> str:
        """Add all tools of a source, or none; the reason why none."""
        added: list[str] = []
        try:
            for tool in tools:
                self._registry.register(tool)
                added.append(tool.name)
        except ConfigError as error:
            for name in added:
                self._registry.remove(name)
            return str(error)
        self._names += added
        return ""


def load_file(path: Path) -> ModuleType:
    """Run a Python file as a module of its own; raises whatever it raises."""
    name = f"miniclaw_file_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    try:
        code = compile(path.read_bytes(), str(path), "exec")  # no cache, which could hold an older text
    except OSError as error:
        raise ToolError(f"`{path}` cannot be read: {error.strerror}") from error
    spec = importlib.util.spec_from_loader(name, None, origin=str(path))
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    module.__file__ = str(path)
    sys.modules[name] = module  # annotations are looked up there
    try:
        exec(code, module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def tools_in(module: ModuleType) -> list[Tool]:
    """The tools that a module makes; what it imported from another one is not its own."""
    found = dict.fromkeys(value for value in vars(module).values() if isinstance(value, Tool))
    return [one for one in found if not isinstance(one, FunctionTool) or one.__module__ == module.__name__]


def _of_file(path: Path) -> list[Tool]:
    return tools_in(load_file(path))


def _of_package(point: EntryPoint) -> list[Tool]:
    """An entry point names a tool, several, a module, or a function that makes them."""
    value: Any = point.load()
    if isinstance(value, ModuleType):
        return tools_in(value)
    if callable(value) and not isinstance(value, Tool):
        value = value()
    tools = [value] if isinstance(value, Tool) else list(value)
    if not all(isinstance(one, Tool) for one in tools):
        raise ConfigError("The entry point gives something that is no tool.")
    return tools


def _attempt(load: Callable[[], list[Tool]]) -> list[Tool] | str:
    try:
        return load()
    except (Exception, SystemExit) as error:  # boundary: somebody else's code
        logger.debug("tools could not be loaded", exc_info=True)
        return _told(error)


def _told(error: BaseException) -> str:
    """The error with the line of the file that it comes from."""
    line = error.lineno if isinstance(error, SyntaxError) else None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__", "").startswith("miniclaw_file_"):
            line = trace.tb_lineno
        trace = trace.tb_next
    where = f"line {line}: " if line else ""
    return f"{where}{type(error).__name__}: {error}"
