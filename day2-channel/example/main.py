"""一张路由表，三条渠道：终端、网页、Slack 的 Webhook。不要密钥，不出本机。"""

import asyncio
import hashlib
import hmac
import json
import time
from collections import Counter

import aiohttp

from day1_gateway import EventBus, event_message
from day2_channel import CLIChannel, SlackPlatform, WebChatChannel, WebhookChannel, pump
from shop import router

SECRET = "slack-signing-secret"


async def to_slack(target: str, text: str) -> None:
    """真的 Slack 要调用它的接口；这里打印出来。"""
    print(f"[Slack] {target.removeprefix('slack:')} 收到：{text}")


async def use_page(http: aiohttp.ClientSession, bus: EventBus) -> None:
    """像那张网页一样：从 HTTP 说话，从 WebSocket 听。"""
    async with http.ws_connect("/ws") as ws:
        client = (await ws.receive_json())["payload"]["data"]["client"]
        await http.post("/api/messages", json={"client": client, "text": "4472 呢？"})
        print(f"[网页] 收到：{(await ws.receive_json())['payload']['data']['text']}")
        # 没有人问，店里也可以说话：放上总线，渠道自己认领。
        news = event_message("order.shipped", {"text": "订单 4472 刚刚发货"}, target=f"web:{client}")
        bus.publish("message.outbound", news)
        print(f"[网页] 收到：{(await ws.receive_json())['payload']['data']['text']}")


# region slack
async def use_slack(http: aiohttp.ClientSession, *, secret: str) -> int:
    """像 Slack 一样：签名，发事件。"""
    event = {"type": "message", "channel": "C1", "ts": "17.1", "text": "4471 到哪了？"}
    body = json.dumps({"type": "event_callback", "event": event}).encode()
    moment = str(int(time.time()))
    signed = hmac.new(secret.encode(), f"v0:{moment}:".encode() + body, hashlib.sha256).hexdigest()
    headers = {"X-Slack-Request-Timestamp": moment, "X-Slack-Signature": f"v0={signed}"}
    async with http.post("/webhooks/slack/events", data=body, headers=headers) as answer:
        return answer.status


# endregion


async def main() -> None:
    """三条渠道各说一句。"""
    bus, table = EventBus(), router()
    seen: Counter[str] = Counter()
    bus.subscribe("message.inbound", lambda _, message: seen.update([message.source.partition(":")[0]]))
    slack = WebhookChannel(SlackPlatform(SECRET), bus, to_slack)
    web = WebChatChannel(bus, port=0, extra=slack.routes())
    cli = CLIChannel(bus, user="小李", lines=["订单 4471 到哪了？", "9999 呢？", "exit"])
    channels = (cli, slack, web)
    for channel in channels:
        await channel.start()
    pumps = [asyncio.create_task(pump(channel, table)) for channel in channels]
    try:
        await pumps[0]  # 终端说完才轮到别人，输出好读
        async with aiohttp.ClientSession(f"http://127.0.0.1:{web.port}") as http:
            await use_page(http, bus)
            print(f"[Slack] 假签名：{await use_slack(http, secret='guess')}")
            statuses = [await use_slack(http, secret=SECRET) for _ in range(3)]
            print(f"[Slack] 同一条发三遍：{statuses}")
    finally:
        for one in pumps:
            one.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        for channel in reversed(channels):
            await channel.stop()
    print(f"[总线] 旁观到：{dict(seen)}")


if __name__ == "__main__":
    asyncio.run(main())
