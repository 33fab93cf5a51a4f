"""Markdown parsers that give up on a hostile text, since the event loop stands still while they read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token

__all__ = ["bounded", "parsed"]

STEPS: Final = (5000, 10_000)
"""Of one text, at least and at most: 20 to 80 KB of usual Markdown, and 0.2 s of the worst."""
CHARS: Final = 2
"""Of a text for one step; usual Markdown takes a step for every two to ten."""
_LEFT: Final = "steps_left"
_BLOCK: Final = 3
_LINK: Final = 6
"""Steps that a block, and an address between `<` and `>`, cost."""
_CELLS: Final = frozenset("|:- \t")


def bounded(parser: MarkdownIt) -> MarkdownIt:
    """Count the parser's steps from now on, for `parsed`."""
    parents = ["paragraph", "reference", "blockquote", "list"]
    parser.block.ruler.before("table", "steps", _block_step, {"alt": parents})
    parser.inline.ruler.before("text", "steps", _inline_step)
    return parser


def parsed(parser: MarkdownIt, text: str) -> Sequence[Token] | None:
    """The tokens of a text; `None` where it would take too long."""
    left = {_LEFT: min(max(STEPS[0], len(text) // CHARS), STEPS[1])}
    tokens = parser.parse(text, left)
    return tokens if left[_LEFT] > 0 else None


def _block_step(state: StateBlock, line: int, end: int, silent: bool) -> bool:
    """Count one look at a line, and the cells of a table, of which a short line may make many."""
    state.env[_LEFT] -= 1 if silent else _BLOCK
    if not silent and line + 1 < end and state.env[_LEFT] > 0:
        ruled = state.src[state.bMarks[line + 1] + state.tShift[line + 1] : state.eMarks[line + 1]]
        if "|" in ruled and _CELLS.issuperset(ruled):
            last = next((each for each in range(line, end) if state.isEmpty(each)), end)
            state.env[_LEFT] -= ruled.count("|") * (last - line) // 2
    if state.env[_LEFT] > 0:
        return False
    state.line = end
    return True


def _inline_step(state: StateInline, silent: bool) -> bool:
    state.env[_LEFT] -= _LINK if state.src[state.pos] == "<" else 1
    if state.env[_LEFT] > 0:
        return False
    state.pos = state.posMax
    return True
