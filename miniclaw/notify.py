"""Tells systemd that the service is ready, still alive, or about to stop.

The protocol is that of https://www.freedesktop.org/software/systemd/man/latest/sd_notify.html: datagrams of
`NAME=value` lines to the socket in `NOTIFY_SOCKET`. Without that variable nothing happens.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Mapping

__all__ = ["Notifier"]

logger = logging.getLogger(__name__)


class Notifier:
    """Speaks to the service manager that started this process, if one did."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._address = env.get("NOTIFY_SOCKET", "")
        for_us = env.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        given = env.get("WATCHDOG_USEC", "")
        self.watchdog_seconds = int(given) / 1e6 if for_us and given.isdecimal() and int(given) else None
        """How long the manager waits for a sign of life; `None` = it does not."""

    def send(self, state: str) -> None:
        """Tell a state such as `READY=1`; a manager that does not listen is no error of ours."""
        if not self._address:
            return
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as one:
                one.sendto(state.encode(), address)
        except OSError as error:
            logger.warning("systemd was not told %s: %s", state, error)

    async def keep_alive(self) -> None:
        """Give signs of life for ever, twice as often as is asked for; a loop that hangs gives none."""
        while self._address and self.watchdog_seconds is not None:
            self.send("WATCHDOG=1")
            await asyncio.sleep(self.watchdog_seconds / 2)
