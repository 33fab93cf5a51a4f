"""The course: chapters work by themselves, import only what came before, and say what is true."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from scripts.chapters import (
    FUNCTION_LINES,
    LIBRARIES,
    MODULE_LINES,
    PACKAGE_LINES,
    README_LINES,
    ROOT,
    TEST_IMPORTS,
    WHOLE,
    Chapter,
    chapters,
    day_of,
    imports,
    is_foreign,
    parse,
)
from scripts.course import CHECKS, CourseError, check_exercises, copied
from scripts.sync_docs import code_block, rendered, sync, wrong_commands
from tests.support.mermaid import diagrams, flowchart_nodes, mermaid_problems

CHAPTERS = [pytest.param(chapter, id=chapter.package) for chapter in chapters()]
each_chapter = pytest.mark.parametrize("chapter", CHAPTERS)

DOCUMENTS = [
    ROOT / "docs" / "course.md",
    *(path for chapter in chapters() for path in (chapter.readme, chapter.directory / "doc" / "design.md")),
]
each_document = pytest.mark.parametrize(
    "document", [pytest.param(path, id=path.relative_to(ROOT).as_posix()) for path in DOCUMENTS]
)

SECTIONS = (
    "30 秒跑起来",
    "一张图记住它",
    "走一遍代码",
    "和上一章比",
    "动手试试",
    "练习",
    "常见的坑",
    "出了问题，一层一层查",
    "本章和 miniclaw",
    "下一个问题",
)
"""The headings of every chapter, in this order, others between them; a breadcrumb, a motto and a pain stand before."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("check", [pytest.param(check, id=name) for name, check in CHECKS.items()])
@each_chapter
def test_a_chapter_works_in_an_empty_place_with_the_days_that_it_names(
    chapter: Chapter, check: object, tmp_path: Path
) -> None:
    assert callable(check)
    check(copied(chapter, tmp_path))


def test_what_is_generated_in_the_documents_is_what_the_source_says() -> None:
    assert sync(check=True) == []


# Imports


def wrong_imports(chapter: Chapter, path: Path) -> list[str]:
    """Imports that a file of a chapter may not have."""
    in_package = path in chapter.modules()
    local = {one.stem for one in path.parent.rglob("*.py")} | {"shop"}
    found = []
    for one in imports(path):
        day = day_of(one.top)
        if day is not None and day > chapter.number:
            found.append(f"{path.name}:{one.line} imports a later day: {one.module}")
        elif day is not None and in_package and day not in WHOLE[chapter.number] | {chapter.number}:
            if (day, one.name) != (1, "MiniClawError"):
                found.append(f"{path.name}:{one.line} imports {one.module}.{one.name}")
        elif is_foreign(one.top) and one.top not in LIBRARIES:
            if in_package or one.top not in TEST_IMPORTS | local:
                found.append(f"{path.name}:{one.line} imports {one.top}")
    return found


@each_chapter
def test_a_chapter_imports_earlier_days_and_few_libraries_only(chapter: Chapter) -> None:
    assert [found for path in chapter.files() for found in wrong_imports(chapter, path)] == []


@pytest.mark.parametrize(
    "source",
    [
        "from day3_session import Session",
        "import day2_channel",
        "def f():\n    from miniclaw.app import MiniClaw",
        "import yaml",
        "import pytest",
    ],
)
def test_a_wrong_import_is_found(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "module.py"
    module.write_text(source, encoding="utf-8")
    monkeypatch.setattr(Chapter, "modules", lambda self: [module])
    assert wrong_imports(Chapter(1), module)


# Sizes and habits


@each_chapter
def test_a_chapter_can_be_read_in_one_sitting(chapter: Chapter) -> None:
    assert chapter.lines() <= PACKAGE_LINES
    for path in chapter.modules():
        assert len(path.read_text(encoding="utf-8").splitlines()) <= MODULE_LINES, path
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert (node.end_lineno or 0) - node.lineno < FUNCTION_LINES, f"{path}:{node.name}"
    assert len(chapter.readme.read_text(encoding="utf-8").splitlines()) <= README_LINES


@each_chapter
def test_a_package_only_reexports_and_raises_nothing_bare(chapter: Chapter) -> None:
    body = parse(chapter.source / "__init__.py").body
    assert all(isinstance(node, ast.ImportFrom | ast.Assign | ast.AugAssign | ast.Expr) for node in body)
    assert list(chapter.public()) == sorted(chapter.public())
    for path in chapter.modules():
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.Raise) and node.exc is not None:
                assert ast.unparse(node.exc).partition("(")[0] not in ("Exception", "BaseException"), path


@each_chapter
def test_a_chapter_has_every_part(chapter: Chapter) -> None:
    for part in (
        "pyproject.toml",
        "requirements.txt",
        "doc/design.md",
        f"{chapter.package}/test_integration.py",
    ):
        assert (chapter.directory / part).is_file(), part


# Documents


