"""第 1 天：网关。"""

from day1_gateway.errors import MiniClawError, ProtocolError

__all__ = ["MiniClawError", "ProtocolError"]
