"""The file tools and the workspace they live in: what they do, and that nothing leads outside."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miniclaw.errors import ToolError
from miniclaw.tools import ToolContext, ToolRegistry, ToolResult
from miniclaw.tools.builtins import file_tools
from miniclaw.tools.builtins.file_tools import MAX_HITS, MAX_LISTED, ROW, _fits
from miniclaw.tools.paths import MAX_DEPTH, read_path
from miniclaw.tools.workspace import Workspace


class Files:
    """The file tools of one user, whose workspace is `root` and beside whose workspace lies a secret."""

    def __init__(self, base: Path, *, page: int = 19_000, **limits: Any) -> None:
        self.base = base
        self.root = base / "users" / "ann" / "workspace"
        self.secret = base / "users" / "bob" / "workspace" / "secret.txt"
        self.secret.parent.mkdir(parents=True)
        self.secret.write_text("bob's secret", encoding="utf-8")
        self.registry = ToolRegistry(file_tools(lambda root: Workspace(root, **limits), page=page))
        self.context = ToolContext(
            user_id="ann", scope="ann", session_id="ses_1", turn_id="turn_1", workspace=self.root
        )

    async def __call__(self, name: str, **arguments: Any) -> ToolResult:
        return await self.registry.execute(name, arguments, self.context)

    def put(self, path: str, content: str | bytes) -> Path:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content if isinstance(content, bytes) else content.encode())
        return target


@pytest.fixture(params=["by descriptor", "by checks"])
def files(tmp_path: Path, request: pytest.FixtureRequest) -> Files:
    """Both ways to keep to the workspace; the second is that of Windows."""
    return Files(tmp_path, by_descriptor=request.param == "by descriptor")


# --- reading ----------------------------------------------------------------------------------------------


async def test_a_file_that_was_written_reads_the_same(files: Files) -> None:
    wrote = await files("write_file", path="notes/今天.md", content="第一行\nsecond\n")
    assert wrote.content == "Wrote the new file `notes/今天.md`: 17 bytes."
    assert (await files("read_file", path="notes/今天.md")).content == "第一行\nsecond\n"
    assert (await files("write_file", path="./notes//今天.md", content="x")).content.startswith("Replaced")
    assert (files.root / "notes" / "今天.md").read_bytes() == b"x"
    assert [p.name for p in (files.root / "notes").iterdir()] == ["今天.md"]


async def test_a_page_of_a_file_says_where_it_goes_on(files: Files) -> None:
    files.put("a.txt", "".join(f"{n}\n" for n in range(1, 11)))
    page = await files("read_file", path="a.txt", offset=3, limit=2)
    assert page.content.startswith("3\n4\n\n[Lines 3 to 4 of 10; go on with offset=5.")
    assert (await files("read_file", path="a.txt", offset=9)).content == "9\n10\n"
    assert (await files("read_file", path="a.txt", offset=0, limit=10)).data["first"] == 1
    assert "has 10 lines" in (await files("read_file", path="a.txt", offset=11)).content


@given(st.text(st.sampled_from("ab\n\r\u2028好"), max_size=300), st.integers(1, 40), st.integers(1, 8))
def test_the_pages_of_any_file_are_the_file(text: str, chars: int, limit: int) -> None:
    from miniclaw.tools.builtins.file_tools import _page

    pieces, at = [], 1
    while True:
        result = _page(text, "f", at, limit, chars)
        pieces.append(result.content.partition("\n[Lines ")[0] if text else "")
        if result.data["last"] >= result.data["lines"]:
            break
        at = result.data["last"] + 1
    assert "".join(pieces) == text


async def test_one_endless_line_can_be_paged_too(files: Files) -> None:
    files.put("long.json", "x" * (ROW * 12))
    first = await files("read_file", path="long.json")
    assert first.content.startswith("x" * ROW * 9 + "\n[Lines 1 to 9 of 12; go on with offset=10.")
    assert (await files("read_file", path="long.json", offset=10)).content == "x" * ROW * 3


async def test_a_long_result_is_kept_whole_where_read_file_pages_it(tmp_path: Path) -> None:
    files = Files(tmp_path, page=600)
    whole = "".join(f"row {n}\n" for n in range(400))
    files.registry.register("long", "", {"type": "object", "properties": {}}, lambda: whole, risk="read")
    files.registry._result_chars = 800
    shown = await files("long")
    path = shown.content.partition("in the file `")[2].partition("`")[0]
    assert path.startswith(".results/")
    text, at = "", 1
    while True:
        page = await files("read_file", path=path, offset=at)
        assert len(page.content) < 800, "a page must not be cut again"
        text += page.content.partition("\n[Lines ")[0]
        if page.data["last"] == page.data["lines"]:
            break
        at = page.data["last"] + 1
    assert text == whole
    assert ".results" not in (await files("list_files", pattern="**")).content
    assert path in (await files("list_files", path=".results")).content


async def test_an_empty_file_and_a_byte_order_mark_read_well(files: Files) -> None:
    files.put("empty", b"")
    files.put("bom.txt", codecs.BOM_UTF8 + b"text")
    assert (await files("read_file", path="empty")).content == "(the file is empty)"
    assert (await files("read_file", path="bom.txt")).content == "text"


@pytest.mark.parametrize("content", [b"a\0b", b"\xff\xfea\0", "中文".encode("gbk")])
async def test_what_is_no_text_is_refused_with_a_sentence(files: Files, content: bytes) -> None:
    files.put("data.bin", content)
    for call in (
        files("read_file", path="data.bin"),
        files("edit_file", path="data.bin", old_text="a", new_text="b"),
    ):
        result = await call
        assert not result.ok
        assert "is not a UTF-8 text" in result.content
    assert (files.root / "data.bin").read_bytes() == content


async def test_a_path_that_is_not_there_or_no_file_is_told(files: Files) -> None:
    files.put("dir/a.txt", "x")
    assert "`nope.txt` does not exist" in (await files("read_file", path="nope.txt")).content
    assert "is a directory" in (await files("read_file", path="dir")).content
    assert "is a directory" in (await files("write_file", path="dir", content="x")).content
    assert "leads through a file or a link" in (await files("read_file", path="dir/a.txt/b")).content
    assert "Name a file" in (await files("read_file", path=".")).content
    assert "does not exist" in (await files("list_files", path="nowhere")).content
    assert str(files.base) not in (await files("read_file", path="nope.txt")).content


async def test_a_pipe_is_no_file_and_keeps_nobody_waiting(files: Files) -> None:
    files.root.mkdir(parents=True)
    os.mkfifo(files.root / "pipe")
    async with asyncio.timeout(10):
        for refused in (
            await files("read_file", path="pipe"),
            await files("write_file", path="pipe", content="x"),
        ):
            assert not refused.ok and "`pipe` is no regular file" in refused.content


# --- editing ----------------------------------------------------------------------------------------------


async def test_an_edit_replaces_the_one_place_and_tells_its_line(files: Files) -> None:
    target = files.put("a.py", "one = 1\ntwo = 2\n")
    target.chmod(0o755)
    result = await files("edit_file", path="a.py", old_text="two = 2", new_text="two = 3")
    assert result.content == "Edited `a.py` at line 2."
    assert target.read_bytes() == b"one = 1\ntwo = 3\n"
    assert target.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize(
    ("old", "reason"),
    [
        ("x", "more than one place"),
        ("xx", "more than one place"),
        ("nowhere", "does not hold this `old_text`"),
        ("", "must say something"),
        ("a", "something else than"),
    ],
)
async def test_an_edit_that_is_not_clear_changes_nothing(files: Files, old: str, reason: str) -> None:
    target = files.put("a.txt", "a xxx")
    assert reason in (await files("edit_file", path="a.txt", old_text=old, new_text="a")).content
    assert target.read_bytes() == b"a xxx"


async def test_every_place_is_replaced_when_asked_for(files: Files) -> None:
    target = files.put("a.txt", "x\nx\ny x\n")
    result = await files("edit_file", path="a.txt", old_text="x", new_text=".*", replace_all=True)
    assert result.content == "Edited `a.txt` at line 1, 2, 3."
    assert target.read_bytes() == b".*\n.*\ny .*\n"


async def test_line_ends_and_byte_order_mark_stay_as_the_file_has_them(files: Files) -> None:
    target = files.put("w.txt", codecs.BOM_UTF8 + b"one\r\ntwo\r\nthree\r\n")
    assert (await files("edit_file", path="w.txt", old_text="one\ntwo", new_text="1\n2\n2b")).ok
    assert target.read_bytes() == codecs.BOM_UTF8 + b"1\r\n2\r\n2b\r\nthree\r\n"
    assert (await files("edit_file", path="w.txt", old_text="2b\r\nthree", new_text="3")).ok
    assert target.read_bytes() == codecs.BOM_UTF8 + b"1\r\n2\r\n3\r\n"


async def test_edits_at_the_same_time_lose_none(files: Files) -> None:
    target = files.put("a.txt", "".join(f"<{n}>\n" for n in range(20)))
    edits = [files("edit_file", path="a.txt", old_text=f"<{n}>", new_text=f"[{n}]") for n in range(20)]
    assert all(result.ok for result in await asyncio.gather(*edits))
    assert target.read_text(encoding="utf-8") == "".join(f"[{n}]\n" for n in range(20))


async def test_what_no_file_can_hold_becomes_a_replacement_character(files: Files) -> None:
    """HKUDS/nanobot#2846: a lone surrogate crashed the write."""
    assert (await files("write_file", path="cat.txt", content="a \ud83d\udc08 \ud83d b")).ok
    assert (files.root / "cat.txt").read_text(encoding="utf-8").startswith("a ")
    assert (await files("edit_file", path="cat.txt", old_text="b", new_text="\udc80")).ok
    assert (files.root / "cat.txt").read_text(encoding="utf-8").endswith("\ufffd")


