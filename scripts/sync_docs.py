"""Keeps the course's documents true: code, tables, numbers and requirements come from the source.

python scripts/sync_docs.py           write what is generated, and run the examples for their output
python scripts/sync_docs.py --check   name what is not true, and exit 1; runs nothing

Markers in a README: `<!-- code: file.py#name -->`, `<!-- output: example -->`, `<!-- table: changes -->`,
`<!-- table: core -->`, `<!-- lines -->`, each closed by `<!-- /code -->` and so on.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from scripts.chapters import (  # noqa: E402 - behind the path
    TEST_TOOLS,
    Chapter,
    chapters,
    day_of,
    find_source,
    imports,
)

CODE_LINES: Final = 25
"""Of one piece of code in a chapter's text."""
BLOCK: Final = re.compile(r"(<!-- (code|output|table): (\S+) -->\n)(.*?)(<!-- /\2 -->)", re.DOTALL)
COUNT: Final = re.compile(r"(<!-- lines -->)(.*?)(<!-- /lines -->)")
OPENINGS: Final = re.compile(r"<!-- (code|output|table|lines)\b")
EXAMPLE_SECONDS: Final = 30.0

Problem = str


def requirements(chapter: Chapter) -> str:
    """The chapter's `requirements.txt`: itself, the days it names, the libraries, the test tools."""
    days = [f"-e ../{Chapter(day).directory.name}" for day in chapter.days_needed()]
    return "\n".join(["-e .", *days, *chapter.libraries(), *TEST_TOOLS]) + "\n"


def code_block(chapter: Chapter, reference: str) -> str:
    """A piece of source, dedented, in a fence.

    Raises:
        ValueError: it is not there, or too long to be read at once.
    """
    lines = textwrap.dedent("\n".join(find_source(chapter.directory, reference))).strip("\n").splitlines()
    if len(lines) > CODE_LINES:
        raise ValueError(f"{reference} has {len(lines)} lines; a reader is shown {CODE_LINES} at most")
    return "\n".join(["```python", *(line.rstrip() for line in lines), "```", ""])


def changes_table(chapter: Chapter) -> str:
    """The chapter beside the one before it: modules, names, lines, and what is taken from earlier days."""
    columns = [chapter] if chapter.number == 1 else [Chapter(chapter.number - 1), chapter]
    head = ["", *(f"第 {one.number} 天 `{one.package}`" for one in columns)]
    rows = [
        ["模块", *(_modules(one) for one in columns)],
        ["公开的名字", *(_listed(sorted(one.public())) for one in columns)],
        ["从前面拿来", *(_taken(one) or "无" for one in columns)],
        ["行数（不含测试）", *(str(one.lines()) for one in columns)],
    ]
    return _table([head, *rows])


def _modules(chapter: Chapter) -> str:
    names = [path.relative_to(chapter.source).as_posix() for path in chapter.modules()]
    return _listed([name for name in names if not name.endswith("__init__.py")])


def _taken(chapter: Chapter) -> str:
    found: dict[int, set[str]] = {}
    for path in chapter.modules():
        for one in imports(path):
            day = day_of(one.top)
            if day is not None and day != chapter.number:
                found.setdefault(day, set()).add(one.name)
    return "；".join(f"第 {day} 天 {_listed(sorted(names))}" for day, names in sorted(found.items()))


def _listed(names: list[str]) -> str:
    return "、".join(f"`{name}`" for name in names)


def core_table(chapter: Chapter) -> str:
    """What the chapter teaches beside what miniclaw does, from the manifest."""
    manifest = chapter.manifest()
    rows = [["同一件事", "本章", "miniclaw", "本章故意简单的地方"]]
    for one in manifest.behaviours:
        chapter_name = one["source"].removeprefix(f"{chapter.package}/").replace("#", " · ")
        core_name = one["core"].removeprefix("miniclaw.").replace(":", " · ")
        rows.append([one["says"], f"`{chapter_name}`", f"`{core_name}`", one["simpler"] or "—"])
    text = _table(rows)
    if manifest.constructors:
        reasons = (f"`{name}`：{why}" for name, why in manifest.constructors.items())
        text += "\n构造方式不同：" + "；".join(reasons) + "。\n"
    return text


