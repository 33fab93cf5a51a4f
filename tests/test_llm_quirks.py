"""Further ways in which servers bend the protocol, played like the transcripts."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miniclaw.agent.adapt import fit_messages, fit_tools
from miniclaw.agent.answer import usage_of
from miniclaw.agent.overflow import overflow_in
from miniclaw.agent.providers import LLMResponse, ToolCall
from miniclaw.agent.quirks import Quirks
from miniclaw.agent.report import Report, read_report
from miniclaw.agent.responses import responses_body
from miniclaw.agent.stream import ChatAssembler
from tests.support.play import play
from tests.support.replay import Body, Case, chunk, event, response_item, text_stream

PARIS = {"city": "Paris"}
ARGS = json.dumps(PARIS)
DONE = "data: [DONE]"
WEATHER = [("get_weather", PARIS)]


def case_of(
    *chunks: Any, http: Body | None = None, api: str = "chat", names: tuple[str, ...] = (), **rules: Any
) -> Case:
    """A transcript."""
    expected = {"tool_calls": [{"name": name} for name in names]}
    found = {"api": api, "request_expectations": rules, "expected": expected, "sse_chunks": list(chunks)}
    if not chunks:
        del found["sse_chunks"]
    return {**found, "http": {"headers": {}, **http}} if http else found


def calls(*parts: Body) -> Body:
    return chunk({"tool_calls": list(parts)})


def part(arguments: Any = None, name: str | None = None, **more: Any) -> Body:
    function = {k: v for k, v in (("name", name), ("arguments", arguments)) if v is not None}
    return {"function": function, **more}


def refusal(message: str, status: int = 400, **more: Any) -> Body:
    return {
        "status": status,
        "body": {"error": {"message": message, "type": "invalid_request_error", **more}},
    }


TOOL_STREAMS: dict[str, tuple[list[Any], list[tuple[str, Any]]]] = {
    "no index at all": ([calls(part(ARGS, "get_weather", id="a")), chunk(finish="tool_calls")], WEATHER),
    "index null": ([calls(part(ARGS, "get_weather", id="a", index=None)), chunk(finish="stop")], WEATHER),
    "index a string": (
        [calls(part('{"city":', "get_weather", id="a", index="0")), calls(part('"Paris"}', index="0")), DONE],
        WEATHER,
    ),
    "index 0 for all, other ids": (
        [
            calls(part(ARGS, "get_weather", id="a", index=0)),
            calls(part('{"tz":"UTC"}', "get_time", id="b", index=0)),
            chunk(finish="tool_calls"),
        ],
        [*WEATHER, ("get_time", {"tz": "UTC"})],
    ),
    "index 0 for all, no ids": (
        [
            calls(part(ARGS, "get_weather", index=0)),
            calls(part('{"city":"Rome"}', "get_weather", index=0)),
            chunk(finish="tool_calls"),
        ],
        [*WEATHER, ("get_weather", {"city": "Rome"})],
    ),
    "two objects in one call": (
        [calls(part(ARGS + '{"city":"Rome"}', "get_weather", id="a", index=0)), chunk(finish="tool_calls")],
        [("get_weather", None)],
    ),
    "the same object twice": (
        [calls(part(ARGS, "get_weather", id="a", index=0)), calls(part(ARGS, index=0)), chunk(finish="stop")],
        WEATHER,
    ),
    "an empty object first": (
        [calls(part("{}", "get_weather", id="a", index=0)), calls(part(ARGS, index=0)), chunk(finish="stop")],
        WEATHER,
    ),
    "two calls in one chunk": (
        [
            calls(part(ARGS, "get_weather", id="a", index=0), part("{}", "get_time", id="b", index=1)),
            chunk(finish="tool_calls"),
        ],
        [*WEATHER, ("get_time", {})],
    ),
    "a name that grows": (
        [
            calls(part("", "get_", id="a", index=0)),
            calls(part(ARGS, "get_weather", index=0)),
            chunk(finish="stop"),
        ],
        WEATHER,
    ),
    "two names at one index, no arguments": (
        [
            calls(part("", "get_time", id="a", index=0)),
            calls(part("", "get_weather", id="a", index=0)),
            chunk(finish="tool_calls"),
        ],
        [("get_time", {}), ("get_weather", {})],
    ),
    "ids that are numbers": (
        [
            calls(part('{"city":', "get_weather", id=7)),
            calls(part('"Paris"}', id=7)),
            chunk(finish="tool_calls"),
        ],
        WEATHER,
    ),
    "no finish, but DONE": ([calls(part(ARGS, "get_weather", id="a", index=0)), DONE], WEATHER),
    "two ends": (
        [calls(part(ARGS, "get_weather", index=0)), chunk(finish="stop"), chunk(finish="tool_calls"), DONE],
        WEATHER,
    ),
    "a message behind the deltas": (
        [
            calls(part(ARGS, "get_weather", id="a", index=0)),
            {
                "choices": [
                    {"message": {"tool_calls": [part(ARGS, "get_weather", id="a")]}, "finish_reason": "stop"}
                ]
            },
        ],
        WEATHER,
    ),
    "arguments as a list": (
        [calls(part([1, 2], "get_weather", id="a", index=0)), DONE],
        [("get_weather", None)],
    ),
    "single quotes": ([calls(part("{'city': 'Paris'}", "get_weather", id="a", index=0)), DONE], WEATHER),
    "a line break in a string": (
        [calls(part('{"city":"Pa\nris"}', "get_weather", id="a", index=0)), DONE],
        [("get_weather", {"city": "Pa\nris"})],
    ),
    "tool_calls null": ([chunk({"content": "Hi", "tool_calls": None}), chunk(finish="tool_calls"), DONE], []),
    **{
        f"the name {name!r}": ([calls(part(ARGS, name, id="a", index=0)), DONE], WEATHER)
        for name in (
            *(
                "functions.get_weather",
                "functions.get_weather:0",
                " get_weather\n",
                "get_weather<|channel|>commentary",
            ),
            *("GetWeather", "get.weather"),
        )
    },
    "a name like those of two tools": ([calls(part(ARGS, "GETTIME", id="a")), DONE], [("GETTIME", PARIS)]),
    "no function around name and arguments": (
        [calls({"index": 0, "id": "a", "name": "get_weather", "arguments": ARGS}), DONE],
        WEATHER,
    ),
    "one call and no list": (
        [
            chunk({"tool_calls": part('{"city":', "get_weather", index=0.0)}),
            calls(part('"Paris"}', index=0)),
            DONE,
        ],
        WEATHER,
    ),
    "the same answer twice in a chunk": (
        [
            {"choices": [{"index": 0, "delta": {}}, *calls(part(ARGS, "get_weather", id="a"))["choices"]]},
            DONE,
        ],
        WEATHER,
    ),
    "two answers side by side": (
        [
            {"choices": [{"index": 1, "delta": {"content": ""}}, {"index": 0, "delta": {}}]},
            {
                "choices": [
                    {"index": 1, "delta": {"tool_calls": [part(ARGS, "get_weather", id="a", index=0)]}}
                ]
            },
            {"choices": [{"index": 0, "delta": {"tool_calls": [part("{}", "get_time", id="b", index=0)]}}]},
            {"choices": [{"index": 1, "delta": {}, "finish_reason": "tool_calls"}]},
        ],
        WEATHER,
    ),
}


@pytest.mark.parametrize("mode", ["stream", "in odd pieces"])
@pytest.mark.parametrize("name", TOOL_STREAMS)
async def test_calls_run_once_however_they_are_written(name: str, mode: str) -> None:
    chunks, wanted = TOOL_STREAMS[name]
    played = await play(case_of(*chunks, names=("get_time", "get-time")), mode)
    assert [(call.name, call.arguments) for call in played.responses[0].tool_calls] == wanted
    assert played.ran == [pair for pair in wanted if pair[1] is not None]
    assert played.error is None and played.end is not None


JSON_CALL = f'{{"name": "get_weather", "arguments": {ARGS}}}'
PRINTED = {
    "hermes, two, with a sentence before": (
        f'Let me see.\n<tool_call>\n{{"name": "get_weather", "arguments": {ARGS}}}\n</tool_call>\n'
        '<tool_call>{"name": "get_time", "arguments": {}}</tool_call>',
        "Let me see.",
        [*WEATHER, ("get_time", {})],
    ),
    "hermes, not closed": (f'<tool_call>\n{{"name": "get_weather", "arguments": {ARGS}}}', "", WEATHER),
    "hermes, single quotes": (
        "<tool_call>{'name': 'get_weather', 'arguments': {'city': 'Paris'}}</tool_call>",
        "",
        WEATHER,
    ),
    "a brace too many": (
        f'<tool_call>{{"name": "get_weather", "arguments": {ARGS}}}}}\n</tool_call>',
        "",
        WEATHER,
    ),
    "llama": (f'<|python_tag|>{{"name": "get_weather", "parameters": {ARGS}}}<|eom_id|>', "", WEATHER),
    "llama, code": ('<|python_tag|>get_weather.call(city="Paris")', "", WEATHER),
    "llama, list of code": ('[get_weather(city="Paris"), get_time()]', "", [*WEATHER, ("get_time", {})]),
    "mistral": (f'[TOOL_CALLS] [{{"name": "get_weather", "arguments": {ARGS}}}]', "", WEATHER),
    "mistral, with ARGS": (f"[TOOL_CALLS]get_weather[ARGS]{ARGS}", "", WEATHER),
    "deepseek": (
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{ARGS}\n```"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "",
        WEATHER,
    ),
    "deepseek, newer": (
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{ARGS}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "",
        WEATHER,
    ),
    "deepseek DSML": (
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" string="true">'
        "Paris</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        "",
        WEATHER,
    ),
    "invoke": (
        '<function_calls><invoke name="get_weather"><parameter name="city">Paris</parameter></invoke></function_calls>',
        "",
        WEATHER,
    ),
    "minimax": (
        '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n</invoke>\n'
        "</minimax:tool_call>",
        "",
        WEATHER,
    ),
    "qwen coder": (
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>",
        "",
        WEATHER,
    ),
    "function and JSON": (f"<function=get_weather>{ARGS}</function>", "", WEATHER),
    "glm": (
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>",
        "",
        WEATHER,
    ),
    "a list": (f'[{{"name": "get_weather", "arguments": {ARGS}}}]', "", WEATHER),
    "inside function": (f'{{"function": {{"name": "get_weather", "parameters": {ARGS}}}}}', "", WEATHER),
    "as the API has it": (
        json.dumps(
            {"tool_calls": [{"type": "function", "function": {"name": "get_weather", "arguments": ARGS}}]}
        ),
        "",
        WEATHER,
    ),
    "two as the API has them": (
        json.dumps(
            {"tool_calls": [{"name": "get_weather", "arguments": PARIS}, {"name": "get_time", "args": {}}]}
        ),
        "",
        [*WEATHER, ("get_time", {})],
    ),
    "doubled braces": (f'{{{{"name": "get_weather", "arguments": {ARGS}}}}}', "", WEATHER),
    "doubled braces behind a mark": (
        f'<tool_call>{{{{"name": "get_weather", "arguments": {ARGS}}}}}</tool_call>',
        "",
        WEATHER,
    ),
    "fenced, no language": (f'```\n{{"name": "get_weather", "arguments": {ARGS}}}\n```', "", WEATHER),
    "behind thoughts": (
        f'<think>hm</think>\n<tool_call>{{"name": "get_weather", "arguments": {ARGS}}}</tool_call>',
        "",
        WEATHER,
    ),
    **{
        name: (printed, "", WEATHER)
        for name, printed in {
            "phi": f"functools[{JSON_CALL}]",
            "functioncall": f"<functioncall> {JSON_CALL}",
            "granite": f"<|tool_call|>[{JSON_CALL}]<|/tool_call|>",
            "nemotron": f"<TOOLCALL>[{JSON_CALL}]</TOOLCALL>",
            "mistral and its end": f"[TOOL_CALLS] [{JSON_CALL}]</s>",
            "llama and its header": f"<|start_header_id|>assistant<|end_header_id|>\n\n<function=get_weather>{ARGS}</function>",
            "deepseek, plain bars": f"<|tool▁call▁begin|>function<|tool▁sep|>get_weather\n```json\n{ARGS}\n```<|tool▁call▁end|>",
            "step": f"<｜tool_call_begin｜>function<｜tool_sep｜>get_weather\n{ARGS}<｜tool_call_end｜><｜end▁of▁sentence｜>",
            "harmony": f"<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{ARGS}<|call|>",
            "harmony behind thoughts": (
                "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather"
                f"<|constrain|>json<|message|>{ARGS}<|call|>"
            ),
            "harmony, name first": f"<|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>{ARGS}",
            "react": f"Action: get_weather\nAction Input: {ARGS}\nObservation: sunny\nFinal Answer: sunny",
            "qwen": f"✿FUNCTION✿: get_weather\n✿ARGS✿: {ARGS}\n✿RETURN✿ sunny",
            "command-r": f'Action: ```json\n[{{"tool_name": "get_weather", "parameters": {ARGS}}}]\n```',
            "command-a": f'<|START_ACTION|>[{{"tool_call_id": "0", "tool_name": "get_weather", "parameters": {ARGS}}}]<|END_ACTION|>',
            "internlm": f'<|action_start|><|plugin|>{{"name": "get_weather", "parameters": {ARGS}}}<|action_end|>',
            "hunyuan": (
                "<tool_calls><tool_call>get_weather<tool_sep><arg_key>city</arg_key><arg_value>Paris</arg_value>"
                "</tool_call></tool_calls>"
            ),
            "hunyuan, fenced": f"<tool_calls><tool_call>function<tool_sep>get_weather\n```json\n{ARGS}\n```</tool_call></tool_calls>",
            "longcat": (
                "<longcat_tool_call>get_weather\n<longcat_arg_key>city</longcat_arg_key>\n"
                "<longcat_arg_value>Paris</longcat_arg_value>\n</longcat_tool_call>"
            ),
            "seed": "<seed:tool_call>\n<function=get_weather>\n<parameter=city>Paris</parameter>\n</function>\n</seed:tool_call>",
            "glm, name and JSON": f"get_weather\n{ARGS}",
            "action": f'{{"action": "get_weather", "action_input": {ARGS}}}',
            "tool_input": f'{{"tool": "get_weather", "tool_input": {ARGS}}}',
            "lfm": '<|tool_call_start|>[get_weather(city="Paris")]<|tool_call_end|>',
            "olmo": '<function_calls>get_weather(city="Paris")</function_calls>',
            "gemma": '```tool_code\nprint(get_weather(city="Paris"))\n```',
            "fenced xml": f"```xml\n<tool_call>{JSON_CALL}</tool_call>\n```",
        }.items()
    },
    "react behind a thought": (
        f"Thought: hm\nAction: get_weather\nAction Input: {ARGS}\nObservation:",
        "Thought: hm",
        WEATHER,
    ),
    "no arguments behind a mark": ('<tool_call>{"name": "get_time"}</tool_call>', "", [("get_time", {})]),
    "arguments null": (
        '<tool_call>{"name": "get_time", "arguments": null}</tool_call>',
        "",
        [("get_time", {})],
    ),
    "an argument that holds the end": (
        "<tool_call><function=get_weather><parameter=city>\n<p></function></p>\n</parameter></function></tool_call>",
        "",
        [("get_weather", {"city": "<p></function></p>"})],
    ),
    **{
        f"no call: {printed}": (printed, None, [])
        for printed in (
            f"To call, write `<tool_call>{JSON_CALL}</tool_call>` please.",
            f"Then <tool_call>{JSON_CALL}</tool_call> is sent to it.",
            f"For example:\n```xml\n<tool_call>{JSON_CALL}</tool_call>\n```\nThis asks for the weather.",
            "Action: get_weather is the one to use.",
            "get_weather is the one to use.",
            '{"name": "get_time"}',
            f"functools[{JSON_CALL[:-1]}",
        )
    },
    "an unknown tool": ('<tool_call>{"name": "rm", "arguments": {}}</tool_call>', None, []),
    "a tool that is described": ('{"name": "get_weather", "description": "x", "parameters": {}}', None, []),
    "an answer in JSON": ('{"name": "Alice", "age": 3}', None, []),
    "a call in the middle of a text": (
        f'Send {{"name": "get_weather", "arguments": {ARGS}}} to it.',
        None,
        [],
    ),
    "a fenced call behind a text": (
        f'So:\n```json\n{{"name": "get_weather", "arguments": {ARGS}}}\n```',
        None,
        [],
    ),
    "a text about tags": ("A model writes <tool_call> and then [TOOL_CALLS] or <think>.", None, []),
    "code": ("```python\nprint(get_weather('Paris'))\n```", None, []),
    "a list of numbers": ("[1, 2]", None, []),
    "half a tag at the end": ("a < b <tool_", None, []),
}


@pytest.mark.parametrize("mode", ["stream", "in odd pieces"])
@pytest.mark.parametrize("name", PRINTED)
async def test_a_call_printed_as_text_runs_and_everything_else_is_shown(name: str, mode: str) -> None:
    printed, text, wanted = PRINTED[name]
    size = 3 if mode == "in odd pieces" else 40
    pieces = [chunk({"content": printed[i : i + size]}) for i in range(0, len(printed), size)]
    played = await play(case_of(*pieces, chunk(finish="stop"), DONE, names=("get_time",)), mode)
    assert played.ran == wanted
    assert played.text.strip() == (printed if text is None else text).strip()
    assert played.responses[0].text.strip() == played.text.strip()
    assert played.responses[0].finish == ("tool_calls" if wanted else "stop")


@pytest.mark.parametrize(
    "printed",
    [
        "<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=day>\nMonday\n</function>",
        "<function=get_weather>\n<parameter=city>\nParis\n<parameter=day>\nMonday\n</parameter></function>",
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>day</arg_key>\n<arg_value>1\n</tool_call>",
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>day</arg_key>\n</tool_call>",
        '<invoke name="get_weather"><parameter name="city">Paris</parameter><parameter name="day">1</invoke>',
    ],
)  # fmt: skip
async def test_a_printed_call_with_an_argument_that_has_no_end_does_not_run_with_less(printed: str) -> None:
    played = await play(case_of(chunk({"content": printed}), chunk(finish="stop"), DONE))
    assert played.ran == [] and played.text == ""
    assert [(call.name, call.arguments) for call in played.responses[0].tool_calls] == [("get_weather", None)]


async def test_a_call_printed_inside_thoughts_runs_when_there_is_no_answer() -> None:
    printed = f"<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{ARGS}<|tool_call_end|>"
    played = await play(case_of(chunk({"reasoning_content": f"So: {printed}"}), chunk(finish="stop")))
    assert played.ran == WEATHER and played.responses[0].reasoning.strip() == "So:"


async def test_printed_copies_of_structured_calls_are_neither_run_nor_shown() -> None:
    printed = f'<tool_call>{{"name": "get_weather", "arguments": {ARGS}}}</tool_call>'
    chunks = [
        chunk({"content": printed}),
        calls(part(ARGS, "get_weather", id="a", index=0)),
        chunk(finish="stop"),
    ]
    played = await play(case_of(*chunks))
    assert (played.ran, played.text) == (WEATHER, "")


TEXTS: dict[str, tuple[list[Any], str, str]] = {
    "a list of parts": (
        [
            chunk({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]}),
            chunk({"content": [{"type": "text", "text": "H"}, {"type": "output_text", "text": "i"}, "!", 5]}),
            chunk(finish="stop"),
        ],
        "Hi!",
        "hm",
    ),
    "a refusal": (
        [chunk({"content": None, "refusal": "I can"}), chunk({"refusal": "not."}), DONE],
        "I cannot.",
        "",
    ),
    "finish before the last text": (
        [chunk({"content": "H"}, "stop"), chunk({"content": "i"}), DONE],
        "Hi",
        "",
    ),
    "CRLF and named events": (
        ["event: message\r\ndata: " + json.dumps(chunk({"content": "Hi"}, "stop"))],
        "Hi",
        "",
    ),
    "a BOM": (["\ufeffdata: " + json.dumps(chunk({"content": "湖"}, "stop"))], "湖", ""),
    "no blank between data and its value": (
        ["data:" + json.dumps(chunk({"content": "Hi"}, "stop"))],
        "Hi",
        "",
    ),
    "JSON over several lines": (
        ["data: " + json.dumps(chunk({"content": "Hi"}, "stop"), indent=1).replace("\n", "\ndata: ")],
        "Hi",
        "",
    ),
    "no empty line between events": (
        [f"data: {json.dumps(chunk({'content': 'H'}))}\ndata: {json.dumps(chunk({'content': 'i'}, 'stop'))}"],
        "Hi",
        "",
    ),
    "ids and retry times": (
        ["id: 1\nretry: 5\ndata: " + json.dumps(chunk({"content": "Hi"}, "stop"))],
        "Hi",
        "",
    ),
    "usage null": ([chunk({"content": "Hi"}, usage=None), chunk(finish="stop", usage=None), DONE], "Hi", ""),
    "azure filter results": (
        [
            {"choices": [{"index": 0, "content_filter_results": {}, "finish_reason": None}]},
            chunk({"content": "Hi"}),
            {"choices": [{"index": 0, "content_filter_offsets": {}, "finish_reason": None}]},
            chunk(finish="stop"),
            DONE,
        ],
        "Hi",
        "",
    ),
    "thoughts that the server opened": (
        [chunk({"content": "So I greet.\n"}), chunk({"content": "</think>\n\nHi"}), chunk(finish="stop")],
        "Hi",
        "So I greet.",
    ),
    "thoughts that the server opened, and a tag at their end": (
        [chunk({"content": "So I greet."}), chunk({"content": "</think>"}), chunk({"content": "Hi"}), DONE],
        "Hi",
        "So I greet.",
    ),
    "thoughts in details": (
        [
            chunk({"reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "h"}]}),
            chunk({"reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "m"}]}),
            chunk({"content": "Hi"}),
            chunk(finish="stop"),
        ],
        "Hi",
        "hm",
    ),
    "a whole body in a stream": (
        [json.dumps({"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]}, indent=1)],
        "Hi",
        "",
    ),
    "garbage behind the end": ([chunk({"content": "Hi"}, "stop"), "data: {broken"], "Hi", ""),
    "an unknown reason of the end": ([chunk({"content": "Hi"}, "eos_token"), DONE], "Hi", ""),
}


@pytest.mark.parametrize("mode", ["stream", "in odd pieces"])
@pytest.mark.parametrize("name", TEXTS)
async def test_a_text_is_read_however_it_is_sent(name: str, mode: str) -> None:
    chunks, text, thoughts = TEXTS[name]
    played = await play(case_of(*chunks), mode)
    assert played.error is None and len(played.requests) == 1
    assert (played.responses[0].text, played.responses[0].reasoning) == (text, thoughts)
    assert played.responses[0].finish == "stop"


@pytest.mark.parametrize(
    "usage",
    [
        {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3, "cached_tokens": 2}},
        {
            "choices": [],
            "x_groq": {"usage": {"prompt_tokens": 7, "completion_tokens": 3, "prompt_cache_hit_tokens": 2}},
        },
        {
            "choices": [
                {
                    "index": 0,
                    "delta": {},
                    "usage": {
                        "prompt_tokens": 7,
                        "completion_tokens": 3,
                        "prompt_tokens_details": {"cached_tokens": 2},
                    },
                }
            ]
        },
    ],
)
async def test_usage_is_found_wherever_it_stands(usage: Body) -> None:
    played = await play(case_of(chunk({"content": "Hi"}, "stop"), usage, DONE))
    found = played.responses[0].usage
    assert (found.input_tokens, found.output_tokens, found.cached_tokens, found.calls) == (7, 3, 2, 1)


def counted(prompt: int, answer: int, total: Any, thoughts: int | None = None, **more: Any) -> int:
    usage = {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": total, **more}
    if thoughts is not None:
        usage["completion_tokens_details"] = {"reasoning_tokens": thoughts}
    return usage_of(usage, "m").output_tokens


@pytest.mark.parametrize(
    ("output", "found"),
    [
        (100_009, counted(32, 9, 100_041, 100_000, prompt_tokens_details={"cached_tokens": 20})),  # xAI
        (60_004, counted(21, 4, 60_025)),  # Gemini
        (60_004, counted(21, 4, 60_025, 0)),
        (60_004, counted(21, 0, 60_025, cached_tokens=5)),
        (50, counted(10, 50, 60, 40)),  # OpenAI: the answer has them in it
        (57, counted(10, 50, 67, 40)),
        (9, counted(32, 9, 30, 100)),
        (9, counted(32, 9, None, 100)),
        (9, counted(32, 9, "many", 100)),
        (9, counted(32, 9, True)),
        (9, counted(32, 9, -5)),
        (9, counted(32, 9, 10**11)),
        (9, counted(0, 9, 500)),
        (9, counted(32, 9, 131, prompt_tokens_details={"cached_tokens": 90})),
        (9, counted(32, 9, 441, cache_read_input_tokens=300, cache_creation_input_tokens=100)),
    ],
)
def test_thoughts_that_are_counted_beside_the_answer_are_output(output: int, found: int) -> None:
    assert found == output


NUMBER = st.integers(-10, 10**7)


@given(NUMBER, NUMBER, NUMBER, st.none() | NUMBER)
def test_no_total_makes_the_output_less_than_the_answer_or_more_than_the_total_has(
    prompt: int, answer: int, total: int, thoughts: int | None
) -> None:
    least = max(answer, 0)
    assert least <= counted(prompt, answer, total, thoughts) <= max(least, total - prompt)


@pytest.mark.parametrize(
    ("reason", "kind", "code"),
    [
        ("insufficient_system_resource", "overloaded", "model_error"),
        ("network_error", "server", "model_error"),
        ("error", "stream_error", "model_error"),
        ("abort", "stream_cut", "model_unreachable"),
        ("model_context_window_exceeded", "context_overflow", "context_overflow"),
    ],
)
async def test_a_reason_of_the_end_that_is_a_failure_is_one(reason: str, kind: str, code: str) -> None:
    played = await play(case_of(chunk({"content": "Par"}), chunk(finish=reason), DONE))
    assert played.error is not None
    assert (played.error.kind, played.error.code, played.text) == (kind, code, "Par")
    assert len(played.requests) == 1  # something was shown


@pytest.mark.parametrize("reason", ["content_filter", "sensitive", "SAFETY"])
async def test_a_filtered_answer_runs_no_calls(reason: str) -> None:
    chunks = [
        chunk({"content": "I can"}),
        calls(part(ARGS, "get_weather", id="a", index=0)),
        chunk(finish=reason),
    ]
    played = await play(case_of(*chunks))
    assert (played.responses[0].finish, played.ran, played.text) == ("content_filter", [], "I can")


@pytest.mark.parametrize("text", ["", "I can"])
async def test_a_filtered_answer_is_not_asked_for_again_and_says_what_stopped_it(text: str) -> None:
    played = await play(case_of(chunk({"content": text}), chunk(finish="content_filter"), DONE))
    assert len(played.requests) == 1
    if text:
        assert played.error is None and played.end is not None
        assert "content filter" in played.end.response.warning
    else:
        assert played.error is not None and "content filter" in str(played.error)
        assert (played.error.code, played.error.kind) == ("model_error", "content_filter")


@pytest.mark.parametrize("count", [10**12, 1e300, float("inf")])
async def test_an_absurd_count_makes_the_usage_unknown_so_that_it_is_estimated(count: float) -> None:
    usage = {"prompt_tokens": count, "completion_tokens": 3}
    played = await play(case_of(chunk({"content": "Hi"}, "stop", usage=usage), DONE))
    assert played.responses[0].usage.tokens == 0


async def test_an_answer_that_reached_its_length_keeps_its_text_and_runs_no_call() -> None:
    played = await play(case_of(chunk({"content": "long"}), chunk(finish="length"), DONE))
    assert (played.responses[0].text, played.responses[0].finish) == ("long", "length")
    whole = [calls(part(ARGS, "get_weather", id="a", index=0)), chunk(finish="length"), DONE]
    played = await play(case_of(*whole))
    assert [call.arguments for call in played.responses[0].tool_calls] == [None] and not played.ran


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ('event: error\ndata: {"message": "busy", "type": "overloaded_error"}', "overloaded"),
        ('data: {"error": "something broke"}', "stream_error"),
        ('data: {"error": {"code": 429, "message": "slow down"}}', "rate_limited"),
        (
            'data: {"object": "error", "message": "maximum context length is 8192 tokens", "code": 400}',
            "context_overflow",
        ),
        ("data: {broken", "bad_stream"),
        ("<html>hello</html>", "bad_stream"),
        (": nothing", "stream_cut"),
        ("data: [DONE]", "bad_stream"),
        ('data: {"error": {"code": 402}}', "quota"),
        ('data: {"error": {"code": 413, "message": "Payload too large"}}', "context_overflow"),
        ('data: [{"error": {"code": 503, "message": "overloaded", "status": "UNAVAILABLE"}}]', "overloaded"),
        *(
            (f"data: {json.dumps({'choices': [{'index': 0, place: {'error': {'code': 402}}}]})}", "quota")
            for place in ("delta", "message")
        ),
        ('data: {"error": {"code": "408", "message": "late"}}', "server"),
        ('{"choices": [{"index": 0, "error": {"code": 401, "message": "No"}}]}', "auth"),
        *(
            (f"data: {json.dumps(chunk(finish='error', error={'code': code, 'message': said}))}", kind)
            for code, said, kind in (
                (402, "Insufficient credits", "quota"),
                (429, "slow down", "rate_limited"),
                (502, "Provider returned error", "server"),
                (400, "maximum context length is 8192 tokens", "context_overflow"),
                (400, "I do not like you", "refused"),
                ("server_error", "Provider disconnected", "server"),
            )
        ),
    ],
)
async def test_a_stream_that_says_that_it_failed_is_asked_for_once_more(said: str, kind: str) -> None:
    played = await play(case_of(said))
    assert played.error is not None and played.error.kind == kind
    often = dict.fromkeys(("rate_limited", "overloaded", "server"), 3)
    once = dict.fromkeys(("context_overflow", "quota", "auth", "refused"), 1)
    assert len(played.requests) == (often | once).get(kind, 2)


async def test_a_stream_that_failed_is_told_in_the_servers_words_and_an_error_of_nothing_is_none() -> None:
    said = chunk(finish="error", error={"code": 504, "message": "Upstream idle timeout"})
    played = await play(case_of(chunk({"content": "half"}), said))
    assert "reported: Upstream idle timeout" in str(played.error)
    empty = [
        chunk({"content": "Hi"}, error=None),
        chunk(error="null"),
        *({"error": nothing} for nothing in ("none", "NULL", "0", "ok", "Success")),
        chunk(error="OK"),
        chunk(finish="stop", error={"code": 0, "message": ""}),
    ]
    played = await play(case_of(*empty))
    assert (played.error, played.text) == (None, "Hi")
    done = response_item("Hi") | {"error": {"code": None, "message": None}}
    played = await play(case_of(event("response.completed", response=done), api="responses"))
    assert (played.error, played.text) == (None, "Hi")


async def test_a_stream_that_is_cut_before_anything_was_shown_is_asked_for_again() -> None:
    case = case_of(*text_stream("Hi"), http={"status": 200, "body": ": nothing\n\n"}, fail_first=1)
    played = await play(case)
    assert (played.text, len(played.requests)) == ("Hi", 2)


async def test_a_prompt_that_the_server_cannot_have_read_whole_is_told_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    usage = {"choices": [], "usage": {"prompt_tokens": 2048, "completion_tokens": 3}}
    played = await play(case_of(chunk({"content": "Hi"}, "stop"), usage, DONE, min_prompt_chars=40_000))
    assert "read 2048 tokens of a longer prompt" in played.responses[0].warning
    assert "OLLAMA_CONTEXT_LENGTH" in caplog.text
    short = await play(case_of(chunk({"content": "Hi"}, "stop"), usage, DONE, min_prompt_chars=6_000))
    assert short.responses[0].warning == ""


# --- what is refused and sent otherwise -------------------------------------------------------------------

HI = text_stream("Hi")
ADAPTED: dict[str, tuple[Body, Body, Body]] = {
    "max_completion_tokens": (
        {"send": {"max_tokens": 9}, "reject_if": [{"path": "max_tokens", "exists": True}]},
        refusal("Unsupported parameter: 'max_tokens' is not supported. Use 'max_completion_tokens' instead."),
        {"max_completion_tokens": 9},
    ),
    "max_tokens": (
        {
            "send": {"max_completion_tokens": 9},
            "reject_if": [{"path": "max_completion_tokens", "exists": True}],
        },
        refusal("max_completion_tokens: Extra inputs are not permitted"),
        {"max_tokens": 9},
    ),
    "max_tokens too large": (
        {"send": {"max_tokens": 99_999}, "reject_if": [{"path": "max_tokens", "equals": 99_999}]},
        refusal("max_tokens is too large: 99999. This model supports at most 4096 completion tokens."),
        {"max_tokens": 4096},
    ),
    **{
        f"max_tokens beyond the window, {left} left": (
            {"send": {"max_tokens": asked}, "reject_if": [{"path": "max_tokens", "equals": asked}]},
            refusal(message),
            {"max_tokens": left},
        )
        for asked, message, left in (
            (
                8192,
                "This model's maximum context length is 8192 tokens. However, you requested 8692 tokens (500 in the "
                "messages, 8192 in the completion). Please reduce the length of the messages or completion.",
                4096,
            ),
            (
                100_000,
                "This endpoint's maximum context length is 8192 tokens. However, you requested about 106000 tokens "
                "(6000 of text input, 100000 in the output). Please reduce the length of either one.",
                2192,
            ),
            (9000, "input length and `max_tokens` exceed context limit: 1000 + 9000 > 9500, decrease", 4750),
        )
    },
    "max_tokens out of range": (
        {"send": {"max_tokens": 99_999}, "reject_if": [{"path": "max_tokens", "equals": 99_999}]},
        refusal("Range of max_tokens should be [1, 8192]"),
        {"max_tokens": 8192},
    ),
    "temperature": (
        {"send": {"temperature": 0.5}, "reject_if": [{"path": "temperature", "exists": True}]},
        refusal(
            "Unsupported value: 'temperature' does not support 0.5 with this model. Only the default (1) value is."
        ),
        {"temperature": None},
    ),
    "parallel_tool_calls": (
        {
            "send": {"parallel_tool_calls": True},
            "reject_if": [{"path": "parallel_tool_calls", "exists": True}],
        },
        {
            "status": 422,
            "body": {"detail": [{"loc": ["body", "parallel_tool_calls"], "msg": "extra fields"}]},
        },
        {"parallel_tool_calls": None},
    ),
    **{
        f"parallel_tool_calls, {name}": (
            {
                "send": {"parallel_tool_calls": True},
                "reject_if": [{"path": "parallel_tool_calls", "exists": True}],
            },
            {"status": 200, "body": body},
            {"parallel_tool_calls": None},
        )
        for name, body in {
            "inside an answer": {
                "error": {"message": "Unsupported parameter: 'parallel_tool_calls'", "code": "x"}
            },
            "of MiniMax": {
                "base_resp": {
                    "status_code": 2013,
                    "status_msg": "invalid params, unknown parameter: parallel_tool_calls",
                }
            },
            "in a stream": "data: "
            + json.dumps(
                chunk(finish="error", error={"code": 400, "message": "parallel_tool_calls is not supported"})
            )
            + "\n\n",
        }.items()
    },
    "n": (
        {"send": {"n": 1}, "reject_if": [{"path": "n", "exists": True}]},
        refusal("Unrecognized request argument supplied: n"),
        {"n": None},
    ),
    "logprobs": (
        {"send": {"logprobs": True}, "reject_if": [{"path": "logprobs", "exists": True}]},
        refusal("bad", param="logprobs"),
        {"logprobs": None},
    ),
    "stream": (
        {"reject_if": [{"path": "stream", "exists": True}]},
        refusal(
            "Unsupported value: 'stream' does not support true with this model. stream_options not supported."
        ),
        {"stream": None, "stream_options": None},
    ),
    "tool_choice twice": (
        {"send": {"tool_choice": "required"}, "reject_if": [{"path": "tool_choice", "exists": True}]},
        refusal("tool_choice is not supported"),
        {"tool_choice": None},
    ),
    "tools": (
        {"reject_if": [{"path": "tools", "exists": True}]},
        {"status": 400, "body": {"error": "registry.ollama.ai/library/x does not support tools"}},
        {"tools": None},
    ),
    "tools without a parser": (
        {"send": {"tool_choice": "auto"}, "reject_if": [{"path": "tools", "exists": True}]},
        refusal('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'),
        {"tools": None, "tool_choice": None},
    ),
}


SENT = {"temperature": 0.5, "parallel_tool_calls": True, "tool_choice": "required", "seed": 1}
WORDED = [
    ("parallel_tool_calls", "Parallel tool calls are not supported"),
    ("stream_options", "include_usage is not allowed"),
    ("stream_options", "stream options not supported"),
    ("seed", "seed: Extra inputs are not permitted"),
    ("seed", "seed参数非法。请检查文档。"),
    ("temperature", "temperature参数非法。请检查文档。"),
    ("parallel_tool_calls", "参数parallel_tool_calls不合法"),
    ("stream_options", "不支持stream_options参数"),
    ("tool_choice", "tool_choice参数目前仅支持auto"),
    *(
        ("tool_choice", message)
        for message in (
            "Invalid value: 'required'. Supported values are: 'none'.",
            'only "auto" tool choice is supported',
        )
    ),
    *(
        ("stream", message)
        for message in (
            "'stream' does not support true",
            "stream=true is not supported",
            "Streaming is not supported",
            "Cannot use tools with stream",
            "当前模型不支持stream参数",
        )
    ),
    *(
        ("tools", message)
        for message in (
            *(
                "tools is not supported by this model",
                "`tools` is not supported",
                "tool calling is unsupported",
            ),
            *("Function calling is not enabled for models/gemma-3-27b-it", "该模型不支持工具调用"),
            *("不支持tools参数", "tools参数不支持", "tools param requires --jinja flag"),
            *('"tools" requires --jinja', "Unrecognized request argument supplied: tools"),
            *(
                "Unsupported param: tools",
                "{'loc': ('body', 'tools'), 'msg': 'Extra inputs are not permitted'}",
            ),
        )
    ),
]
"""What is refused, and a sentence that does so."""


@pytest.mark.parametrize(("name", "message"), WORDED)
async def test_what_is_refused_is_known_in_many_wordings_and_the_rest_is_kept(
    name: str, message: str
) -> None:
    rule = {"path": name, "equals": "required"} if name == "tool_choice" else {"path": name, "exists": True}
    case = case_of(*HI, http=refusal(message), names=("get_time",), send=SENT, reject_if=[rule])
    played = await play(case)
    assert (played.error, played.text, len(played.requests)) == (None, "Hi", 2)
    gone = {"tools": {"tools", "parallel_tool_calls", "tool_choice"}, "stream": {"stream", "stream_options"}}
    lost = played.requests[0].keys() - played.requests[1].keys()
    assert lost == (gone.get(name, {name}) if name != "tool_choice" else set())


@pytest.mark.parametrize(
    "message",
    [
        '"llama3.2-vision:11b" does not support thinking',  # Ollama
        "Unable to submit request because thinking is not supported by this model.",  # Vertex
        "This model doesn't support reasoning",
        "当前模型不支持思考模式",
        "Thinking level MINIMAL is not supported for this model.",  # Gemini
        "Reasoning is mandatory for this endpoint and cannot be disabled.",  # OpenRouter
        "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`. When `thinking`"
        " is enabled, a final `assistant` message must start with a thinking block",  # Claude, of calls of others
    ],
)
def test_a_model_that_cannot_think_is_not_told_how_to_from_then_on(message: str) -> None:
    picture = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,x"}}]}
    thinking = {"reasoning_effort": "low", "thinking": {"type": "enabled"}, "enable_thinking": True}
    body = {"messages": [picture], "temperature": 0.5, "tool_choice": "required", **thinking}
    quirks = Quirks().taught("refused", Report(message), body)
    assert quirks is not None and quirks.dropped == set(thinking) and quirks.images == "taken"
    assert quirks.taught("refused", Report(message), body | {"messages": []}) is None, "once"


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        ({"reasoning_effort": "low"}, "Model grok-4-1-fast does not support parameter reasoningEffort."),
        ({"reasoning": {"effort": "low"}}, "Model grok-4-1-fast does not support parameter reasoningEffort."),
        ({"presence_penalty": 0.1}, "Argument not supported on this model: presencePenalty"),
        ({"stop": ["x"]}, "Argument not supported on this model: stop"),
    ],
)
def test_a_parameter_that_is_refused_in_another_spelling_is_left_out(
    sent: dict[str, Any], message: str
) -> None:
    body = {"messages": [{"role": "user", "content": "stop"}], "temperature": 0.5, "user": "u", **sent}
    quirks = Quirks().taught("refused", Report(message), body)
    assert quirks is not None and quirks.dropped == set(sent)


@pytest.mark.parametrize(
    "message",
    [
        "Thinking mode does not support this tool_choice",
        "The tool_choice parameter does not support being set to required or object in thinking mode",
        "思考模式下不支持tool_choice为required",
        "不支持思考模式下的tool_choice",
    ],
)
def test_what_cannot_be_had_with_thinking_is_left_out_and_thinking_stays(message: str) -> None:
    body = {"messages": [], "enable_thinking": True, "tool_choice": "required"}
    quirks = Quirks().taught("refused", Report(message), body)
    assert quirks is not None and quirks.dropped == set() and not quirks.tool_choice


@pytest.mark.parametrize(
    ("message", "requests"),
    [("tools参数非法。请检查文档。", 3), ("tool_choice param requires --jinja flag", 2)],
)
async def test_tools_whose_parameter_is_refused_are_sent_simpler_and_then_not_at_all(
    message: str, requests: int
) -> None:
    rule = {"path": "tools", "exists": True}
    played = await play(case_of(*HI, http=refusal(message), names=("get_time",), reject_if=[rule]))
    assert (played.error, played.text, len(played.requests)) == (None, "Hi", requests)


def test_ids_and_descriptions_that_are_too_long_say_nothing_of_the_window() -> None:
    long = (
        "string too long. Expected a string with maximum length 40, but got a string with length 46 instead."
    )
    for place, name in (
        ("messages[2].tool_calls[0].id", "ids"),
        ("tools[0].function.description", "schemas"),
    ):
        body = {
            "error": {
                "message": f"Invalid '{place}': {long}",
                "param": place,
                "code": "string_above_max_length",
            }
        }
        quirks = Quirks()
        report = read_report(body)
        assert overflow_in(report, 400) is None
        assert quirks.learn(report, {"messages": [], "tools": [{}]}).startswith(name)


SYSTEM_FIRST = [{"role": "system", "content": "x"}, {"role": "user", "content": "Hi"}]
DEVELOPER_FIRST = [{"role": "developer", "content": "x"}, SYSTEM_FIRST[1]]
ROLES = [
    *(
        (SYSTEM_FIRST, message, ["developer", "user"])
        for message in (
            *("System role not supported", "invalid role: system", "Only user and assistant roles are supported!"),
            "Developer instruction is not enabled for models/gemma",
        )
    ),
    *(
        (DEVELOPER_FIRST, message, ["system", "user"])
        for message in (
            "unknown variant `developer`, expected one of `system`, `user`, `assistant`, `tool`",
            "developer is not one of ['system', 'assistant', 'user', 'tool'] - 'messages.0.role'",
            "[{'loc': ['body','messages',0,'role'], 'msg': \"Input should be 'system', 'user'\", 'input': 'developer'}]",
            *("Invalid role: developer", "role must be one of system,user,assistant"),
        )
    ),
    *(
        ([*SYSTEM_FIRST, {"role": "assistant", "content": "x"}, *SYSTEM_FIRST], message, ["system", "user", "assistant", "user"])
        for message in (
            *("Only one system message is allowed", "Unexpected role 'system' after role 'assistant'"),
            "messages 中 system 角色只能在首位",
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize(("history", "message", "wanted"), ROLES)
def test_a_role_that_is_refused_is_known_in_many_wordings(
    history: list[Body], message: str, wanted: list[str]
) -> None:
    quirks = Quirks()
    assert quirks.learn(read_report({"error": {"message": message}}), {"model": "m", "messages": history})
    assert [m["role"] for m in fit_messages(history, quirks, by="", renamed=False)] == wanted


@pytest.mark.parametrize(
    "message", ["Only user and assistant roles are supported!", "System role not supported"]
)
def test_a_role_that_is_refused_in_each_of_its_names_becomes_the_users_and_learning_ends(
    message: str,
) -> None:
    quirks, roles = Quirks(), []
    for _ in range(4):
        sent = fit_messages(SYSTEM_FIRST, quirks, by="", renamed=False)
        roles.append(sent[0]["role"])
        quirks.learn(read_report({"error": message}), {"messages": sent})
    assert roles == ["system", "developer", "user", "user"]


@pytest.mark.parametrize("name", ADAPTED)
async def test_a_refused_parameter_is_dropped_or_changed_once_and_remembered(name: str) -> None:
    rules, http, wanted = ADAPTED[name]
    case = case_of(*HI, http=http, **rules)
    played = await play(case, turns=2)
    assert (played.error, played.text) == (None, "Hi")
    assert {key: played.answered[0].get(key) for key in wanted} == wanted
    assert len(played.answered) == 2 and len(played.requests) <= 4
    assert played.answered[1] == played.answered[0]


HISTORY: dict[str, tuple[str, Body, Body]] = {
    "content null": (
        "no_content",
        {"check": "assistant_tool_call_with_null_content"},
        refusal("Invalid value for 'content': expected a string, got null.", param="messages.[2].content"),
    ),
    "content empty, in Chinese": (
        "assistant_tool_call_then_tool",
        {"check": "assistant_tool_call_with_empty_string_content"},
        refusal("messages参数非法：content不能为空", code="1214"),
    ),
    "content missing": (
        "missing_content",
        {"check": "assistant_without_content_key"},
        refusal("messages.2: missing field `content`"),
    ),
    "content empty": (
        "assistant_tool_call_then_tool",
        {"check": "assistant_tool_call_with_empty_string_content"},
        refusal("Invalid request: message at position 2 with role 'assistant' must not be empty"),
    ),
    "call ids": (
        "assistant_tool_call_then_tool",
        {"check": "tool_call_id_regex", "regex": "^[a-zA-Z0-9]{9}$"},
        refusal("Tool call id was call_a but must be a-z, A-Z, 0-9, with a length of 9."),
    ),
    "names in the history": (
        "odd_name",
        {"check": "tool_name_regex", "regex": "^[a-zA-Z0-9_-]{1,64}$"},
        refusal("Invalid 'messages[2].tool_calls[0].function.name': string does not match pattern."),
    ),
    "an orphan": ("orphan_tool_after_trim", {"check": "orphan_tool_message"}, refusal("bad")),
    "system in the middle, as a failure of the server": (
        "system_in_the_middle",
        {"check": "system_not_single_first"},
        refusal("System message must be at the beginning.", 500),
    ),
    "developer": (
        "developer",
        {"path": "messages[*].role", "equals": "developer"},
        refusal("'developer' is not one of ['system', 'assistant', 'user', 'tool'] - 'messages.0.role'"),
    ),
    "system": (
        "two_user_messages",
        {"path": "messages[*].role", "equals": "system"},
        refusal("Unsupported value: 'messages[0].role' does not support 'system' with this model."),
    ),
    "thoughts of every message": (
        "thoughtless",
        {"check": "any_assistant_without_reasoning_content"},
        refusal("The reasoning_content in the thinking mode must be passed back to the API."),
    ),
}


@pytest.mark.parametrize("name", HISTORY)
async def test_a_history_is_sent_as_the_server_takes_it(name: str) -> None:
    history, rule, http = HISTORY[name]
    played = await play(case_of(*HI, http=http, history=history, reject_if=[rule]), turns=2)
    assert (played.error, played.text) == (None, "Hi")
    assert len(played.answered) == 2 and len(played.requests) <= 4


async def test_a_schema_is_sent_with_what_the_server_knows() -> None:
    message = "Invalid JSON payload received. Unknown name \"$defs\" at 'tools[0].function_declarations[0].parameters'"
    keys = ["$defs", "$ref", "anyOf", "additionalProperties", "default", "const", "format", "title"]
    rule = {"check": "schema_has_key", "keys": keys}
    played = await play(case_of(*HI, http=refusal(message), schema=True, reject_if=[rule]))
    assert played.error is None and len(played.requests) == 2
    (schema,) = {json.dumps(tool["function"]["parameters"]) for tool in played.answered[0]["tools"]}
    assert json.loads(schema) == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "where"},
            "default": {"type": "object", "properties": {"x": {"type": "integer"}}},
            "kind": {"enum": ["a"], "type": "string"},
            "many": {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "integer"}}}},
        },
        "required": ["city"],
    }


async def test_a_tool_with_a_name_that_no_server_takes_runs_under_its_own() -> None:
    name = "calendar.list 事件"
    wire = "calendar_list_"
    played = await play(case_of(*HI, names=(name,)))
    sent = [tool["function"]["name"] for tool in played.requests[0]["tools"]]
    (fitted,) = [each for each in sent if each.startswith(wire)]
    case = case_of(calls(part(ARGS, fitted, id="a", index=0)), chunk(finish="tool_calls"), names=(name,))
    played = await play(case)
    assert played.ran == [(name, PARIS)]
    assert played.requests[1]["messages"][-2]["tool_calls"][0]["function"]["name"] == fitted
    assert played.steps[-2]["tool_calls"][0]["function"]["name"] == name


@pytest.mark.parametrize("message", ["I do not like you.", "Unexpected role 'tool' after role 'user'"])
async def test_a_refusal_that_teaches_nothing_is_an_error_at_once(message: str) -> None:
    played = await play(case_of(http=refusal(message)))
    assert played.error is not None and played.error.kind == "refused"
    assert len(played.requests) == 1


async def test_a_server_that_refuses_everything_is_given_up() -> None:
    message = "bad temperature, max_tokens, stream_options, content is blank, roles must alternate, reasoning_content"
    played = await play(case_of(http=refusal(message), send={"temperature": 1, "max_tokens": 5}))
    assert played.error is not None and 3 < len(played.requests) < 20


async def test_a_change_that_did_not_help_is_not_made_again() -> None:
    played = await play(case_of(http=refusal("content must not be blank, and is required to be a string")))
    assert (
        played.error is not None and len(played.requests) == 4
    )  # as it was, without a text, with an empty one, with a mark


async def test_what_another_server_sealed_is_kept_from_this_one() -> None:
    played = await play(case_of(*HI, history="signed_by_another"))
    (message,) = [m for m in played.requests[0]["messages"] if m.get("tool_calls")]
    assert message.keys() == {"role", "content", "tool_calls"}
    assert message["tool_calls"][0].keys() == {"id", "type", "function"}


WEATHER_CALL = ToolCall.of("a", "get_weather", PARIS).to_openai()
WEATHER_SAID: Body = {"role": "assistant", "content": "\n\n", "tool_calls": [WEATHER_CALL]}
BLANK = LLMResponse(text=" \n", tool_calls=(ToolCall.of("a", "get_weather", PARIS),)).to_message()
TIME_CALL = ToolCall.of("b", "get_time", {}).to_openai()
RESULTS = [{"role": "tool", "tool_call_id": call_id, "content": call_id} for call_id in "ab"]
ALTERNATE = "Conversation roles must alternate user/assistant/user/assistant/..."


def user_first(sent: list[Body], refused: str = ALTERNATE) -> str:
    """As the templates of Gemma 2 and of Mistral 7B."""
    if refused != ALTERNATE and sent[0]["role"] == "system":
        return refused
    return "" if all((m["role"] == "user") == (n % 2 == 0) for n, m in enumerate(sent)) else ALTERNATE


def of_calls(refused: str, wrong: Callable[[Body], bool]) -> Callable[[list[Body]], str]:
    return lambda sent: refused if any(m.get("tool_calls") and wrong(m) for m in sent) else ""


def shape(message: Body) -> str:
    """What a message has, each by its letter: a text, thoughts, and calls."""
    marks = {
        "t": message.get("content"),
        "r": message.get("reasoning_content"),
        "c": message.get("tool_calls"),
    }
    return str(message["role"])[0] + "".join(mark for mark, value in marks.items() if value)


SAID: Body = {"role": "assistant", "content": "so", "tool_calls": [WEATHER_CALL]}
THOUGHT: Body = {**SAID, "reasoning_content": "hm"}
JUDGES: dict[str, tuple[list[Body], Callable[[list[Body]], str], str]] = {
    "gpt-oss": (
        [THOUGHT, RESULTS[0], SAID, RESULTS[0]],
        of_calls(
            "Cannot pass both content and thinking in an assistant message with tool calls! Put the analysis message in one",
            lambda m: bool(m.get("content") and m.get("reasoning_content")),
        ),
        "arc tt atc tt",
    ),
    "Mistral": (
        [SAID, RESULTS[0], THOUGHT, RESULTS[0]],
        of_calls(
            "Assistant message must have either content or tool_calls, but not both.", lambda m: m["content"]
        ),
        "ac tt arc tt",
    ),
    "Llama 3.1": (
        [{**SAID, "tool_calls": [WEATHER_CALL, TIME_CALL]}, *RESULTS, SAID, RESULTS[0]],
        of_calls("This model only supports single tool-calls at once!", lambda m: len(m["tool_calls"]) > 1),
        "atc tt ac tt atc tt",
    ),
    "DashScope": (
        [{**SAID, "tool_calls": [WEATHER_CALL, TIME_CALL]}, *RESULTS, SAID, RESULTS[0]],
        of_calls("Multiple tool_calls are not supported in message.", lambda m: len(m["tool_calls"]) > 1),
        "atc tt ac tt atc tt",
    ),
    "Kimi": (
        [SAID, RESULTS[0], {"role": "assistant", "content": "x"}],
        of_calls(
            "thinking is enabled but reasoning_content is missing in assistant tool call message at index 2",
            lambda m: not m.get("reasoning_content"),
        ),
        "atrc tt at",
    ),
    "Claude, a stored text of blanks": (
        [WEATHER_SAID, RESULTS[0], BLANK, RESULTS[0]],
        lambda sent: "" if not any(str(m["content"]).isspace() for m in sent) else "there are blanks",
        "ac tt ac tt",
    ),
    "Bedrock, stored results of nothing": (
        [SAID, {**RESULTS[0], "content": ""}, SAID, {**RESULTS[0], "content": " \n"}],
        lambda sent: "" if all(m["content"].strip() for m in sent) else "the text field is blank",
        "atc tt atc tt",
    ),
    "LM Studio, nothing empty": (
        [{**SAID, "content": None}, RESULTS[0]],
        of_calls("objects with a 'content' field that is not empty.", lambda m: not m["content"]),
        "atc tt",
    ),
    "Ollama, no null": (
        [WEATHER_SAID],
        of_calls("invalid message content type: <nil>", lambda m: m["content"] is None),
        "ac",
    ),
    "Mistral 7B": ([*SYSTEM_FIRST, SYSTEM_FIRST[1]], user_first, "ut"),
    "Gemma 2": (
        [*SYSTEM_FIRST, {"role": "assistant", "content": "x"}, *SYSTEM_FIRST],
        lambda sent: user_first(sent, "System role not supported"),
        "ut at ut",
    ),
    "Ministral": (
        [*SYSTEM_FIRST, *SYSTEM_FIRST],
        lambda sent: (
            "Only user, assistant and tool roles are supported, got system."
            if "s" in [shape(m)[0] for m in sent[1:]]
            else ""
        ),
        "st ut ut",
    ),
}


@pytest.mark.parametrize("name", JUDGES)
def test_what_a_template_refuses_of_a_history_is_learned_and_no_more_is_left_out(name: str) -> None:
    history, judge, wanted = JUDGES[name]
    quirks = Quirks()
    for _ in range(6):
        sent = list(fit_messages(history, quirks, by="", renamed=False))
        if not (refused := judge(sent)):
            break
        assert quirks.learn(read_report({"error": {"message": refused}}), {"messages": sent})
    assert " ".join(map(shape, sent)) == wanted


@pytest.mark.parametrize(
    "message",
    [
        "Function call is missing a thought_signature in functionCall parts. This is required for tools to work correctly",
        "Unable to submit request because function call `default_api:f` in the 2. content block is missing a `thought_signature`.",
    ],
)
def test_calls_that_gemini_has_not_signed_get_the_word_for_that_and_its_own_signatures_stay(
    message: str,
) -> None:
    extras = [{"extra_content": {"google": {"thought_signature": "own"}}}, {}]
    both: Body = {**SAID, "tool_calls": [WEATHER_CALL, TIME_CALL]}
    signed = {**both, "provider_data": {"by": "me", "calls": extras}}
    odd = {**SAID, "provider_data": {"by": "me", "calls": [{"extra_content": "x"}]}}
    quirks = Quirks()
    assert quirks.learn(read_report(refusal(message)["body"]), {"messages": [], "stream": True})
    assert quirks.content == "any"
    sent = fit_messages([both, signed, odd], quirks, by="me", renamed=False)
    found = [[call.get("extra_content") for call in m["tool_calls"]] for m in sent]
    word = {"google": {"thought_signature": "skip_thought_signature_validator"}}
    assert found == [[word, None], [extras[0]["extra_content"], None], [word]]
    assert "extra_content" not in WEATHER_CALL


@pytest.mark.parametrize(
    "message",
    [
        "Failed to initialize samplers: failed to parse grammar",
        'Grammar error: Unimplemented keys: ["uniqueItems"]',
        "Automatic parser generation failed: JSON schema error at #/properties/t: unrecognized type any",
    ],
)
def test_a_schema_of_which_a_server_can_make_no_grammar_is_sent_simpler_and_with_types_that_there_are(
    message: str,
) -> None:
    types = {"any": "string", "ANY": "string", "STRING": "string", "int": "integer", "dict": "object"}
    properties = {kind: {"type": kind, "uniqueItems": True, "maxLength": 9} for kind in types}
    properties |= {"several": {"type": ["null", "any", "number"]}, "listed": {"type": "any", "items": {}}}
    parameters = {"type": "object", "properties": properties}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    quirks = Quirks()
    assert quirks.learn(read_report({"error": {"message": message}}), {"messages": [], "tools": [tool]})
    (sent,), _, _ = fit_tools([tool], quirks)
    assert sent["function"]["parameters"]["properties"] == {
        **{kind: {"type": real} for kind, real in types.items()},
        "several": {"type": "number"},
        "listed": {"type": "array", "items": {"type": "string"}},
    }


# --- the Responses API ------------------------------------------------------------------------------------


def responses_case(*chunks: Any, **more: Any) -> Case:
    return case_of(*chunks, api="responses", **more)


async def test_a_response_that_failed_is_an_error_of_its_kind() -> None:
    for code, kind, asked in (
        ("server_error", "server", 3),
        ("rate_limit_exceeded", "rate_limited", 3),
        ("context_length_exceeded", "context_overflow", 1),
        ("odd", "stream_error", 2),
    ):
        failed = {"id": "r", "status": "failed", "error": {"code": code, "message": "no"}}
        played = await play(responses_case(event("response.failed", response=failed)))
        assert played.error is not None and (played.error.kind, len(played.requests)) == (kind, asked)


async def test_a_response_that_is_cut_is_no_answer() -> None:
    played = await play(responses_case(event("response.output_text.delta", output_index=0, delta="Hal")))
    assert played.error is not None and (played.error.kind, played.text) == ("stream_cut", "Hal")


async def test_an_incomplete_response_runs_no_calls() -> None:
    item = {"type": "function_call", "call_id": "a", "name": "get_weather", "arguments": ARGS}
    for reason, finish in (("max_output_tokens", "length"), ("content_filter", "content_filter")):
        body = {"status": "incomplete", "output": [item], "incomplete_details": {"reason": reason}}
        played = await play(responses_case(event("response.incomplete", response=body)))
        assert (played.responses[0].finish, played.ran) == (finish, [])


async def test_thoughts_and_calls_of_a_response_go_back_in_their_order() -> None:
    thoughts = [
        {"type": "reasoning", "id": f"rs_{n}", "summary": [], "encrypted_content": "x", "status": "completed"}
        for n in (1, 2)
    ]
    made = [
        {
            "type": "function_call",
            "id": f"fc_{n}",
            "call_id": f"call_{n}",
            "name": "get_weather",
            "arguments": f'{{"n":{n}}}',
        }
        for n in (1, 2)
    ]
    message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "so"}]}
    body = {"status": "completed", "output": [thoughts[0], message, made[0], thoughts[1], made[1]]}
    played = await play(responses_case(event("response.completed", response=body)))
    sent = played.answered[1]["input"]
    assert [(item.get("type"), item.get("id") or item.get("call_id")) for item in sent[1:]] == [
        ("reasoning", "rs_1"),
        ("message", "msg_2"),
        ("function_call", "call_1"),
        ("reasoning", "rs_2"),
        ("function_call", "call_2"),
        ("function_call_output", "call_1"),
        ("function_call_output", "call_2"),
    ]
    text = {"type": "output_text", "text": "so", "annotations": []}
    assert sent[2].items() >= {"role": "assistant", "status": "completed", "content": [text]}.items()
    assert "status" not in sent[1]
    assert (played.text, played.end and played.end.response.text) == ("so", "done")


async def test_every_item_of_a_response_says_its_type_and_no_id_stands_there_twice() -> None:
    said = [{"role": "assistant", "content": "ok"}, {"role": "user", "content": "and?"}]
    sent = responses_body([*SYSTEM_FIRST, *said, *said, WEATHER_SAID], [], {}, Quirks(), by="")["input"]
    assert {item["type"] for item in sent} == {"message", "function_call"}
    texts = [item for item in sent if item.get("role") == "assistant"]
    assert [text["content"][0]["type"] for text in texts] == ["output_text"] * 2  # none of blanks alone
    assert len({text["id"] for text in texts}) == 2


async def test_a_thought_that_the_server_kept_for_itself_does_not_go_back() -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]}
    call = {"type": "function_call", "call_id": "a", "name": "get_weather", "arguments": ARGS}
    body = {"status": "completed", "output": [thought, call]}
    played = await play(responses_case(event("response.completed", response=body)))
    assert [item.get("type") for item in played.answered[1]["input"][1:]] == [
        "function_call",
        "function_call_output",
    ]
    assert (played.ran, played.responses[0].reasoning) == (WEATHER, "hm")


async def test_a_request_leaves_nothing_with_the_server_unless_asked() -> None:
    whole = event("response.completed", response=response_item("Hi"))
    body = (await play(responses_case(whole))).requests[0]
    assert (body["store"], body["include"]) == (False, ["reasoning.encrypted_content"])
    assert (body["instructions"], body["stream"]) == ("be good", True)
    assert {tool["type"] for tool in body["tools"]} == {"function"} and "name" in body["tools"][0]
    assert "stream_options" not in body and "messages" not in body
    asked = (await play(responses_case(whole, send={"store": True}))).requests[0]
    assert asked["store"] is True and "include" not in asked


RESPONSES_ADAPTED: dict[str, tuple[Body, Body]] = {
    "previous_response_id": (
        refusal("Previous response with id 'resp_x' not found.", param="previous_response_id"),
        {
            "send": {"previous_response_id": "x"},
            "reject_if": [{"path": "previous_response_id", "exists": True}],
        },
    ),
    "include": (
        refusal("Encrypted content is not supported with this model.", param="include"),
        {"reject_if": [{"path": "include", "exists": True}]},
    ),
    "reasoning": (
        refusal("Unsupported parameter: 'reasoning.effort' is not supported.", param="reasoning.effort"),
        {"send": {"reasoning": {"effort": "low"}}, "reject_if": [{"path": "reasoning", "exists": True}]},
    ),
}


@pytest.mark.parametrize("name", RESPONSES_ADAPTED)
async def test_what_a_responses_server_refuses_is_left_out(name: str) -> None:
    http, rules = RESPONSES_ADAPTED[name]
    whole = event("response.completed", response=response_item("Hi"))
    played = await play(responses_case(whole, http=http, **rules))
    assert (played.error, played.text, len(played.requests)) == (None, "Hi", 2)


async def test_a_response_is_read_without_item_events_indices_or_deltas() -> None:
    item = {"type": "function_call", "call_id": "a", "name": "get_weather", "arguments": ""}
    done: Body = {"status": "completed", "output": [], "error": None}
    played = await play(
        responses_case(
            event("response.reasoning_summary_text.delta", delta="one"),
            event("response.reasoning_summary_part.added", summary_index=1),
            event("response.reasoning_summary_text.delta", delta="two"),
            event("response.output_item.added", item=item),
            event("response.function_call_arguments.delta", delta=ARGS[:5]),
            event("response.function_call_arguments.delta", delta=ARGS[5:]),
            event("response.completed", response=done),
        )
    )
    assert played.ran == WEATHER and played.responses[0].reasoning == "one\n\ntwo"


@pytest.mark.parametrize(
    "events",
    [
        [event("response.content_part.done", part={"type": "output_text", "text": "Hi"}), {"output": []}],
        [
            event("response.content_part.done", part={"type": "reasoning_text", "text": "No"}),
            {"output_text": "Hi"},
        ],
        [{"output_text": "Hi", "output": []}],
        [{"output": [{"type": "message", "content": "Hi"}]}],
        [
            'event: response.output_text.delta\ndata: {"delta": "Hi"}',
            {"output": response_item("Hi")["output"]},
        ],
    ],
)
async def test_a_text_of_a_response_is_found_wherever_it_stands(events: list[Any]) -> None:
    *before, body = events
    last = f"event: response.completed\ndata: {json.dumps({'response': {'status': 'completed', **body}})}"
    played = await play(responses_case(*before, last))
    assert (played.text, played.error, len(played.requests)) == ("Hi", None, 1)


async def test_a_refusal_of_the_responses_api_is_a_text() -> None:
    played = await play(
        responses_case(
            event("response.refusal.delta", output_index=0, delta="No."),
            event("response.completed", response={"status": "completed", "output": []}),
        )
    )
    assert played.text == "No."


async def test_a_server_without_the_responses_api_says_what_to_set() -> None:
    played = await play(responses_case(http={"status": 404, "body": {"detail": "Not Found"}}))
    assert played.error is not None and played.error.kind == "endpoint_missing"
    assert "model.api" in str(played.error) and len(played.requests) == 1


@pytest.mark.parametrize(
    ("message", "status"),
    [
        ("Item with id 'rs_1' not found. Items are not persisted when `store` is set to false.", 404),
        ("The encrypted content gAAA could not be verified.", 400),
    ],
)
async def test_sealed_thoughts_that_are_not_taken_back_are_left_out(message: str, status: int) -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}
    call = {"type": "function_call", "call_id": "a", "name": "get_weather", "arguments": PARIS}
    body = {"status": "completed", "output": [thought, call]}
    case = responses_case(
        event("response.completed", response=body),
        http=refusal(message, status),
        reject_if=[{"path": "input[*].type", "equals": "reasoning"}],
    )
    played = await play(case)
    assert played.error is None and played.ran == WEATHER
    assert [item.get("type") for item in played.answered[1]["input"][1:]] == [
        "function_call",
        "function_call_output",
    ]


@pytest.mark.parametrize("message", ['Unknown name "extra_content"', "Corrupted thought signature."])
async def test_a_signature_that_is_not_taken_back_is_left_out(message: str) -> None:
    signed = part(ARGS, "get_weather", id="a", index=0, extra_content={"google": {"thought_signature": "x"}})
    case = case_of(
        calls(signed),
        chunk(finish="stop"),
        http=refusal(message),
        reject_if=[{"path": "messages[*].tool_calls[*].extra_content", "exists": True}],
    )
    played = await play(case)
    assert played.error is None and len(played.requests) == 3
    assert "extra_content" not in str(played.answered[1]) and "extra_content" in str(played.requests[1])


async def test_structured_thoughts_go_back_as_they_came() -> None:
    detail = {"type": "reasoning.encrypted", "index": 0, "data": "x"}
    first = chunk({"reasoning_details": [detail], "tool_calls": [part(ARGS, "get_weather", id="a", index=0)]})
    played = await play(case_of(first, chunk(finish="tool_calls")))
    assert played.answered[1]["messages"][-2]["reasoning_details"] == [detail]
    assert "provider_data" not in str(played.answered[1])


SEALED_BLOCKS = [
    {"type": "thinking", "thinking": "I should look", "signature": "EqQB"},
    {"type": "thinking", "thinking": "again", "signature": "Fx"},
    {"type": "redacted_thinking", "data": "x"},
    {"type": "redacted_thinking", "data": "y"},
]
ONE_CALL = part(ARGS, "get_weather", id="a", index=0)


def block(thinking: str, signature: str | None = "") -> Body:
    found = {"type": "thinking", "thinking": thinking, "signature": signature}
    return chunk({"content": "", "reasoning_content": thinking, "thinking_blocks": [found]})


@pytest.mark.parametrize(
    "chunks",
    [
        [
            *(block("I should "), block("look", None), block("", "EqQB"), block("again"), block("", "Fx")),
            chunk({"thinking_blocks": SEALED_BLOCKS[2:]}),
            *(block("never signed"), calls(ONE_CALL), chunk(finish="tool_calls")),
        ],
        [
            {
                "choices": [
                    {
                        "message": {"thinking_blocks": SEALED_BLOCKS, "tool_calls": [ONE_CALL]},
                        "finish_reason": "tool_calls",
                    }
                ]
            }
        ],
    ],
    ids=["streamed", "whole"],
)
async def test_signed_thoughts_of_claude_go_back_as_they_came(chunks: list[Body]) -> None:
    played = await play(case_of(*chunks))
    assert played.responses[0].reasoning.startswith("I should look")
    assert played.answered[1]["messages"][-2]["thinking_blocks"] == SEALED_BLOCKS
    assert "provider_data" not in str(played.answered[1])


@pytest.mark.parametrize(
    "message",
    [
        "messages.1.content.0: Invalid `signature` in `thinking` block",
        "When thinking is disabled, an `assistant` message in the final position cannot contain `thinking`.",
        "messages.1.thinking_blocks: Extra inputs are not permitted",
    ],
)
def test_thoughts_of_claude_that_are_not_taken_back_are_left_out(message: str) -> None:
    quirks = Quirks()
    assert quirks.learn(Report(message), {"messages": [], "thinking": {"type": "enabled"}}) == "data=False"
    said = {**SAID, "provider_data": {"by": "me", "blocks": SEALED_BLOCKS}}
    assert "thinking_blocks" not in fit_messages([said], quirks, by="me", renamed=False)[0]


def test_pieces_of_structured_thoughts_count_as_what_is_kept_of_them() -> None:
    assembler, size = ChatAssembler(), 0
    for _ in range(1000):
        piece = assembler.feed(block("abcd"))
        size += piece.hidden + len(piece.reasoning) if piece else 0
    assert 4000 <= size < 4100
    last = assembler.feed(block("", "s" * 900))
    assert last is not None and last.hidden >= 900


async def test_a_response_in_one_piece_is_read_too() -> None:
    call = {"type": "function_call", "call_id": "a", "name": "get_weather", "arguments": ARGS}
    reasoning = {"type": "reasoning", "id": "r", "summary": [{"text": "one"}], "content": [{"text": "two"}]}
    body = {**response_item("Hi"), "output": [reasoning, *response_item("Hi")["output"], call]}
    played = await play(responses_case(json.dumps(body)))
    assert (played.text, played.reasoning, played.ran) == ("Hi", "one\n\ntwo", WEATHER)
