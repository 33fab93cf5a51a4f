PRAGMA user_version=3;
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
INSERT INTO "approvals" VALUES('apr_1141775aa9374d43367d3779','7d3779','turn_c6127905b334b8cd5817cd0c','ses_e5f4f74abc56f4a05d71f11f','owner','t1','schedule','{"cron": "0 9 * * *", "zone": "UTC", "text": "Say good morning."}','672a8069a26a34f7e1be1596f6df94dc93c7ade4dfd012642481131f1ae854fe','approved',1796079743.81811,1796080343.81811);
INSERT INTO "approvals" VALUES('apr_4e8f891fd626aff8051e0cf1','1e0cf1','turn_c865b648483b4d8ac7511833','ses_e5f4f74abc56f4a05d71f11f','owner','c1','note_down','{"text": "buy tea"}','f46fd1af6ef4db3e960860b6aee1186e3a0b526a62a98ddcc0bc1df5fabde5c3','asked',1.79607974382310247424e+09,1.79608034382310247428e+09);
CREATE TABLE dedupe (
  key TEXT PRIMARY KEY, turn_id TEXT, session_id TEXT, result TEXT, created_at REAL NOT NULL
) WITHOUT ROWID;
INSERT INTO "dedupe" VALUES('libraryownermsg_005767ec9d11bf0ad5279aa1','turn_3f22d96c73b9c08875cb70db','ses_e5f4f74abc56f4a05d71f11f',NULL,1.79607974382752680776e+09);
INSERT INTO "dedupe" VALUES('libraryownermsg_59ef7143b7d6faff2140c04a','turn_c865b648483b4d8ac7511833','ses_e5f4f74abc56f4a05d71f11f',NULL,1.79607974382114505768e+09);
INSERT INTO "dedupe" VALUES('libraryownermsg_5d083ab673201b655cbcbaed','turn_c6127905b334b8cd5817cd0c','ses_e5f4f74abc56f4a05d71f11f',NULL,1.79607974380636715885e+09);
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
INSERT INTO "entries" VALUES('ses_e5f4f74abc56f4a05d71f11f',0,'turn_c6127905b334b8cd5817cd0c',0,'{"message":{"role":"user","content":"My name is Ann. Say good morning every day at nine."},"at":1796079743.8074496}');
INSERT INTO "entries" VALUES('ses_e5f4f74abc56f4a05d71f11f',1,'turn_c6127905b334b8cd5817cd0c',1,'{"message":{"role":"assistant","content":null,"tool_calls":[{"id":"t1","type":"function","function":{"name":"schedule","arguments":"{\"cron\": \"0 9 * * *\", \"zone\": \"UTC\", \"text\": \"Say good morning.\"}"}}]},"at":1796079743.8164535,"meta":{"spent":0.0,"usage":[{"model":"scripted","input_tokens":502,"output_tokens":16,"cached_tokens":0,"calls":1,"cost":"unknown"}]}}');
INSERT INTO "entries" VALUES('ses_e5f4f74abc56f4a05d71f11f',2,'turn_c6127905b334b8cd5817cd0c',2,'{"message":{"role":"tool","tool_call_id":"t1","content":"Timer tmr_a511819a424f9d63a4a4cd2b runs next at 2026-12-01 09:00 UTC."},"at":1796079743.8196945,"meta":{"ok":true,"ms":3,"name":"schedule","spent":0.0}}');
INSERT INTO "entries" VALUES('ses_e5f4f74abc56f4a05d71f11f',3,'turn_c6127905b334b8cd5817cd0c',3,'{"message":{"role":"assistant","content":"Hello Ann, I keep that."},"at":1796079743.820398}');
INSERT INTO "entries" VALUES('ses_e5f4f74abc56f4a05d71f11f',4,'turn_c865b648483b4d8ac7511833',0,'{"message":{"role":"user","content":"Write down: buy tea."},"at":1796079743.8216517}');
INSERT INTO "entries" VALUES('ses_e5f4f74abc56f4a05d71f11f',5,'turn_c865b648483b4d8ac7511833',1,'{"message":{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"note_down","arguments":"{\"text\": \"buy tea\"}"}}]},"at":1796079743.8225563,"meta":{"spent":0.0,"usage":[{"model":"scripted","input_tokens":547,"output_tokens":4,"cached_tokens":0,"calls":1,"cost":"unknown"}]}}');
CREATE TABLE identities (
  channel TEXT NOT NULL, account TEXT NOT NULL, platform_user TEXT NOT NULL, user_id TEXT NOT NULL,
  PRIMARY KEY (channel, account, platform_user)
) WITHOUT ROWID;
CREATE TABLE logins (id_hash TEXT PRIMARY KEY, user_id TEXT NOT NULL, created_at REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO "meta" VALUES('epoch','1');
CREATE TABLE pairings (
  code TEXT PRIMARY KEY, channel TEXT NOT NULL, account TEXT NOT NULL, platform_user TEXT NOT NULL,
  created_at REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE sessions (
  session_id TEXT PRIMARY KEY, user_id TEXT NOT NULL, channel TEXT NOT NULL, key TEXT UNIQUE, thread TEXT,
  created_at REAL NOT NULL, updated_at REAL NOT NULL, metadata TEXT NOT NULL
) WITHOUT ROWID;
INSERT INTO "sessions" VALUES('ses_e5f4f74abc56f4a05d71f11f','owner','library',NULL,NULL,1.79607974380618262287e+09,1.79607974382049775125e+09,'{"title":"My name is Ann. Say good morning every day at nine."}');
CREATE TABLE started_calls (
  turn_id TEXT NOT NULL, call_id TEXT NOT NULL, PRIMARY KEY (turn_id, call_id)
) WITHOUT ROWID;
CREATE TABLE timers (
  timer_id TEXT PRIMARY KEY, user_id TEXT NOT NULL, scope TEXT NOT NULL, kind TEXT NOT NULL, value TEXT NOT NULL,
  zone TEXT NOT NULL, missed TEXT NOT NULL, text TEXT NOT NULL, origin TEXT NOT NULL, anchor REAL NOT NULL,
  next_at REAL, session_id TEXT, configured INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO "timers" VALUES('tmr_a511819a424f9d63a4a4cd2b','owner','owner','cron','0 9 * * *','UTC','once','Say good morning.','{}',1.79607974381917929649e+09,1796115600.0,NULL,0);
CREATE TABLE turns (
  n INTEGER PRIMARY KEY AUTOINCREMENT, turn_id TEXT NOT NULL UNIQUE, session_id TEXT NOT NULL,
  user_id TEXT NOT NULL, channel TEXT NOT NULL, message TEXT NOT NULL, state TEXT NOT NULL,
  attempt INTEGER NOT NULL DEFAULT 0, tries INTEGER NOT NULL DEFAULT 0, cancel_requested INTEGER NOT NULL DEFAULT 0,
  created_at REAL NOT NULL, ended_at REAL, outcome TEXT
);
INSERT INTO "turns" VALUES(1,'turn_c6127905b334b8cd5817cd0c','ses_e5f4f74abc56f4a05d71f11f','owner','library','{"msg_id":"msg_5d083ab673201b655cbcbaed","msg_type":"text","source":"library:owner","target":"agent","payload":{"text":"My name is Ann. Say good morning every day at nine.","attachments":[]},"timestamp":"2026-11-30T23:02:23.805Z","channel":"library","account":"","sender":"owner","user_id":"owner","direct":true,"dedupe":[],"files":[],"only_known":false,"strangers":"serve","asks":true,"typed":false}','finished',1,1,0,1.79607974380636715885e+09,1.79607974382049775125e+09,'{"name":"turn.finished","data":{"text":"Hello Ann, I keep that.","usage":{"model":"scripted","input_tokens":1038,"output_tokens":21,"cached_tokens":0,"calls":2,"cost":"unknown"},"tools":[{"call_id":"t1","name":"schedule","ok":true,"ms":3}],"used_memories":[],"saved_memories":[]},"seq":12}');
INSERT INTO "turns" VALUES(2,'turn_c865b648483b4d8ac7511833','ses_e5f4f74abc56f4a05d71f11f','owner','library','{"msg_id":"msg_59ef7143b7d6faff2140c04a","msg_type":"text","source":"library:owner","target":"agent","payload":{"text":"Write down: buy tea.","attachments":[]},"timestamp":"2026-11-30T23:02:23.821Z","channel":"library","account":"","sender":"owner","user_id":"owner","session_id":"ses_e5f4f74abc56f4a05d71f11f","direct":true,"dedupe":[],"files":[],"only_known":false,"strangers":"serve","asks":true,"typed":false}','running',1,1,0,1.79607974382114505768e+09,NULL,NULL);
INSERT INTO "turns" VALUES(3,'turn_3f22d96c73b9c08875cb70db','ses_e5f4f74abc56f4a05d71f11f','owner','library','{"msg_id":"msg_005767ec9d11bf0ad5279aa1","msg_type":"text","source":"library:owner","target":"agent","payload":{"text":"And what is my name?","attachments":[]},"timestamp":"2026-11-30T23:02:23.827Z","channel":"library","account":"","sender":"owner","user_id":"owner","session_id":"ses_e5f4f74abc56f4a05d71f11f","direct":true,"dedupe":[],"files":[],"only_known":false,"strangers":"serve","asks":true,"typed":false}','waiting',0,0,0,1.79607974382752680776e+09,NULL,NULL);
CREATE TABLE usage (
  user_id TEXT NOT NULL, day TEXT NOT NULL, model TEXT NOT NULL, input_tokens INTEGER NOT NULL,
  output_tokens INTEGER NOT NULL, calls INTEGER NOT NULL, cached_tokens INTEGER NOT NULL DEFAULT 0, cost REAL,
  PRIMARY KEY (user_id, day, model)
) WITHOUT ROWID;
INSERT INTO "usage" VALUES('owner','2026-11-30','scripted',1038,21,2,0,NULL);
CREATE TABLE users (
  user_id TEXT PRIMARY KEY, role TEXT NOT NULL, token_hash TEXT UNIQUE, created_at REAL NOT NULL
) WITHOUT ROWID;
INSERT INTO "users" VALUES('owner','admin','4c5dc9b7708905f77f5e5d16316b5dfb425e68cb326dcd55a860e90a7707031e',1.7960797437517969608e+09);
CREATE INDEX sessions_by_user ON sessions (user_id, updated_at);
CREATE INDEX turns_open ON turns (n) WHERE state IN ('waiting', 'running');
CREATE INDEX turns_by_session ON turns (session_id, n);
CREATE INDEX dedupe_by_age ON dedupe (created_at);
CREATE INDEX approvals_by_turn ON approvals (turn_id, call_id);
CREATE INDEX deliveries_open ON deliveries (channel, account, conversation, n, part)
  WHERE state IN ('pending', 'sending');
CREATE INDEX deliveries_by_user ON deliveries (user_id, n);
CREATE INDEX timers_by_time ON timers (next_at) WHERE next_at IS NOT NULL;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('turns',3);
COMMIT;