# --- looking ----------------------------------------------------------------------------------------------


async def test_a_list_shows_directories_with_a_slash_and_takes_patterns(files: Files) -> None:
    for path in ("b.md", "a.txt", "sub/c.md", "sub/deep/d.md"):
        files.put(path, "x")
    assert (await files("list_files")).content == "a.txt\nb.md\nsub/"
    assert (await files("list_files", pattern="*.md")).content == "b.md"
    assert (await files("list_files", pattern="**/*.md")).content == "b.md\nsub/c.md\nsub/deep/d.md"
    assert (await files("list_files", path="sub")).content == "sub/c.md\nsub/deep/"
    assert (await files("list_files", path="sub", pattern="*/d.*")).content == "sub/deep/d.md"
    assert (await files("list_files", pattern="*.py")).content == "Nothing here fits."
    assert "longer than 200" in (await files("list_files", pattern="*" * 201)).content


async def test_before_anything_was_written_the_workspace_is_empty(files: Files) -> None:
    assert (await files("list_files")).content == "Nothing here fits."


async def test_long_lists_are_cut_with_a_note(files: Files) -> None:
    for number in range(MAX_LISTED + 1):
        files.put(f"{number:04}.txt", "needle")
    assert f"the first {MAX_LISTED}; there are more" in (await files("list_files")).content
    found = await files("search_files", text="needle")
    assert f"the first {MAX_HITS}; there are more" in found.content
    assert len(found.data) == MAX_HITS


