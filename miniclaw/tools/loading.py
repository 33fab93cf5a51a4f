"""Own tools: Python files of the data directory, and packages with an entry point in `miniclaw.tools`."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import logging
import os
import stat
import sys
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future, wait
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Final, NoReturn, TypeVar

from miniclaw.errors import ConfigError, ToolError
from miniclaw.tools.base import Tool, ToolProblem
from miniclaw.tools.foreign import finished, in_thread, start, text_of, trace_of
from miniclaw.tools.function import FunctionTool
from miniclaw.tools.registry import ToolRegistry

__all__ = ["OwnTools", "load_file", "place_of"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

GROUP: Final = "miniclaw.tools"
GRACE: Final = 1.0
"""Seconds that a list of tools waits for changed files; the old tools count until a slow one is loaded."""
_FLAGS: Final = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
Signature = tuple[tuple[str, int, int], ...]
Sources = dict[str, list[Tool] | str]


class _Fresh(SourceFileLoader):
    """Keeps no compiled text, which could be older than the file by less than a second."""

    def path_stats(self, path: Any) -> NoReturn:
        raise OSError


class _Helpers(MetaPathFinder):
    """Finds a module `_name` beside own tools, which they share; nothing else can take its place by that."""

    places: ClassVar[list[str]] = []

    @classmethod
    def find_spec(cls, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        found = PathFinder.find_spec(name, cls.places) if path is None and name.startswith("_") else None
        if found is not None and found.origin and isinstance(found.loader, SourceFileLoader):
            found.loader = _Fresh(name, found.origin)
        return found


class OwnTools:
    """Keeps a registry in step with a directory of files; the state of the disk is the state of the registry.

    Each file stands for itself: all of its tools are there, or none of them and a `ToolProblem`. Files whose
    names begin with `_` are none: they are modules that the others can import, and are read anew with them.

    Args:
        registry: where the tools go; it looks for changes whenever the tools are listed for a turn.
        directory: the files.
        packages: the entry points.
        reserved: names of built-in tools that are registered later, or not in this program.
    """

    def __init__(
        self,
        registry: ToolRegistry,
        directory: Path,
        *,
        packages: Callable[[], Iterable[EntryPoint]] = lambda: entry_points(group=GROUP),
        reserved: Collection[str] = (),
    ) -> None:
        self._registry = registry
        self._directory = directory
        self._packages = packages
        self._reserved = frozenset(reserved)
        self._seen: Signature = ()
        self._loading: Future[tuple[Signature, Sources]] | None = None
        self._names: list[str] = []
        self.problems: tuple[ToolProblem, ...] = ()
        self._apply(*self._read())
        registry.source = self

    def refresh(self) -> None:
        """Load the files anew if one was added, changed or removed; a look at the directory otherwise."""
        if (begun := self._begin()) is not None:
            wait((begun,), GRACE)
        self._take_in()

    async def refreshed(self) -> None:
        """`refresh`, without stopping the loop while changed files are loaded."""
        if (begun := self._begin()) is not None:
            await asyncio.wait([asyncio.wrap_future(begun)], timeout=GRACE)
        self._take_in()

    def _begin(self) -> Future[tuple[Signature, Sources]] | None:
        """Begin to load files that changed; `None` where none did, or are being loaded already."""
        if self._loading is not None or self._signature() == self._seen:
            return None
        self._loading = start(self._read)
        return self._loading

    def _take_in(self) -> None:
        if self._loading is not None and self._loading.done():
            done, self._loading = self._loading, None
            self._apply(*done.result())

    async def reload(self) -> None:
        """Load everything anew, in a thread."""
        read = await in_thread(self._read)
        self._loading = None
        self._apply(*read)

    def _signature(self) -> Signature:
        """What tells a change, without opening a file; plain calls, since it is done several times a turn."""
        seen = []
        try:
            names = sorted(name for name in os.listdir(self._directory) if name.endswith(".py"))
        except OSError:  # there is none, or none that can be read
            return ()
        for name in names:
            try:
                found = os.stat(f"{self._directory}/{name}")
                seen.append((name, found.st_mtime_ns, found.st_size))
            except OSError:  # a link to nothing, or removed while it was looked at; loading tells
                seen.append((name, -1, -1))
        return tuple(seen)

    def _read(self) -> tuple[Signature, Sources]:
        """What each source gives: its tools, or why there are none."""
        seen = self._signature()
        found: Sources = {}
        self._forget_helpers()
        for name, _, _ in seen:
            if not name.startswith(("_", ".")):
                path = self._directory / name
                found[f"{self._directory.name}/{name}"] = self._attempt(partial(_of_file, path))
        points = self._attempt(lambda: list(self._packages()))
        if isinstance(points, str):
            found[f"packages ({GROUP})"] = points
        for point in points if isinstance(points, list) else ():
            source = f"{point.value} ({GROUP}: {point.name})"
            found[source] = self._attempt(partial(_of_package, point))
        return seen, found

    def _forget_helpers(self) -> None:
        """Let the modules beside the files be found, and read anew."""
        place = os.path.abspath(self._directory)
        if place not in _Helpers.places:
            _Helpers.places.insert(0, place)
        if _Helpers not in sys.meta_path:
            sys.meta_path.append(_Helpers)
        PathFinder.invalidate_caches()
        for name, module in [item for item in list(sys.modules.items()) if item[0].startswith("_")]:
            if (getattr(module, "__file__", None) or "").startswith(f"{place}{os.sep}"):
                sys.modules.pop(name, None)

    def _apply(self, seen: Signature, found: Sources) -> None:
        for name in self._names:
            self._registry.remove(name)
        self._seen, self._names, problems = seen, [], []
        for source, given in found.items():
            error = given if isinstance(given, str) else self._register(given)
            if error:
                error = self._shown(error)
                logger.error("no tools from %s: %s", source, error)
                problems.append(ToolProblem(source, error))
        self.problems = tuple(problems)

    def _register(self, tools: list[Tool]) -> str:
        """Add all tools of a source, or none; the reason why none."""
        added: list[str] = []
        try:
            for tool in tools:
                added += [self._registry.register(tool)]
                if built_in := self._reserved & {tool.name, *tool.aliases}:
                    raise ConfigError(f"`{min(built_in)}` is the name of a built-in tool. Rename yours.")
        except BaseException as error:  # noqa: BLE001 - boundary: attributes of somebody else's class
            for name in added:
                self._registry.remove(name)
            return self._told(error)
        self._names += added
        return ""

    def _attempt(self, load: Callable[[], list[T]]) -> list[T] | str:
        try:
            loaded = finished(load)
        except ToolError as error:
            return text_of(error)
        failure = loaded.exception()  # boundary: somebody else's code
        return loaded.result() if failure is None else self._told(failure)

    def _told(self, failure: BaseException) -> str:
        logger.debug("tools could not be loaded\n%s", self._registry.hide(trace_of(failure)))
        place = place_of(failure)
        text = text_of(failure)
        told = text if place == ConfigError.__name__ else f"{place}: {text}".rstrip(": ")
        return told if isinstance(failure, Exception) else f"{told} tries to end the program"

    def _shown(self, text: str) -> str:
        """Without secrets, and with files named from the data directory on."""
        return self._registry.hide(text).replace(f"{self._directory.parent}{os.sep}", "")


def load_file(path: Path) -> ModuleType:
    """Run a Python file as a module of its own; raises whatever it raises."""
    name = f"miniclaw_file_{path.stem}_{hashlib.sha256(os.fsencode(path)).hexdigest()[:8]}"
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | _FLAGS)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # a pipe or device may have no end
                raise ToolError(f"`{path}` is no regular file")
            source = file.read()
    except OSError as error:
        raise ToolError(f"`{path}` cannot be read: {error.strerror}") from error
    code = compile(source, str(path), "exec")  # no cache, which could hold an older text
    spec = importlib.util.spec_from_loader(name, None, origin=str(path))
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    module.__file__ = str(path)
    sys.modules[name] = module  # annotations are looked up there
    try:
        exec(code, module.__dict__)
    except BaseException:
        if sys.modules.get(name) is module:  # else it was loaded anew while this one hung
            del sys.modules[name]
        raise
    return module


def tools_in(module: ModuleType) -> list[Tool]:
    """The tools that a module makes, also in a list or dict; what it imported from another one is not its own."""
    found: dict[int, Tool] = {}
    for value in list(vars(module).values()):
        several = value.values() if isinstance(value, dict) else value
        for one in several if isinstance(value, dict | list | tuple) else (value,):
            if isinstance(one, Tool):
                found[id(one)] = one
    return [
        one
        for one in found.values()
        if not isinstance(one, FunctionTool) or one.__module__ == module.__name__
    ]


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


def place_of(error: BaseException) -> str:
    """The class of an error and the line of the file that it comes from."""
    line = error.lineno if isinstance(error, SyntaxError) else None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__", "").startswith("miniclaw_file_"):
            line = trace.tb_lineno
        trace = trace.tb_next
    return f"line {line}: {type(error).__name__}" if line else type(error).__name__
