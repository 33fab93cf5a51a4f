"""The manifests are complete both ways: what is listed is tested, and what is tested is listed."""

from __future__ import annotations

import ast

import pytest

from scripts.chapters import Chapter, chapters, find_source, parse
from tests.contracts.support import core_object

FIELDS = {"id", "says", "source", "core", "simpler", "test"}
CHAPTERS = [pytest.param(chapter, id=chapter.package) for chapter in chapters()]


def contract_tests(chapter: Chapter) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every test function of a day's contract tests."""
    found = {}
    for path in sorted((chapter.directory.parent / "tests/contracts").glob(f"test_day{chapter.number}_*.py")):
        for node in parse(path).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                assert node.name not in found, f"two contract tests of one name: {node.name}"
                found[node.name] = node
    return found


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_every_listed_behaviour_has_its_test_and_every_test_its_line(chapter: Chapter) -> None:
    listed = [one["test"] for one in chapter.manifest().behaviours]
    assert sorted(listed) == sorted(contract_tests(chapter))


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_every_contract_test_runs_over_both_sides(chapter: Chapter) -> None:
    one_sided = [
        name
        for name, node in contract_tests(chapter).items()
        if "side" not in {argument.arg for argument in node.args.args}
    ]
    assert one_sided == []


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_the_lines_of_a_manifest_name_what_is_there(chapter: Chapter) -> None:
    behaviours = chapter.manifest().behaviours
    assert behaviours, "a chapter teaches something"
    ids = [one["id"] for one in behaviours]
    assert len(set(ids)) == len(ids)
    for one in behaviours:
        assert set(one) == FIELDS, one["id"]
        assert all(one[name] for name in FIELDS - {"simpler"}), one["id"]
        find_source(chapter.directory, one["source"])
        core_object(one["core"])


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_every_module_of_a_chapter_has_a_listed_behaviour(chapter: Chapter) -> None:
    told = {one["source"].partition("#")[0] for one in chapter.manifest().behaviours}
    files = {path.relative_to(chapter.directory).as_posix() for path in chapter.modules()}
    silent = {name for name in files - told if not name.endswith(("__init__.py", "__main__.py"))}
    assert silent == set()
