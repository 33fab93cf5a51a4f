"""`make course`: every chapter works by itself, after copying it and the days it names to an empty place.

python scripts/course.py [DAY …]          in this environment: tests, coverage, example, exercises
python scripts/course.py --fresh [DAY …]  the same in fresh environments, installed from one folder of wheels
python scripts/course.py --types [DAY …]  `mypy --strict` over everything in a chapter

Each chapter: its tests with 80 % coverage (branches too), its example with the output that its README
shows, in UTF-8 and in GBK, and three exercises that are red without and green with their solutions.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

ROOT: Final = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from scripts.chapters import TEST_TOOLS, Chapter, chapters  # noqa: E402 - behind the path
from scripts.sync_docs import documented_output, example_environment  # noqa: E402

COVERAGE: Final = 80
"""Percent of lines and branches that a chapter's own tests must run."""
EXERCISES: Final = ("1_change", "2_add", "3_break")
EXAMPLE_SECONDS: Final = 10.0
SUITE_SECONDS: Final = 120.0
INSTALL_SECONDS: Final = 600.0
BUILD_TOOLS: Final = ("hatchling", "editables")
LEFT_OUT: Final = shutil.ignore_patterns("__pycache__", ".venv", ".pytest_cache", ".mypy_cache", ".coverage*")


class CourseError(RuntimeError):
    """A chapter does not do what it must; the text shows what was run and what came of it."""


