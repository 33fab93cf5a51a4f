"""Behind a real nginx with the very configuration of docs/reverse-proxy.md, under a path."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import openai
import pytest

from miniclaw.agent.providers import LLMResponse
from miniclaw.agent.scripted import ScriptedProvider
from miniclaw.app import MiniClaw
from tests.support.agent import DictatedProvider
from tests.support.claw import TOKEN, running_claw

PAGE = Path(__file__).parent.parent / "docs" / "reverse-proxy.md"
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
pytestmark = pytest.mark.skipif(
    NGINX is None and not os.environ.get("MINICLAW_TEST_STRICT"), reason="nginx is not installed"
)

FRAME = """daemon off;
worker_processes 1;
pid {dir}/nginx.pid;
error_log {dir}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {dir}/body;
    proxy_temp_path {dir}/proxy;
    fastcgi_temp_path {dir}/fastcgi;
    uwsgi_temp_path {dir}/uwsgi;
    scgi_temp_path {dir}/scgi;
    {map}
    server {{
        listen 127.0.0.1:{port};
        {location}
    }}
}}
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def listening(port: int) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.02)
            else:
                writer.close()
                return


@asynccontextmanager
async def proxied(
    tmp_path: Path, provider: ScriptedProvider | DictatedProvider
) -> AsyncIterator[tuple[MiniClaw, str]]:
    """A gateway behind nginx, and its address as its users have it."""
    assert NGINX is not None, "nginx is not installed"
    port = free_port()
    public = f"http://127.0.0.1:{port}/claw"
    (tmp_path / "nginx").mkdir()
    async with running_claw(
        tmp_path / "data", provider, web=True, arguments={"web.public_url": public}
    ) as claw:
        assert claw.web is not None
        blocks = re.findall(r"```nginx\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
        location = blocks[1].replace("127.0.0.1:8080", f"127.0.0.1:{claw.web.port}")
        text = FRAME.format(dir=tmp_path / "nginx", port=port, map=blocks[0], location=location)
        config = tmp_path / "nginx" / "nginx.conf"
        config.write_text(text, encoding="utf-8")
        nginx = await asyncio.create_subprocess_exec(NGINX, "-c", str(config), "-p", str(tmp_path / "nginx"))
        try:
            await listening(port)
            yield claw, public
        finally:
            nginx.terminate()
            await nginx.wait()


async def test_page_login_and_websocket_work_under_a_path_behind_nginx(tmp_path: Path) -> None:
    async with (
        proxied(tmp_path, ScriptedProvider([LLMResponse(text="behind the proxy")])) as (claw, public),
        aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as client,
    ):
        async with client.get(f"{public}/?token={TOKEN}") as response:
            page = await response.text()
            assert (response.status, str(response.url)) == (200, f"{public}/")
        for address in re.findall(r'(?:src|href)="([^"#]+)"', page):
            async with client.get(f"{public}/{address}") as response:
                assert response.status == 200, address
        origin = {"Origin": public.removesuffix("/claw")}
        async with client.ws_connect(f"{public}/ws", headers=origin) as socket:
            await socket.send_json({"msg_id": "m1", "msg_type": "text", "payload": {"text": "hi"}})
            async with asyncio.timeout(20):
                while True:
                    frame = await socket.receive_json()
                    if frame["payload"].get("name") == "turn.finished":
                        break
        assert frame["payload"]["data"]["text"] == "behind the proxy"
        with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
            await client.ws_connect(f"{public}/ws", headers={"Origin": "https://evil.example"})


async def test_a_stream_reaches_the_client_through_nginx_before_it_has_ended(tmp_path: Path) -> None:
    model = DictatedProvider()
    async with (
        proxied(tmp_path, model) as (_, public),
        openai.AsyncOpenAI(api_key=TOKEN, base_url=f"{public}/v1", max_retries=0) as client,
    ):
        model.say("first ")
        stream = await client.chat.completions.create(
            model="any", messages=[{"role": "user", "content": "go"}], stream=True
        )
        text = ""
        async with asyncio.timeout(20):
            async for chunk in stream:
                text += chunk.choices[0].delta.content or "" if chunk.choices else ""
                if text == "first ":
                    model.end("second")  # only now, so what came did not wait for the end
        assert text == "first second"
