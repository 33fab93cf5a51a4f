"""The shape of the package: imports point one way, files stay small, and starting costs nothing heavy."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.source import tree_of

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "miniclaw"
MODULES = sorted(PACKAGE.rglob("*.py"))

RANKS: tuple[tuple[str, ...], ...] = (
    (
        "",
        "lazy",
        "failpoints",
        "errors",
        "settings",
        "channel_settings",
        "schedules",
        "config",
        "logs",
        "notify",
        "metrics",
        "text",
        "tokens",
        "file_kinds",
        "file_text",
        "front_matter",
        "schema",
        "wal",
        "damage",
        "salvage",
        "db",
        "rundir",
        "whole_file",
        "archive",
    ),
    (
        "gateway.protocol",
        "gateway.events",
        "gateway.paced",
        "channel.base",
        "channel.forms",
        "channel.questions",
    ),
    ("identity", "session", "timer_store", "upload_store"),
    ("tools",),
    ("skills", "memory", "mcp"),
    ("agent",),
    ("gateway", "timers", "timer_tool", "observer", "uploads", "redis"),
    ("channel",),
    ("app", "wiring", "backends", "toolbox", "collector"),
    ("cli", "__main__"),
)
"""Parts of the package from the lowest on; each imports from its own rank and from lower ones only."""

MODULE_LINES, FUNCTION_LINES = 300, 40

LARGER: dict[str, tuple[int, str]] = {
    "gateway/protocol.py": (410, "the whole wire protocol and its envelope on one page"),
    "gateway/connection.py": (350, "one connection's life, which both sockets share"),
    "channel/platforms/feishu_api.py": (320, "all that is asked of Feishu, and what each refusal means"),
    "db.py": (
        395,
        "the one writer: group commit, reads, checkpoints and what tells that the file is damaged",
    ),
    "app.py": (400, "start and stop of all parts, in order, on one page"),
    "app.py:_start": (45, "the order in which the parts start"),
    "wiring.py:build_core": (65, "one flat table of parts"),
    "settings.py": (350, "every setting and its default on one page"),
    "memory/index.py": (
        330,
        "one scope: its files, what another process or hand did to them, and what search needs",
    ),
    "memory/long_term.py": (390, "all that can be done with a memory, and what each may raise, on one page"),
    "memory/long_term.py:save": (48, "a third of it is what each field of a record means"),
    "channel/platforms/slack_api.py": (
        380,
        "all that is asked of Slack, and how what it kept to itself is found",
    ),
    "session/turns.py": (
        330,
        "the inbox: what must be one transaction with a message or an end, on one page",
    ),
    "cli/conversation.py": (316, "one terminal from its first look to each question and end"),
    "gateway/commands.py": (334, "every command of the protocol on one page"),
    "gateway/events.py": (335, "the bus, and the feed of a turn wherever it runs"),
    "redis/queue.py": (362, "one session's way through a node: entry, lease, turn, and what is lost"),
    "redis/relay.py": (485, "what goes out, what comes in and what was missed share one table of readers"),
    "agent/approval.py": (308, "a question from its row to its answer, and every way to that"),
    "agent/turn.py": (315, "one turn from its row to its end, and every way to that"),
    "agent/turn.py:_converse": (47, "all that a turn is run with, in the order in which it is had"),
    "session/history.py": (340, "the rules of a legal history belong together"),
}
"""Modules, or functions as `module:name`, that may have more lines than the budget, and why."""


def name_of(path: Path) -> str:
    """`gateway.protocol` of `miniclaw/gateway/protocol.py`; a package's own file is the package."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {name_of(path) for path in MODULES}


def rank(name: str) -> int:
    """The rank of the longest prefix of a module's name that has one."""
    while True:
        for number, parts in enumerate(RANKS):
            if name in parts:
                return number
        assert "." in name, f"{name} has no rank; give it one in RANKS"
        name = name.rpartition(".")[0]


