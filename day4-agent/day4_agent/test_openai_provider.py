"""真的 HTTP：一台照剧本回答的假服务器，拼碎片、认错误、重试。"""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from day4_agent import FallbackProvider, ModelError, OpenAIProvider

USER = [{"role": "user", "content": "你好"}]


def chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "x", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": [choice]}


def call_part(index: int, arguments: str, **head: Any) -> dict[str, Any]:
    function = {"name": head.pop("name", None), "arguments": arguments}
    return {"index": index, "function": function, **head}


class FakeServer:
    """每次请求取剧本的下一行：状态码，或一串要流出去的块。"""

    def __init__(self) -> None:
        self.script: list[Any] = []
        self.bodies: list[dict[str, Any]] = []
        self.headers: dict[str, str] = {}
        self.slept: list[float] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.json())
        line = self.script.pop(0)
        if isinstance(line, int):
            return web.json_response({"error": {"message": "no"}}, status=line, headers=self.headers)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for data in line:
            text = data if isinstance(data, str) else json.dumps(data)
            await response.write(f"data: {text}\n\n".encode("latin-1" if "\xff" in text else "utf-8"))
        return response

    def provider(self, **more: Any) -> OpenAIProvider:
        async def sleep(seconds: float) -> None:
            self.slept.append(seconds)

        return OpenAIProvider("m", api_key="sk-test", base_url=self.url, sleep=sleep, **more)


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    fake = FakeServer()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", fake.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    fake.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    yield fake
    await runner.cleanup()


HELLO = [chunk(content="你"), chunk(content="好"), chunk("stop"), "[DONE]"]


async def test_words_come_piece_by_piece_and_the_last_piece_carries_the_whole(server: FakeServer) -> None:
    usage = {**chunk(), "choices": []}
    server.script = [[*HELLO[:3], usage, "[DONE]"]]
    provider = server.provider(temperature=0.2, max_tokens=50, parameters={"seed": 7})
    chunks = [one async for one in provider.stream(USER, [{"type": "function"}])]
    assert [one.text for one in chunks] == ["你", "好", ""]
    assert chunks[-1].response is not None and chunks[-1].response.text == "你好"
    (body,) = server.bodies
    assert (body["temperature"], body["max_tokens"], body["seed"], body["stream"]) == (0.2, 50, 7, True)
    assert body["messages"] == USER and body["tools"] == [{"type": "function"}]
    await provider.close()


async def test_calls_are_put_together_by_their_index(server: FakeServer) -> None:
    parts = [
        chunk(tool_calls=[call_part(0, "", id="a", name="get_order_status")]),
        chunk(tool_calls=[call_part(0, '{"order_id":'), call_part(1, "{oops", id="b", name="t")]),
        chunk(tool_calls=[call_part(0, ' "4471"}')]),
        chunk("tool_calls"),
    ]
    server.script = [[*parts, "[DONE]"]]
    provider = server.provider()
    first, second = (await provider.chat(USER)).tool_calls
    assert (first.id, first.name, first.arguments) == ("a", "get_order_status", {"order_id": "4471"})
    assert (second.raw, second.arguments) == ("{oops", None)
    assert "tools" not in server.bodies[0] and "temperature" not in server.bodies[0]
    await provider.close()


async def test_calls_without_an_index_are_told_apart_by_their_ids(server: FakeServer) -> None:
    def part(arguments: str, **more: Any) -> dict[str, Any]:
        found = call_part(0, arguments, **more)
        del found["index"]
        return found

    deep = "[" * 100_000  # 参数坏得再怪，也只是一个坏的调用
    parts = [
        chunk(tool_calls=[part('{"a":', id="a", name="f")]),
        chunk(tool_calls=[part(" 1}"), part(deep, id="b", name="g")]),
        chunk("tool_calls"),
    ]
    server.script = [[*parts, "[DONE]"]]
    provider = server.provider()
    calls = (await provider.chat(USER)).tool_calls
    assert [(one.id, one.name, one.arguments) for one in calls] == [("a", "f", {"a": 1}), ("b", "g", None)]
    await provider.close()


