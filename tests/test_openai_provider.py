"""The provider against a server on a real socket: what it sends, what it makes of answers and of failures."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from httpx2 import URL

from miniclaw.agent.client import proxy_for
from miniclaw.agent.openai_provider import OpenAIProvider
from miniclaw.agent.providers import LLMChunk, LLMResponse
from miniclaw.agent.quirks import Quirks
from miniclaw.errors import ModelError
from tests.support.model import FakeModel, Message, Reply

KEY = "sk-very-secret-key-0123456789"
HELLO: list[Message] = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
TOOLS: list[Message] = [
    {"type": "function", "function": {"name": "calculator", "parameters": {"type": "object"}}}
]


@asynccontextmanager
async def provider_of(server: FakeModel, **options: Any) -> AsyncIterator[OpenAIProvider]:
    """A provider for a server, closed at the end."""
    given = {"api_key": KEY, "max_retries": 0, **options}
    provider = OpenAIProvider("fake-chat", base_url=server.url, **given)
    try:
        yield provider
    finally:
        await provider.close()


class RawModel(FakeModel):
    """A server that answers every completion with what `respond` does with the connection."""

    def __init__(self, respond: Callable[[web.Request], Any]) -> None:
        super().__init__()
        self._respond = respond
        self.authorizations: list[str] = []
        self.peers: set[Any] = set()

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        self.authorizations.append(request.headers["Authorization"])
        assert request.transport is not None
        self.peers.add(request.transport.get_extra_info("peername"))
        self.requests.append(await request.json())
        response: web.StreamResponse = await self._respond(request)
        return response


async def sse(request: web.Request, *lines: bytes) -> web.StreamResponse:
    """Begin a stream and send these lines as events."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for line in lines:
        await response.write(b"data: " + line + b"\n\n")
    return response


def delta(**fields: Any) -> bytes:
    return json.dumps({"choices": [{"index": 0, "delta": fields}]}).encode()


async def collect(provider: OpenAIProvider) -> tuple[str, LLMResponse]:
    """The text that was shown and the whole answer."""
    shown, responses = "", []
    async for chunk in provider.stream(HELLO):
        shown += chunk.text
        if chunk.response is not None:
            responses.append(chunk.response)
    (response,) = responses
    return shown, response


# --- what goes well ---------------------------------------------------------------------------------------


async def test_a_stream_is_shown_as_it_comes_and_ends_with_the_whole_answer() -> None:
    reply: Reply = {"text": "the sum, please wait", "calls": [("calculator", {"expression": "1+1"})]}
    async with FakeModel(lambda messages, number: reply) as server, provider_of(server) as provider:
        chunks = [chunk async for chunk in provider.stream(HELLO, TOOLS)]
    assert [chunk.text for chunk in chunks if chunk.text] == ["the sum,", " please ", "wait"]
    response = chunks[-1].response
    assert response is not None and response.text == reply["text"]
    assert [(call.name, call.arguments) for call in response.tool_calls] == [
        ("calculator", {"expression": "1+1"})
    ]
    assert (response.usage.input_tokens, response.usage.output_tokens) == (7, 3)


@pytest.mark.parametrize("printed", [False, True])
async def test_a_remote_tool_is_known_by_its_own_name_where_only_one_has_it(printed: bool) -> None:
    """Small models leave the server's name out, in calls and in calls that they print."""

    def named(name: str) -> dict[str, Any]:
        return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}

    def reply(name: str) -> Reply:
        call = f'```json\n{{"name": "{name}", "arguments": {{}}}}\n```'
        return {"text": call} if printed else {"calls": [(name, {})]}

    names = [
        "mcp__files__list_directory",
        "mcp__files__read_file",
        "read_file",
        "mcp__a__echo",
        "mcp__b__echo",
    ]
    asked = ["list_directory", "read_file", "echo"]
    async with (
        FakeModel(lambda messages, number: reply(asked[number - 1])) as server,
        provider_of(server) as provider,
    ):
        called = [
            [call.name for call in (await provider.chat(HELLO, [*map(named, names)])).tool_calls]
            for _ in asked
        ]
    assert called == [["mcp__files__list_directory"], ["read_file"], [] if printed else ["echo"]]


