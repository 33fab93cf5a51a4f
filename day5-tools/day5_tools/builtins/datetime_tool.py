"""`datetime`：某个时区现在是什么时候。模型自己不知道。"""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from day4_agent import ToolResult
from day5_tools.base import Tool, ToolError
from day5_tools.function import tool


def datetime_tool(*, clock: Callable[[], float] = time.time) -> Tool:
    """报 `clock` 的时间；测试给它一个不走的钟。"""

    @tool(name="datetime", risk="read")
    async def current_datetime(timezone: str = "UTC") -> ToolResult:
        """Tell the date, time and weekday in a time zone.

        Args:
            timezone: An IANA name such as Asia/Shanghai, or UTC.
        """
        try:
            zone = UTC if timezone == "UTC" else ZoneInfo(timezone)
        except (KeyError, ValueError, OSError) as error:  # OSError：`America` 是个目录
            raise ToolError(f"There is no time zone {timezone[:64]!r}; one is Asia/Shanghai.") from error
        moment = datetime.fromtimestamp(clock(), UTC).astimezone(zone)
        content = f"{moment:%Y-%m-%d %H:%M:%S, %A} (time zone {timezone})"
        return ToolResult(content=content, data={"iso": moment.isoformat(timespec="seconds")})

    return current_datetime
