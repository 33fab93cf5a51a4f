"""改：退款手册在不该翻开的时候翻开了。

客人说“这个 discount 怎么算”，退款手册也跳出来；说“Return 一下”却没反应。
只改下面的 front matter：去掉太短的词，加上英文的 `return`；再让它用的时候只露出 `get_order_status` 和 `refund`。
"""

SKILL = """\
---
name: refund
description: 退款
trigger: [退款, return]
allowed_tools: [get_order_status, refund]
---
先查再退。
"""
