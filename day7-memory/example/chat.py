"""终端里的小 ChatGPT，记得住人。没有密钥就用本地的几条规则。

python example/chat.py --user-id demo-user --memory-dir data
"""

import argparse
import asyncio
import logging
import os
import sys
import time
from pathlib import Path

from day1_gateway import EventBus, MiniClawError, TextPayload
from day2_channel import CLIChannel
from day3_session import FileStorage, SessionManager
from day4_agent import LLMProvider, OpenAIProvider
from day7_memory import LongTermMemory
from day7_memory.chat import MemoryChat
from day7_memory.long_term import USER_ID
from local_model import LocalModel

HELP = """\
/memories  列出记住的
/clear     忘掉我的全部记忆
/help      这些命令
/exit      离开"""
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


class Terminal:
    """一个人，一个窗口。"""

    def __init__(self, provider: LLMProvider, directory: Path, user_id: str) -> None:
        self.user_id = user_id
        self.memory = LongTermMemory(directory)
        sessions = SessionManager(FileStorage(directory / "sessions"), clock=time.time)
        self.chat = MemoryChat(provider, self.memory, sessions)

    async def welcome(self, model: str, directory: Path) -> None:
        """谁，哪个模型，存在哪里，记得几条。"""
        count = len(await self.memory.list(self.user_id))
        print(f"用户 {self.user_id}，模型 {model}，目录 {directory}，记忆 {count} 条。/help 看命令。")

    # region command
    async def command(self, name: str) -> None:
        """办一条斜杠命令；`/exit` 在读的那一边就结束了。"""
        match name:
            case "/memories":
                records = await self.memory.list(self.user_id)
                print("\n".join(f"- {record.content}" for record in records) or "还没有记忆。")
            case "/clear":
                print(f"忘掉了 {await self.memory.clear(self.user_id)} 条。")
            case _:
                print(HELP)

    # endregion

    async def say(self, text: str) -> None:
        """一句话，边来边打印；最后说用了几条记忆。"""
        try:
            reply = await self.chat.reply(
                self.user_id, text, show=lambda piece: print(piece, end="", flush=True)
            )
        except MiniClawError as error:
            print(f"\n! {error}")
            return
        print(f"\n（有 {len(reply.used_memories)} 条记忆插入）" if reply.used_memories else "")

    async def run(self) -> None:
        """一行一行地聊，直到 `/exit` 或文件结束；读的办法是第 2 天的，Ctrl+C 不用再按回车。"""
        channel = CLIChannel(EventBus(), user=self.user_id)
        await channel.start()
        try:
            while True:
                print("> ", end="", flush=True)
                payload = (await channel.receive()).payload
                assert isinstance(payload, TextPayload)
                await (self.command if payload.text.startswith("/") else self.say)(payload.text)
        except EOFError:
            print()
        finally:
            await channel.stop()


def provider_of(model: str) -> LLMProvider:
    """有密钥用真的，没有用本地的。"""
    key = os.environ.get("OPENAI_API_KEY")
    if not key:
        return LocalModel()
    if not key.isascii():
        sys.exit("OPENAI_API_KEY 里有不是 ASCII 的字：请重新复制一遍密钥。")
    return OpenAIProvider(
        model, api_key=key, base_url=os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com/v1"
    )


def arguments() -> argparse.Namespace:
    """命令行参数。"""
    parser = argparse.ArgumentParser(description="记得住人的终端聊天")
    parser.add_argument("--user-id", default="demo-user", help="你是谁，记忆归谁")
    parser.add_argument("--model", default=os.environ.get("OPENAI_MODEL", "gpt-4o-mini"), help="模型的名字")
    parser.add_argument("--memory-dir", type=Path, default=Path("data"), help="记忆和会话放在哪里")
    parser.add_argument("--log-level", default="WARNING", type=str.upper, help="、".join(LEVELS))
    parser.add_argument("--log-file", type=Path, help="日志写到文件，不写到屏幕")
    return parser.parse_args()


def problem(args: argparse.Namespace) -> str | None:
    """参数哪里不对，一句话；没有不对，就照它们打开日志。"""
    if not USER_ID.fullmatch(args.user_id):
        return f"--user-id {args.user_id!r}：用小写字母开头，后面是小写字母、数字、_ 和 -，最多 32 个。"
    if args.log_level not in LEVELS:
        return f"--log-level {args.log_level!r}：请用 {'、'.join(LEVELS)}。"
    try:
        logging.basicConfig(level=args.log_level, filename=args.log_file, encoding="utf-8")
    except OSError as error:
        return f"--log-file {args.log_file}：写不了（{error.strerror}）。"
    return None


async def main() -> int:
    """读参数，打招呼，聊。"""
    args = arguments()
    if (wrong := problem(args)) is not None:
        print(wrong, file=sys.stderr)
        return 2
    provider = provider_of(args.model)
    terminal = Terminal(provider, args.memory_dir, args.user_id)
    shown = "本地规则" if isinstance(provider, LocalModel) else args.model
    try:
        await terminal.welcome(shown, args.memory_dir)
        await terminal.run()
    finally:
        await provider.close()
    return 0


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(main()))
    except KeyboardInterrupt:
        sys.exit(130)
    except (MiniClawError, OSError) as error:  # 后一个：终端没了，连换行也印不出
        sys.exit(f"! {error}")
