"""Where Redis is: a server, or Sentinels that know which one it is now."""

from __future__ import annotations

import urllib.parse
from typing import Any

from miniclaw.errors import ConfigError

__all__ = ["pool_of"]


def pool_of(url: str, timeout: float) -> Any:
    """What makes connections of a URL.

    Args:
        url: `redis://`, `rediss://`, `unix://`, or `redis+sentinel://host:port,host:port/name[/db]` and with
            `rediss+`, where the Sentinels speak TLS too. The query is that of redis-py's `from_url`, with
            `sentinel_username`, `sentinel_password` and `sentinel_ssl=no` for the Sentinels themselves.
        timeout: seconds to connect.

    Raises:
        ConfigError: it cannot be used, or redis-py is not installed.
    """
    try:
        from redis import asyncio as aioredis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
    except ImportError as error:
        way = "in the project's directory, run `.venv/bin/pip install '.[redis]'`"
        raise ConfigError(f"MINICLAW_REDIS_URL needs redis-py: {way}.") from error
    given: dict[str, Any] = {
        "decode_responses": True,
        "socket_connect_timeout": timeout,
        "socket_timeout": None,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
    }
    parts = urllib.parse.urlsplit(url)
    scheme, _, sentinel = parts.scheme.partition("+")
    try:
        if sentinel != "sentinel" or scheme not in ("redis", "rediss"):
            return aioredis.ConnectionPool.from_url(url, **{"socket_keepalive": True, **given})
        return _asked_of_sentinels(parts._replace(scheme=scheme), given)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"MINICLAW_REDIS_URL cannot be used: {error}.") from error


def _asked_of_sentinels(parts: urllib.parse.SplitResult, given: dict[str, Any]) -> Any:
    from redis.asyncio.connection import parse_url
    from redis.asyncio.sentinel import Sentinel

    login, _, hosts = parts.netloc.rpartition("@")
    nodes = [(host.strip("[]"), int(port)) for host, _, port in (h.rpartition(":") for h in hosts.split(","))]
    name, _, number = parts.path.strip("/").partition("/")
    plain = parts._replace(netloc=f"{login}@sentinel", path=f"/{number or 0}")
    asked: dict[str, Any] = {**parse_url(plain.geturl())}
    for known in ("host", "port", "connection_class"):
        asked.pop(known, None)
    asked |= {"ssl": True} if parts.scheme == "rediss" else {}
    own = {key[9:]: asked.pop(key) for key in list(asked) if key.startswith("sentinel_")}
    if own.pop("ssl", "") not in ("no", "false", "0"):
        own |= {key: value for key, value in asked.items() if key.startswith("ssl")}
    make: Any = Sentinel
    found = make(nodes, sentinel_kwargs={"socket_connect_timeout": given["socket_connect_timeout"], **own})
    return found.master_for(name, **{**asked, **given}).connection_pool
