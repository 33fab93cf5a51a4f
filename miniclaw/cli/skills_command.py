"""`miniclaw skills`: what skills there are, what one says, and what is wrong with a file."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from miniclaw.cli import add_common, say

if TYPE_CHECKING:
    from miniclaw.skills.manager import SkillManager

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="list the skills, and what is wrong with files that are none")
    listing.add_argument("--json", action="store_true", help="print them as one JSON list")
    show = actions.add_parser("show", help="print the instructions of a skill")
    show.add_argument("name")
    validate = actions.add_parser("validate", help="say what is wrong with a skill file, or with a directory")
    validate.add_argument("path", type=Path)
    for action in (listing, show, validate):
        add_common(action, nested=True)


def run(args: argparse.Namespace) -> int:
    """Carry the action out; 1 when a file is wrong or there is no such skill."""
    from miniclaw.cli.start import load, set_up_logging
    from miniclaw.cli.tools_command import registry_of

    loaded = load(args)
    set_up_logging(loaded, default="critical" if args.action == "validate" else "error")
    registry, manager = registry_of(loaded)
    registry.get_openai_tools()  # takes in the operator's own
    if args.action == "validate":
        return _validate(args.path, manager)
    return _list(manager, args.json) if args.action == "list" else _show(manager, args.name)


def _list(manager: SkillManager, as_json: bool) -> int:
    findings = [str(finding) for finding in manager.findings]
    if as_json:
        say(json.dumps({"skills": manager.rows(), "findings": findings}, ensure_ascii=False, indent=2))
        return 0
    for row in manager.rows():
        say(f"{row['name']:24} {' '.join(row['description'].split())[:100]}")
        if row["missing"]:
            say(f"{'':24} not offered: {row['missing']}")
    for finding in findings:
        say(finding)
    return 0


def _show(manager: SkillManager, name: str) -> int:
    from miniclaw.errors import SkillError

    skill = manager.get(name)
    if skill is None:
        raise SkillError(f"There is no skill `{name}`; see `miniclaw skills list`.")
    say((skill.path.read_text(encoding="utf-8") if skill.path else skill.system_prompt).rstrip())
    return 0


def _validate(path: Path, installed: SkillManager) -> int:
    """Check a file or a directory; `installed` knows which tools there are."""
    from miniclaw.errors import SkillError
    from miniclaw.skills.loader import STANDARD_FILE, SkillLoader

    if path.is_dir() and not (path / STANDARD_FILE).exists():
        manager = installed.of([path])
        for finding in manager.findings:
            say(finding)
        say(f"{sum(not row['missing'] for row in manager.rows())} sound, {len(manager.findings)} wrong")
        return int(bool(manager.findings))
    manager = installed.of([])
    try:
        skill = SkillLoader().load_file(path)
    except SkillError as error:
        say(error)
        return 1
    manager.register(skill)
    for finding in manager.findings:
        say(finding)
    if not manager.findings:
        say(f"{skill.path}: `{skill.name}` is sound")
    return int(bool(manager.findings))
