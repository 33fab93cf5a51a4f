"""Formulas in Markdown: TeX between its delimiters stays as the model wrote it.

Two rules, for blocks and within a line, make it text in `pre.math` or `span.math`; nothing is typeset. A line
alone tells whether a block begins, so that a growing text is cut into the same blocks as a whole one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_block import StateBlock
    from markdown_it.rules_inline import StateInline
    from markdown_it.token import Token

__all__ = ["enable"]

LONGEST: Final = 4_000
"""Characters of a formula within a line, which bounds how far each delimiter without an end is searched for."""

_OPENING = re.compile(r"\$\$|\\\[|\\\(|\\begin\{([A-Za-z]{1,24}\*?)\}")
_SIGN = re.compile(r"[\\^_={+&]")
_WORDS = re.compile(r"[\s\]]")
_NUMBERS = re.compile(r"[\d\s,–-]*")
_DOLLAR = re.compile(
    rf"(?<![A-Za-z0-9$])\$(?![\s$)）\],*.:，。：])((?:\\.|[^$\\\n]){{1,{LONGEST}}}+)(?<!\s)\$(?![A-Za-z0-9_$({{])"
)
_AMOUNT = re.compile(r"\d(?=\S*\s)[^\\^_={}<>|]*")
"""Between two dollars: `5 and 10` is money, `2 + x^2` is not; in `_MARKS` without TeX, what is code, a link or bold."""
_MARKS = re.compile(r"[^\\^_{]*(?:\]\(|\*\*)[^\\^_{]*|[^\\^_{]*[*(（\[]|[^`]*`.*", re.DOTALL)


def enable(parser: MarkdownIt) -> None:
    """Teach a parser both rules."""
    interrupts = ["paragraph", "reference", "blockquote", "list"]
    parser.block.ruler.before("fence", "math_block", _block, {"alt": interrupts})
    parser.inline.ruler.before("escape", "math_inline", _inline)
    parser.add_render_rule("math_block", _show)
    parser.add_render_rule("math_inline", _show)


def _show(_: Any, tokens: Sequence[Token], index: int, *__: Any) -> str:
    token = tokens[index]
    shown = f'<{token.tag} class="math">{escape(token.content, quote=False)}</{token.tag}>'
    return f"{shown}\n" if token.block else shown


def _closing(found: re.Match[str]) -> str:
    return {"$$": "$$", "\\[": "\\]", "\\(": "\\)"}.get(found[0], f"\\end{{{found[1]}}}")


def _opened(line: str) -> tuple[str, str] | None:
    """The delimiters of the block that a line begins."""
    found = _OPENING.match(line)
    if found is None or found[0] == "\\(":
        return None
    closing, rest = _closing(found), line[found.end() :].strip()
    if closing in rest:  # with something behind it, it is a paragraph with formulas in it
        inside = rest.removesuffix(closing)
        alone = closing not in inside and rest.endswith(closing) and not _NUMBERS.fullmatch(inside)
        return (found[0], closing) if alone else None
    if not found[1] and _WORDS.search(rest) and not _SIGN.search(rest):
        return None
    return found[0], closing


def _block(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """From a line that begins with a delimiter to the one that holds its end, else to a blank line or a fence."""
    at = state.bMarks[start] + state.tShift[start]
    if state.src[at : at + 1] not in ("$", "\\") or state.is_code_block(start):
        return False
    if (delimiters := _opened(line := state.src[at : state.eMarks[start]])) is None:
        return False
    if silent:  # in a paragraph, whose open `$$` it may close
        said = state.src[max(state.bMarks[state.line], at - LONGEST) : at]
        return delimiters[0] != "$$" or said.count("$$") % 2 == 0
    opening, closing = delimiters
    nests = opening.startswith("\\begin")
    depth = line.count(opening) - line.count(closing) if nests else int(closing not in line[2:])
    after = start + 1
    while depth > 0 and after < end and not state.isEmpty(after) and state.sCount[after] >= state.blkIndent:
        line = state.src[state.bMarks[after] + state.tShift[after] : state.eMarks[after]]
        if line.startswith(("```", "~~~")):
            break
        depth += nests * line.count(opening) - line.count(closing)
        after += 1
    state.line = after
    token = state.push("math_block", "pre", 0)
    token.block, token.map = True, [start, after]
    token.content = state.getLines(start, after, state.blkIndent, False)
    return True


def _inline(state: StateInline, silent: bool) -> bool:
    at, source = state.pos, state.src
    if source[at] not in "$\\":
        return False
    if (found := _OPENING.match(source, at)) is not None:
        closing = _closing(found)
        last = source.find(closing, found.end(), min(state.posMax, at + LONGEST))
        inside = source[found.end() : last]
        foreign = {"\\[": _NUMBERS, "$$": _MARKS}.get(found[0])
        if last < 0 or not inside.strip() or (foreign and foreign.fullmatch(inside)):
            return False
        stop = last + len(closing)
    else:
        dollars = _DOLLAR.match(source, at, state.posMax)
        if dollars is None or _AMOUNT.fullmatch(dollars[1]) or _MARKS.fullmatch(dollars[1]):
            return False
        stop = dollars.end()
    state.pos = stop
    if not silent:
        state.push("math_inline", "span", 0).content = source[at:stop]
    return True