@each_chapter
def test_a_readme_follows_the_template(chapter: Chapter) -> None:
    text = chapter.readme.read_text(encoding="utf-8")
    lines = text.splitlines()
    assert lines[0].startswith("[课程地图](../docs/course.md)"), "the breadcrumb"
    assert lines[2].startswith(f"# 第 {chapter.number} 天"), "the title"
    assert lines[4].startswith("> "), "the motto"
    headings = [line.removeprefix("## ") for line in lines if line.startswith("## ")]
    assert headings[0] == ("没有网关的日子" if chapter.number == 1 else "上一章的痛")
    rest = iter(headings[1:])
    assert [wanted for wanted in SECTIONS if wanted not in rest] == [], headings
    pieces = re.findall(r"<!-- code: \S+ -->", text)
    assert 3 <= len(pieces) <= 5
    assert len(flowchart_nodes(diagrams(text)[0])) <= 9
    for marker in ("output: example", "table: changes", "table: core", "lines"):
        assert f"<!-- {marker} -->" in text


@each_chapter
def test_a_design_shows_the_normal_the_failing_and_the_closing_sequence(chapter: Chapter) -> None:
    text = (chapter.directory / "doc" / "design.md").read_text(encoding="utf-8")
    assert sum(one.startswith("sequenceDiagram") for one in diagrams(text)) >= 3


@each_document
def test_every_diagram_can_be_drawn(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    assert [problem for one in diagrams(text) for problem in mermaid_problems(one)] == []


def anchors(path: Path) -> set[str]:
    """What GitHub makes of a document's headings."""
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in titles}


@each_document
def test_every_link_leads_somewhere(document: Path) -> None:
    text = re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://")):
            continue
        file, _, anchor = target.partition("#")
        path = document.parent / file if file else document
        if not path.exists() or (anchor and anchor not in anchors(path)):
            dead.append(target)
    assert dead == []


def test_every_term_of_the_glossary_is_a_public_name_of_its_day() -> None:
    text = (ROOT / "docs" / "course.md").read_text(encoding="utf-8")
    terms = re.findall(r"^\| [^|]+ \| `(\w+)` \| (\d) \|$", text, re.MULTILINE)
    assert len(terms) > 30
    wrong = [name for name, day in terms if name not in Chapter(int(day)).public()]
    assert wrong == []


# The tools themselves must be able to say no


@pytest.mark.parametrize(
    "diagram",
    [
        "",
        "pie title x",
        "flowchart LR\n  a[one --> b",
        "flowchart LR\n  a --> end",
        "flowchart LR\n  subgraph x\n  a --> b",
        "flowchart LR\n  a -->",
        "sequenceDiagram\n  A->>B: hello",
        "sequenceDiagram\n  participant A\n  A->>A hello",
        "sequenceDiagram\n  participant A\n  A->>A: one; two",
        "sequenceDiagram\n  participant A\n  alt x\n  A->>A: y",
        "sequenceDiagram\n  participant A\n  else x",
    ],
)
def test_a_diagram_that_cannot_be_drawn_is_found(diagram: str) -> None:
    assert mermaid_problems(diagram)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("<!-- code: nothing.py#x -->\n<!-- /code -->", "no file"),
        ("<!-- code: day1_gateway/events.py#nothing -->\n<!-- /code -->", "no region"),
        ("<!-- code: day1_gateway/server.py#GatewayServer -->\n<!-- /code -->", "at most"),
        ("<!-- table: chairs -->\n<!-- /table -->", "chairs"),
        ("<!-- lines -->5", "not closed"),
    ],
)
def test_a_marker_that_cannot_be_filled_is_told(text: str, problem: str) -> None:
    problems: list[str] = []
    rendered(Chapter(1), text, problems, run=False)
    assert problem in "".join(problems)


def test_code_in_a_readme_is_the_source_dedented() -> None:
    block = code_block(Chapter(1), "day1_gateway/router.py#MessageRouter.route")
    assert block.startswith("```python\nasync def route(self, inbound: GatewayMessage)")


@pytest.mark.parametrize(
    "line",
    [
        "python example/none.py",
        "pytest none",
        "pip install -r none.txt",
        "make none",
        "dance",
        "cd none",
        "cd day2-channel",
        "cd ../..",
    ],
)
def test_a_command_that_cannot_work_is_found(line: str) -> None:
    assert wrong_commands("x", f"```console\n$ cd day1-gateway\n$ {line}\n```\n")


def test_a_command_is_looked_for_where_the_lines_before_it_lead() -> None:
    assert (
        wrong_commands("x", "```console\n$ cd day1-gateway\n$ cd ..\n$ cd day2-channel\n$ pytest\n```\n")
        == []
    )
    assert wrong_commands("x", "```console\n$ python example/main.py\n```\n")


def test_an_exercise_that_is_green_before_it_is_solved_is_found(tmp_path: Path) -> None:
    place = copied(Chapter(1), tmp_path)
    exercises = place.directory / "exercises"
    (exercises / "ex_1_change.py").write_bytes((exercises / "solutions" / "ex_1_change.py").read_bytes())
    with pytest.raises(CourseError, match="1_change is to be red"):
        check_exercises(place)
