"""同一个循环，换上真的模型。需要密钥和网络，不在自动检查里。

    OPENAI_API_KEY=… OPENAI_BASE_URL=… OPENAI_MODEL=… python example/real_model.py 订单 4472 到哪了？

也会读当前目录的 `.env`。
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from dotenv import load_dotenv
from main import ask

from day4_agent import AgentConfig, AgentRuntime, ModelError, OpenAIProvider


async def main() -> int:
    """一问一答；没有密钥就说该怎么办。"""
    load_dotenv()
    key = os.environ.get("OPENAI_API_KEY")
    if not key:
        print("先设置 OPENAI_API_KEY（本机的服务器可以填任何词），再加上 OPENAI_BASE_URL 和 OPENAI_MODEL。")
        return 2
    if not key.isascii():
        print("OPENAI_API_KEY 里有不是 ASCII 的字：请重新复制一遍密钥。")
        return 2
    config = AgentConfig(system_prompt="你是一家小店的客服。查订单要用工具，不要编。", temperature=0.2)
    provider = OpenAIProvider(
        os.environ.get("OPENAI_MODEL", "gpt-5-mini"),
        api_key=key,
        base_url=os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com/v1",
        temperature=config.temperature,
        max_tokens=config.max_tokens,
    )
    history: list[dict[str, Any]] = []
    try:
        await ask(AgentRuntime(provider, config), history, " ".join(sys.argv[1:]) or "订单 4471 到哪了？")
    except ModelError as error:
        print(f"模型没有答上来（{error.code}）：{error}")
        return 1
    finally:
        await provider.close()
    return 0


if __name__ == "__main__":
    try:
        raise SystemExit(asyncio.run(main()))
    except KeyboardInterrupt:
        raise SystemExit(130) from None