async def test_a_search_names_file_and_line_and_passes_over_what_is_no_text(files: Files) -> None:
    files.put("a.txt", "nothing\nThe Needle is here\n")
    files.put("sub/b.md", "针 needle\n")
    files.put("c.bin", b"needle\0")
    found = await files("search_files", text="NEEDLE")
    assert found.content == (
        "a.txt:2: The Needle is here\nsub/b.md:1: 针 needle\n"
        "[Files that were not searched, being no text, too large or unreadable: 1]"
    )
    assert (await files("search_files", text="needle", pattern="**/*.md")).content == "sub/b.md:1: 针 needle"
    assert (await files("search_files", text="针", path="sub")).content == "sub/b.md:1: 针 needle"
    assert (await files("search_files", text="absent", path="sub")).content == "No line holds this text."


async def test_a_search_stops_at_its_limit(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[file_tools.__module__], "MAX_SEARCHED", 10)
    files.put("a.txt", "needle")
    files.put("b.txt", "needle")
    assert (await files("search_files", text="needle")).content.startswith(
        "a.txt:1: needle\n[Stopped after 10"
    )


@pytest.mark.parametrize(
    ("path", "pattern", "fits"),
    [
        ("a", "*", True),
        ("a/b", "*", False),
        ("a/b", "**", True),
        ("a", "**/*", True),
        ("a/b/c", "**/c", True),
        ("a/b/c", "a/**/c", True),
        ("a/c", "a/**/c", True),
        ("a/b/d", "a/**/c", False),
        ("a/b", "a/b/**", True),
        ("A", "a", False),
        ("ab", "a?", True),
        ("a", "", False),
    ],
)
def test_a_pattern_fits(path: str, pattern: str, fits: bool) -> None:
    assert _fits(path.split("/"), [part for part in pattern.split("/") if part]) == fits


