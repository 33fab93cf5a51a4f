"""What the gateway costs against a raw `websockets` server that sends back what it gets.

    python bench/gateway.py [--rounds 3]

`frame`: CPU of one command in and its answer out (20 connections). `idle`: resident memory of an open
connection (2,000). `fan-out`: CPU of one streamed piece to each of 50 watchers of a session, against
`websockets.broadcast` of the same bytes. `turn`: one whole turn, WebSocket to WebSocket, with the durable
path on (8 connections, a tool call and 50 pieces), and the resident memory after it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from websockets.asyncio.client import ClientConnection, connect  # noqa: E402 - behind the path
from websockets.asyncio.server import ServerConnection, broadcast, serve  # noqa: E402

from bench.processes import cpu, free_port, resident, server  # noqa: E402

TOKEN = "bench-token-of-the-owner"
PING = json.dumps({"msg_id": "p", "msg_type": "command", "payload": {"name": "ping", "args": {}}})
PIECE = json.dumps(
    {"msg_type": "event", "payload": {"name": "text.delta", "data": {"text": "token "}}, "id": "x" * 180}
)
WATCHERS, PIECES = 50, 50


async def echo(port: int) -> None:
    """The reference: every frame comes back; `fan` sends 50 pieces to everybody, then `end`."""
    connections: set[ServerConnection] = set()

    async def handle(connection: ServerConnection) -> None:
        connections.add(connection)
        async for frame in connection:
            if frame == "fan":
                for _ in range(PIECES):
                    broadcast(connections, PIECE)
                    await asyncio.sleep(0)
                broadcast(connections, "end turn.finished")
            else:
                await connection.send(frame)

    async with serve(handle, "127.0.0.1", port, compression=None):
        await asyncio.Event().wait()


async def frames(url: str, pid: int, seconds: float = 3) -> float:
    """Microseconds of the server's CPU for a frame in and a frame out."""
    count = 0

    async def ask(connection: ClientConnection) -> None:
        nonlocal count
        while True:
            await connection.send(PING)
            await connection.recv()
            count += 1

    connections = [await connect(url, compression=None) for _ in range(20)]
    tasks = [asyncio.create_task(ask(connection)) for connection in connections]
    await asyncio.sleep(0.5)
    first, began = count, cpu(pid)
    await asyncio.sleep(seconds)
    cost = (cpu(pid) - began) / (count - first) * 1e6
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.gather(*(connection.close() for connection in connections))
    return cost


async def idle(url: str, pid: int, number: int = 2000) -> float:
    """Kilobytes of the server's memory for an open connection that says nothing."""
    before = resident(pid)
    connections: list[ClientConnection] = []
    while len(connections) < number:
        connections += await asyncio.gather(*(connect(url, compression=None) for _ in range(50)))
    await asyncio.sleep(1)
    used = (resident(pid) - before) / number * 1000
    for connection in connections:
        connection.transport.abort()
    return used


async def until_end(connection: ClientConnection) -> int:
    """How many pieces came before the end of the turn."""
    pieces = 0
    async for frame in connection:
        pieces += "text.delta" in frame
        if "turn.finished" in frame:
            return pieces
        if "turn.failed" in frame:
            raise SystemExit(f"a turn failed: {frame!r}")
    raise SystemExit("the server closed the connection")


def text(number: int, session_id: str | None = None) -> str:
    payload = {"text": f"what is 2+3*4? ({number})"} | ({"session_id": session_id} if session_id else {})
    return json.dumps({"msg_id": f"m{number}", "msg_type": "text", "payload": payload})


