"""终端：行进来，回答出去，怎么走都干净。"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from day1_gateway import EventBus, GatewayMessage, MessageRouter, MessageType, ProtocolError, event_message
from day2_channel import CLIChannel, pump


async def answer(inbound: GatewayMessage) -> GatewayMessage | None:
    words = inbound.payload.text  # type: ignore[union-attr] # 只会是文字
    if words == "9999":
        raise ProtocolError("not_found", "There is no order 9999.")
    if words == "hush":
        return None
    return event_message("turn.finished", {"text": f"{inbound.source} 问 {words}"}, target=inbound.source)


@pytest.fixture
def router() -> MessageRouter:
    router = MessageRouter()
    router.register(MessageType.TEXT, answer)
    return router


async def run(channel: CLIChannel, router: MessageRouter) -> None:
    await channel.start()
    async with asyncio.timeout(5):
        await pump(channel, router)
    await channel.stop()


async def test_every_line_is_answered_before_the_end(
    router: MessageRouter, capsys: pytest.CaptureFixture[str]
) -> None:
    await run(CLIChannel(EventBus(), user="alice", lines=["4471\n", "\n", "hush", "9999\n"]), router)
    shown = capsys.readouterr().out.splitlines()
    assert shown == ["cli:alice 问 4471", "! There is no order 9999. (not_found)"]


async def test_exit_ends_it_and_what_follows_is_not_read(
    router: MessageRouter, capsys: pytest.CaptureFixture[str]
) -> None:
    channel = CLIChannel(EventBus(), lines=["4471", "exit", "4472"])
    await run(channel, router)
    assert capsys.readouterr().out.count("问") == 1
    with pytest.raises(EOFError):
        await channel.receive()


async def test_what_came_in_and_what_goes_out_passes_the_bus(
    router: MessageRouter, capsys: pytest.CaptureFixture[str]
) -> None:
    bus, seen = EventBus(), []
    bus.subscribe("message.inbound", lambda _, message: seen.append(message.source))
    channel = CLIChannel(bus, user="bob", lines=["4471"])
    await run(channel, router)
    assert seen == ["cli:bob"]
    fresh = CLIChannel(bus, lines=[])
    bus.publish("message.outbound", event_message("news", {"text": "4472 已发货"}, target="cli:bob"))
    bus.publish("message.outbound", event_message("news", {"text": "给别人"}, target="web:1"))
    assert capsys.readouterr().out.splitlines()[1:] == ["4472 已发货"]
    await fresh.stop()


async def test_a_terminal_that_is_gone_is_the_end_of_the_input(
    router: MessageRouter, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> Iterator[str]:
        yield "4471"
        raise OSError(5, "Input/output error")

    await run(CLIChannel(EventBus(), lines=broken()), router)
    assert capsys.readouterr().out == "cli:guest 问 4471\n"


SCRIPT = """
import asyncio
import signal
from day1_gateway import EventBus, MessageRouter
from day2_channel import CLIChannel, pump

signal.signal(signal.SIGINT, signal.default_int_handler)  # 后台任务里启动时它可能被忽略

async def main():
    channel = CLIChannel(EventBus())
    await channel.start()
    print("ready", flush=True)
    try:
        await pump(channel, MessageRouter())
    finally:
        await channel.stop()
        print("stopped", flush=True)

try:
    asyncio.run(main())
except KeyboardInterrupt:
    raise SystemExit(130)
"""


def process() -> subprocess.Popen[str]:
    root = Path(__file__).parent.parent
    path = os.pathsep.join([str(root), str(root.parent / "day1-gateway")])
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        env={**os.environ, "PYTHONPATH": path},
    )


@pytest.mark.skipif(os.name == "nt", reason="a signal cannot be sent to one process there")
def test_ctrl_c_leaves_at_once_and_quietly() -> None:
    with process() as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        running.send_signal(signal.SIGINT)
        running.wait(timeout=10)  # 先等它走：输入一关，它也会走，就分不清是谁让它走的了
        out, error = running.communicate()
    assert (running.returncode, out, error) == (130, "stopped\n", "")


def test_the_end_of_a_pipe_ends_it_after_the_answers() -> None:
    with process() as running:
        out, error = running.communicate("4471\n", timeout=10)
    assert running.returncode == 0, error
    assert "unsupported" in out and out.endswith("stopped\n")


@pytest.mark.skipif(os.name == "nt", reason="needs a shell")
def test_without_an_input_it_ends_at_once() -> None:
    root = Path(__file__).parent.parent
    path = os.pathsep.join([str(root), str(root.parent / "day1-gateway")])
    env = {**os.environ, "PYTHONPATH": path}
    command = ["sh", "-c", '"$0" -c "$1" <&-', sys.executable, SCRIPT]
    done = subprocess.run(command, env=env, capture_output=True, encoding="utf-8", timeout=10, check=False)
    assert (done.returncode, done.stdout) == (0, "ready\nstopped\n"), done.stderr