def test_a_hostile_pattern_takes_no_time() -> None:
    assert not _fits(["a"] * MAX_DEPTH, ["**", "a"] * 50)
    assert not _fits(["a" * 250], ["*a" * 90 + "b"])
    assert all(_fits(["a"] * 20 + [f"{n}.md"], ["**"] * 66 + ["*.md"]) for n in range(5_000))


# --- the wall ---------------------------------------------------------------------------------------------

ESCAPES = [
    "..",
    "../x",
    "../../bob/workspace/secret.txt",
    "a/../../../bob/workspace/secret.txt",
    "..\\..\\bob\\workspace\\secret.txt",
    "a\\..\\..\\x",
    "/etc/passwd",
    "\\etc\\passwd",
    "//server/share/x",
    "\\\\?\\C:\\x",
    "C:\\Windows\\win.ini",
    "c:x",
    "~",
    "~/x",
    "~root/x",
    "a\0b",
    "\0",
    "a\nb",
    "CON",
    "con.txt",
    "sub/NUL",
    "nul.tar.gz",
    "COM1",
    "lpt9.txt",
    "com¹",
    "conin$",
    "AUX.",
    "a.txt:stream",
    "a.",
    "a ",
    "...",
    "x" * 256,
    "好" * 90,
    "x/" * 40 + "x",
    ("y" * 200 + "/") * 6 + "x",
    "\ud83d",
    "*",
    "a|b",
]


@pytest.mark.parametrize("path", ESCAPES)
async def test_a_path_that_leads_out_or_that_some_system_cannot_keep_is_refused(
    files: Files, path: str
) -> None:
    """HKUDS/nanobot#3510: `:` and device names broke files on Windows."""
    for name, more in (
        ("read_file", {}),
        ("write_file", {"content": "x"}),
        ("edit_file", {"old_text": "a", "new_text": "b"}),
        ("list_files", {}),
        ("search_files", {"text": "secret"}),
    ):
        result = await files(name, path=path, **more)
        assert not result.ok, name
        assert "secret" not in result.content.replace("secret.txt", "")
    assert not files.root.exists() or list(files.root.iterdir()) == []
    assert files.secret.read_text(encoding="utf-8") == "bob's secret"