def _table(rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    lines.insert(1, "|" + " --- |" * len(rows[0]))
    return "\n".join(lines) + "\n"


def example_environment(chapter: Chapter, root: Path = ROOT) -> dict[str, str]:
    """An environment in which a chapter runs from its sources, without any key."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OPENAI_", "MINICLAW_", "COVERAGE_", "COV_CORE", "PYTEST_"))
        and not name.endswith(("_KEY", "_TOKEN"))
    }
    days = [chapter, *map(Chapter, chapter.days_needed())]
    paths = [str(root / day.directory.name) for day in days]
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONWARNDEFAULTENCODING": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONIOENCODING": "utf-8",
    }


def example_output(chapter: Chapter) -> str:
    """What `example/main.py` prints, in a fence."""
    done = subprocess.run(
        [sys.executable, "example/main.py"],
        cwd=chapter.directory,
        env=example_environment(chapter),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=EXAMPLE_SECONDS,
        check=False,
    )
    if done.returncode:
        raise ValueError(f"example/main.py ended with {done.returncode}:\n{done.stderr}")
    return f"```text\n{done.stdout.rstrip()}\n```\n"


def documented_output(chapter: Chapter) -> str:
    """What the README says that the example prints."""
    text = chapter.readme.read_text(encoding="utf-8")
    for match in BLOCK.finditer(text):
        if match[2] == "output":
            return match[4].strip().removeprefix("```text\n").removesuffix("```").strip("\n")
    raise ValueError(f"{chapter.readme.name} of day {chapter.number} shows no output")


def rendered(chapter: Chapter, text: str, problems: list[Problem], *, run: bool) -> str:
    """The text with everything generated in its place; what cannot be made is added to `problems`."""

    def fill(match: re.Match[str]) -> str:
        kind, name = match[2], match[3]
        try:
            if kind == "code":
                inner = code_block(chapter, name)
            elif kind == "output":
                inner = example_output(chapter) if run else match[4]
            else:
                inner = {"changes": changes_table, "core": core_table}[name](chapter)
        except (ValueError, KeyError, OSError) as error:
            problems.append(f"day {chapter.number}: {error}")
            return match[0]
        return match[1] + inner + match[5]

    text = BLOCK.sub(fill, text)
    text = COUNT.sub(lambda match: f"{match[1]}{chapter.lines()}{match[3]}", text)
    whole = len(BLOCK.findall(text)) + len(COUNT.findall(text))
    if len(OPENINGS.findall(text)) != whole:
        problems.append(f"day {chapter.number}: a marker is not closed, or is misspelt")
    return text


def wrong_commands(document: str, text: str) -> list[Problem]:
    """Command lines of `console` blocks, each begun at the root, that name a file or module that is not there."""
    found: list[Problem] = []
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        here = ROOT
        for line in block.splitlines():
            if line.startswith(("$ ", "> ")):
                try:
                    here = _checked(here, line[2:])
                except ValueError as error:
                    found.append(f"{document}: `{line[2:]}`: {error}")
    return found


def _checked(here: Path, line: str) -> Path:
    """Check one line; returns the directory in which the next one runs."""
    words = [word for word in shlex.split(line, comments=True) if not re.fullmatch(r"[A-Z_]+=.*", word)]
    if not words:
        return here
    program, *rest = words
    match program.removeprefix(".venv/bin/").removeprefix(".venv\\Scripts\\"):
        case "cd":
            return _directory(here, rest[0])
        case "python" | "python3" | "py":
            _check_python(here, rest)
        case "pytest":
            _check_paths(here, rest)
        case "pip" | "uv":
            _check_requirements(here, rest)
        case "make":
            makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
            if not re.search(rf"^{re.escape(rest[0])}:", makefile, re.MULTILINE):
                raise ValueError(f"the Makefile has no {rest[0]}")
        case "git" | "source" | "set" | "export" | "curl" | "chcp" | ".venvScriptsactivate":
            pass
        case _:
            raise ValueError(f"no check knows `{program}`")
    return here


def _directory(here: Path, name: str) -> Path:
    if name == "miniopenclaw":  # a fresh clone
        return ROOT
    found = (here / name).resolve()
    if not found.is_dir() or not found.is_relative_to(ROOT.resolve()):
        raise ValueError(f"there is no directory {name} here")
    return found


def _check_requirements(here: Path, rest: list[str]) -> None:
    for flag, file in zip(rest, rest[1:], strict=False):
        if flag == "-r" and not (here / file).is_file():
            raise ValueError(f"there is no {file}")


def _check_python(here: Path, rest: list[str]) -> None:
    if rest[:1] == ["-m"]:
        module = rest[1]
        file = here / (module.replace(".", "/") + ".py")
        package = here / module.replace(".", "/") / "__main__.py"
        if module == "pytest":
            _check_paths(here, rest[2:])
        elif module not in ("venv", "pip") and not file.is_file() and not package.is_file():
            raise ValueError(f"there is no module {module}")
    elif rest and not rest[0].startswith("-") and not (here / rest[0]).is_file():
        raise ValueError(f"there is no {rest[0]}")


def _check_paths(here: Path, rest: list[str]) -> None:
    for word in rest:
        if not word.startswith("-") and not (here / word.partition("::")[0]).exists():
            raise ValueError(f"there is no {word}")


def sync(*, check: bool, only: set[int] | None = None) -> list[Problem]:
    """Write, or only compare; returns what is wrong or could not be made."""
    problems: list[Problem] = []
    for chapter in chapters():
        if only and chapter.number not in only:
            continue
        wanted = {chapter.directory / "requirements.txt": requirements(chapter)}
        if chapter.readme.exists():
            text = chapter.readme.read_text(encoding="utf-8")
            wanted[chapter.readme] = rendered(chapter, text, problems, run=not check)
        else:
            problems.append(f"day {chapter.number}: there is no README.md")
        for path, content in wanted.items():
            if path.exists() and path.read_text(encoding="utf-8") == content:
                continue
            name = path.relative_to(ROOT).as_posix()
            if check:
                problems.append(f"{name} is not what the source says; run `python scripts/sync_docs.py`")
            else:
                path.write_text(content, encoding="utf-8", newline="\n")
                print(f"wrote {name}")
        if chapter.readme in wanted:
            problems += wrong_commands(chapter.directory.name, wanted[chapter.readme])
    course = ROOT / "docs" / "course.md"
    if course.exists():
        problems += wrong_commands(course.name, course.read_text(encoding="utf-8"))
    return problems


def main() -> int:
    """Run it; exit 1 when something is wrong."""
    parser = argparse.ArgumentParser(description="keep the course's documents true to its source")
    parser.add_argument("days", nargs="*", type=int, help="days, all without")
    parser.add_argument("--check", action="store_true", help="write nothing, run nothing")
    args = parser.parse_args()
    problems = sync(check=args.check, only=set(args.days) or None)
    print("\n".join(problems) or "the documents are true", file=sys.stderr if problems else sys.stdout)
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
