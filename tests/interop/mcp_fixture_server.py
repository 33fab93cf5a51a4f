"""A server on our classes that offers what the official MCP conformance suite names.

`python tests/interop/mcp_fixture_server.py --port N` serves http://127.0.0.1:N/mcp without a token;
`--stdio` serves standard input and output.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import re
import struct
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from miniclaw.mcp.call import Call
from miniclaw.mcp.server import MCPServer
from miniclaw.mcp.toolset import text_result

Handler = Callable[[Call, dict[str, Any]], Awaitable[dict[str, Any]]]
NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}


def _png() -> str:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0\xff\0\0")) + chunk(b"IEND", b"")
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + body).decode()


def _wav() -> str:
    form = struct.pack("<HHIIHH", 1, 1, 8000, 8000, 1, 8)
    body = b"WAVEfmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", 2) + b"\x80\x80"
    return base64.b64encode(b"RIFF" + struct.pack("<I", len(body)) + body).decode()


IMAGE = {"type": "image", "data": _png(), "mimeType": "image/png"}
AUDIO = {"type": "audio", "data": _wav(), "mimeType": "audio/wav"}


def embedded(uri: str, text: str, kind: str = "text/plain") -> dict[str, Any]:
    return {"type": "resource", "resource": {"uri": uri, "mimeType": kind, "text": text}}


def form(message: str, **properties: Any) -> tuple[str, dict[str, Any]]:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return "elicitation/create", {"message": message, "requestedSchema": schema}


def sampling(prompt: str, tokens: int = 100) -> tuple[str, dict[str, Any]]:
    content = {"type": "text", "text": prompt}
    return "sampling/createMessage", {
        "messages": [{"role": "user", "content": content}],
        "maxTokens": tokens,
    }


TEXT = {"type": "string"}
NAME = form("What is your name?", name=TEXT)
ROOTS: tuple[str, dict[str, Any]] = ("roots/list", {})


class Fixture:
    """All of it, as one provider of each kind."""

    def __init__(self) -> None:
        self.server: MCPServer | None = None
        self._tools: dict[str, tuple[dict[str, Any], Handler]] = {}
        for name in dir(self):
            if name.startswith(("test_", "json_")):
                self._tools[name] = (NO_ARGUMENTS, getattr(self, name))
        one_text = {"type": "object", "properties": {"text": TEXT}, "required": ["text"]}
        prompt = {"type": "object", "properties": {"prompt": TEXT}, "required": ["prompt"]}
        message = {"type": "object", "properties": {"message": TEXT}, "required": ["message"]}
        self._tools["echo"] = (one_text, self._echo)
        self._tools["test_sampling"] = (prompt, self.test_sampling)
        self._tools["test_elicitation"] = (message, self.test_elicitation)
        self._tools["json_schema_2020_12_tool"] = (SCHEMA_2020_12, self.json_schema_2020_12_tool)
        self._tools["test_custom_headers"] = (HEADERS, self.test_custom_headers)

    # --- tools --------------------------------------------------------------------------------------------

    async def list_tools(self, call: Call) -> Sequence[dict[str, Any]]:
        return [
            {"name": name, "description": f"The suite's {name}.", "inputSchema": schema}
            for name, (schema, _) in self._tools.items()
        ]

    async def call_tool(self, name: str, arguments: dict[str, Any], call: Call) -> dict[str, Any] | None:
        tool = self._tools.get(name)
        return await tool[1](call, arguments) if tool else None

    async def _echo(self, call: Call, arguments: dict[str, Any]) -> dict[str, Any]:
        text = arguments["text"]
        return {**text_result(text), "structuredContent": {"result": text}}

    async def test_simple_text(self, call: Call, arguments: dict[str, Any]) -> dict[str, Any]:
        return text_result("This is a simple text response for testing.")

    async def test_image_content(self, call: Call, arguments: dict[str, Any]) -> dict[str, Any]:
        return {"content": [IMAGE]}

    async def test_audio_content(self, call: Call, arguments: dict[str, Any]) -> dict[str, Any]:
        return {"content": [AUDIO]}

    async def test_embedded_resource(self, call: Call, arguments: dict[str, Any]) -> dict[str, Any]:
        return {"content": [embedded("test://embedded-resource", "This is an embedded resource content.")]}

    async def test_multiple_content_types(self, call: Call, arguments: dict[str, Any]) -> dict[str, Any]:
        data = embedded("test://mixed-content-resource", '{"test":"data","value":123}', "application/json")
        return {"content": [{"type": "text", "text": "Multiple content types test:"}, IMAGE, data]}

    async def test_tool_with_logging(self, call: Call, arguments: dict[str, Any]) -> dict[str, Any]:
        for text in ("Tool execution started", "Tool processing data", "Tool execution completed"):
            call.log("info", text, "fixture")
            await asyncio.sleep(0.05)
        return text_result("logged")

    test_logging_tool = test_tool_with_logging

    async def test_error_handling(self, call: Call, arguments: dict[str, Any]) -> dict[str, Any]:
        return text_result("This tool intentionally returns an error for testing", is_error=True)

    async def test_tool_with_progress(self, call: Call, arguments: dict[str, Any]) -> dict[str, Any]:
        for done in (0, 50, 100):
            call.progress(done, 100, f"Completed step {done} of 100")
            await asyncio.sleep(0.05)
        return text_result("done")

    async def test_sampling(self, call: Call, arguments: dict[str, Any]) -> dict[str, Any]:
        answer = (await call.ask({"sample": sampling(arguments.get("prompt", ""))}))["sample"]
        return text_result(f"LLM response: {answer['content'].get('text')}")

    async def test_elicitation(self, call: Call, arguments: dict[str, Any]) -> dict[str, Any]:
        properties = {
            "username": {**TEXT, "description": "name"},
            "email": {**TEXT, "description": "address"},
        }
        answer = await call.elicit(arguments.get("message", ""), properties, required=tuple(properties))
        return _answered(answer, "User response")

    async def test_elicitation_sep1034_defaults(
        self, call: Call, arguments: dict[str, Any]
    ) -> dict[str, Any]:
        properties = {
            "name": {"type": "string", "default": "John Doe"},
            "age": {"type": "integer", "default": 30},
            "score": {"type": "number", "default": 95.5},
            "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
            "verified": {"type": "boolean", "default": True},
        }
        return _answered(await call.elicit("Please look at the defaults.", properties))

    async def test_elicitation_sep1330_enums(self, call: Call, arguments: dict[str, Any]) -> dict[str, Any]:
        options, values = ["option1", "option2", "option3"], ["value1", "value2", "value3"]
        titled = [{"const": value, "title": f"The {value}"} for value in values]
        names = ["Option One", "Option Two", "Option Three"]
        properties = {
            "untitledSingle": {"type": "string", "enum": options},
            "titledSingle": {"type": "string", "oneOf": titled},
            "legacyEnum": {"type": "string", "enum": ["opt1", "opt2", "opt3"], "enumNames": names},
            "untitledMulti": {"type": "array", "items": {"type": "string", "enum": options}},
            "titledMulti": {"type": "array", "items": {"anyOf": titled}},
        }
        return _answered(await call.elicit("Please choose.", properties))

    async def json_schema_2020_12_tool(self, call: Call, arguments: dict[str, Any]) -> dict[str, Any]:
        return text_result(json.dumps(arguments))

    test_custom_headers = json_schema_2020_12_tool

    async def test_missing_capability(self, call: Call, arguments: dict[str, Any]) -> dict[str, Any]:
        call.require("sampling/createMessage")
        return text_result("The client has `sampling`.")

    async def test_streaming_elicitation(self, call: Call, arguments: dict[str, Any]) -> dict[str, Any]:
        call.progress(1)
        return _answered(await call.elicit("Shall it go on?", {"ok": {"type": "boolean"}}))

    async def test_trigger_tool_change(self, call: Call, arguments: dict[str, Any]) -> dict[str, Any]:
        call.session.server.changed("tools")
        return text_result("changed")

    async def test_trigger_prompt_change(self, call: Call, arguments: dict[str, Any]) -> dict[str, Any]:
        call.session.server.changed("prompts")
        return text_result("changed")

    async def test_input_required_result_elicitation(
        self, call: Call, arguments: dict[str, Any]
    ) -> dict[str, Any]:
        answer = (await call.ask({"user_name": NAME}))["user_name"]
        return text_result(f"Hello, {(answer.get('content') or {}).get('name')}!")

    async def test_input_required_result_sampling(
        self, call: Call, arguments: dict[str, Any]
    ) -> dict[str, Any]:
        answer = await call.ask({"capital_question": sampling("What is the capital of France?")})
        return text_result(str(answer["capital_question"]["content"]))

    async def test_input_required_result_list_roots(
        self, call: Call, arguments: dict[str, Any]
    ) -> dict[str, Any]:
        return text_result(json.dumps((await call.ask({"client_roots": ROOTS}))["client_roots"]["roots"]))

    async def test_input_required_result_request_state(
        self, call: Call, arguments: dict[str, Any]
    ) -> dict[str, Any]:
        await call.ask({"confirm": form("Please confirm", ok={"type": "boolean"})})
        return text_result("state-ok")

    test_input_required_result_tampered_state = test_input_required_result_request_state

    async def test_input_required_result_multiple_inputs(
        self, call: Call, arguments: dict[str, Any]
    ) -> dict[str, Any]:
        greeting = sampling("Generate a greeting", 50)
        answers = await call.ask({"user_name": NAME, "greeting": greeting, "client_roots": ROOTS})
        return text_result(json.dumps(answers))

    async def test_input_required_result_multi_round(
        self, call: Call, arguments: dict[str, Any]
    ) -> dict[str, Any]:
        first = await call.ask({"step1": form("Step 1: What is your name?", name=TEXT)})
        second = await call.ask({"step2": form("Step 2: What is your favorite color?", color=TEXT)})
        return text_result(json.dumps({**first, **second}))

    async def test_input_required_result_capabilities(
        self, call: Call, arguments: dict[str, Any]
    ) -> dict[str, Any]:
        questions = {"user_name": NAME, "greeting": sampling("Generate a greeting"), "client_roots": ROOTS}
        able = {key: question for key, question in questions.items() if call.can(*question)}
        return text_result(json.dumps(await call.ask(able)))

    # --- resources ----------------------------------------------------------------------------------------

    async def list_resources(self, call: Call) -> Sequence[dict[str, Any]]:
        kinds = {"static-text": "text/plain", "static-binary": "image/png", "watched-resource": "text/plain"}
        return [
            {"uri": f"test://{name}", "name": name, "description": f"The {name}.", "mimeType": kind}
            for name, kind in kinds.items()
        ]

    async def list_templates(self, call: Call) -> Sequence[dict[str, Any]]:
        about = {"name": "template", "description": "A template.", "mimeType": "application/json"}
        return [{"uriTemplate": "test://template/{id}/data", **about}]

    async def read_resource(self, uri: str, call: Call) -> Sequence[dict[str, Any]] | None:
        if uri == "test://static-binary":
            return [{"uri": uri, "mimeType": "image/png", "blob": IMAGE["data"]}]
        if uri in ("test://static-text", "test://watched-resource"):
            text = "This is the content of the static text resource."
            return [{"uri": uri, "mimeType": "text/plain", "text": text}]
        found = re.fullmatch(r"test://template/([^/]+)/data", uri)
        if found is None:
            return None
        data = {"id": found[1], "templateTest": True, "data": f"Data for ID: {found[1]}"}
        return [{"uri": uri, "mimeType": "application/json", "text": json.dumps(data)}]

    # --- prompts ------------------------------------------------------------------------------------------

    async def list_prompts(self, call: Call) -> Sequence[dict[str, Any]]:
        arguments = {
            "test_prompt_with_arguments": ("arg1", "arg2"),
            "test_prompt_with_embedded_resource": ("resourceUri",),
        }
        names = (
            "test_simple_prompt",
            *arguments,
            "test_prompt_with_image",
            "test_input_required_result_prompt",
        )
        return [
            {
                "name": name,
                "description": f"The suite's {name}.",
                "arguments": [{"name": one, "required": True} for one in arguments.get(name, ())],
            }
            for name in names
        ]

    async def get_prompt(self, name: str, arguments: Mapping[str, str], call: Call) -> dict[str, Any] | None:
        if name == "test_simple_prompt":
            return _prompt("This is a simple prompt for testing.")
        if name == "test_prompt_with_arguments":
            shown = ", ".join(f"{key}='{arguments.get(key)}'" for key in ("arg1", "arg2"))
            return _prompt(f"Prompt with arguments: {shown}")
        if name == "test_prompt_with_embedded_resource":
            resource = embedded(arguments.get("resourceUri", ""), "Embedded resource content for testing.")
            return _prompt(resource, "Please process the embedded resource above.")
        if name == "test_prompt_with_image":
            return _prompt(IMAGE, "Please analyze the image above.")
        if name == "test_input_required_result_prompt":
            question = form("What context should the prompt use?", context=TEXT)
            answer = (await call.ask({"user_context": question}))["user_context"]
            return _prompt(f"Use this context: {(answer.get('content') or {}).get('context')}")
        return None

    async def complete(
        self, ref: dict[str, Any], name: str, value: str, context: Mapping[str, str], call: Call
    ) -> Sequence[str] | None:
        return [word for word in ("paris", "park", "party", "test") if word.startswith(value)]


SCHEMA_2020_12: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": TEXT, "city": TEXT},
        }
    },
    "properties": {
        "name": TEXT,
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": TEXT,
        "email": TEXT,
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}
HEADERS = {
    "type": "object",
    "properties": {
        "region": {"type": "string", "x-mcp-header": "Region"},
        "priority": {"type": "integer", "x-mcp-header": "Priority"},
        "verbose": {"type": "boolean", "x-mcp-header": "Verbose"},
        "query": {"type": "string"},
    },
}


def _prompt(*contents: str | dict[str, Any]) -> dict[str, Any]:
    parts = [{"type": "text", "text": one} if isinstance(one, str) else one for one in contents]
    return {"messages": [{"role": "user", "content": part} for part in parts]}


def _answered(answer: dict[str, Any], words: str = "Elicitation completed") -> dict[str, Any]:
    content = json.dumps(answer.get("content") or {})
    return text_result(f"{words}: action={answer.get('action')}, content={content}")


def fixture_server() -> MCPServer:
    """The server with everything in it."""
    fixture = Fixture()
    offered: dict[str, Any] = dict.fromkeys(("tools", "resources", "prompts", "completions"), [fixture])
    return MCPServer(name="fixture", tells=True, watches=True, **offered)


async def _serve_http(port: int) -> None:
    from aiohttp import web

    from miniclaw.gateway.access import HostRules
    from miniclaw.mcp.http import McpHttp

    rules, http = HostRules(), McpHttp(fixture_server())

    async def handle(request: web.Request) -> web.StreamResponse:
        host, origin = request.headers.get("Host"), request.headers.get("Origin")
        if not rules.allows_host(host) or (origin is not None and not rules.allows_origin(origin, host)):
            return web.Response(status=403)
        return await http.handle(request, "owner")

    app = web.Application(client_max_size=4 * 1024 * 1024)
    app.router.add_route("*", "/mcp", handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}/mcp", flush=True)
    await asyncio.Event().wait()


async def _serve_stdio() -> None:
    from miniclaw.mcp.stdio import serve_stdio, take_stdio

    await serve_stdio(fixture_server(), *take_stdio())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--stdio", action="store_true")
    args = parser.parse_args()
    try:
        asyncio.run(_serve_stdio() if args.stdio else _serve_http(args.port))
    except KeyboardInterrupt:
        pass
