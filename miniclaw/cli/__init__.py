"""The command line: a file a subcommand, and nothing heavy is imported before it must be.

`main` imports the standard library only; a subcommand's module is imported when it is the one that was
asked for, and imports the rest of the program when it runs.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Sequence
from typing import TextIO

from miniclaw import __version__

__all__ = ["HARMLESS", "add_common", "agreed", "json_text", "main", "parser_of", "say"]

HARMLESS = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
"""Control characters, by which a text of others could clear the screen or feign a question."""

COMMANDS = {
    "serve": "run the gateway, the web chat and the HTTP API",
    "chat": "talk in the terminal",
    "mcp": "serve the tools to MCP clients; list, check and log in at MCP servers",
    "init": "write a commented configuration, and a skill and a tool to begin with",
    "config": "show each setting and where its value comes from",
    "doctor": "check everything, and say how to mend it",
    "memory": "see, search, change, export and wipe what is remembered",
    "skills": "list skills, show one, check a file",
    "tools": "list tools, call one",
    "webhook": "post a platform's event to the running gateway",
    "sessions": "list, show, search, export and delete sessions",
    "backup": "copy all data into a file, also while the gateway runs",
    "restore": "put a backup in the place of the data",
    "timers": "list what is said to the agent at which time, and cancel it",
    "users": "list users, add them, give them tokens",
    "trace": "show what a turn did, call by call",
    "eval": "run tasks against the model and check them",
}


def parser_of(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """The parser, in which only the command that the arguments name has its own ones."""
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    parser = argparse.ArgumentParser(
        prog="miniclaw", description="A personal and team agent gateway.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"miniclaw {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, about in COMMANDS.items():
        command = commands.add_parser(name, help=about, description=about, allow_abbrev=False)
        if name == chosen:
            module = importlib.import_module(f"miniclaw.cli.{name}_command")
            add_common(command)
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 0 fine, 1 failed, 2 wrong use, 130 interrupted."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    args = parser_of(arguments).parse_args(arguments)
    try:
        return int(args.run(args))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), 1
        )  # whoever read the output has gone; nothing is left to say
        return 1
    except Exception as error:  # boundary: what reaches the user is one sentence
        from miniclaw.errors import MiniClawError

        if args.log_level == "debug" or not isinstance(error, MiniClawError | OSError):
            raise
        say(f"miniclaw: {error}", file=sys.stderr)
        return 1


def say(*texts: object, file: TextIO | None = None) -> None:
    """Print lines that may hold words of others, without their control characters."""
    print(*(str(text).translate(HARMLESS) for text in texts), file=file)


def json_text(value: object) -> str:
    """JSON in one line, for programs and people: control characters of any kind are escaped, none is lost."""
    escaped = {code: f"\\u{code:04x}" for code in range(127, 160)}
    return json.dumps(value, ensure_ascii=False).translate(escaped)


def add_common(parser: argparse.ArgumentParser, *, nested: bool = False) -> None:
    """Declare what every command takes; `nested` for the parser of an action, whose values win."""
    default = argparse.SUPPRESS if nested else None
    group = parser.add_argument_group("common")
    for option, metavar, about in (
        ("--config", "FILE", "settings; default: miniclaw.toml in the data directory"),
        ("--data-dir", "DIR", "default: $MINICLAW_HOME or ~/.miniclaw"),
        ("--log-file", "FILE", "default: standard error"),
    ):
        group.add_argument(option, metavar=metavar, help=about, default=default)
    levels = ["debug", "info", "warning", "error"]
    group.add_argument("--log-level", choices=levels, default=default)
    group.add_argument("--log-format", choices=["text", "json"], default=default)


def agreed(question: str) -> bool:
    """Whether the person says yes; raises `ConfigError` where nobody is there to ask."""
    from miniclaw.errors import ConfigError

    try:
        answer = input(f"{question} [y/N] ".translate(HARMLESS))
    except EOFError as error:
        raise ConfigError("Nobody is there to answer; say --yes.") from error
    return answer.strip().lower() in ("y", "yes", "是")
