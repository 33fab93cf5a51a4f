"""Two implementations of one behaviour, side by side: a chapter of the course, and miniclaw."""

from __future__ import annotations

import importlib
import inspect
from typing import Any, TypeVar

import pytest

from scripts.chapters import Chapter

T = TypeVar("T")

__all__ = ["both", "core_counterpart", "core_object"]


def both(chapter: T, core: T) -> pytest.MarkDecorator:
    """Run a test once with the chapter's and once with the core's; the argument is called `side`."""
    return pytest.mark.parametrize(
        "side", [pytest.param(chapter, id="chapter"), pytest.param(core, id="core")]
    )


def core_object(reference: str) -> Any:
    """What `miniclaw.module:Name` or `miniclaw.module:Name.attribute` names."""
    module, _, name = reference.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = inspect.getattr_static(found, part, None) or getattr(found, part)
    return found


def core_counterpart(chapter: Chapter, name: str, defined_in: str) -> Any:
    """The core's object of that name: where the manifest says, else in the same module, else in the package.

    Args:
        chapter: the chapter.
        name: a public name of it.
        defined_in: the module of the chapter in which it stands, such as `day1_gateway.events`.
    """
    places = [f"{chapter.core}.{defined_in.rpartition('.')[2]}", chapter.core, "miniclaw.errors"]
    if (named := chapter.manifest().names.get(name)) is not None:
        places = [named]
    for place in places:
        try:
            found = getattr(importlib.import_module(place), name, None)
        except ModuleNotFoundError:
            continue
        if found is not None:
            return found
    raise LookupError(f"miniclaw has no `{name}` in {', '.join(places)}")
