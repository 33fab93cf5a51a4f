"""Same names as the core: what a reader learns to call can be called in miniclaw as well."""

from __future__ import annotations

import importlib
import inspect
from enum import Enum
from typing import Any

import pytest

from scripts.chapters import Chapter, chapters
from tests.contracts.support import core_counterpart

POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
NAMES = [
    pytest.param(chapter, name, id=f"{chapter.package}.{name}")
    for chapter in chapters()
    for name in chapter.public()
]


def lacks(chapter: inspect.Signature, core: inspect.Signature) -> list[str]:
    """Why a call that the chapter's signature allows could fail with the core's; empty = it cannot."""
    ours = [one for one in chapter.parameters.values() if one.kind not in VARIADIC]
    theirs = core.parameters
    leading = [one.name for one in ours if one.kind in POSITIONAL]
    core_leading = [one.name for one in theirs.values() if one.kind in POSITIONAL]
    found = []
    if core_leading[: len(leading)] != leading:
        found.append(f"leading parameters {leading}, in the core {core_leading}")
    takes_any = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in theirs.values())
    for one in ours:
        other = theirs.get(one.name)
        if other is None:
            if not (takes_any and one.kind is inspect.Parameter.KEYWORD_ONLY):
                found.append(f"`{one.name}` is not taken by the core")
        elif one.default is not one.empty and other.default is other.empty:
            found.append(f"`{one.name}` has a default here and none in the core")
        elif one.kind in POSITIONAL and other.kind is inspect.Parameter.KEYWORD_ONLY:
            found.append(f"`{one.name}` is only taken by name in the core")
    named = {one.name for one in ours}
    found.extend(
        f"the core needs `{other.name}` as well"
        for other in theirs.values()
        if other.name not in named and other.kind not in VARIADIC and other.default is other.empty
    )
    return found


def signature_of(cls: type) -> inspect.Signature:
    """How an object is made; an exception without a constructor of its own takes anything."""
    if issubclass(cls, BaseException) and cls.__init__ in (Exception.__init__, BaseException.__init__):
        return inspect.Signature([inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL)])
    return inspect.signature(cls)


def colour(member: Any) -> str:
    """How a call of it is used: awaited, iterated, or plain."""
    function = inspect.unwrap(getattr(member, "__func__", member))
    if inspect.isasyncgenfunction(function):
        return "async iterator"
    return "async" if inspect.iscoroutinefunction(function) else "plain"


def public_members(cls: type) -> dict[str, Any]:
    """Methods and properties that the chapter itself wrote."""
    top = cls.__module__.partition(".")[0]
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.partition(".")[0] == top:
            found |= {
                name: member
                for name, member in vars(base).items()
                if not name.startswith("_")
                and (inspect.isfunction(member) or isinstance(member, property | classmethod | staticmethod))
            }
    return found


def compare_members(ours: type, theirs: type) -> list[str]:
    found = []
    for name, member in public_members(ours).items():
        other = inspect.getattr_static(theirs, name, None)
        if other is None:
            if name not in getattr(theirs, "__annotations__", {}):
                found.append(f"{name}: the core has none")
        elif isinstance(member, property):
            if inspect.isfunction(other):
                found.append(f"{name}: a property here, a method in the core")
        else:
            here, there = getattr(member, "__func__", member), getattr(other, "__func__", other)
            if colour(here) != colour(there) and not _is_declared_iterator(there, colour(here)):
                found.append(f"{name}: {colour(here)} here, {colour(there)} in the core")
            found += [f"{name}: {why}" for why in lacks(inspect.signature(here), inspect.signature(there))]
    return found


def _is_declared_iterator(function: Any, wanted: str) -> bool:
    """A plain function that is declared to return an async iterator is used as one."""
    returned = str(getattr(function, "__annotations__", {}).get("return", ""))
    return wanted == "async iterator" and "AsyncIterator" in returned


def compare(chapter: Chapter, name: str, ours: Any, theirs: Any) -> list[str]:
    if isinstance(ours, type):
        if not isinstance(theirs, type):
            return ["a class here and none in the core"]
        if issubclass(ours, Enum):
            return [f"no {one.name}" for one in ours if getattr(theirs, one.name, None) != one.value]
        found = compare_members(ours, theirs)
        if name not in chapter.manifest().constructors and not inspect.isabstract(ours):
            found += [f"constructor: {why}" for why in lacks(signature_of(ours), signature_of(theirs))]
        return found
    if callable(ours):
        if not callable(theirs):
            return ["callable here and not in the core"]
        found = lacks(inspect.signature(ours), inspect.signature(theirs))
        if colour(ours) != colour(theirs) and not _is_declared_iterator(theirs, colour(ours)):
            found.append(f"{colour(ours)} here, {colour(theirs)} in the core")
        return found
    return []


@pytest.mark.parametrize(("chapter", "name"), NAMES)
def test_a_public_name_of_a_chapter_is_used_in_miniclaw_in_the_same_way(chapter: Chapter, name: str) -> None:
    ours = getattr(importlib.import_module(chapter.package), name)
    defined_in = getattr(ours, "__module__", chapter.package)
    if not defined_in.startswith(chapter.package):
        defined_in = chapter.package
    assert compare(chapter, name, ours, core_counterpart(chapter, name, defined_in)) == []


@pytest.mark.parametrize("chapter", [pytest.param(one, id=one.package) for one in chapters()])
def test_a_constructor_is_excused_only_where_it_differs(chapter: Chapter) -> None:
    for name in chapter.manifest().constructors:
        ours = getattr(importlib.import_module(chapter.package), name)
        theirs = core_counterpart(chapter, name, ours.__module__)
        assert lacks(signature_of(ours), signature_of(theirs)), name


def _defined(source: str) -> inspect.Signature:
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    return inspect.signature(namespace["f"])


@pytest.mark.parametrize(
    ("chapter", "core"),
    [
        ("def f(a, b=1): ...", "def f(b, a): ..."),
        ("def f(a, b=1): ...", "def f(a, b): ..."),
        ("def f(a): ...", "def f(a, c): ..."),
        ("def f(a): ...", "def f(*, a): ..."),
        ("def f(*, a): ...", "def f(): ..."),
    ],
)
def test_a_signature_that_takes_less_is_found(chapter: str, core: str) -> None:
    assert lacks(_defined(chapter), _defined(core))


def test_further_parameters_with_defaults_are_no_difference() -> None:
    assert lacks(_defined("def f(a, *, b=1): ..."), _defined("def f(a, c=2, *, b=1, d=3): ...")) == []
