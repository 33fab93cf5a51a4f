"""What tests look at inside of a gateway on SQLite."""

from __future__ import annotations

from miniclaw.app import MiniClaw
from miniclaw.backends import SQLiteBackend
from miniclaw.db import Database
from miniclaw.session.mailbox import Mailbox


def database_of(claw: MiniClaw) -> Database:
    assert isinstance(claw._backend, SQLiteBackend)
    return claw._backend.db


def mailbox_of(claw: MiniClaw) -> Mailbox:
    assert isinstance(claw.mailbox, Mailbox)
    return claw.mailbox