@pytest.mark.parametrize(
    ("status", "code"),
    [(401, "model_auth"), (404, "model_not_found"), (402, "model_quota"), (400, "model_error")],
)
async def test_what_will_not_mend_itself_is_not_tried_again(
    server: FakeServer, status: int, code: str
) -> None:
    server.script = [status]
    provider = server.provider()
    with pytest.raises(ModelError) as caught:
        await provider.chat(USER)
    assert caught.value.code == code and not caught.value.retryable
    assert len(server.bodies) == 1
    await provider.close()


async def test_a_busy_server_is_tried_again_with_longer_pauses(server: FakeServer) -> None:
    server.script = [503, 500, HELLO]
    provider = server.provider()
    assert (await provider.chat(USER)).text == "你好"
    assert server.slept == [0.5, 1.0]
    await provider.close()


async def test_the_server_says_how_long_to_wait(server: FakeServer) -> None:
    server.script, server.headers = [429, HELLO], {"Retry-After": "7"}
    provider = server.provider()
    await provider.chat(USER)
    assert server.slept == [7.0]
    server.script, server.headers = [429], {"Retry-After": "3600"}
    with pytest.raises(ModelError) as caught:
        await provider.chat(USER)
    assert (caught.value.code, caught.value.retry_after) == ("model_rate_limited", 3600.0)
    await provider.close()


async def test_retries_come_to_an_end(server: FakeServer) -> None:
    server.script = [500, 500]
    provider = server.provider(max_retries=1)
    with pytest.raises(ModelError, match="500"):
        await provider.chat(USER)
    await provider.close()


async def test_a_cut_stream_is_tried_again_until_something_was_shown(server: FakeServer) -> None:
    provider = server.provider()
    server.script = [[chunk(role="assistant")], HELLO]
    assert (await provider.chat(USER)).text == "你好"
    server.script = [[chunk(content="你")], HELLO]
    with pytest.raises(ModelError, match="cut"):
        _ = [one async for one in provider.stream(USER)]
    assert len(server.script) == 1
    await provider.close()


@pytest.mark.parametrize(
    "event",
    [
        "{nonsense",
        "\xff",
        [1],
        {"choices": 5},
        {"choices": {"a": 1}},
        {"choices": [{"delta": None}]},
        {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": None}]}}]},
        chunk(tool_calls=[{"index": [0], "function": {"name": "t", "arguments": ""}}]),
        chunk(tool_calls=[{"index": 0, "function": {"name": "t", "arguments": {"a": 1}}}]),
        {"error": {"message": "overloaded"}},
    ],
)
async def test_what_is_no_answer_is_an_error_of_ours_and_the_next_model_is_asked(
    server: FakeServer, event: Any
) -> None:
    server.script = [[event], [event], HELLO]
    provider = server.provider(max_retries=0)
    with pytest.raises(ModelError) as caught:
        await provider.chat(USER)
    assert caught.value.code == "model_error"
    fallback = FallbackProvider([provider, server.provider()])
    assert (await fallback.chat(USER)).text == "你好"
    await fallback.close()


async def test_a_server_that_is_not_there_is_unreachable(server: FakeServer) -> None:
    server.url = "http://127.0.0.1:9/v1"
    provider = server.provider(max_retries=0)
    with pytest.raises(ModelError) as caught:
        await provider.chat(USER)
    assert caught.value.code == "model_unreachable"
    await provider.close()


@pytest.mark.parametrize(("arguments", "read"), [("", {}), ("[1]", None), ('{"a": 1}', {"a": 1})])
async def test_arguments_are_an_object_or_none(server: FakeServer, arguments: str, read: object) -> None:
    server.script = [[chunk("tool_calls", tool_calls=[call_part(0, arguments, id="a", name="t")]), "[DONE]"]]
    provider = server.provider()
    (call,) = (await provider.chat(USER)).tool_calls
    assert call.arguments == read
    await provider.close()


async def test_a_parameter_that_the_client_does_not_know_is_the_servers_to_judge(server: FakeServer) -> None:
    server.script = [400]
    provider = server.provider(parameters={"nope": 1})
    with pytest.raises(ModelError, match="answered 400"):
        await provider.chat(USER)
    await provider.close()
    assert server.bodies[0]["nope"] == 1
