"""改：换掉不认的字，凡是动过的、看不出在哪里断开的，末尾加一段指纹。"""

from __future__ import annotations

import hashlib
import re

MOST = 64


def remote_name(server: str, tool: str) -> str:
    plain = f"mcp__{server}__{tool}"
    name = re.sub(r"[^A-Za-z0-9_-]", "_", plain)
    is_clear = "__" not in f"{server} {tool}" and not server.endswith("_") and not tool.startswith("_")
    if name == plain and len(name) <= MOST and is_clear:  # `a_`、`b` 和 `a`、`_b` 连起来是一样的
        return name
    print_of_both = hashlib.sha256(f"{server}\0{tool}".encode()).hexdigest()[:8]
    return f"{name[: MOST - 9]}_{print_of_both}"
