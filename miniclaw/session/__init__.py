"""Sessions, their logs, and the turns that wait in them."""

from typing import TYPE_CHECKING

from miniclaw.lazy import exports

if TYPE_CHECKING:
    from miniclaw.session.files import FileStorage
    from miniclaw.session.history import legal
    from miniclaw.session.mailbox import Mailbox
    from miniclaw.session.manager import SessionManager
    from miniclaw.session.models import Entry, Session
    from miniclaw.session.sqlite import SQLiteStorage
    from miniclaw.session.storage import InMemoryStorage, SessionStorage

__all__ = [
    "Entry",
    "FileStorage",
    "InMemoryStorage",
    "Mailbox",
    "SQLiteStorage",
    "Session",
    "SessionManager",
    "SessionStorage",
    "legal",
]

__getattr__ = exports(
    __name__,
    {
        "Entry": "models",
        "FileStorage": "files",
        "InMemoryStorage": "storage",
        "Mailbox": "mailbox",
        "SQLiteStorage": "sqlite",
        "Session": "models",
        "SessionManager": "manager",
        "SessionStorage": "storage",
        "legal": "history",
    },
)