async def test_a_request_carries_model_messages_tools_and_the_parameters_that_are_set() -> None:
    async with FakeModel() as server, provider_of(server, temperature=0.5, max_tokens=9) as provider:
        await collect(provider)
        await provider.chat(HELLO, TOOLS)
        async with provider_of(server) as plain:
            await plain.chat(HELLO, [])
    sampling = {"temperature": 0.5, "max_tokens": 9}
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    base = {"model": "fake-chat", "messages": HELLO, **streamed}
    assert server.requests == [{**base, **sampling}, {**base, **sampling, "tools": TOOLS}, base]


async def test_an_answer_in_one_piece_is_the_same_answer() -> None:
    async with FakeModel(lambda messages, number: {"text": "hi"}) as server, provider_of(server) as provider:
        assert (await provider.chat(HELLO)).text == (await collect(provider))[1].text == "hi"


async def test_the_servers_models_are_listed() -> None:
    async with FakeModel() as server, provider_of(server) as provider:
        assert await provider.models() == ["fake-embed", "fake-chat"]


def test_who_answers_is_told_without_a_request() -> None:
    assert OpenAIProvider("m", api_key=KEY).info.where == "https://api.openai.com/v1"
    info = OpenAIProvider("m", api_key=KEY, base_url="http://host/v1").info
    assert (info.name, info.where, info.demo) == ("m", "http://host/v1", False)


async def test_with_model_asks_another_model_over_the_same_connection() -> None:
    async def respond(request: web.Request) -> web.StreamResponse:
        return web.json_response({"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]})

    async with RawModel(respond) as server, provider_of(server) as provider:
        other = provider.with_model("other")
        assert (other.info.name, provider.info.name) == ("other", "fake-chat")
        for each in (provider, other, provider):
            await each.chat(HELLO)
        assert [request["model"] for request in server.requests] == ["fake-chat", "other", "fake-chat"]
        assert len(server.peers) == 1
        assert server.authorizations == [f"Bearer {KEY}"] * 3
        await other.close()
        await provider.close()
        assert (await provider.chat(HELLO)).text == "x"  # a closed provider opens a new connection
        assert len(server.peers) == 2
        await provider.close()


# --- what goes wrong --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "text", "code", "retryable"),
    [
        (401, "bad key", "model_auth", False),
        (403, "not yours", "model_auth", False),
        (402, "pay", "model_quota", False),
        (403, "Your credit balance is too low", "model_quota", False),
        (429, "slow down", "model_rate_limited", True),
        (404, "no such model", "model_not_found", False),
        (400, "maximum context length is 8192 tokens", "context_overflow", False),
        (413, "context: too many tokens", "context_overflow", False),
        (422, "context length", "context_overflow", False),
        (400, "bad tool schema", "model_error", False),
        (418, "teapot", "model_error", False),
        (500, "oops", "model_error", True),
        (503, "busy", "model_error", True),
    ],
)
async def test_each_refusal_has_its_code_and_its_sentence_holds_no_key(
    status: int, text: str, code: str, retryable: bool
) -> None:
    async def respond(request: web.Request) -> web.StreamResponse:
        message = f"{text} (you sent {request.headers['Authorization']})"
        return web.json_response({"error": {"message": message}}, status=status)

    async with RawModel(respond) as server, provider_of(server) as provider:
        errors = []
        with pytest.raises(ModelError) as streamed:
            await collect(provider)
        errors.append(streamed.value)
        with pytest.raises(ModelError) as whole:
            await provider.chat(HELLO)
        errors.append(whole.value)
    for error in errors:
        assert (error.code, error.retryable) == (code, retryable)
        assert KEY not in str(error)
        assert str(error).endswith(".")


async def test_an_error_inside_a_stream_or_a_good_status_is_told_without_the_key() -> None:
    async def respond(request: web.Request) -> web.StreamResponse:
        error = {"error": {"message": f"out of memory, key {KEY}."}}
        if (await request.json()).get("stream"):
            return await sse(request, delta(content="half"), json.dumps(error).encode())
        return web.json_response(error)

    async with RawModel(respond) as server, provider_of(server) as provider:
        for ask in (collect(provider), provider.chat(HELLO)):
            with pytest.raises(ModelError, match="reported: out of memory") as raised:
                await ask
            assert raised.value.code == "model_error" and KEY not in str(raised.value)


async def test_a_short_key_is_a_placeholder_and_may_stand_in_a_sentence() -> None:
    async def respond(request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "no local memory"}}, status=500)

    async with RawModel(respond) as server, provider_of(server, api_key="local") as provider:
        with pytest.raises(ModelError, match="no local memory"):
            await provider.chat(HELLO)


