"""The tables of a data directory's database, and how an older one becomes the present one."""

from __future__ import annotations

from typing import Final

__all__ = ["MIGRATIONS", "NEWER", "SCHEMA", "SCHEMA_VERSION"]

SCHEMA_VERSION: Final = 5
NEWER: Final = (
    "`{}` was written by a newer miniclaw (schema {}); upgrade miniclaw or choose another --data-dir."
)

_TIMERS: Final = """
CREATE TABLE timers (
  timer_id TEXT PRIMARY KEY, user_id TEXT NOT NULL, scope TEXT NOT NULL, kind TEXT NOT NULL, value TEXT NOT NULL,
  zone TEXT NOT NULL, missed TEXT NOT NULL, text TEXT NOT NULL, origin TEXT NOT NULL, anchor REAL NOT NULL,
  next_at REAL, session_id TEXT, configured INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX timers_by_time ON timers (next_at) WHERE next_at IS NOT NULL;
"""

_UPLOADS: Final = """
CREATE TABLE uploads (
  upload_id TEXT PRIMARY KEY, user_id TEXT NOT NULL, ref TEXT NOT NULL, created_at REAL NOT NULL, sent INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX uploads_unsent ON uploads (created_at) WHERE NOT sent;
"""

SCHEMA: Final = (
    """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE users (
  user_id TEXT PRIMARY KEY, role TEXT NOT NULL, token_hash TEXT UNIQUE, created_at REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE identities (
  channel TEXT NOT NULL, account TEXT NOT NULL, platform_user TEXT NOT NULL, user_id TEXT NOT NULL,
  PRIMARY KEY (channel, account, platform_user)
) WITHOUT ROWID;
CREATE TABLE pairings (
  code TEXT PRIMARY KEY, channel TEXT NOT NULL, account TEXT NOT NULL, platform_user TEXT NOT NULL,
  created_at REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE logins (id_hash TEXT PRIMARY KEY, user_id TEXT NOT NULL, created_at REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE sessions (
  session_id TEXT PRIMARY KEY, user_id TEXT NOT NULL, channel TEXT NOT NULL, key TEXT UNIQUE, thread TEXT,
  created_at REAL NOT NULL, updated_at REAL NOT NULL, metadata TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX sessions_by_user ON sessions (user_id, updated_at);
CREATE TABLE entries (
  session_id TEXT NOT NULL, position INTEGER NOT NULL, turn_id TEXT NOT NULL, step INTEGER NOT NULL,
  body TEXT NOT NULL, PRIMARY KEY (session_id, position), UNIQUE (session_id, turn_id, step)
) WITHOUT ROWID;
CREATE TABLE turns (
  n INTEGER PRIMARY KEY AUTOINCREMENT, turn_id TEXT NOT NULL UNIQUE, session_id TEXT NOT NULL,
  user_id TEXT NOT NULL, channel TEXT NOT NULL, message TEXT NOT NULL, state TEXT NOT NULL,
  attempt INTEGER NOT NULL DEFAULT 0, tries INTEGER NOT NULL DEFAULT 0, cancel_requested INTEGER NOT NULL DEFAULT 0,
  created_at REAL NOT NULL, ended_at REAL, outcome TEXT
);
CREATE INDEX turns_open ON turns (n) WHERE state IN ('waiting', 'running');
CREATE INDEX turns_by_session ON turns (session_id, n);
CREATE TABLE dedupe (
  key TEXT PRIMARY KEY, turn_id TEXT, session_id TEXT, result TEXT, created_at REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX dedupe_by_age ON dedupe (created_at);
CREATE TABLE started_calls (
  turn_id TEXT NOT NULL, call_id TEXT NOT NULL, PRIMARY KEY (turn_id, call_id)
) WITHOUT ROWID;
CREATE TABLE approvals (
  approval_id TEXT PRIMARY KEY, short_id TEXT NOT NULL, turn_id TEXT NOT NULL, session_id TEXT NOT NULL,
  user_id TEXT NOT NULL, call_id TEXT NOT NULL, tool TEXT NOT NULL, arguments TEXT NOT NULL,
  digest TEXT NOT NULL, state TEXT NOT NULL, created_at REAL NOT NULL, expires_at REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX approvals_by_turn ON approvals (turn_id, call_id);
CREATE TABLE approval_rules (
  user_id TEXT NOT NULL, session_id TEXT NOT NULL, tool TEXT NOT NULL,
  PRIMARY KEY (user_id, session_id, tool)
) WITHOUT ROWID;
CREATE TABLE deliveries (
  key TEXT PRIMARY KEY, n INTEGER NOT NULL, part INTEGER NOT NULL, turn_id TEXT NOT NULL,
  user_id TEXT NOT NULL, channel TEXT NOT NULL, account TEXT NOT NULL, conversation TEXT NOT NULL,
  target TEXT NOT NULL, text TEXT NOT NULL, state TEXT NOT NULL, attempts INTEGER NOT NULL DEFAULT 0,
  uncertain INTEGER NOT NULL DEFAULT 0, next_at REAL NOT NULL, handle TEXT, error TEXT, created_at REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX deliveries_open ON deliveries (channel, account, conversation, n, part)
  WHERE state IN ('pending', 'sending');
CREATE INDEX deliveries_by_user ON deliveries (user_id, n);
CREATE TABLE usage (
  user_id TEXT NOT NULL, day TEXT NOT NULL, model TEXT NOT NULL, input_tokens INTEGER NOT NULL,
  output_tokens INTEGER NOT NULL, calls INTEGER NOT NULL, cached_tokens INTEGER NOT NULL DEFAULT 0, cost REAL,
  ms INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (user_id, day, model)
) WITHOUT ROWID;
"""
    + _TIMERS
    + _UPLOADS
)

MIGRATIONS: Final = {
    1: "ALTER TABLE usage ADD COLUMN cached_tokens INTEGER NOT NULL DEFAULT 0; "
    "ALTER TABLE usage ADD COLUMN cost REAL; "
    "CREATE TABLE pairings (code TEXT PRIMARY KEY, channel TEXT NOT NULL, account TEXT NOT NULL, "
    "platform_user TEXT NOT NULL, created_at REAL NOT NULL) WITHOUT ROWID",
    2: _TIMERS,
    3: _UPLOADS,
    4: "ALTER TABLE usage ADD COLUMN ms INTEGER NOT NULL DEFAULT 0",
}
"""What makes the next schema of one."""
