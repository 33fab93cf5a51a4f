"""Source files as trees, for tests about what is written in them."""

from __future__ import annotations

import ast
import gc


def tree_of(source: str) -> ast.Module:
    """The tree of a source; before Python 3.11.8 a collection of garbage may make the parser fail (python/cpython#106905)."""
    gc.disable()
    try:
        return ast.parse(source)
    finally:
        gc.enable()