def imports(tree: ast.AST, package: str) -> Iterator[tuple[str, int]]:
    """Every module of ours that a file names in an import, wherever it stands, and the line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = ["miniclaw", *package.split(".")][: -node.level + 1 or None]
                base = ".".join([*filter(None, above), *filter(None, [base])])
            targets = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        for target in targets:
            if target.split(".")[0] == "miniclaw":
                name = target.removeprefix("miniclaw").removeprefix(".")
                yield name if name in NAMES else name.rpartition(".")[0], node.lineno


def rank_of_importer(name: str, path: Path) -> int:
    """A package's own file is run by whoever imports its lowest module, so it may import no more than that."""
    if path.name != "__init__.py":
        return rank(name)
    return min(rank(one) for one in NAMES if one == name or one.startswith(f"{name}."))


def is_reexport(package: str, imported: str) -> bool:
    return imported.startswith(f"{package}.")


def wrong_way(path: Path) -> list[str]:
    """Imports from higher ranks; a package may name its own modules for type checkers (PEP 562)."""
    importer = name_of(path)
    is_package = path.name == "__init__.py"
    tree = tree_of(path.read_text(encoding="utf-8"))
    package = importer if is_package else importer.rpartition(".")[0]
    at_run_time = {node.lineno for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)}
    return [
        f"{path.relative_to(ROOT)}:{line} imports miniclaw.{imported}"
        for imported, line in imports(tree, package)
        if rank(imported) > rank_of_importer(importer, path)
        and not (is_package and is_reexport(package, imported) and line not in at_run_time)
    ]


def test_imports_point_one_way_also_inside_functions_and_for_types() -> None:
    assert [found for path in MODULES for found in wrong_way(path)] == []


@pytest.mark.parametrize(
    ("importer", "source", "imported"),
    [
        ("session.turns", "from miniclaw.agent.turn import TurnRunner", "agent.turn"),
        ("session.turns", "import miniclaw.agent.turn", "agent.turn"),
        ("session.turns", "from miniclaw.agent import turn", "agent.turn"),
        ("session.turns", "from miniclaw import app", "app"),
        ("session.turns", "def f():\n    from miniclaw.app import MiniClaw", "app"),
        ("session.turns", "if TYPE_CHECKING:\n    from miniclaw.app import MiniClaw", "app"),
        ("session.turns", "from ..app import MiniClaw", "app"),
        ("session.turns", "from .. import app", "app"),
        ("gateway.protocol", "from .server import GatewayServer", "gateway.server"),
        ("gateway.events", "from miniclaw.gateway.server import GatewayServer", "gateway.server"),
        ("memory.context", "from miniclaw.gateway.ingress import Ingress", "gateway.ingress"),
        ("gateway.server", "from miniclaw.channel.webchat import WebChatChannel", "channel.webchat"),
    ],
)
def test_an_import_in_the_wrong_direction_is_found(importer: str, source: str, imported: str) -> None:
    ((found, _),) = imports(tree_of(source), importer.rpartition(".")[0])
    assert found == imported
    assert rank(found) > rank(importer)


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("gateway.events", "gateway.protocol"),
        ("agent.turn", "gateway.events"),
        ("agent.turn", "channel.base"),
        ("session.turns", "identity"),
        ("session.turns", "session.outbox"),
        ("gateway.server", "gateway.protocol"),
        ("session.turns", ""),
    ],
)
def test_an_import_to_the_left_is_allowed(importer: str, imported: str) -> None:
    assert rank(imported) <= rank(importer)


PACKAGES = sorted(name_of(path) for path in MODULES if path.name == "__init__.py" and name_of(path))


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_exports_exactly_what_it_says(package: str) -> None:
    module = importlib.import_module(f"miniclaw.{package}")
    names = list(getattr(module, "__all__", []))
    assert names == sorted(names)
    assert [name for name in names if not hasattr(module, name)] == []
    with pytest.raises(AttributeError, match="no_such_name"):
        module.no_such_name  # noqa: B018


