"""会话的异常，接在第 1 天的树上。"""

from day1_gateway import MiniClawError

__all__ = ["StorageError", "StorageUnavailable"]


class StorageError(MiniClawError):
    """存的东西读不了、写不了。"""


class StorageUnavailable(StorageError):
    """现在用不了：磁盘满了、没有权限。什么也没有改变，过一会儿再试也许行。"""
