"""认得老客人的小店：记住、重启、想起来、换一个人、手改文件。不要密钥，不联网。"""

import asyncio
import tempfile
from pathlib import Path

from chat import Terminal
from local_model import LocalModel


async def ask(terminal: Terminal, text: str) -> None:
    """替客人打一行。"""
    print(f"> {text}")
    await (terminal.command(text) if text.startswith("/") else terminal.say(text))


async def main() -> None:
    """五幕。"""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        terminal = Terminal(LocalModel(), directory, "demo-user")
        await ask(terminal, "我的快递用哪家？")
        await ask(terminal, "记住，我的快递只用顺丰速运")
        print("—— 小店重启，新的一天 ——")
        terminal = Terminal(LocalModel(), directory, "demo-user")
        await ask(terminal, "4472 发货的话，快递用哪家？")
        print("—— 换一位客人 ——")
        await ask(Terminal(LocalModel(), directory, "wang"), "我的快递用哪家？")
        print("—— 打开文件，手改一下 ——")
        (file,) = (directory / "users" / "demo-user" / "memory").glob("*.md")
        file.write_text(
            file.read_text(encoding="utf-8").replace("只用顺丰速运", "只走自提柜"), encoding="utf-8"
        )
        await ask(terminal, "快递怎么送？")
        await ask(terminal, "/memories")
        await ask(terminal, "/clear")


if __name__ == "__main__":
    asyncio.run(main())
