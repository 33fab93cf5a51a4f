"""Which model answers, with servers on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from pydantic import SecretStr

from miniclaw.agent import select
from miniclaw.agent.providers import LLMProvider, Message
from miniclaw.agent.select import DEFAULT_MODEL, choose_provider, first_chat_model
from miniclaw.config import AgentConfig, ModelSettings
from tests.support.model import FakeModel

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"


ASKED: list[Message] = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]


async def choose(*, ports: Sequence[int] = (), **settings: Any) -> LLMProvider:
    if "api_key" in settings:
        settings["api_key"] = SecretStr(settings["api_key"])
    provider = await choose_provider(ModelSettings(**settings), AgentConfig(), local_ports=ports)
    await provider.close()
    return provider


class ModelList(FakeModel):
    """A server that lists these models, or answers with a status."""

    def __init__(self, *names: str, status: int = 200, **row: Any) -> None:
        super().__init__()
        self._rows = [{"id": name, **row} for name in names]
        self._status = status
        self.asked: list[str] = []

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1].partition("/")[0])

    async def _models(self, request: web.Request) -> web.Response:
        self.asked.append(request.headers.get("Authorization", ""))
        return web.json_response({"object": "list", "data": self._rows}, status=self._status)


@asynccontextmanager
async def speaking(*pieces: bytes, close: bool = True) -> AsyncIterator[int]:
    """A server that says these pieces, apart, to everybody who comes."""

    talks = asyncio.Semaphore(0)
    writers: list[asyncio.StreamWriter] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        try:
            await reader.readuntil(b"\r\n\r\n")
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0.01)  # the next piece is a packet of its own
            if not close:
                await reader.read()
        except (asyncio.IncompleteReadError, OSError):
            pass  # who came has gone before it said all
        finally:
            writer.close()
            talks.release()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        async with asyncio.timeout(10):
            for writer in writers:
                await talks.acquire()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()


# --- a configured model -----------------------------------------------------------------------------------


async def test_a_key_alone_means_openais_own_server_and_the_named_model() -> None:
    provider = await choose(api_key="sk-test", name="gpt-5-mini")
    assert (provider.info.name, provider.info.where) == ("gpt-5-mini", "https://api.openai.com/v1")


async def test_a_base_url_needs_no_key_and_its_first_chat_model_is_used() -> None:
    async with ModelList("text-embedding-3", "bge-m3", "qwen3:8b", "llama3") as server:
        provider = await choose(base_url=server.url)
        assert (provider.info.name, provider.info.where) == ("qwen3:8b", server.url)
        assert server.asked == ["Bearer none"]


async def test_a_named_model_is_not_looked_up() -> None:
    async with ModelList("other") as server:
        assert (await choose(base_url=server.url, api_key="k", name="mine")).info.name == "mine"
        assert server.asked == []


async def test_a_list_without_a_chat_model_leaves_the_default() -> None:
    async with ModelList("bge-m3", "whisper-1") as server:
        assert (await choose(base_url=server.url)).info.name == DEFAULT_MODEL


async def test_a_list_that_is_refused_leaves_the_default_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with ModelList(status=404) as server:
        with caplog.at_level(logging.WARNING):
            assert (await choose(base_url=server.url, api_key="sk-secret-key")).info.name == DEFAULT_MODEL
    assert DEFAULT_MODEL in caplog.text and "sk-secret-key" not in caplog.text


async def test_a_server_that_is_silent_leaves_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select, "LIST_SECONDS", 0.05)
    async with speaking(close=False) as port:
        assert (await choose(base_url=f"http://127.0.0.1:{port}/v1")).info.name == DEFAULT_MODEL


async def test_a_server_that_is_not_there_leaves_the_default() -> None:
    async with ModelList() as gone:
        pass
    assert (await choose(base_url=gone.url)).info.name == DEFAULT_MODEL


@pytest.mark.parametrize(
    ("names", "first"),
    [
        (["gpt-4o-mini-tts", "gpt-4o-audio-preview", "gpt-4o"], "gpt-4o"),
        (["DALL-E-3", "omni-moderation", "o3"], "o3"),
        (["nomic-embed-text:latest"], None),
        ([], None),
    ],
)
def test_names_of_other_kinds_of_models_are_passed_over(names: list[str], first: str | None) -> None:
    assert first_chat_model(names) == first


# --- a server on this machine -----------------------------------------------------------------------------


async def test_without_key_and_base_url_a_server_on_this_machine_answers() -> None:
    async with ModelList("nomic-embed-text", "llama3.2") as server, ModelList("second") as other:
        provider = await choose(ports=(server.port, other.port))
        assert (provider.info.name, provider.info.where) == ("llama3.2", server.url)


async def test_the_named_model_is_preferred_where_the_local_server_has_it() -> None:
    async with ModelList("llama3.2", "qwen3") as server:
        assert (await choose(ports=[server.port], name="qwen3")).info.name == "qwen3"
        assert (await choose(ports=[server.port], name="gpt-5")).info.name == "llama3.2"


async def test_an_answer_in_several_packets_is_read_to_its_end() -> None:
    body = json.dumps({"data": [{"id": "llama3.2"}]}).encode()
    async with speaking(HEAD, body[:9], body[9:]) as port:
        assert (await choose(ports=[port])).info.name == "llama3.2"


async def test_our_own_gateway_is_no_model_server() -> None:
    """It lists itself at `/v1/models` too; two of them would ask each other for ever."""
    async with ModelList("miniclaw", owned_by="miniclaw") as server:
        assert (await choose(ports=[server.port])).info.demo


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.0 404 Not Found\r\n\r\n{}",
        HEAD + b"<html>",
        HEAD + b"{}",
        HEAD + b'{"data": null}',
        HEAD + b'{"data": [7, {"name": "x"}]}',
        HEAD + b"[" * 100_000,
        HEAD + b'{"data": [{"id": "bge-m3"}]}',
    ],
    ids=lambda answer: str(answer[-24:]),
)
async def test_whatever_else_listens_there_the_demo_is_the_last_resort(answer: bytes) -> None:
    async with speaking(answer) as port:
        assert (await choose(ports=[port])).info.demo


async def test_a_port_where_nobody_listens_or_nobody_answers_delays_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(select, "PROBE_SECONDS", 0.05)
    async with ModelList() as gone:
        closed = gone.port
    async with speaking(close=False) as silent:
        assert (await choose(ports=[closed, silent])).info.demo


async def test_the_probe_can_be_switched_off() -> None:
    async with ModelList("llama3.2") as server:
        assert (await choose(ports=[server.port], probe_local=False)).info.demo
        assert server.asked == []


# --- what it is asked with, and who answers else ----------------------------------------------------------


async def test_the_settings_of_a_request_reach_the_model() -> None:
    async with FakeModel() as server:
        settings = ModelSettings(name="m", base_url=server.url, parameters={"reasoning_effort": "low"})
        provider = await choose_provider(settings, AgentConfig(temperature=0.5, max_tokens=9))
        await provider.chat(ASKED)
        await provider.close()
    sent = {
        name: server.requests[0][name] for name in ("model", "reasoning_effort", "temperature", "max_tokens")
    }
    assert sent == {"model": "m", "reasoning_effort": "low", "temperature": 0.5, "max_tokens": 9}


@pytest.mark.parametrize("configured", [True, False])
async def test_fallback_models_answer_in_their_order_with_their_own_server_and_key(configured: bool) -> None:
    class Down(ModelList):
        async def _complete(self, request: web.Request) -> web.StreamResponse:
            self.asked.append((await request.json())["model"])
            return web.json_response({"error": {"message": "no", "code": "insufficient_quota"}}, status=429)

    class Up(ModelList):
        async def _complete(self, request: web.Request) -> web.StreamResponse:
            self.asked.append(request.headers["Authorization"])
            return await super()._complete(request)

    async with Down("first") as down, Up("x") as up:
        fallback: list[Any] = ["second", {"name": "third", "base_url": up.url, "api_key": "own-key"}]
        given = {"name": "first", "fallback": fallback, "base_url": down.url if configured else None}
        provider = await choose_provider(
            ModelSettings.model_validate(given), AgentConfig(), local_ports=[] if configured else [down.port]
        )
        assert provider.info.name == "first"
        answer = await provider.chat(ASKED)
        await provider.close()
        assert (answer.text, answer.usage.model) == ("echo: hello", "third")
        assert down.asked[-2:] == ["first", "second"]
        assert up.asked == ["Bearer own-key"]
        assert up.requests[0]["model"] == "third"


async def test_a_fallback_server_without_a_key_does_not_get_the_first_ones() -> None:
    class Seen(ModelList):
        async def _complete(self, request: web.Request) -> web.StreamResponse:
            self.asked.append(request.headers["Authorization"])
            return await super()._complete(request)

    async with FakeModel(lambda messages, number: {"status": 402}) as down, Seen("x") as up:
        given = {"name": "a", "base_url": down.url, "api_key": "sk-secret"}
        settings = ModelSettings.model_validate({**given, "fallback": [{"name": "b", "base_url": up.url}]})
        provider = await choose_provider(settings, AgentConfig())
        assert (await provider.chat(ASKED)).text == "echo: hello"
        await provider.close()
        assert up.asked == ["Bearer none"]