async def test_a_server_that_is_not_there_is_unreachable() -> None:
    async with FakeModel() as gone:
        pass
    async with provider_of(gone) as provider:
        for ask in (collect(provider), provider.chat(HELLO), provider.models()):
            with pytest.raises(ModelError, match="cannot be reached") as raised:
                await ask
            assert (raised.value.code, raised.value.retryable) == ("model_unreachable", True)


async def refusing_proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
    writer.close()


@pytest.mark.parametrize(
    ("key", "proxy", "kind", "said"),
    [
        ("sk-“quoted”", "", "auth", "OPENAI_API_KEY"),
        ("sk-two\nlines", "", "auth", "OPENAI_API_KEY"),
        ("你的密钥", "", "auth", "OPENAI_API_KEY"),
        ("", "", "auth", "is empty; set OPENAI_API_KEY"),
        (KEY, "socks://u:word@127.0.0.1:1", "unreachable", "ALL_PROXY"),
        (KEY, "socks5://u:word@127.0.0.1:1", "unreachable", "http://host:port"),
        (KEY, "http://127.0.0.1:{port}", "unreachable", "a proxy answered 403"),
    ],
)
async def test_a_key_or_a_proxy_that_cannot_be_used_is_told_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, key: str, proxy: str, kind: str, said: str
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    async with await asyncio.start_server(refusing_proxy, "127.0.0.1", 0) as server:
        monkeypatch.setenv("ALL_PROXY", proxy.format(port=server.sockets[0].getsockname()[1]))
        provider = OpenAIProvider("m", api_key=key, base_url="https://model.invalid/v1", max_retries=0)
        for ask in (lambda: provider.chat(HELLO), provider.models):
            with pytest.raises(ModelError, match=said) as raised:
                await ask()
            assert raised.value.kind == kind and not {"word", key} & set(str(raised.value).split("'"))
        await provider.close()


@pytest.mark.parametrize(
    ("names", "host", "is_named"),
    [
        ("localhost,127.0.0.0/8,::1", "127.0.0.1", True),
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1:{port}", "127.0.0.1", True),
        (" localhost , example.com", "localhost", True),
        ("*", "127.0.0.1", True),
        ("example.com, *.0.0.1", "127.0.0.1", True),
        ("HTTP://127.0.0.1:{port}/v1", "127.0.0.1", True),
        ("*.example.com,http://127.0.0.1:1,*.1:1,[::1]:{port},.,,*.", "127.0.0.1", False),
        ("127.0.0.1:1,10.0.0.0/8,::/0,300.0.0.0/8,host/8,[", "127.0.0.1", False),
        ("example.com", "127.0.0.1", False),
        ("", "127.0.0.1", False),
    ],
)
async def test_a_server_that_no_proxy_names_is_asked_whatever_the_proxy(
    monkeypatch: pytest.MonkeyPatch, names: str, host: str, is_named: bool
) -> None:
    async with FakeModel() as server:
        port = server.url.split(":")[2].split("/")[0]
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
            monkeypatch.delenv(name.lower(), raising=False)
        monkeypatch.setenv("NO_PROXY", names.format(port=port))
        for proxy in ("socks5://127.0.0.1:1/", "socks://127.0.0.1:1/", "http://127.0.0.1:1", "127.0.0.1:1"):
            monkeypatch.setenv("ALL_PROXY", proxy)
            url = f"http://{host}:{port}/v1"
            provider = OpenAIProvider("m", api_key=KEY, base_url=url, max_retries=0)
            try:
                assert (await provider.chat(HELLO)).text == "echo: hello" and is_named
            except ModelError as error:
                assert not is_named and error.kind == "unreachable", error
            await provider.close()
        assert len(server.requests) == 4 * is_named


