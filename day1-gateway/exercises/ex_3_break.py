"""弄坏它：写出能引出每个错误码的帧。

网关只管 `command`，没有人管 `text`；命令 `crash` 的处理函数会出错。把四个空字符串换成四帧。
"""

from __future__ import annotations

FRAMES: dict[str, str] = {
    "bad_json": "",
    "bad_message": "",
    "unsupported": "",
    "internal": "",
}
