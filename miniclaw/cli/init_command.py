"""`miniclaw init`: a commented configuration, a private `.env`, and a skill and a tool to begin with."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Final

from miniclaw.cli import HARMLESS, say

__all__ = ["add_arguments", "run"]

TEMPLATES: Final = Path(__file__).parent / "templates"
FILES: Final = {
    "miniclaw.toml": "miniclaw.toml",
    "skills/haiku/SKILL.md": "SKILL.md",
    "tools/word_count.py": "word_count.py.txt",
}
QUESTIONS: Final = {
    "OPENAI_BASE_URL": "模型服务的地址，留空用演示模型 / the model server's URL, empty = the demo model",
    "OPENAI_API_KEY": "密钥，没有就留空 / its key, empty = none",
    "OPENAI_MODEL": "模型名，留空用服务列出的第一个 / the model, empty = the first that it lists",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--yes", action="store_true", help="ask nothing: take a model server on this machine")


def run(args: argparse.Namespace) -> int:
    """Write what is not there yet; nothing that is there is changed."""
    from miniclaw.config import FLAT_NAMES, find_data_dir, load_settings
    from miniclaw.rundir import private_directory

    directory = find_data_dir(args.data_dir, os.environ)
    private_directory(directory)
    for name, template in FILES.items():
        path = directory / name
        if path.exists():
            say(f"保留 / kept     {path}")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            mode = 0o600 if name == "miniclaw.toml" else 0o644
            _write(path, (TEMPLATES / template).read_bytes(), mode)
    path = directory / ".env"
    there = load_settings(env={}, data_dir=str(directory)).origins
    missing = [name for name in QUESTIONS if there.get(FLAT_NAMES[name]) != str(path)]
    known = load_settings(data_dir=args.data_dir, config_file=args.config).origins
    is_set = any(FLAT_NAMES[name] in known for name in QUESTIONS)
    lines = _environment(missing, asks=not args.yes, is_set=is_set).encode()
    before = path.read_bytes() if path.exists() else b""
    if lines or not path.exists():
        end = b"\n" if before and not before.endswith(b"\n") else b""
        _write(path.resolve(), before + end + lines, 0o600)
    else:
        say(f"保留 / kept     {path}")
    say("接下来 / next: miniclaw doctor, miniclaw serve")
    return 0


def _write(path: Path, content: bytes, mode: int) -> None:
    """A file with this mode from the first byte on, which is there whole or not at all."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    say(f"写好 / written  {path}")


def _environment(missing: list[str], *, asks: bool, is_set: bool) -> str:
    """Lines for `.env`: what was answered, or, where nothing `is_set`, what was found on this machine."""
    import asyncio

    from miniclaw.agent.select import find_local_server
    from miniclaw.errors import ConfigError

    found = None if is_set else asyncio.run(find_local_server())
    values = {"OPENAI_BASE_URL": found.base_url, "OPENAI_MODEL": found.model} if found else {}
    if found:
        say(f"找到 / found    {found.name}: {found.model} ({found.base_url})")
    for name in missing if asks else ():
        known = values.get(name, "")
        try:
            answer = input(f"{QUESTIONS[name]}{f' [{known}]' if known else ''}: ".translate(HARMLESS)).strip()
        except EOFError as error:
            raise ConfigError("Nobody is there to answer; use `miniclaw init --yes`.") from error
        values[name] = answer or known
    if any(character in value for value in values.values() for character in "\r\n'\\"):
        raise ConfigError("An answer holds a quote, `\\` or a line break; write it into .env by hand.")
    return "".join(f"{name}='{value}'\n" for name, value in values.items() if value)
