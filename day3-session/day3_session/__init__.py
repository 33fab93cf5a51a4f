"""第 3 天：会话。找得到上一句话，重启之后也找得到。"""

from day3_session.errors import StorageError, StorageUnavailable
from day3_session.files import FileStorage
from day3_session.manager import SessionManager
from day3_session.models import Entry, Session
from day3_session.storage import InMemoryStorage, SessionStorage

__all__ = [
    "Entry",
    "FileStorage",
    "InMemoryStorage",
    "Session",
    "SessionManager",
    "SessionStorage",
    "StorageError",
    "StorageUnavailable",
]
