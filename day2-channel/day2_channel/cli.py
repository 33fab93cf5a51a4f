"""终端渠道：读一行，办一行；文件结束、`exit` 和 Ctrl+C 都走得干干净净。"""

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Iterable
from typing import Final

from day1_gateway import ErrorPayload, EventBus, EventPayload, GatewayMessage
from day2_channel.base import ConnectionChannel, spoken

logger = logging.getLogger(__name__)
LEAVE: Final = frozenset({"exit", "quit", "/exit", "/quit"})


class CLIChannel(ConnectionChannel):
    """这台机器前面的一个人；`lines` 默认是标准输入。"""

    name = "cli"

    def __init__(self, bus: EventBus, *, user: str = "guest", lines: Iterable[str] | None = None) -> None:
        super().__init__(bus)
        self._source = f"{self.name}:{user}"
        self._lines = lines
        self._is_stopped = False

    async def start(self) -> None:
        """开始读。读一行会一直堵着，又不能取消，所以放在守护线程里：程序要走时不用等它。"""
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._read, args=(loop,), daemon=True).start()

    async def stop(self) -> None:
        self._is_stopped = True
        await super().stop()

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        """线程里：收下一行才读下一行；最后交一个 `None`，意思是没有了。"""
        lines = _stdin_lines() if self._lines is None else self._lines
        try:
            for line in map(str.strip, lines):
                if self._is_stopped or line in LEAVE:
                    break
                if line:
                    asyncio.run_coroutine_threadsafe(self.submit(spoken(self._source, line)), loop).result()
        except OSError as error:  # 终端没了，也是读完了
            logger.warning("the input of %s broke off: %s", self._source, error)
        finally:
            if not self._is_stopped:
                asyncio.run_coroutine_threadsafe(self._queue.put(None), loop).result()

    def _write(self, message: GatewayMessage) -> None:
        match message.payload:
            case ErrorPayload(code=code, message=text):
                print(f"! {text} ({code})", flush=True)
            case EventPayload(data={"text": str(text)}):
                print(text, flush=True)


def _stdin_lines() -> Iterable[str]:
    """读复制出来的描述符：守护线程堵在 `sys.stdin` 上时，解释器退出会抢不到它的锁。"""
    if sys.stdin is None:  # 一开始就关着
        return
    with open(os.dup(sys.stdin.fileno()), encoding=sys.stdin.encoding, errors="replace") as file:
        yield from file
