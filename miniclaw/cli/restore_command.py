"""`miniclaw restore FILE`: a backup in the place of the data, which are kept aside."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from miniclaw.cli import agreed

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("file", type=Path, help="what `miniclaw backup` wrote")
    parser.add_argument("--yes", action="store_true", help="do not ask")


def run(args: argparse.Namespace) -> int:
    """Ask, then restore."""
    from miniclaw.archive import restore
    from miniclaw.config import find_data_dir

    directory = find_data_dir(args.data_dir, os.environ, to_restore=True)
    if not args.yes:
        if not agreed(f"用备份替换 {directory}？/ Replace {directory} by the backup?"):
            return 1
    aside = restore(directory, args.file)
    print(f"恢复好了 / restored: {directory}")
    if aside is not None:
        print(f"原来的在 / what was there: {aside}")
    return 0
