"""A fast fake of a streaming chat completion: a calculator call first, then 50 tokens of text."""

from __future__ import annotations

import asyncio
import itertools
import json

TOKENS = 50
ANSWER = "".join(f"tok{i} " for i in range(TOKENS))
_numbers = itertools.count()


def _event(delta: dict[str, object], finish: str | None = None) -> bytes:
    return _chunk({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


def _chunk(body: dict[str, object]) -> bytes:
    data = f"data: {json.dumps(body)}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(data), data)


TEXT = [_event({"content": f"tok{i} "}) for i in range(TOKENS)] + [_event({}, "stop")]
DONE = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def _call() -> list[bytes]:
    function = {"name": "calculator", "arguments": '{"expression":"2+3*4"}'}
    call = {"index": 0, "id": f"call_{next(_numbers)}", "type": "function", "function": function}
    return [_event({"tool_calls": [call]}), _event({}, "tool_calls")]


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            if not head.startswith(b"post"):  # it has no list of models
                writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                continue
            length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
            body = json.loads(await reader.readexactly(length))
            answered = body["messages"][-1]["role"] == "tool"
            writer.write(HEAD)
            for event in TEXT if answered else _call():
                writer.write(event)
                await asyncio.sleep(0)
            if (body.get("stream_options") or {}).get("include_usage"):
                usage = {"prompt_tokens": length // 4, "completion_tokens": TOKENS}
                writer.write(_chunk({"choices": [], "usage": usage}))
            writer.write(DONE)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def main() -> None:
    """Print the port and serve until killed."""
    server = await asyncio.start_server(_serve, "127.0.0.1", 0, limit=64 * 1024 * 1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