@pytest.mark.parametrize(
    ("names", "url", "is_named"),
    [
        ("*.Example.com", "https://api.example.com/v1", True),
        ("https://api.example.com", "https://api.example.com/v1", True),
        (".example.com:443", "https://api.example.com/v1", True),
        ("host, *", "https://api.example.com/v1", True),
        ("*.ample.com,api.example.com:8443,10.0.0.0/8", "https://api.example.com/v1", False),
        ("192.168.*", "http://192.168.1.5:8000/v1", True),
        ("api.example.com.", "https://api.example.com/v1", True),
        ("192.16.*,192.168.1.*.*,1.5.", "http://192.168.10.5:8000/v1", False),
        ("[::1]:8000", "http://[::1]:8000/v1", True),
        ("http://[::1]:8000/", "http://[::1]:8000/v1", True),
        ("[::1]", "http://[::1]:8000/v1", True),
        ("fd00::/8", "http://[fd00::1]:8000/v1", True),
        ("[::1]:8001,[::2],:8000", "http://[::1]:8000/v1", False),
    ],
)
@pytest.mark.parametrize("variable", ["NO_PROXY", "no_proxy"])
def test_no_proxy_names_domains_addresses_and_ports_in_every_usual_form(
    monkeypatch: pytest.MonkeyPatch, variable: str, names: str, url: str, is_named: bool
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("ALL_PROXY", "proxy.example:3128")
    monkeypatch.setenv(variable, names)
    assert proxy_for(URL(url)) == (None if is_named else "http://proxy.example:3128")


WITHOUT_DESCRIPTORS = """
import asyncio, resource, sys
from miniclaw.agent.openai_provider import OpenAIProvider
from miniclaw.errors import ModelError

async def main():
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    for most in (3, *range(4, 12), usual[0]):
        provider = OpenAIProvider(model="m", api_key="k", base_url="http://127.0.0.1:9/v1", max_retries=0)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, usual[1]))
        try:
            await provider.chat([{"role": "user", "content": "hi"}])
        except ModelError as error:
            resource.setrlimit(resource.RLIMIT_NOFILE, usual)
            print(error.retryable, error.kind, error)

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="limits of POSIX")
def test_a_client_that_cannot_be_loaded_for_want_of_descriptors_is_tried_again() -> None:
    command = [sys.executable, "-c", WITHOUT_DESCRIPTORS]
    lines = subprocess.run(command, check=True, capture_output=True, encoding="utf-8").stdout.splitlines()
    assert {line.rpartition(" The ")[0] for line in lines} == {"True unreachable"}, lines
    assert "could not be loaded" in lines[0] and "cannot be reached" in lines[-1]


async def test_a_server_that_falls_silent_is_given_up() -> None:
    hold = asyncio.Event()

    async def respond(request: web.Request) -> web.StreamResponse:
        response = await sse(request, delta(content="half"))
        await hold.wait()
        return response

    async with RawModel(respond) as server, provider_of(server, read_timeout=0.1) as provider:
        with pytest.raises(ModelError) as raised:
            await collect(provider)
        hold.set()
    assert raised.value.code == "model_unreachable"


@pytest.mark.parametrize("begun", [True, False])
async def test_a_connection_cut_in_the_middle_is_no_answer(begun: bool) -> None:
    async def respond(request: web.Request) -> web.StreamResponse:
        response = await sse(request, *([delta(content="half")] if begun else []))
        assert request.transport is not None
        request.transport.abort()
        return response

    async with RawModel(respond) as server, provider_of(server) as provider:
        with pytest.raises(ModelError, match="broke off") as raised:
            await collect(provider)
    error = raised.value
    assert (error.code, error.kind, error.retryable) == ("model_unreachable", "stream_cut", True)


@pytest.mark.parametrize(
    ("said", "sentence"), [({"role": "assistant"}, "gave no answer"), ({"content": "half"}, "cut off")]
)
async def test_a_stream_that_ends_without_saying_that_the_answer_does_is_no_answer(
    said: dict[str, str], sentence: str
) -> None:
    async with (
        RawModel(lambda request: sse(request, delta(**said))) as server,
        provider_of(server) as provider,
    ):
        with pytest.raises(ModelError, match=sentence) as raised:
            await collect(provider)
    assert raised.value.code == "model_unreachable"


@pytest.mark.parametrize("line", [b"{broken", b"\xff\xfe", b'{"choices": [', b"7 8"])
async def test_a_chunk_that_is_no_json_is_an_error_of_the_model(line: bytes) -> None:
    async with (
        RawModel(lambda request: sse(request, delta(content="half"), line)) as server,
        provider_of(server) as provider,
    ):
        with pytest.raises(ModelError, match="not JSON") as raised:
            await collect(provider)
    assert raised.value.code == "model_error"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"<html>", "text/html"),
        (b"{broken", "application/json"),
        (b"\xff", "application/json"),
        (b"[]", "application/json"),
    ],
)
async def test_a_body_that_is_no_completion_is_an_error_of_the_model(body: bytes, kind: str) -> None:
    async def respond(request: web.Request) -> web.StreamResponse:
        return web.Response(body=body, content_type=kind)

    async with RawModel(respond) as server, provider_of(server) as provider:
        with pytest.raises(ModelError) as raised:
            await provider.chat(HELLO)
    assert raised.value.code == "model_error"


async def test_a_list_of_models_that_is_none_is_empty() -> None:
    class Odd(FakeModel):
        async def _models(self, request: web.Request) -> web.Response:
            return web.json_response({"data": [None, {"id": ""}, {"id": "good"}]})

    class Page(FakeModel):
        async def _models(self, request: web.Request) -> web.Response:
            return web.json_response(["x"])

    for kind, models in ((Odd, ["good"]), (Page, [])):
        async with kind() as server, provider_of(server) as provider:
            assert await provider.models() == models


# --- how often it is tried --------------------------------------------------------------------------------

Answer = tuple[int, dict[str, str], Any]
GOOD: Answer = (200, {}, {"choices": [{"message": {"content": "at last"}, "finish_reason": "stop"}]})


class Tries:
    """What a provider makes of a row of answers, with a clock that only its waits move on."""

    def __init__(self, *answers: Answer, spent: float = 0.0) -> None:
        self._answers = list(answers)
        self._spent = spent
        self.now = 1_800_000_000.0
        self.waits: list[float] = []
        self.asked = 0

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds

    async def respond(self, request: web.Request) -> web.StreamResponse:
        self.asked += 1
        self.now += self._spent
        status, headers, body = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return web.json_response(body, status=status, headers=headers)

    async def run(self, **options: Any) -> str | ModelError:
        async with RawModel(self.respond) as server:
            given = {"max_retries": 2, "sleep": self.sleep, "clock": lambda: self.now, "jitter": lambda: 1.0}
            async with provider_of(server, **given, **options) as provider:
                try:
                    return (await provider.chat(HELLO)).text
                except ModelError as error:
                    return error


def failing(status: int, message: str = "no", headers: dict[str, str] | None = None, **fields: Any) -> Answer:
    return status, headers or {}, {"error": {"message": message, **fields}}


NOON = "Fri, 15 Jan 2027 08:00:10 GMT"  # ten seconds after the clock's beginning


@pytest.mark.parametrize(
    ("headers", "message", "wait"),
    [
        ({"Retry-After": "7"}, "no", 7.0),
        ({"Retry-After": "0.5"}, "no", 0.5),
        ({"Retry-After": NOON}, "no", 10.0),
        ({"Retry-After-Ms": "250", "Retry-After": "9"}, "no", 0.25),
        ({"X-RateLimit-Remaining-Tokens": "0", "X-RateLimit-Reset-Tokens": "1m1s"}, "no", None),
        ({"X-RateLimit-Remaining-Requests": "0", "X-RateLimit-Reset-Requests": "120ms"}, "no", 0.12),
        ({"X-RateLimit-Remaining-Requests": "5", "X-RateLimit-Reset-Requests": "9s"}, "no", 0.5),
        ({"X-RateLimit-Reset": "4"}, "no", 4.0),
        ({"X-RateLimit-Reset": "1800000006"}, "no", 6.0),
        ({"X-RateLimit-Reset": "1800000006000"}, "no", 6.0),
        ({"Retry-After": "soon"}, "Please try again in 2.5s.", 2.5),
        ({}, "Rate limit reached. Please retry after 6 seconds.", 6.0),
        ({}, "no", 0.5),
    ],
)
async def test_a_limited_rate_is_waited_for_as_the_server_tells(
    headers: dict[str, str], message: str, wait: float | None
) -> None:
    tries = Tries(failing(429, message, headers), GOOD)
    outcome = await tries.run()
    if wait is None:
        assert isinstance(outcome, ModelError) and outcome.retry_after == 61
        return
    assert outcome == "at last" and tries.waits == [pytest.approx(wait)]


async def test_a_delay_in_the_details_of_a_refusal_is_waited_for() -> None:
    details = [{"@type": "RetryInfo", "retryDelay": "3s"}, "odd"]
    body = [{"error": {"code": 429, "message": "You exceeded your current quota", "details": details}}]
    tries = Tries((429, {}, body), GOOD)
    assert (await tries.run(), tries.waits) == ("at last", [3.0])


async def test_a_wait_that_is_too_long_ends_at_once_and_says_when_it_is_over() -> None:
    tries = Tries(failing(429, headers={"Retry-After": "3600"}))
    error = await tries.run()
    assert isinstance(error, ModelError) and (tries.asked, tries.waits) == (1, [])
    assert (error.kind, error.retryable, error.retry_after) == ("rate_limited", False, 3600)
    assert "free again at 2027-01-15 " in str(error)


async def test_waits_come_to_thirty_seconds_at_most() -> None:
    tries = Tries(failing(429, headers={"Retry-After": "20"}))
    error = await tries.run()
    assert isinstance(error, ModelError) and (tries.asked, tries.waits) == (2, [20.0])
    assert "free again in 20 s" in str(error) and error.retryable


@pytest.mark.parametrize(
    ("answer", "asked", "kind"),
    [
        (failing(429), 3, "rate_limited"),
        (failing(500), 3, "server"),
        ((502, {}, "<html>Bad Gateway</html>"), 3, "server"),
        (failing(408), 3, "server"),
        (failing(503, "Loading model", type="unavailable_error"), 3, "overloaded"),
        (failing(529, type="overloaded_error"), 3, "overloaded"),
        ((200, {}, {"error": {"message": "upstream"}}), 2, "stream_error"),
        ((200, {}, ["x"]), 2, "bad_stream"),
        (failing(401), 1, "auth"),
        (failing(429, code="insufficient_quota"), 1, "quota"),
        (failing(429, type="insufficient_quota"), 1, "quota"),
        (failing(404, "The model does not exist"), 1, "model_not_found"),
        ((404, {}, {"detail": "Not Found"}), 1, "endpoint_missing"),
        (failing(400, "maximum context length is 8192 tokens"), 1, "context_overflow"),
        (failing(400, "I do not like you"), 1, "refused"),
        (failing(400, "filtered", code="content_filter"), 1, "content_filter"),
    ],
)
async def test_only_what_may_pass_is_tried_again(answer: Answer, asked: int, kind: str) -> None:
    tries = Tries(answer)
    error = await tries.run()
    assert isinstance(error, ModelError)
    assert (error.kind, tries.asked, len(tries.waits)) == (kind, asked, asked - 1)
    if asked == 3:
        assert tries.waits == [0.5, 1.0]


async def test_a_server_that_takes_its_time_to_fail_is_not_asked_for_ever() -> None:
    tries = Tries(failing(500), spent=61.0)
    assert isinstance(await tries.run(), ModelError) and tries.asked == 1


async def test_a_model_that_is_not_there_is_told_with_those_that_are() -> None:
    async def respond(request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "model 'x' not found"}}, status=404)

    async with RawModel(respond) as server, provider_of(server) as provider:
        with pytest.raises(ModelError, match="It has: fake-embed, fake-chat"):
            await provider.chat(HELLO)


@pytest.mark.parametrize("host", ["[::bad", "127.0.0.1:x", "127.0.0.1:9"])
async def test_an_address_that_is_none_is_told_with_its_password_left_out(host: str) -> None:
    base_url = f"http://user:very-secret@{host}/v1?key=very-secret"
    provider = OpenAIProvider("m", api_key="k", base_url=base_url, max_retries=0)
    assert provider.info.where == f"http://{host}/v1"
    with pytest.raises(ModelError) as raised:
        await provider.chat(HELLO)
    assert (raised.value.code, raised.value.kind) == ("model_unreachable", "unreachable")
    assert "very-secret" not in str(raised.value)
    await provider.close()


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
SOME = b'33\r\ndata: {"choices": [{"delta": {"content": "hi"}}]}\n\n\r\n'
assert len(SOME) == 0x33 + 6


@pytest.mark.parametrize(
    ("pieces", "kind"),
    [
        ([b"HTTZ nonsense\r\n\r\n"], "unreachable"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: abc\r\n\r\n"], "unreachable"),
        ([b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000 + b"\r\n\r\n"], "unreachable"),
        ([HEAD + b"ff\r\nda"], "stream_cut"),
        ([HEAD + SOME, None, b"zz\r\nno size\r\n"], "stream_cut"),
        ([HEAD + SOME, b""], "stream_cut"),
    ],
)
async def test_an_answer_that_is_no_http_is_a_failure_in_time(pieces: list[bytes | None], kind: str) -> None:
    """`None` waits until the first words were read, empty until the client hangs up."""
    is_read, is_closed = asyncio.Event(), asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            for piece in pieces:
                if piece is None:
                    await is_read.wait()
                elif not piece:
                    await reader.read()
                else:
                    writer.write(piece)
                    await writer.drain()
            writer.close()
            await writer.wait_closed()
        except ConnectionError:
            writer.close()
        is_closed.set()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    provider = OpenAIProvider("m", api_key=KEY, base_url=base_url, max_retries=0, read_timeout=0.2)
    with pytest.raises(ModelError) as raised:
        async with asyncio.timeout(30):
            async for _ in provider.stream(HELLO):
                is_read.set()
    assert raised.value.kind == kind
    await provider.close()
    async with asyncio.timeout(30):
        await is_closed.wait()
    server.close()
    await server.wait_closed()


async def test_the_login_of_an_address_is_sent_as_its_header() -> None:
    async def respond(request: web.Request) -> web.StreamResponse:
        return await sse(
            request, json.dumps({"choices": [{"delta": {"content": "hi"}, "finish_reason": "stop"}]}).encode()
        )

    async with RawModel(respond) as server:
        base_url = server.url.replace("http://", "http://user:pass@")
        provider = OpenAIProvider("m", api_key=KEY, base_url=base_url, max_retries=0)
        assert (await provider.chat(HELLO)).text == "hi"
        await provider.close()
    assert server.authorizations == ["Basic dXNlcjpwYXNz"]


# --- the end of a request ---------------------------------------------------------------------------------


async def test_what_is_behind_the_end_is_not_waited_for() -> None:
    hold = asyncio.Event()

    async def respond(request: web.Request) -> web.StreamResponse:
        response = await sse(
            request, delta(content="hi"), b'{"choices":[{"finish_reason":"stop"}]}', b"[DONE]"
        )
        await hold.wait()
        return response

    async with RawModel(respond) as server, provider_of(server, read_timeout=30.0) as provider:
        async with asyncio.timeout(20):
            assert (await collect(provider))[0] == "hi"
        hold.set()


async def test_a_connection_is_used_again_for_the_next_request() -> None:
    async def respond(request: web.Request) -> web.StreamResponse:
        return await sse(request, delta(content="hi"), b'{"choices":[{"finish_reason":"stop"}]}', b"[DONE]")

    async with RawModel(respond) as server, provider_of(server) as provider:
        for _ in range(3):
            await collect(provider)
        assert len(server.peers) == 1


async def test_a_long_history_is_sent_as_it_is_without_copies() -> None:
    history: list[Message] = [{"role": "user", "content": str(n)} for n in range(1000)]
    history[500] = {"role": "assistant", "content": "x", "provider_data": {"by": "other", "calls": [{}]}}
    provider = OpenAIProvider("m", api_key="k")
    sent = provider._request(history, (), Quirks()).body["messages"]
    assert [one is other for one, other in zip(sent, history, strict=True)].count(False) == 1
    assert sent[500] == {"role": "assistant", "content": "x"}


@pytest.mark.parametrize("how", ["closed", "cancelled"])
async def test_a_reader_that_leaves_ends_the_request_at_the_server(how: str) -> None:
    left = asyncio.Event()

    async def respond(request: web.Request) -> web.StreamResponse:
        response = await sse(request)
        try:
            while True:
                await response.write(b"data: " + delta(content="more ") + b"\n\n")
                await asyncio.sleep(0.001)
        finally:
            left.set()

    async with RawModel(respond) as server, provider_of(server) as provider:
        if how == "closed":
            stream = provider.stream(HELLO)
            first = await anext(stream)
            assert isinstance(first, LLMChunk) and first.text == "more "
            await stream.aclose()
        else:
            task = asyncio.create_task(collect(provider))
            while not server.requests:
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        async with asyncio.timeout(10):
            await left.wait()