@dataclass(frozen=True)
class Place:
    """A copy of a chapter and of the days that it names, and the Python that runs it there."""

    chapter: Chapter
    root: Path
    python: str
    is_installed: bool = False

    @property
    def directory(self) -> Path:
        return self.root / self.chapter.directory.name

    def run(
        self, *command: str, seconds: float, env: dict[str, str] | None = None, encoding: str = "utf-8"
    ) -> subprocess.CompletedProcess[str]:
        """Run the place's Python in the chapter's directory."""
        base = example_environment(self.chapter, self.root)
        if self.is_installed:
            del base["PYTHONPATH"]
        try:
            return subprocess.run(
                [self.python, *command],
                cwd=self.directory,
                env={**base, **(env or {})},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding=encoding,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise CourseError(f"`{' '.join(command)}` took more than {seconds:.0f} s") from error


def copied(chapter: Chapter, target: Path, *, python: str = sys.executable) -> Place:
    """Copy the chapter and the earlier days that it names, and nothing else."""
    for day in [chapter, *map(Chapter, chapter.days_needed())]:
        shutil.copytree(day.directory, target / day.directory.name, ignore=LEFT_OUT)
    return Place(chapter, target, python)


def check_tests(place: Place) -> None:
    """Plain `pytest` is green, and runs enough of the package."""
    arguments = (f"--cov={place.chapter.package}", "--cov-branch", f"--cov-fail-under={COVERAGE}")
    done = place.run("-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments, seconds=SUITE_SECONDS)
    if done.returncode:
        raise CourseError(f"the tests are red, or run too little:\n{done.stdout}{done.stderr}")


def check_example(place: Place) -> None:
    """`example/main.py` ends well and prints what the README shows, on a GBK console too."""
    expected = documented_output(place.chapter)
    if not expected:
        raise CourseError("the README shows no output of the example; run scripts/sync_docs.py")
    for encoding in ("utf-8", "gbk"):
        env = {"PYTHONIOENCODING": encoding}
        arguments = ("-W", "error::EncodingWarning", "example/main.py")
        done = place.run(*arguments, seconds=EXAMPLE_SECONDS, env=env, encoding=encoding)
        if done.returncode:
            raise CourseError(f"the example failed ({encoding}):\n{done.stdout}{done.stderr}")
        if done.stdout.rstrip() != expected.rstrip():
            raise CourseError(
                f"the example printed ({encoding}):\n{done.stdout}\nthe README shows:\n{expected}"
            )


def check_exercises(place: Place) -> None:
    """Each exercise is red as it is found, by a failing test and not by an error, and green when solved."""
    for name in EXERCISES:
        for needed in (f"test_{name}.py", f"ex_{name}.py", f"solutions/ex_{name}.py"):
            if not (place.directory / "exercises" / needed).is_file():
                raise CourseError(f"there is no exercises/{needed}")
    before, shown = _outcomes(place, solved=False)
    for name in EXERCISES:
        if "failure" not in before[name] or "error" in before[name]:
            raise CourseError(f"{name} is to be red by a failed test, and is {before[name]}\n{shown}")
    after, shown = _outcomes(place, solved=True)
    for name in EXERCISES:
        if after[name] != {"passed"}:
            raise CourseError(f"{name} is not green with its solution: {after[name]}\n{shown}")


def _outcomes(place: Place, *, solved: bool) -> tuple[dict[str, set[str]], str]:
    """What became of the tests of each exercise: `passed`, `failure`, `error`, `skipped`."""
    report = place.root / "report.xml"
    report.unlink(missing_ok=True)
    env = {"COURSE_SOLUTIONS": "1"} if solved else {}
    arguments = ("-q", "-p", "no:cacheprovider", f"--junitxml={report}")
    done = place.run("-m", "pytest", "exercises", *arguments, seconds=SUITE_SECONDS, env=env)
    if not report.exists():
        raise CourseError(f"the exercises did not run:\n{done.stdout}{done.stderr}")
    found: dict[str, set[str]] = {name: set() for name in EXERCISES}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        file = f"{case.get('classname')}.{case.get('name')}"  # a module that cannot be imported is the name
        for name in EXERCISES:
            if f"test_{name}" in file:
                kinds = {child.tag for child in case} & {"failure", "error", "skipped"}
                found[name] |= kinds or {"passed"}
    return found, done.stdout


CHECKS: Final[dict[str, Callable[[Place], None]]] = {
    "tests": check_tests,
    "example": check_example,
    "exercises": check_exercises,
}


def check_types(chapter: Chapter) -> None:
    """`mypy` in the chapter's directory, as its own pyproject sets it up: strict."""
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict"],
        cwd=chapter.directory,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    if done.returncode:
        raise CourseError(f"mypy --strict:\n{done.stdout}{done.stderr}")


def gather_wheels(target: Path) -> None:
    """One folder with everything that any chapter installs; the only step that asks a registry."""
    libraries = sorted({one for chapter in chapters() for one in chapter.libraries()})
    wanted = [*libraries, *TEST_TOOLS, *BUILD_TOOLS]
    _pip(sys.executable, "wheel", "-q", "-w", str(target), *wanted, cwd=ROOT)


def installed(place: Place, wheels: Path) -> Place:
    """The same place with an environment of its own, made as the README says, from the folder of wheels."""
    environment = place.root / ".venv"
    venv.create(environment, with_pip=True)
    scripts = environment / ("Scripts" if os.name == "nt" else "bin")
    python = str(scripts / "python")
    env = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
    _pip(python, "install", "-q", "-r", "requirements.txt", cwd=place.directory, env=env)
    return Place(place.chapter, place.root, python, is_installed=True)


def _pip(python: str, *arguments: str, cwd: Path, env: dict[str, str] | None = None) -> None:
    done = subprocess.run(
        [python, "-m", "pip", "--disable-pip-version-check", *arguments],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        encoding="utf-8",
        timeout=INSTALL_SECONDS,
        check=False,
    )
    if done.returncode:
        raise CourseError(f"pip {arguments[0]} failed:\n{done.stdout}{done.stderr}")


def run_course(days: Iterable[Chapter], *, fresh: bool, wheels: Path | None) -> list[str]:
    """Check chapters one after another; returns what is wrong."""
    problems: list[str] = []
    with tempfile.TemporaryDirectory(prefix="miniclaw-course-") as directory:
        base = Path(directory)
        if fresh and wheels is None:
            wheels = base / "wheels"
            gather_wheels(wheels)
        for chapter in days:
            try:
                place = copied(chapter, base / chapter.package)
                if fresh and wheels is not None:
                    place = installed(place, wheels.resolve())
                for check in CHECKS.values():
                    check(place)
            except CourseError as error:
                problems.append(f"{chapter.directory.name}: {error}")
            shutil.rmtree(base / chapter.package, ignore_errors=True)
            broken = bool(problems) and problems[-1].startswith(chapter.directory.name)
            print(f"{chapter.directory.name}\t{'broken' if broken else 'ok'}", flush=True)
    return problems


def main() -> int:
    """Run it; exit 1 when a chapter is broken."""
    parser = argparse.ArgumentParser(description="check the chapters of the course")
    parser.add_argument("days", nargs="*", type=int, help="days, all without")
    parser.add_argument(
        "--fresh", action="store_true", help="install each chapter into an environment of its own"
    )
    parser.add_argument("--wheels", type=Path, help="a folder of wheels that is there already, for --fresh")
    parser.add_argument("--types", action="store_true", help="run mypy, nothing else")
    args = parser.parse_args()
    chosen = [one for one in chapters() if not args.days or one.number in args.days]
    if args.types:
        problems = []
        for chapter in chosen:
            try:
                check_types(chapter)
            except CourseError as error:
                problems.append(f"{chapter.directory.name}: {error}")
    else:
        problems = run_course(chosen, fresh=args.fresh, wheels=args.wheels)
    print("\n\n".join(problems), file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
