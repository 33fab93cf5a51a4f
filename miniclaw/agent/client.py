"""The client of model servers: connections, and what has to be imported for them, late or ahead of the first request."""

from __future__ import annotations

from functools import cache, partial
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING
from urllib.request import getproxies, proxy_bypass

from miniclaw.errors import ModelError

if TYPE_CHECKING:
    import ssl

    from httpx2 import URL
    from openai import AsyncOpenAI

__all__ = ["new_client", "not_loaded", "proxy_for", "warm_up"]


def new_client(base_url: str | None, api_key: str, connect: float, read: float) -> AsyncOpenAI:
    """A client that repeats nothing by itself; `connect` and `read` are limits in seconds.

    Raises:
        ModelError: the key or the proxy of the environment is none that can be used.
        httpx2.InvalidURL: the address is none.
    """
    import httpx2
    from openai import AsyncOpenAI

    from miniclaw.agent.transport import ModelClient

    if not api_key:
        raise ModelError("model_auth", "The API key is empty; set OPENAI_API_KEY.", kind="auth")
    if not (api_key.isascii() and api_key.isprintable()):
        text = (
            "The API key has characters that no key has, such as a line break or curly quotes; set OPENAI_API_KEY"
            " to the key alone."
        )
        raise ModelError("model_auth", text, kind="auth")
    url = httpx2.URL(base_url or "https://api.openai.com")
    proxy = proxy_for(url)
    if proxy and (scheme := proxy.partition("://")[0]).startswith("socks"):
        raise _bad_proxy(f"its scheme is {scheme}")
    try:
        return AsyncOpenAI(
            api_key=api_key,
            base_url=base_url,
            max_retries=0,
            timeout=httpx2.Timeout(read, connect=connect),
            http_client=ModelClient(read=read, verify=_tls(), proxy=proxy, trust_env=False),
        )
    except ValueError as error:
        raise _bad_proxy(str(error)) from error


def proxy_for(url: URL) -> str | None:
    """The environment's proxy for a server; none where NO_PROXY has its name, domain, address, port or network.

    A name may stand as `.domain`, `*.domain`, `host.`, `10.1.*`, `http://host` or `[address]:port`, as elsewhere.
    """
    proxies = getproxies()
    proxy = proxies.get(url.scheme) or proxies.get("all")
    port = url.port or {"http": 80}.get(url.scheme, 443)
    is_named = partial(_is_named, url.host.lower(), port)
    names = proxies.get("no", "").lower().split(",")
    if not proxy or proxy_bypass(f"{url.host}:{port}") or any(map(is_named, names)):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _is_named(host: str, port: int, entry: str) -> bool:
    """Whether an entry of NO_PROXY is about a server."""
    scheme, _, rest = entry.strip().rpartition("://")
    name = (rest.partition("/")[0] if scheme else rest).lstrip("*.").rstrip(".")
    if name.endswith(".*"):
        return host.startswith(name.rstrip("*.") + ".")
    try:
        return ip_address(host) in ip_network(name.strip("[]"), strict=False)
    except ValueError:  # not two addresses
        place = f".[{host}]" if ":" in host else f".{host}"
        is_end = f"{place}:{port}".endswith(f".{name}") or place.endswith(f".{name}")
        return rest == "*" or (bool(name) and is_end)


def _bad_proxy(why: str) -> ModelError:
    text = (
        f"The proxy of the environment cannot be used ({why}); set HTTP_PROXY, HTTPS_PROXY and ALL_PROXY to"
        " http://host:port, or name the model server in NO_PROXY."
    )
    return ModelError("model_unreachable", text, kind="unreachable")


def warm_up() -> None:
    """Import the client's libraries and read the certificates: most of a second, in any thread."""
    import openai

    import miniclaw.agent.transport

    _ = openai.AsyncOpenAI, openai.AsyncStream, miniclaw.agent.transport
    _tls()


def not_loaded() -> ModelError | None:
    """Do what `warm_up` does; if it cannot be done just now, such as while no file can be opened, what to raise."""
    try:
        warm_up()
    except (OSError, ImportError) as error:
        sentence = f"The client of model servers could not be loaded ({error}); ask again."
        return ModelError("model_error", sentence, kind="unreachable", retryable=True)
    return None


@cache
def _tls() -> ssl.SSLContext:
    """Made once: to read all certificates costs more than a request."""
    import httpx2

    return httpx2.create_ssl_context()
