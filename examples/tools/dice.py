"""掷骰子：最小的工具。复制到数据目录的 tools/ 就能用，不用重启。"""

import random
from typing import Annotated

from pydantic import Field

from miniclaw.tools import tool


@tool(risk="read")
def roll_dice(
    count: Annotated[int, Field(ge=1, le=20, description="how many dice")] = 1,
    sides: Annotated[int, Field(ge=2, le=1000)] = 6,
) -> dict[str, object]:
    """Roll dice and add them up.

    Args:
        sides: how many sides each of them has
    """
    rolled = [random.randint(1, sides) for _ in range(count)]
    return {"rolled": rolled, "sum": sum(rolled)}