@pytest.mark.skipif(os.name == "nt", reason="there are no such names")
@pytest.mark.parametrize("name", ["9:30?.md", "c: it.md", 'say "hi".md', "blank ", "CON", "x" * 250])
async def test_a_file_that_is_there_is_used_by_whatever_name_it_has(files: Files, name: str) -> None:
    files.put("other.bin", "\0")
    for path in (name, f"{name}/{name}") if len(name) < 100 else (name,):
        where = path.rpartition("/")[0] or "."
        files.put(f"sub/{path}", "needle")
        assert (await files("read_file", path=f"sub/{path}")).content == "needle"
        assert path in (await files("list_files", path="sub", pattern="**/*")).content
        assert (
            f"{path}:1: needle" in (await files("search_files", text="needle", path=f"sub/{where}")).content
        )
        if len(name) < 100:
            assert (await files("edit_file", path=f"sub/{path}", old_text="ee", new_text="00")).ok
        if name not in ("blank ", "x" * 250):
            assert not (await files("write_file", path=f"{path}.new", content="x")).ok
        (files.root / "sub" / path).unlink()
    found = await files("search_files", text="needle")
    assert found.content == (
        "No line holds this text.\n[Files that were not searched, being no text, too large or unreadable: 1]"
    )


@pytest.mark.parametrize("path", ["..%2f..%2fbob", "%2e%2e", "%252e%252e%252fx", "....", "‥", "．．"])
async def test_a_path_is_never_decoded_after_it_was_checked(files: Files, path: str) -> None:
    """AstrBotDevs/AstrBot#1675, openclaw/openclaw#112139: `..%2f` was decoded behind the check."""
    if (await files("write_file", path=path, content="x")).ok:
        assert (files.root / path).read_bytes() == b"x"
    assert {p.name for p in (files.base / "users").iterdir()} <= {"ann", "bob"}


@given(
    st.booleans(),
    st.text(max_size=60)
    | st.lists(st.sampled_from(["..", "/", "\\", "a", ".", "~", "C:", "\0", " ", "con"])).map("".join),
)
def test_any_path_is_refused_or_stays_inside(is_new: bool, path: str) -> None:
    try:
        names = read_path(path, is_new=is_new)
    except ToolError:
        return
    root = Path("/root/of/all")
    assert Path(os.path.normpath(root.joinpath(*names))).is_relative_to(root)
    assert all(name not in ("", ".", "..") and "/" not in name and "\\" not in name for name in names)


async def test_a_link_is_never_followed_wherever_it_stands(files: Files) -> None:
    files.put("inside.txt", "mine")
    outside = files.secret.parent
    (files.root / "dir").symlink_to(outside, target_is_directory=True)
    (files.root / "file.txt").symlink_to(files.secret)
    (files.root / "inner.txt").symlink_to("inside.txt")
    for path in ("dir/secret.txt", "file.txt", "inner.txt"):
        for name, more in (
            ("read_file", {}),
            ("write_file", {"content": "mine"}),
            ("edit_file", {"old_text": "secret", "new_text": "mine"}),
        ):
            result = await files(name, path=path, **more)
            assert not result.ok, (name, path)
            assert "bob's" not in result.content
    assert not (await files("write_file", path="dir/new.txt", content="x")).ok
    assert not (await files("list_files", path="dir")).ok
    assert (await files("list_files", pattern="**")).content == "inside.txt"
    assert "bob" not in (await files("search_files", text="bob's secret")).content
    assert [p.name for p in outside.iterdir()] == ["secret.txt"]
    assert files.secret.read_text(encoding="utf-8") == "bob's secret"


async def test_a_workspace_that_is_itself_a_link_is_not_entered(files: Files) -> None:
    files.root.parent.mkdir(parents=True)
    files.root.symlink_to(files.secret.parent, target_is_directory=True)
    assert not (await files("read_file", path="secret.txt")).ok
    assert not (await files("list_files")).ok


