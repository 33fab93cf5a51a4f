PRAGMA user_version=1;
BEGIN TRANSACTION;
CREATE TABLE approval_rules (
  user_id TEXT NOT NULL, session_id TEXT NOT NULL, tool TEXT NOT NULL,
  PRIMARY KEY (user_id, session_id, tool)
) WITHOUT ROWID;
CREATE TABLE approvals (
  approval_id TEXT PRIMARY KEY, short_id TEXT NOT NULL, turn_id TEXT NOT NULL, session_id TEXT NOT NULL,
  user_id TEXT NOT NULL, call_id TEXT NOT NULL, tool TEXT NOT NULL, arguments TEXT NOT NULL,
  digest TEXT NOT NULL, state TEXT NOT NULL, created_at REAL NOT NULL, expires_at REAL NOT NULL
) WITHOUT ROWID;
INSERT INTO "approvals" VALUES('apr_6be227538ed9f82e39d2099f','d2099f','turn_24c9b38b1ed15002bcfd5487','ses_28db7f17ba6173ed2dcc3cf8','owner','c1','note_down','{"text": "buy tea"}','f46fd1af6ef4db3e960860b6aee1186e3a0b526a62a98ddcc0bc1df5fabde5c3','asked',1.79607964506579685214e+09,1.79608024506579685214e+09);
CREATE TABLE dedupe (
  key TEXT PRIMARY KEY, turn_id TEXT, session_id TEXT, result TEXT, created_at REAL NOT NULL
) WITHOUT ROWID;
INSERT INTO "dedupe" VALUES('libraryownermsg_3427ea60b471dd542f8d473d','turn_ae780518f81546fc1629e684','ses_28db7f17ba6173ed2dcc3cf8',NULL,1.79607964505638957024e+09);
INSERT INTO "dedupe" VALUES('libraryownermsg_c6d3599229a03648da5d4d51','turn_24c9b38b1ed15002bcfd5487','ses_28db7f17ba6173ed2dcc3cf8',NULL,1.79607964506390261651e+09);
INSERT INTO "dedupe" VALUES('libraryownermsg_f00fe50b9f544e61d46f0281','turn_cc119ddf87eac146b4db0aad','ses_28db7f17ba6173ed2dcc3cf8',NULL,1.79607964506622481341e+09);
CREATE TABLE deliveries (
  key TEXT PRIMARY KEY, n INTEGER NOT NULL, part INTEGER NOT NULL, turn_id TEXT NOT NULL,
  user_id TEXT NOT NULL, channel TEXT NOT NULL, account TEXT NOT NULL, conversation TEXT NOT NULL,
  target TEXT NOT NULL, text TEXT NOT NULL, state TEXT NOT NULL, attempts INTEGER NOT NULL DEFAULT 0,
  uncertain INTEGER NOT NULL DEFAULT 0, next_at REAL NOT NULL, handle TEXT, error TEXT, created_at REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE entries (
  session_id TEXT NOT NULL, position INTEGER NOT NULL, turn_id TEXT NOT NULL, step INTEGER NOT NULL,
  body TEXT NOT NULL, PRIMARY KEY (session_id, position), UNIQUE (session_id, turn_id, step)
) WITHOUT ROWID;
INSERT INTO "entries" VALUES('ses_28db7f17ba6173ed2dcc3cf8',0,'turn_ae780518f81546fc1629e684',0,'{"message":{"role":"user","content":"My name is Ann. Say good morning every day at nine."},"at":1796079645.0572875}');
INSERT INTO "entries" VALUES('ses_28db7f17ba6173ed2dcc3cf8',1,'turn_ae780518f81546fc1629e684',1,'{"message":{"role":"assistant","content":"Hello Ann, I keep that."},"at":1796079645.0591815}');
INSERT INTO "entries" VALUES('ses_28db7f17ba6173ed2dcc3cf8',2,'turn_24c9b38b1ed15002bcfd5487',0,'{"message":{"role":"user","content":"Write down: buy tea."},"at":1796079645.0643258}');
INSERT INTO "entries" VALUES('ses_28db7f17ba6173ed2dcc3cf8',3,'turn_24c9b38b1ed15002bcfd5487',1,'{"message":{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"note_down","arguments":"{\"text\": \"buy tea\"}"}}]},"at":1796079645.0653665}');
CREATE TABLE identities (
  channel TEXT NOT NULL, account TEXT NOT NULL, platform_user TEXT NOT NULL, user_id TEXT NOT NULL,
  PRIMARY KEY (channel, account, platform_user)
) WITHOUT ROWID;
CREATE TABLE logins (id_hash TEXT PRIMARY KEY, user_id TEXT NOT NULL, created_at REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO "meta" VALUES('epoch','1');
CREATE TABLE sessions (
  session_id TEXT PRIMARY KEY, user_id TEXT NOT NULL, channel TEXT NOT NULL, key TEXT UNIQUE, thread TEXT,
  created_at REAL NOT NULL, updated_at REAL NOT NULL, metadata TEXT NOT NULL
) WITHOUT ROWID;
INSERT INTO "sessions" VALUES('ses_28db7f17ba6173ed2dcc3cf8','owner','library',NULL,NULL,1.79607964505618262294e+09,1.79607964505926609045e+09,'{"title": "My name is Ann. Say good morning every day at nine."}');
CREATE TABLE started_calls (
  turn_id TEXT NOT NULL, call_id TEXT NOT NULL, PRIMARY KEY (turn_id, call_id)
) WITHOUT ROWID;
CREATE TABLE turns (
  n INTEGER PRIMARY KEY AUTOINCREMENT, turn_id TEXT NOT NULL UNIQUE, session_id TEXT NOT NULL,
  user_id TEXT NOT NULL, channel TEXT NOT NULL, message TEXT NOT NULL, state TEXT NOT NULL,
  attempt INTEGER NOT NULL DEFAULT 0, tries INTEGER NOT NULL DEFAULT 0, cancel_requested INTEGER NOT NULL DEFAULT 0,
  created_at REAL NOT NULL, ended_at REAL, outcome TEXT
);
INSERT INTO "turns" VALUES(1,'turn_ae780518f81546fc1629e684','ses_28db7f17ba6173ed2dcc3cf8','owner','library','{"msg_id": "msg_3427ea60b471dd542f8d473d", "msg_type": "text", "source": "library:owner", "target": "agent", "payload": {"text": "My name is Ann. Say good morning every day at nine.", "attachments": []}, "timestamp": "2026-11-30T23:00:45.055Z", "channel": "library", "account": "", "sender": "owner", "user_id": "owner", "direct": true, "dedupe": [], "asks": true, "typed": false}','finished',1,1,0,1.79607964505638957024e+09,1.79607964505926609045e+09,'{"name": "turn.finished", "data": {"text": "Hello Ann, I keep that.", "usage": {"model": "", "input_tokens": 0, "output_tokens": 0, "calls": 0}, "tools": [], "used_memories": [], "saved_memories": []}, "seq": 8}');
INSERT INTO "turns" VALUES(2,'turn_24c9b38b1ed15002bcfd5487','ses_28db7f17ba6173ed2dcc3cf8','owner','library','{"msg_id": "msg_c6d3599229a03648da5d4d51", "msg_type": "text", "source": "library:owner", "target": "agent", "payload": {"text": "Write down: buy tea.", "attachments": []}, "timestamp": "2026-11-30T23:00:45.063Z", "channel": "library", "account": "", "sender": "owner", "user_id": "owner", "session_id": "ses_28db7f17ba6173ed2dcc3cf8", "direct": true, "dedupe": [], "asks": true, "typed": false}','running',1,1,0,1.79607964506390261651e+09,NULL,NULL);
INSERT INTO "turns" VALUES(3,'turn_cc119ddf87eac146b4db0aad','ses_28db7f17ba6173ed2dcc3cf8','owner','library','{"msg_id": "msg_f00fe50b9f544e61d46f0281", "msg_type": "text", "source": "library:owner", "target": "agent", "payload": {"text": "And what is my name?", "attachments": []}, "timestamp": "2026-11-30T23:00:45.066Z", "channel": "library", "account": "", "sender": "owner", "user_id": "owner", "session_id": "ses_28db7f17ba6173ed2dcc3cf8", "direct": true, "dedupe": [], "asks": true, "typed": false}','waiting',0,0,0,1.79607964506622481341e+09,NULL,NULL);
CREATE TABLE usage (
  user_id TEXT NOT NULL, day TEXT NOT NULL, model TEXT NOT NULL, input_tokens INTEGER NOT NULL,
  output_tokens INTEGER NOT NULL, calls INTEGER NOT NULL, PRIMARY KEY (user_id, day, model)
) WITHOUT ROWID;
CREATE TABLE users (
  user_id TEXT PRIMARY KEY, role TEXT NOT NULL, token_hash TEXT UNIQUE, created_at REAL NOT NULL
) WITHOUT ROWID;
INSERT INTO "users" VALUES('owner','admin','4c5dc9b7708905f77f5e5d16316b5dfb425e68cb326dcd55a860e90a7707031e',1.79607964502773380282e+09);
CREATE INDEX sessions_by_user ON sessions (user_id, updated_at);
CREATE INDEX turns_open ON turns (n) WHERE state IN ('waiting', 'running');
CREATE INDEX turns_by_session ON turns (session_id, n);
CREATE INDEX dedupe_by_age ON dedupe (created_at);
CREATE INDEX approvals_by_turn ON approvals (turn_id, call_id);
CREATE INDEX deliveries_open ON deliveries (channel, account, conversation, n, part)
  WHERE state IN ('pending', 'sending');
CREATE INDEX deliveries_by_user ON deliveries (user_id, n);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('turns',3);
COMMIT;
