"""The chapters of the course as the tools see them: directories, imports, public names, manifests.

What is said here once is used by `sync_docs.py`, by `course.py` and by the tests.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parent.parent

NAMES: Final = ("gateway", "channel", "session", "agent", "tools", "skills", "memory", "mcp")

WHOLE: Final[dict[int, frozenset[int]]] = {
    1: frozenset(),
    2: frozenset({1}),
    3: frozenset(),
    4: frozenset(),
    5: frozenset({4}),
    6: frozenset({5}),
    7: frozenset({3, 4}),
    8: frozenset({5}),
}
"""Days that a chapter's package builds on; beside them every day may import `MiniClawError` of day 1."""

LIBRARIES: Final[dict[str, str]] = {
    "aiohttp": "aiohttp>=3.14",
    "dotenv": "python-dotenv>=1.2",
    "httpx": "httpx>=0.28",
    "openai": "openai>=3.50",
    "pydantic": "pydantic>=2.14",
    "pydantic_core": "pydantic>=2.14",
    "tiktoken": "tiktoken>=0.12",
    "websockets": "websockets>=17",
}
"""What a chapter may need beyond the standard library, by import name."""

TEST_TOOLS: Final = ("pytest>=9", "pytest-asyncio>=1.5", "pytest-cov>=7")
TEST_IMPORTS: Final = frozenset({"pytest", "pytest_asyncio"})

PACKAGE_LINES, MODULE_LINES, FUNCTION_LINES, README_LINES = 600, 200, 40, 250


@dataclass(frozen=True)
class Imported:
    """A name that a file imports from a module."""

    module: str
    name: str
    line: int

    @property
    def top(self) -> str:
        """The package at the root."""
        return self.module.partition(".")[0]


@dataclass(frozen=True)
class Manifest:
    """What a chapter teaches, as `tests/contracts/dayN.toml` lists it."""

    behaviours: tuple[dict[str, str], ...]
    names: dict[str, str] = field(default_factory=dict)
    """Modules of the core for names whose counterpart is not in the module of the same name."""
    constructors: dict[str, str] = field(default_factory=dict)
    """Classes that are made in another way in the core, and why."""


@dataclass(frozen=True)
class Chapter:
    """One day."""

    number: int

    @property
    def name(self) -> str:
        return NAMES[self.number - 1]

    @property
    def package(self) -> str:
        """The import name."""
        return f"day{self.number}_{self.name}"

    @property
    def directory(self) -> Path:
        return ROOT / f"day{self.number}-{self.name}"

    @property
    def source(self) -> Path:
        """The directory of the package."""
        return self.directory / self.package

    @property
    def core(self) -> str:
        """The package of the core in which the chapter's names stand."""
        return f"miniclaw.{self.name}"

    @property
    def readme(self) -> Path:
        return self.directory / "README.md"

    def modules(self) -> list[Path]:
        """The package's own files, without tests."""
        return [path for path in sorted(self.source.rglob("*.py")) if not path.name.startswith("test_")]

    def files(self) -> list[Path]:
        """Every Python file of the chapter."""
        return sorted(path for path in self.directory.rglob("*.py") if ".venv" not in path.parts)

    def lines(self) -> int:
        """Lines of the package without tests."""
        return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in self.modules())

    def public(self) -> tuple[str, ...]:
        """`__all__` of the package, which may be written in several lines with `+=`."""
        names: list[str] = []
        for node in parse(self.source / "__init__.py").body:
            if isinstance(node, ast.Assign | ast.AugAssign) and _is_all(_target(node)):
                names += ast.literal_eval(node.value)
        return tuple(names)

    def days_needed(self) -> list[int]:
        """Earlier days that any file of the chapter, or a day it needs, imports; day 1 counts as named."""
        needed = {1} - {self.number}
        for path in self.files():
            needed |= {day for one in imports(path) if (day := day_of(one.top)) and day != self.number}
        for day in sorted(needed, reverse=True):
            needed |= set(Chapter(day).package_days())
        return sorted(needed)

    def package_days(self) -> list[int]:
        """Earlier days that the package alone needs, also through others."""
        found = {day for path in self.modules() for one in imports(path) if (day := day_of(one.top))}
        found -= {self.number}
        for day in sorted(found, reverse=True):
            found |= set(Chapter(day).package_days())
        return sorted(found)

    def libraries(self, *, package_only: bool = False) -> list[str]:
        """Distributions that the chapter's own files import."""
        paths = self.modules() if package_only else self.files()
        tops = {one.top for path in paths for one in imports(path)}
        return sorted({LIBRARIES[top] for top in tops & set(LIBRARIES)})

    def manifest(self) -> Manifest:
        path = ROOT / "tests" / "contracts" / f"day{self.number}.toml"
        data: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        return Manifest(tuple(data.get("behaviour", ())), data.get("names", {}), data.get("constructors", {}))


def chapters() -> list[Chapter]:
    """The days that are there, in order."""
    every = [Chapter(number) for number in range(1, len(NAMES) + 1)]
    return [chapter for chapter in every if (chapter.source / "__init__.py").exists()]


def day_of(top: str) -> int | None:
    """The day whose package has this import name."""
    for number, name in enumerate(NAMES, 1):
        if top == f"day{number}_{name}":
            return number
    return None


def _target(node: ast.Assign | ast.AugAssign) -> ast.expr:
    return node.targets[0] if isinstance(node, ast.Assign) else node.target


def _is_all(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "__all__"


@cache
def _parsed(path: Path, changed: int) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def parse(path: Path) -> ast.Module:
    """The tree of a file; parsed again only when the file has changed."""
    return _parsed(path, path.stat().st_mtime_ns)


def imports(path: Path) -> Iterator[Imported]:
    """What a file imports from outside of its package, wherever the import stands."""
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Imported(alias.name, "*", node.lineno)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                yield Imported(node.module or "", alias.name, node.lineno)


def is_foreign(top: str) -> bool:
    """Whether an import name is neither the standard library's nor the course's."""
    return top not in sys.stdlib_module_names and day_of(top) is None


def find_source(root: Path, reference: str) -> list[str]:
    """The lines of `file.py#name`: a `# region name`, or a class, function or method (`Class.method`).

    Raises:
        ValueError: there is no such place; the text says which.
    """
    file, _, name = reference.partition("#")
    path = root / file
    if not path.is_file():
        raise ValueError(f"{reference}: there is no file {file}")
    lines = path.read_text(encoding="utf-8").splitlines()
    region = _region(lines, name)
    if region is not None:
        return region
    node = find_node(parse(path), name)
    if node is None:
        raise ValueError(f"{reference}: {file} has no region, class or function `{name}`")
    first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])
    return lines[first - 1 : node.end_lineno]


def _region(lines: list[str], name: str) -> list[str] | None:
    stripped = [line.strip() for line in lines]
    if f"# region {name}" not in stripped:
        return None
    start = stripped.index(f"# region {name}") + 1
    return lines[start : stripped.index("# endregion", start)]


def find_node(tree: ast.Module, name: str) -> ast.stmt | None:
    """A class, function, method or assigned name of a file."""
    body: list[ast.stmt] = tree.body
    found: ast.stmt | None = None
    for part in name.split("."):
        found = next((node for node in body if part in _names_of(node)), None)
        if found is None:
            return None
        body = getattr(found, "body", [])
    return found


def _names_of(node: ast.stmt) -> list[str]:
    match node:
        case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
            return [node.name]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
        case ast.Assign(targets=targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
    return []
