"""记得住的小店：上一句、重启之后、别的客人、过期。存在临时目录里，不要密钥，不联网。"""

import asyncio
import re
import tempfile
from pathlib import Path

from day1_gateway import GatewayMessage, MessageRouter, MessageType, TextPayload, event_message, new_id
from day3_session import Entry, FileStorage, Session, SessionManager

ORDERS = {"4471": "已发货，顺丰速运，2 天后送达", "4472": "处理中"}


class Clock:
    """能拨的钟：等一天不用真的等。"""

    now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


class Shop:
    """今天还没有模型；“它”是谁，翻日志就知道。"""

    def __init__(self, directory: Path, clock: Clock) -> None:
        self.sessions = SessionManager(FileStorage(directory), clock=clock, ttl={"web": 3600.0})
        self.router = MessageRouter()
        self.router.register(MessageType.TEXT, self.answer)

    # region answer
    async def answer(self, inbound: GatewayMessage) -> GatewayMessage:
        """消息来了：找到或新建会话，存下问题，翻着日志回答，再存下回答。"""
        assert isinstance(inbound.payload, TextPayload)
        channel, _, user = inbound.source.partition(":")
        session = await self.sessions.get_or_create(user, channel, conversation=inbound.source)
        asked = {"role": "user", "content": inbound.payload.text}
        await self.sessions.append(session, [Entry(inbound.msg_id, 0, asked)])
        text = _reply(session)
        await self.sessions.append(
            session, [Entry(inbound.msg_id, 1, {"role": "assistant", "content": text})]
        )
        await self.sessions.update(session, title=session.messages[0].message["content"])
        return event_message("turn.finished", {"text": text}, target=inbound.source)

    # endregion

    async def say(self, user: str, text: str) -> None:
        """一位客人从网页说一句。"""
        inbound = GatewayMessage(
            msg_id=new_id("msg"),
            msg_type=MessageType.TEXT,
            source=f"web:{user}",
            payload=TextPayload(text=text),
        )
        reply = await self.router.route(inbound)
        assert reply is not None
        print(f"{user}：{text}\n小店：{reply.payload.data['text']}")  # type: ignore[union-attr] # 只有事件


def _reply(session: Session) -> str:
    """从最近的一句往回找订单号。"""
    for entry in reversed(session.messages):
        found = re.search(r"\d{4}", str(entry.message["content"]))
        if found:
            return f"订单 {found[0]}：{ORDERS.get(found[0], '没有这个订单')}"
    return "请问是哪个订单？"


async def main() -> None:
    """四幕。"""
    clock = Clock()
    with tempfile.TemporaryDirectory() as name:
        shop = Shop(Path(name), clock)
        await shop.say("小李", "订单 4471 到哪了？")
        await shop.say("小李", "它几号能到？")
        print("—— 小店重启 ——")
        shop = Shop(Path(name), clock)
        await shop.say("小李", "刚才那个呢？")
        await shop.say("小王", "刚才那个呢？")
        for session in await shop.sessions.list("小李"):
            stored = await shop.sessions.get(session.session_id)
            assert stored is not None
            print(f"小李的会话“{session.metadata['title']}”：{len(stored.messages)} 条")
        print("—— 两小时以后 ——")
        clock.now += 7200
        print(
            f"过期 {await shop.sessions.cleanup_expired(lambda _: False)} 个，还剩 {len(await shop.sessions.list())} 个"
        )


if __name__ == "__main__":
    asyncio.run(main())
