"""What `doctor` says of the Redis behind the gateways."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from typing import Final, Literal

from miniclaw.config import Settings
from miniclaw.errors import MiniClawError, StorageError, StorageUnavailable
from miniclaw.redis.link import RedisLink

__all__ = ["Finding", "look"]

Finding = tuple[Literal["ok", "warning", "failed"], str, str]
"""State (`ok`, `warning`, `failed`), what was found, and what to do."""

SLOW_MS: Final = 5.0
"""A median round trip from which on every turn feels it."""
ASKED: Final = 21


async def look(settings: Settings) -> AsyncIterator[Finding]:
    """Version, persistence, eviction and latency; nothing where no URL is set."""
    redis = settings.redis
    if redis.url is None:
        return
    url = redis.url.get_secret_value()
    try:
        link = RedisLink(url, prefix=redis.prefix, timeout=min(redis.timeout, 5.0), patience=0.0)
        await link.open()
    except MiniClawError as error:
        yield "failed", str(error), "start it, or mend MINICLAW_REDIS_URL"
        return
    try:
        try:
            for finding in _findings(_fields(await link.run("INFO", waits=False))):
                yield finding
        except StorageUnavailable:
            raise
        except StorageError as error:
            mend = "look at them yourself, or let its user run INFO"
            yield "warning", f"version, persistence and eviction cannot be seen: {error}", mend
        times = []
        for _ in range(ASKED):
            began = time.perf_counter()
            await link.run("PING", waits=False)
            times.append(time.perf_counter() - began)
        median = sorted(times)[ASKED // 2] * 1000
        mend = "bring it nearer to the gateways: a turn asks it about ten times" if median > SLOW_MS else ""
        yield ("warning" if mend else "ok"), f"answers in {median:.1f} ms", mend
    except MiniClawError as error:
        yield "failed", str(error), "look at its log"
    finally:
        await link.close()


def _findings(found: dict[str, str]) -> Iterator[Finding]:
    version = found.get("valkey_version") or found.get("redis_version", "?")
    yield "ok", f"version {version}, functions loaded", ""
    if found.get("aof_enabled") == "1":
        yield "ok", "the append-only file is on", ""
    else:
        mend = "set appendonly yes, or what was acknowledged since the last snapshot is lost with it"
        yield "warning", "the append-only file is off", mend
    policy = found.get("maxmemory_policy", "noeviction")
    if policy == "noeviction":
        yield "ok", "nothing is evicted", ""
    else:
        yield "failed", f"maxmemory-policy is {policy}", "set noeviction: keys here are no cache"


def _fields(text: str) -> dict[str, str]:
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
