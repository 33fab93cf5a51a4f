"""第 7 天接在第 3、4、6 天上，还有终端：会话存着谈话，循环问着模型，技能进了提示词。"""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from day3_session import FileStorage, SessionManager
from day4_agent import LLMResponse, ScriptedProvider
from day6_skills import SkillManager
from day7_memory import LongTermMemory
from day7_memory.chat import MemoryChat

SKILL = """\
---
name: returns
description: 办理退货
trigger: 退货
---
先问订单号，再问原因。
"""
CHAPTER = Path(__file__).parent.parent


async def test_a_skill_of_day_six_stands_in_the_prompt_before_the_memories(tmp_path: Path) -> None:
    (tmp_path / "skills" / "returns").mkdir(parents=True)
    (tmp_path / "skills" / "returns" / "SKILL.md").write_text(SKILL, encoding="utf-8")
    skills = SkillManager([tmp_path / "skills"])
    active = skills.activate(frozenset(), skills.match("我要退货")[0][0].name)
    memory = LongTermMemory(tmp_path)
    await memory.save("alice", "退货时上门取件")
    provider = ScriptedProvider([LLMResponse(text="请问订单号？")])
    chat = MemoryChat(provider, memory, SessionManager(FileStorage(tmp_path / "s"), clock=time.time))
    await chat.reply("alice", "我要退货", skills=skills.prompt(active, token_limit=500))
    system = provider.requests[0][0]["content"]
    assert 0 < system.index("先问订单号") < system.index("退货时上门取件")


async def test_sessions_of_day_three_hold_every_step_of_the_loop_of_day_four(tmp_path: Path) -> None:
    sessions = SessionManager(FileStorage(tmp_path / "s"), clock=time.time)
    provider = ScriptedProvider([LLMResponse(text="已发货")])
    await MemoryChat(provider, LongTermMemory(tmp_path), sessions).reply("alice", "4471 到哪了？")
    (known,) = await SessionManager(FileStorage(tmp_path / "s"), clock=time.time).list("alice")
    stored = await FileStorage(tmp_path / "s").load(known.session_id)
    assert stored is not None
    assert [(one.step, one.message["role"]) for one in stored.messages] == [(0, "user"), (1, "assistant")]
    assert provider.requests[0][-1] == {"role": "user", "content": "4471 到哪了？"}


def talk(directory: Path, said: str, *options: str) -> str:
    done = run(directory, said, *options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run(directory: Path, said: str, *options: str) -> subprocess.CompletedProcess[str]:
    days = ("day1-gateway", "day2-channel", "day3-session", "day4-agent")
    path = os.pathsep.join([str(CHAPTER), *(str(CHAPTER.parent / day) for day in days)])
    return subprocess.run(
        [sys.executable, "example/chat.py", "--memory-dir", str(directory), *options],
        cwd=CHAPTER,
        input=said,
        capture_output=True,
        encoding="utf-8",
        timeout=30,
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")},
            "PYTHONPATH": path,
            "PYTHONIOENCODING": "utf-8",
        },
        check=False,
    )


def test_the_terminal_remembers_across_runs(tmp_path: Path) -> None:
    log = tmp_path / "chat.log"
    first = talk(tmp_path, "记住我住在杭州\n/help\n/exit\n", "--log-level", "info", "--log-file", str(log))
    assert "用户 demo-user" in first and "记忆 0 条" in first
    assert "记住了。" in first and "/memories" in first
    assert "tool memory_save finished" in log.read_text(encoding="utf-8")
    second = talk(tmp_path, "我住在哪里？\n/memories\n/clear\n/memories\n")
    assert "记忆 1 条" in second and "有 1 条记忆插入" in second
    assert "- 我住在杭州" in second and "忘掉了 1 条" in second and "还没有记忆" in second


@pytest.mark.parametrize(
    "options", [("--user-id", "../x"), ("--log-level", "loud"), ("--log-file", "/no/such/place/x.log")]
)
def test_an_argument_that_will_not_do_is_told_in_one_sentence(
    tmp_path: Path, options: tuple[str, str]
) -> None:
    done = run(tmp_path, "/exit\n", *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(options[0]) and len(done.stderr.splitlines()) == 1