def race(change: Callable[[], None], work: Callable[[], bool]) -> None:
    """Do `work` 300 times, and until it says that it saw enough, while another thread swaps things."""
    over = threading.Event()

    def swap() -> None:
        while not over.is_set():
            change()

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for number in range(30_000):
            if work() and number >= 300:
                break
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("where", ["directory", "file"])
def test_a_link_that_is_swapped_in_at_any_moment_leads_nowhere(tmp_path: Path, where: str) -> None:
    """Each look at the path is right for a moment; only an open directory stays what it is."""
    files = Files(tmp_path)
    workspace = Workspace(files.root)
    path = "d/secret.txt"
    real = files.put(path, "mine")
    swapped, target = (real.parent, files.secret.parent) if where == "directory" else (real, files.secret)
    away = files.root / "away"

    def change() -> None:
        shutil.rmtree(away, ignore_errors=True)
        for step in (
            lambda: swapped.rename(away),
            lambda: swapped.symlink_to(target),
            lambda: swapped.unlink(),
            lambda: away.rename(swapped),
        ):
            with contextlib.suppress(OSError):  # the other thread has put something there
                step()

    outcomes: set[bytes | str | None] = set()

    def work() -> bool:
        try:
            outcomes.add(workspace.read(path))
            workspace.write(path, b"mine")
            for _, data in workspace.read_each(".", lambda found: True):
                outcomes.add(data)
        except ToolError:
            outcomes.add("refused")
        return b"mine" in outcomes

    race(change, work)
    assert outcomes <= {b"mine", "refused", None}
    assert b"mine" in outcomes, "the race never let a read through"
    assert files.secret.read_text(encoding="utf-8") == "bob's secret"
    assert [p.name for p in files.secret.parent.iterdir()] == ["secret.txt"]


# --- limits -----------------------------------------------------------------------------------------------


async def test_a_file_over_the_limit_is_neither_read_nor_written(tmp_path: Path) -> None:
    files = Files(tmp_path, file_bytes=10)
    files.put("big.txt", "x" * 11)
    assert "has 11 bytes; at most 10" in (await files("read_file", path="big.txt")).content
    assert "would have 12 bytes" in (await files("write_file", path="new.txt", content="好" * 4)).content
    assert not (files.root / "new.txt").exists()
    assert (
        "not searched, being no text, too large or unreadable: 1]"
        in (await files("search_files", text="x")).content
    )


async def test_a_full_workspace_takes_no_more_but_lets_files_shrink(tmp_path: Path) -> None:
    files = Files(tmp_path, total_bytes=20)
    assert (await files("write_file", path="a.txt", content="x" * 15)).ok
    refused = await files("write_file", path="sub/b.txt", content="x" * 6)
    assert "The workspace is full: 15 bytes" in refused.content
    assert not (files.root / "sub" / "b.txt").exists()
    assert (await files("write_file", path="a.txt", content="x" * 20)).ok
    assert (await files("write_file", path="a.txt", content="x")).ok


async def test_a_workspace_of_very_many_entries_takes_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("miniclaw.tools.workspace.MAX_FOUND", 3)
    files = Files(tmp_path)
    for number in range(3):
        assert (await files("write_file", path=f"{number}.txt", content="x")).ok
    assert "in 3 entries" in (await files("write_file", path="4.txt", content="x")).content


async def test_a_write_that_fails_leaves_the_old_file_and_no_rest(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = files.put("a.txt", "old")

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert "the disk is full" in (await files("write_file", path="a.txt", content="new")).content
    assert target.read_bytes() == b"old"
    assert [p.name for p in files.root.iterdir()] == ["a.txt"]


def test_the_oldest_of_kept_files_go_first(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    for number in range(5):
        workspace.write(f"kept/{number}", b"x")
        os.utime(tmp_path / "kept" / f"{number}", (number, number))
    workspace.keep_newest("kept", 2)
    assert sorted(p.name for p in (tmp_path / "kept").iterdir()) == ["3", "4"]


def test_the_tools_have_their_risk_and_answer_to_the_names_models_like(tmp_path: Path) -> None:
    files = Files(tmp_path)
    risks = {tool.name: tool.risk for tool in files.registry}
    assert risks == {
        "read_file": "read",
        "write_file": "write",
        "edit_file": "write",
        "list_files": "read",
        "search_files": "read",
    }
    compactable = {tool.name for tool in files.registry if tool.compactable}
    assert compactable == {"read_file", "list_files", "search_files"}
    for alias, name in (("readFile", "read_file"), ("writeFile", "write_file"), ("listFiles", "list_files")):
        found = files.registry.find(alias)
        assert found is not None and found.name == name
        assert alias not in str(files.registry.get_openai_tools())
