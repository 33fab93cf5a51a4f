"""`http_request`：读一个公开的网址。地址是模型写的，进门之前先看它到底通到哪里。"""

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable
from typing import Final

import httpx

from day4_agent import ToolResult
from day5_tools.base import Tool, ToolError
from day5_tools.function import tool

SECONDS: Final = 20.0
MAX_BYTES: Final = 200_000
# 公网的 IPv6 都在这里面；包着一个 IPv4 地址的写法（可能就是 127.0.0.1）在外面，要不就在下面。
UNICAST: Final = ipaddress.ip_network("2000::/3")
OTHERS: Final = "2001::/23 2002::/16 3fff::/20 192.0.0.0/24 192.88.99.0/24 168.63.129.16"
REFUSED: Final = tuple(map(ipaddress.ip_network, OTHERS.split()))  # 最后一个是 Azure 的宿主机


def is_public(address: str) -> bool:
    """是不是公网上的普通地址；拿不准就不是。"""
    ip = ipaddress.ip_address(address)
    is_ordinary = ip.is_global and not ip.is_multicast and (ip.version == 4 or ip in UNICAST)
    return is_ordinary and not any(ip in network for network in REFUSED)


async def system_resolver(host: str, port: int) -> list[str]:
    """问操作系统；`0x7f.1` 这样的写法它也认得，所以判断要在它之后。"""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def http_request_tool(
    *,
    allow: frozenset[str] = frozenset(),
    resolver: Callable[[str, int], Awaitable[list[str]]] = system_resolver,
    is_allowed: Callable[[str], bool] = is_public,
) -> Tool:
    """`allow` 是店主自己的 `主机:端口`，不受限制。"""

    @tool(risk="read", timeout=SECONDS)
    async def http_request(url: str) -> ToolResult:
        """Read a public web address.

        Args:
            url: An http or https URL on the public internet.
        """
        target = _parsed(url)
        port = target.port or {"http": 80, "https": 443}[target.scheme]
        try:
            addresses = await resolver(target.host, port)
        except (OSError, UnicodeError) as error:
            raise ToolError(f"The host `{target.host}` was not found.") from error
        is_known = f"{target.host}:{port}" in allow or all(map(is_allowed, addresses))
        if not addresses or not is_known:
            raise ToolError(f"`{target.host}` leads to a private address, which tools may not reach.")
        return await _get(target, addresses[0])

    return http_request


def _parsed(url: str) -> httpx.URL:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ToolError(f"{url[:200]!r} is not a valid URL.") from error
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.userinfo:
        raise ToolError("Only complete http and https URLs without a password can be reached.")
    return parsed


async def _get(url: httpx.URL, address: str) -> ToolResult:
    """连的是查过的那个地址：再查一次，答案可能已经换成 127.0.0.1。跳转不跟，由模型再要一次。"""
    headers = {"host": url.netloc.decode("ascii"), "accept-encoding": "identity"}
    request = httpx.Request("GET", url.copy_with(host=address), headers=headers)
    request.extensions["sni_hostname"] = url.host  # 证书按域名核对
    data = b""
    try:
        async with httpx.AsyncClient(trust_env=False, timeout=SECONDS) as client:
            response = await client.send(request, stream=True)
            async for piece in response.aiter_raw():
                if len(data := data + piece) > MAX_BYTES:
                    break
            await response.aclose()
    except httpx.HTTPError as error:
        raise ToolError(f"{url.host} did not answer ({type(error).__name__}).") from error
    ok, title = response.status_code < 400, f"HTTP {response.status_code}"
    if response.has_redirect_location:
        title += f", the page has moved to {response.headers['location']}"
    try:
        text = data[:MAX_BYTES].decode(response.encoding or "utf-8", "replace")
    except LookupError:  # 它说的编码不是文字的，比如 base64
        text = data[:MAX_BYTES].decode("utf-8", "replace")
    return ToolResult(ok=ok, content=f"{title}\n\n{text}", error=None if ok else f"{title}.")
