"""What starting costs: the command, the import, the first answer, and the disk.

    python bench/startup.py [--rounds 5]

CPU of child processes, tries interleaved, the least of the rounds counts. `import` is measured against the
four libraries that any such gateway needs. The installed size follows the declared dependencies (without
extras and compiled files) through the metadata of what is installed here.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from packaging.requirements import Requirement  # noqa: E402 - comes with pytest

FOUR = "import aiohttp.web, websockets.asyncio.server, openai, pydantic"
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "bench", "version": "1"},
    },
}


def cost(command: list[str], env: dict[str, str], stdin: str = "") -> float:
    """Milliseconds of CPU of one child process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, *command],
        input=stdin,
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        encoding="utf-8",
        check=True,
        timeout=60,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime) * 1000


def installed() -> tuple[int, float]:
    """How many packages a plain installation brings, our own not counted, and their size in MB."""
    found: dict[str, float] = {}
    waiting = [Requirement(text) for text in importlib.metadata.requires("miniclaw") or ()]
    while waiting:
        requirement = waiting.pop()
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        extras = requirement.extras or {""}
        marker = requirement.marker
        if marker is not None and not any(marker.evaluate({"extra": extra}) for extra in extras):
            continue
        if name in found:
            continue
        distribution = importlib.metadata.distribution(name)
        files = [file for file in distribution.files or () if file.suffix != ".pyc"]
        paths = [Path(str(file.locate())) for file in files]
        found[name] = sum(path.stat().st_size for path in paths if path.is_file()) / 1e6
        for text in distribution.requires or ():
            further = Requirement(text)
            wanted = further.marker is None or any(further.marker.evaluate({"extra": e}) for e in extras)
            if wanted:
                waiting.append(Requirement(text.partition(";")[0]))
    return len(found), sum(found.values())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="what starting costs")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryDirectory(prefix="miniclaw-bench-") as home:
        env = {**os.environ, "PYTHONPATH": path, "MINICLAW_HOME": home}
        commands = {
            "python -c pass": (["-c", "pass"], ""),
            "miniclaw --help": (["-m", "miniclaw", "--help"], ""),
            "four libraries": (["-c", FOUR], ""),
            "import miniclaw.app": (["-c", "import miniclaw.app"], ""),
            "mcp serve, first reply": (["-m", "miniclaw", "mcp", "serve"], json.dumps(INITIALIZE) + "\n"),
        }
        for command, stdin in commands.values():
            cost(command, env, stdin)  # compiled files and a data directory
        rounds = [
            {name: cost(*command[:1], env, command[1]) for name, command in commands.items()}
            for _ in range(args.rounds)
        ]
    ms = {name: min(row[name] for row in rounds) for name in commands}
    bare = ms["python -c pass"]
    print(f"{'what':24} {'ms CPU':>7} {'against':28} {'ratio':>6}")
    print(
        f"{'miniclaw --help':24} {ms['miniclaw --help']:7.0f} {'python -c pass':28} {ms['miniclaw --help'] / bare:6.2f}"
    )
    ratio = (ms["import miniclaw.app"] - bare) / (ms["four libraries"] - bare)
    print(
        f"{'import miniclaw.app':24} {ms['import miniclaw.app']:7.0f} {'its four main libraries':28} {ratio:6.2f}"
    )
    print(f"{'mcp serve, first reply':24} {ms['mcp serve, first reply']:7.0f}")
    packages, size = installed()
    print(f"installed: {packages} packages, {size:.0f} MB")


if __name__ == "__main__":
    main()
