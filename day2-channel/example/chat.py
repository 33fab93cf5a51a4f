"""同一家店，自己来：终端里打字，浏览器里也能聊；Ctrl+C、exit 或文件结束都能走。

python example/chat.py --user 小李 --port 8080
"""

import argparse
import asyncio
import sys

from day1_gateway import EventBus
from day2_channel import CLIChannel, WebChatChannel, pump
from shop import router


# region run
async def run(user: str, port: int) -> None:
    """终端说完了就收摊；无论怎么走，两条渠道都停好。"""
    bus, table = EventBus(), router()
    cli, web = CLIChannel(bus, user=user), WebChatChannel(bus, port=port)
    await web.start()
    await cli.start()
    print(f"网页：http://127.0.0.1:{web.port}/  在这里打字，exit 离开。")
    serving = asyncio.create_task(pump(web, table))
    try:
        await pump(cli, table)
    finally:
        serving.cancel()
        await cli.stop()
        await web.stop()


def main() -> int:
    """读命令行参数；Ctrl+C 是 130。"""
    parser = argparse.ArgumentParser(description="小店的终端和网页")
    parser.add_argument("--user", default="guest", help="你叫什么")
    parser.add_argument("--port", type=int, default=8080, help="网页的端口，0 由系统挑")
    args = parser.parse_args()
    try:
        asyncio.run(run(args.user, args.port))
    except KeyboardInterrupt:
        return 130
    except (OSError, OverflowError) as error:  # 端口有人在用，或者没有这样的端口
        print(f"--port {args.port}：用不了（{error}）。换一个，或者用 0。", file=sys.stderr)
        return 2
    return 0


# endregion

if __name__ == "__main__":
    sys.exit(main())
