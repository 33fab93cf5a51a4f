"""运行：pytest exercises/test_2_add.py"""

from pathlib import Path

import pytest

from day5_tools import ToolError, ToolRegistry
from ex_2_add import file_tools, inside, web_search_tool

HINT = "提示：`Path.resolve()` 会走完 `..` 和符号链接；走完以后再问 `is_relative_to`。"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "secret.txt").write_text("密码", encoding="utf-8")
    (tmp_path / "shop-secret").mkdir()
    root = tmp_path / "shop"
    root.mkdir()
    (root / "out").symlink_to(tmp_path)
    (root / "loop").symlink_to("loop")
    return root


def is_refused(root: Path, path: str) -> bool:
    try:
        inside(root, path)
    except ToolError:
        return True
    return False


@pytest.mark.parametrize(
    "path",
    ["../secret.txt", "/etc/passwd", "a/../../secret.txt", "out/secret.txt", "../shop-secret/x", ".", "a\0b"],
)
def test_nothing_leads_out(root: Path, path: str) -> None:
    assert is_refused(root, path), HINT


def test_what_is_inside_stays_inside(root: Path) -> None:
    assert inside(root, "a/../notes/今天.md") == root.resolve() / "notes" / "今天.md", HINT


async def test_a_file_is_written_and_read_again(root: Path) -> None:
    box = ToolRegistry(file_tools(root))
    assert {name: tool.risk for name in box.names() if (tool := box.find(name))} == {
        "read_file": "read",
        "write_file": "write",
    }
    given = {"path": "notes/今天.md", "content": "4471 已发货"}
    assert (await box.execute("write_file", given)).ok
    assert (await box.execute("read_file", {"path": "notes/今天.md"})).content == "4471 已发货"
    assert [file.name for file in (root / "notes").iterdir()] == ["今天.md"], "写完不该留下临时文件"


async def test_a_file_outside_is_neither_read_nor_written(root: Path) -> None:
    box = ToolRegistry(file_tools(root))
    assert "密码" not in (await box.execute("read_file", {"path": "out/secret.txt"})).content
    assert not (await box.execute("write_file", {"path": "out/new.txt", "content": "x"})).ok
    assert not (await box.execute("read_file", {"path": "nothing.txt"})).ok
    assert not (root.parent / "new.txt").exists()


async def test_a_write_that_fails_says_so_and_leaves_all_as_it_was(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = ToolRegistry(file_tools(root))
    (root / "note.txt").write_text("4471", encoding="utf-8")
    before = sorted(root.iterdir())

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    assert (
        "cannot be written"
        in (await box.execute("write_file", {"path": "note.txt/x", "content": "x"})).content
    ), "OSError 要变成 ToolError，模型才知道为什么"
    monkeypatch.setattr("os.fsync", full)
    result = await box.execute("write_file", {"path": "note.txt", "content": "x"})
    assert "cannot be written" in result.content, "换名之前要 fsync；写不成，说一句话"
    assert (root / "note.txt").read_text(encoding="utf-8") == "4471"
    assert sorted(root.iterdir()) == before, "没写成也不该留下临时文件"


async def test_results_of_a_search_are_numbered(root: Path) -> None:
    async def search(query: str) -> list[dict[str, str]]:
        found = {"title": "顺丰", "url": "https://sf.example", "content": "查件"}
        return [found] * 9 if query == "顺丰" else []

    tool = web_search_tool(search)
    assert tool is not None
    box = ToolRegistry([tool])
    content = (await box.execute("web_search", {"query": "顺丰"})).content
    assert (
        content.startswith("[1] 顺丰\nhttps://sf.example\n查件") and "[5]" in content and "[6]" not in content
    )
    assert "Nothing" in (await box.execute("web_search", {"query": "?"})).content