def test_importing_a_package_loads_none_of_its_modules() -> None:
    """Else `gateway.protocol`, which everything imports, would import everything."""
    code = "import sys; import miniclaw.gateway, miniclaw.channel, miniclaw.agent; print(*sys.modules)"
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True
    ).stdout
    loaded = {name for name in output.split() if name.startswith("miniclaw.")}
    assert loaded == {"miniclaw.gateway", "miniclaw.channel", "miniclaw.agent", "miniclaw.lazy"}


# --- sizes ------------------------------------------------------------------------------------------------


@cache
def sizes() -> dict[str, tuple[int, int]]:
    """Lines and budget of each module and function."""
    found: dict[str, tuple[int, int]] = {}
    for path in MODULES:
        source = path.read_text(encoding="utf-8")
        module = path.relative_to(PACKAGE).as_posix()
        found[module] = (len(source.splitlines()), MODULE_LINES)
        for node in ast.walk(tree_of(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                name, lines = f"{module}:{node.name}", node.end_lineno - node.lineno + 1
                found[name] = max(found.get(name, (0, 0)), (lines, FUNCTION_LINES))
    return found


def test_modules_and_functions_keep_to_their_budget_or_stand_in_the_table() -> None:
    over = [
        f"{name}: {lines} lines"
        for name, (lines, budget) in sizes().items()
        if lines > LARGER.get(name, (budget, ""))[0]
    ]
    assert over == []


CORE = ("gateway/", "session/", "agent/", "tools/", "app.py", "wiring.py", "db.py")
TOTALS: dict[str, tuple[int, str]] = {
    "core": (
        19_486,
        "meant to be 5,500: two model APIs with the bends of a dozen servers, the thirty ways of printing a call,"
        " budgets, trace, approvals, what a broken-off delete or a removed user leaves, and file tools that no link"
        " leads out of; a quarter is docstrings with units,"
        " errors and sources",
    ),
    "all": (
        49_428,
        "meant to be 15,000: five platforms with cryptography, each with its API and a stand-in that users try it"
        " with, memory that ranks, MCP both ways on two wires, with OAuth, without an SDK, timers, a second back"
        " end on Redis, and what an operator needs for months; the nearest peer has 109,000",
    ),
}


def test_the_core_and_the_whole_package_keep_to_their_totals() -> None:
    lines = {
        path.relative_to(PACKAGE).as_posix(): len(path.read_text(encoding="utf-8").splitlines())
        for path in MODULES
    }
    core = {name: n for name, n in lines.items() if name.startswith(CORE) and "builtins/" not in name}
    assert sum(core.values()) <= TOTALS["core"][0], TOTALS["core"][1]
    assert sum(lines.values()) <= TOTALS["all"][0], TOTALS["all"][1]


def test_every_exception_in_the_table_has_a_reason_and_is_of_something_that_exists() -> None:
    assert set(LARGER) <= set(sizes())
    assert all(reason for _, reason in LARGER.values())


# --- what a start imports ---------------------------------------------------------------------------------

START = """
import json, sys
before = set(sys.modules)
from miniclaw.cli import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
print()
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def imported_by(*arguments: str) -> set[str]:
    """The top-level modules that a command loads, beside those of a bare Python."""
    command = [sys.executable, "-c", START, *arguments]
    output = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=60, check=True).stdout
    assert "usage: miniclaw" in output
    return {name.split(".")[0] for name in json.loads(output.splitlines()[-1])}


def test_help_needs_nothing_outside_the_standard_library() -> None:
    assert imported_by("--help") - set(sys.stdlib_module_names) == {"miniclaw"}


@pytest.mark.parametrize("command", ["chat", "serve", "mcp"])
def test_the_help_of_a_command_loads_nothing_heavy(command: str) -> None:
    heavy = {"openai", "tiktoken", "aiohttp", "httpx", "pydantic", "websockets", "prompt_toolkit", "rich"}
    assert imported_by(command, "--help") & heavy == set()
