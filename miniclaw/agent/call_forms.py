"""The ways in which models print calls, as tables: what begins one, its parts, and what stands around it. No I/O.

Source: the chat templates of the models, and the parsers of vLLM and SGLang that read what they print.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

__all__ = [
    "BEFORE_CALL",
    "BEFORE_CODE",
    "BEFORE_JSON",
    "BEHIND_CODE",
    "FORMS",
    "LOST_PART",
    "MARK",
    "MARKS",
    "OPENING",
    "WRAPPING",
    "Form",
]

_BAR: Final = "[｜|]"
_PREFIX: Final = rf"(?:{_BAR}DSML{_BAR}|\w{{1,20}}:)?"
_NAME: Final = r"([\w.-]{1,200})"
_LONGCAT: Final = "(?:longcat_)?"

MARKS: Final = (
    *("<tool_call>", "<tool_calls>", "<|tool_call|>", "<function=", "<function_call>", "<function_calls>"),
    *("<minimax:tool_call>", "<seed:tool_call>", "<invoke name=", "<longcat_tool_call>", "<TOOLCALL>"),
    *(f"<{bar}tool▁call{s}▁begin{bar}>" for bar in "｜|" for s in ("s", "")),
    *(f"<{bar}tool_call{s}_begin{bar}>" for bar in "｜|" for s in ("s", "")),
    *(
        f"<{bar}DSML{bar}{what}"
        for bar in "｜|"
        for what in ("function_calls>", "tool_calls>", "invoke name=")
    ),
    *(
        "[TOOL_CALLS]",
        "<|python_tag|>",
        "<|tool_calls_section_begin|>",
        "<|tool_call_start|>",
        "<functioncall>",
    ),
    *(
        "<|channel|>commentary",
        "<|start|>assistant",
        "<|start_header_id|>",
        "<|START_ACTION|>",
        "<|action_start|>",
    ),
    *("✿FUNCTION✿:", "Action:", "<" + "antml:function_calls>", "<" + "antml:invoke name="),
)
"""What a printed call may begin with; the first character of each is one of `OPENING`."""
MARK: Final = re.compile("|".join(map(re.escape, MARKS)))
OPENING: Final = re.compile(r"[<\[✿A]")
BEFORE_CALL: Final = ("json", "function", "functions", "assistant")
"""Words between a mark and a call."""

BEFORE_JSON: Final = re.compile(
    rf"(?:<{_LONGCAT}tool_calls?>|<\|tool_call\|>|<function_?calls?>|<TOOLCALL>|<\|python_tag\|>|\[TOOL_CALLS\]"
    r"|<\|START_ACTION\|>|<\|action_start\|>(?:<\|plugin\|>)?|Action:)\s*(?:```(?:json)?\s*)?(?=[\[{])"
)
BEFORE_CODE: Final = re.compile(
    r"(?:<\|python_tag\|>|<\|tool_call_start\|>|<function_calls>)\s*(?=\[?\s*[\w.-]{1,200}\()"
)
BEHIND_CODE: Final = re.compile(
    r"<\|(?:python_tag|tool_call_\w{3,5}|e\w{1,2}_id|im_end)\|>|</?function_calls>|</s>"
)
LOST_PART: Final = re.compile(r"parameter|arg_(?:key|value)")
"""Between arguments: one that cannot be read."""

WRAPPING: Final = re.compile(
    rf"<{_BAR}(?:start_header_id|im_start|start){_BAR}>(?:\s*assistant)?|</?s>|<{_BAR}/?[\w▁]{{1,40}}{_BAR}>"
    rf"|</?{_PREFIX}(?:{_LONGCAT}tool_?calls?|function_?calls?|tool_sep)>|```(?:json|xml|python|tool_c\w+)?",
    re.IGNORECASE,
)
"""What stands around calls and means nothing alone."""


class Form(NamedTuple):
    """A way to print a call: its head with the name, its end, and head and end of each argument."""

    head: re.Pattern[str]
    close: re.Pattern[str]
    part: tuple[re.Pattern[str], re.Pattern[str]] | None = None
    """`None`: the arguments are JSON, and the end may be missing."""


FORMS: Final = tuple(
    Form(re.compile(head), re.compile(close), (re.compile(part[0]), re.compile(part[1])) if part else None)
    for head, close, *part in (
        (  # Kimi
            r"<\|tool_call_begin\|>\s*(?:functions\.)?([^\s<]{1,200}?)(?::\d{1,9})?\s*<\|tool_call_argument_begin\|>",
            r"<\|tool_call_end\|>",
        ),
        (  # DeepSeek, Step
            rf"<{_BAR}tool[▁_]call[▁_]begin{_BAR}>(?:function<{_BAR}tool[▁_]sep{_BAR}>)?([^<\s]{{1,200}})"
            rf"(?:<{_BAR}tool[▁_]sep{_BAR}>|\s)",
            rf"<{_BAR}tool[▁_]call[▁_]end{_BAR}>",
        ),
        (  # Mistral
            r"\[TOOL_CALLS\]\s*([\w.-]{1,200})(?:\[CALL_ID\]\w{1,200})?(?:\[ARGS\])?(?=\s*\{)",
            r"(?=\[TOOL_CALLS\])",
        ),
        (  # Harmony
            rf"(?:<\|start\|>assistant)?\s*(?:<\|channel\|>commentary)?\s*to=functions\.{_NAME}\s*"
            r"(?:<\|channel\|>commentary)?\s*(?:<\|constrain\|>)?\s*(?:json|code)?\s*<\|message\|>",
            r"<\|call\|>",
        ),
        (rf"Action:[ \t]*{_NAME}\s*\n\s*Action Input:[ \t]*", r"\n\s*Observation[\s\S]*"),  # ReAct
        (rf"✿FUNCTION✿:\s*{_NAME}\s*\n✿ARGS✿:\s*", r"✿(?:RESULT|RETURN)✿[\s\S]*"),  # Qwen
        (r"<function=([^<>\s]{1,200})>(?=\s*\{)", "</function>"),
        (  # Qwen Coder
            r"<function=([^<>\s]{1,200})>",
            "</function>",
            r"<parameter\s*=\s*([^>]{1,200}?)\s*>\n?",
            r"\n?</parameter>",
        ),
        (
            rf'<{_PREFIX}invoke name="([^"]{{1,200}})">(?!\s*\{{)',
            f"</{_PREFIX}invoke>",
            rf'<{_PREFIX}parameter name="([^"]{{1,200}})"(?: string="(?:true|false)")?>',
            f"</{_PREFIX}parameter>",
        ),
        (  # Hunyuan with JSON
            rf"<tool_call>\s*(?:function<tool_sep>)?{_NAME}\s*(?:<tool_sep>)?\s*(?=```|\{{)",
            "</tool_call>",
        ),
        (  # GLM, Hunyuan, LongCat
            rf"<{_LONGCAT}tool_call>\s*{_NAME}\s*(?:<tool_sep>)?\s*(?=<{_LONGCAT}arg_key>|</{_LONGCAT}tool_call>)",
            f"</{_LONGCAT}tool_call>",
            rf"<{_LONGCAT}arg_key>([^<]{{1,200}})</{_LONGCAT}arg_key>\s*<{_LONGCAT}arg_value>",
            f"</{_LONGCAT}arg_value>",
        ),
    )
)
