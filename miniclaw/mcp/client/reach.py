"""How a configured server is reached."""

from __future__ import annotations

from pathlib import Path

from miniclaw.mcp.client.config import ServerConfig
from miniclaw.mcp.client.link import Link
from miniclaw.mcp.client.oauth import Consent, OAuth, OAuthClient
from miniclaw.mcp.client.tokens import FILE, KeptTokens

__all__ = ["link_of"]


def link_of(name: str, config: ServerConfig, data_dir: Path, consent: Consent | None = None) -> Link:
    """The link that a server's configuration asks for."""
    if config.command:
        from miniclaw.mcp.client.stdio import StdioLink

        command = [config.command, *config.args]
        return StdioLink(command, env=config.env, cwd=config.cwd, name=name)
    from miniclaw.mcp.client.http import HttpLink

    login = OAuthClient(**config.oauth.model_dump())
    kept = KeptTokens(data_dir / FILE, config.url)
    advice = f"run `miniclaw mcp login {name}`"
    auth = OAuth(config.url, kept=kept, consent=consent, client=login, advice=advice, alone=kept.alone)
    is_own = any(header.lower() == "authorization" for header in config.headers)
    return HttpLink(config.url, headers=config.headers, authorizer=None if is_own else auth)
