"""五步各自能跑：没有密钥，照着输入走一遍。"""

import runpy
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

STEPS = Path(__file__).parent.parent / "example" / "steps"


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)

    def run(step: int, *lines: str) -> str:
        typed: Iterator[str] = iter(lines)

        def read(prompt: str = "") -> str:
            try:
                return next(typed)
            except StopIteration:
                raise EOFError from None

        monkeypatch.setattr("builtins.input", read)
        monkeypatch.setattr(sys, "argv", ["agent.py"])
        runpy.run_path(str(STEPS / f"agent{step}.py"), run_name="__main__")
        return capsys.readouterr().out

    return run


def test_one_call_is_answered_plain_and_streamed(run: Callable[..., str]) -> None:
    assert run(1).count("您问的是：你们几点开门？") == 2


def test_a_talk_remembers_its_history(run: Callable[..., str]) -> None:
    out = run(2, "你好", "", "再说一句", "exit", "不会到这里")
    assert "第 2 句" in out and "上一句是“你好”" in out
    assert out.endswith("再见\n") and "第 3 句" not in out


def test_the_loop_uses_the_tool_and_then_answers(run: Callable[..., str]) -> None:
    out = run(3)
    assert "[工具] get_current_time" in out and "现在是 20" in out


def test_only_listed_tools_run_and_the_loop_has_a_limit() -> None:
    names = runpy.run_path(str(STEPS / "agent3.py"))
    assert names["MAX_TURNS"] == 8
    assert names["run_tool"]("rm", "{}") == "Error: there is no tool rm"
    assert names["run_tool"]("get_current_time", '{"timezone": "No/Where"}').startswith("Error:")
    assert names["run_tool"]("get_current_time", "{oops").startswith("Error:")


def test_talk_and_tool_go_together(run: Callable[..., str]) -> None:
    out = run(4, "你好", "几点了", "再来一句", "quit")
    assert "第 1 句" in out and "[工具]" in out and "第 3 句" in out


def test_what_was_to_be_remembered_is_there_after_a_restart(run: Callable[..., str], tmp_path: Path) -> None:
    run(5, "我叫小王", "exit")
    assert not (tmp_path / "user_memory.json").exists()
    run(5, "记住我叫小林", "exit")
    assert '"称呼": "小林"' in (tmp_path / "user_memory.json").read_text(encoding="utf-8")
    assert "小林" in run(5, "我叫什么", "exit")
    (tmp_path / "user_memory.json").write_text('{"称呼": "小林"}', encoding="utf-8-sig")
    assert "小林" in run(5, "我叫什么", "exit")


@pytest.mark.parametrize("text", ['{"称呼": "小林",}', "[" * 100_000, "[1]", ""])
def test_a_memory_that_cannot_be_read_is_set_aside_and_told(
    run: Callable[..., str], tmp_path: Path, text: str
) -> None:
    (tmp_path / "user_memory.json").write_text(text, encoding="utf-8")
    out = run(5, "我叫什么", "记住我爱喝茶")
    assert "什么也没有" in out and ".corrupt" in out
    (aside,) = tmp_path.glob("*.corrupt")
    assert aside.read_text(encoding="utf-8") == text
    assert "喝茶" in (tmp_path / "user_memory.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("key", ["k", "密钥"])
@pytest.mark.parametrize("step", [1, 2, 3, 4, 5])
def test_a_server_that_cannot_be_reached_is_told_in_one_line(
    run: Callable[..., str], monkeypatch: pytest.MonkeyPatch, step: int, key: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.0)
    with pytest.raises(SystemExit, match="模型没有答上来") as caught:
        run(step, "现在几点？")
    assert "\n" not in str(caught.value.code)


@pytest.fixture
def page() -> Iterator[str]:
    class Page(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            body = b"<html>hello</html>"
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("step", [1, 2, 3, 4, 5])
def test_an_address_without_v1_is_told_in_one_line(
    run: Callable[..., str], monkeypatch: pytest.MonkeyPatch, step: int, page: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("OPENAI_BASE_URL", page)
    with pytest.raises(SystemExit, match="以 /v1 结尾"):
        run(step, "现在几点？")


@pytest.mark.parametrize("step", [3, 4, 5])
def test_utc_needs_no_data_base_of_time_zones(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise KeyError(name)

    monkeypatch.setattr("zoneinfo.ZoneInfo", missing)
    names = runpy.run_path(str(STEPS / f"agent{step}.py"))
    assert names["run_tool"]("get_current_time", '{"timezone": "UTC"}').startswith("20")
