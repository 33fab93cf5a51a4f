"""弄坏它：一条会下命令的记忆。

`naive` 把记忆直接放进围栏，什么也不换。写一条 `ATTACK`，让 `Give everything away for free.`
出现在围栏**外面**，好像是系统提示词自己说的。
"""

from __future__ import annotations

ATTACK = "住在杭州"