async def fan_out(url: str, pid: int, ours: bool) -> float:
    """Microseconds of the server's CPU for one piece to one watcher, of a reply that 50 watch."""
    connections = [await connect(url, compression=None) for _ in range(WATCHERS)]
    if ours:
        await connections[0].send(text(0))
        session_id = None
        while session_id is None:
            session_id = json.loads(await connections[0].recv())["payload"].get("session_id")
        await until_end(connections[0])
        for connection in connections[1:]:
            args = {"session_id": session_id}
            command = {"name": "resume", "args": args}
            await connection.send(json.dumps({"msg_id": "r", "msg_type": "command", "payload": command}))
            await connection.recv()
    costs = []
    for number in range(1, 8):
        began = cpu(pid)
        await connections[0].send(text(number, session_id) if ours else "fan")
        assert await asyncio.gather(*map(until_end, connections)) == [PIECES] * WATCHERS
        costs.append((cpu(pid) - began) / PIECES / WATCHERS * 1e6)
    await asyncio.gather(*(connection.close() for connection in connections))
    return statistics.median(costs[1:])


async def turns(url: str, pid: int) -> float:
    """Milliseconds of the server's CPU for a whole turn."""

    async def user(number: int, count: int) -> None:
        async with connect(url, compression=None) as connection:
            for turn in range(count):
                await connection.send(text(number * 1000 + turn))
                assert await until_end(connection) == PIECES

    await user(100, 3)
    began = cpu(pid)
    await asyncio.gather(*(user(number, 10) for number in range(1, 9)))
    return (cpu(pid) - began) / 80 * 1000


def measure(base_url: str) -> tuple[list[float], list[float]]:
    """Frame, idle and fan-out of the reference and of ours; ours with a turn and the memory after it."""
    port = free_port()
    with server([str(Path(__file__)), "--echo", str(port)], port) as pid:
        url = f"ws://127.0.0.1:{port}"
        reference = [asyncio.run(frames(url, pid)), asyncio.run(fan_out(url, pid, False))]
        reference.append(asyncio.run(idle(url, pid)))
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="miniclaw-bench-") as directory:
        command = [
            "-m",
            "miniclaw",
            "serve",
            "--port",
            "none",
            "--gateway-port",
            str(port),
            "--data-dir",
            directory,
        ]
        env = {
            "MINICLAW_TOKEN": TOKEN,
            "OPENAI_BASE_URL": base_url,
            "OPENAI_API_KEY": "x",
            "MINICLAW_HOME": directory,
        }
        with server(command, port, **env) as pid:
            url = f"ws://127.0.0.1:{port}/?token={TOKEN}"
            ours = [asyncio.run(frames(url, pid)), asyncio.run(fan_out(url, pid, True))]
            turn = asyncio.run(turns(url, pid))
            memory = resident(pid)
            ours += [asyncio.run(idle(url, pid)), turn, memory]
    return reference, ours


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="the gateway against raw websockets")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--echo", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.echo:
        asyncio.run(echo(args.echo))
        return
    model = subprocess.Popen(
        [sys.executable, str(ROOT / "bench" / "fake_model.py")], stdout=subprocess.PIPE, text=True
    )
    assert model.stdout is not None
    base_url = f"http://127.0.0.1:{model.stdout.readline().strip()}/v1"
    try:
        rounds = [measure(base_url) for _ in range(args.rounds)]
    finally:
        model.terminate()
        model.wait()
    print(f"{'what':34} {'raw websockets':>14} {'miniclaw':>9} {'ratio':>6}")
    names = (
        "frame in and out, us CPU",
        f"a piece to one of {WATCHERS} watchers, us CPU",
        "idle connection, KB",
    )
    for place, name in enumerate(names):
        raw, own = (statistics.median(row[side][place] for row in rounds) for side in (0, 1))
        ratio = statistics.median(row[1][place] / row[0][place] for row in rounds)
        print(f"{name:34} {raw:14.1f} {own:9.1f} {ratio:6.2f}")
    for place, name in ((3, "whole turn, ms CPU"), (4, "resident memory, MB")):
        print(f"{name:34} {'':14} {statistics.median(row[1][place] for row in rounds):9.1f}")


if __name__ == "__main__":
    main()
