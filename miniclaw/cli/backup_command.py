"""`miniclaw backup FILE`: all data in one file, also while the gateway runs."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("file", type=Path, help="a .tar.gz, which will hold keys and tokens too")


def run(args: argparse.Namespace) -> int:
    """Write the file."""
    from miniclaw.archive import back_up
    from miniclaw.config import find_data_dir

    count = back_up(find_data_dir(args.data_dir, os.environ), args.file)
    print(f"备份好了 / backed up: {args.file}, {count} files, {args.file.stat().st_size} bytes")
    return 0
