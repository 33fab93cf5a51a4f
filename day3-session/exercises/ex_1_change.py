"""改：群里的人各聊各的。

`key_of` 决定哪些消息进同一个会话。现在它只看渠道和对话，群里三个人的话混在一个会话里。
改到同一个群、同一个人的话进同一个会话；同一个人在不同的群，会话不同。
"""

from __future__ import annotations


def key_of(channel: str, conversation: str, user: str) -> str:
    return f"{channel}|{conversation}"
