PRAGMA user_version=4;
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
INSERT INTO "approvals" VALUES('apr_6257a968f37c28a4533c24b6','3c24b6','turn_56d7ec9458aea0a21b4b010d','ses_92eaf3b082aa0370498daf4c','owner','c1','note_down','{"text": "buy tea"}','f46fd1af6ef4db3e960860b6aee1186e3a0b526a62a98ddcc0bc1df5fabde5c3','asked',1.79607974399177694317e+09,1.7960803439917769432e+09);
INSERT INTO "approvals" VALUES('apr_e46311ee36bfb0f535a90747','a90747','turn_f20579ec6422cbef615f5a70','ses_92eaf3b082aa0370498daf4c','owner','t1','schedule','{"cron": "0 9 * * *", "zone": "UTC", "text": "Say good morning."}','672a8069a26a34f7e1be1596f6df94dc93c7ade4dfd012642481131f1ae854fe','approved',1.79607974395558667177e+09,1.79608034395558667181e+09);
CREATE TABLE dedupe (
  key TEXT PRIMARY KEY, turn_id TEXT, session_id TEXT, result TEXT, created_at REAL NOT NULL
) WITHOUT ROWID;
INSERT INTO "dedupe" VALUES('libraryownermsg_4f764cf5a308dc9d3f08eee4','turn_0709d0ebbb869601334194bb','ses_92eaf3b082aa0370498daf4c',NULL,1.79607974399765658382e+09);
INSERT INTO "dedupe" VALUES('libraryownermsg_62115c068e62ce273cdc70c3','turn_f20579ec6422cbef615f5a70','ses_92eaf3b082aa0370498daf4c',NULL,1.79607974391336131098e+09);
INSERT INTO "dedupe" VALUES('libraryownermsg_c42ac9bcba6ae3643db0a6f6','turn_56d7ec9458aea0a21b4b010d','ses_92eaf3b082aa0370498daf4c',NULL,1.79607974396842503552e+09);
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
INSERT INTO "entries" VALUES('ses_92eaf3b082aa0370498daf4c',0,'turn_f20579ec6422cbef615f5a70',0,'{"message":{"role":"user","content":"My name is Ann. Say good morning every day at nine."},"at":1796079743.9150372}');
INSERT INTO "entries" VALUES('ses_92eaf3b082aa0370498daf4c',1,'turn_f20579ec6422cbef615f5a70',1,'{"message":{"role":"assistant","content":null,"tool_calls":[{"id":"t1","type":"function","function":{"name":"schedule","arguments":"{\"cron\": \"0 9 * * *\", \"zone\": \"UTC\", \"text\": \"Say good morning.\"}"}}]},"at":1796079743.9513834,"meta":{"spent":0.0,"usage":[{"model":"scripted","input_tokens":502,"output_tokens":16,"calls":1,"cost":"unknown"}]}}');
INSERT INTO "entries" VALUES('ses_92eaf3b082aa0370498daf4c',2,'turn_f20579ec6422cbef615f5a70',2,'{"message":{"role":"tool","tool_call_id":"t1","content":"Timer tmr_01ac4f353c120f27ef09c055 runs next at 2026-12-01 09:00 UTC."},"at":1796079743.9632466,"meta":{"ok":true,"ms":11,"name":"schedule","spent":0.0}}');
INSERT INTO "entries" VALUES('ses_92eaf3b082aa0370498daf4c',3,'turn_f20579ec6422cbef615f5a70',3,'{"message":{"role":"assistant","content":"Hello Ann, I keep that."},"at":1796079743.9641416}');
INSERT INTO "entries" VALUES('ses_92eaf3b082aa0370498daf4c',4,'turn_56d7ec9458aea0a21b4b010d',0,'{"message":{"role":"user","content":"Write down: buy tea."},"at":1796079743.969375}');
INSERT INTO "entries" VALUES('ses_92eaf3b082aa0370498daf4c',5,'turn_56d7ec9458aea0a21b4b010d',1,'{"message":{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"note_down","arguments":"{\"text\": \"buy tea\"}"}}]},"at":1796079743.9782188,"meta":{"spent":0.0,"usage":[{"model":"scripted","input_tokens":547,"output_tokens":4,"calls":1,"cost":"unknown"}]}}');
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
INSERT INTO "sessions" VALUES('ses_92eaf3b082aa0370498daf4c','owner','library',NULL,NULL,1.79607974391238689425e+09,1.79607974396425819395e+09,'{"title":"My name is Ann. Say good morning every day at nine."}');
CREATE TABLE started_calls (
  turn_id TEXT NOT NULL, call_id TEXT NOT NULL, PRIMARY KEY (turn_id, call_id)
) WITHOUT ROWID;
CREATE TABLE timers (
  timer_id TEXT PRIMARY KEY, user_id TEXT NOT NULL, scope TEXT NOT NULL, kind TEXT NOT NULL, value TEXT NOT NULL,
  zone TEXT NOT NULL, missed TEXT NOT NULL, text TEXT NOT NULL, origin TEXT NOT NULL, anchor REAL NOT NULL,
  next_at REAL, session_id TEXT, configured INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO "timers" VALUES('tmr_01ac4f353c120f27ef09c055','owner','owner','cron','0 9 * * *','UTC','once','Say good morning.','{}',1.79607974396276044845e+09,1796115600.0,NULL,0);
CREATE TABLE turns (
  n INTEGER PRIMARY KEY AUTOINCREMENT, turn_id TEXT NOT NULL UNIQUE, session_id TEXT NOT NULL,
  user_id TEXT NOT NULL, channel TEXT NOT NULL, message TEXT NOT NULL, state TEXT NOT NULL,
  attempt INTEGER NOT NULL DEFAULT 0, tries INTEGER NOT NULL DEFAULT 0, cancel_requested INTEGER NOT NULL DEFAULT 0,
  created_at REAL NOT NULL, ended_at REAL, outcome TEXT
);
INSERT INTO "turns" VALUES(1,'turn_f20579ec6422cbef615f5a70','ses_92eaf3b082aa0370498daf4c','owner','library','{"msg_id":"msg_62115c068e62ce273cdc70c3","msg_type":"text","source":"","target":"agent","payload":{"text":"My name is Ann. Say good morning every day at nine.","attachments":[]},"timestamp":"","channel":"library","account":"","sender":"","user_id":"owner","direct":true,"dedupe":[],"files":[],"only_known":false,"strangers":"serve","asks":true,"typed":false,"request_id":""}','finished',1,1,0,1.79607974391336131098e+09,1.79607974396425819395e+09,'{"name":"turn.finished","data":{"text":"Hello Ann, I keep that.","usage":{"model":"scripted","input_tokens":1038,"output_tokens":21,"cached_tokens":0,"calls":2,"cost":"unknown"},"tools":[{"call_id":"t1","name":"schedule","ok":true,"ms":11}],"used_memories":[],"saved_memories":[]},"seq":12}');
INSERT INTO "turns" VALUES(2,'turn_56d7ec9458aea0a21b4b010d','ses_92eaf3b082aa0370498daf4c','owner','library','{"msg_id":"msg_c42ac9bcba6ae3643db0a6f6","msg_type":"text","source":"","target":"agent","payload":{"text":"Write down: buy tea.","attachments":[]},"timestamp":"","channel":"library","account":"","sender":"","user_id":"owner","session_id":"ses_92eaf3b082aa0370498daf4c","direct":true,"dedupe":[],"files":[],"only_known":false,"strangers":"serve","asks":true,"typed":false,"request_id":""}','running',1,1,0,1.79607974396842503552e+09,NULL,NULL);
INSERT INTO "turns" VALUES(3,'turn_0709d0ebbb869601334194bb','ses_92eaf3b082aa0370498daf4c','owner','library','{"msg_id":"msg_4f764cf5a308dc9d3f08eee4","msg_type":"text","source":"","target":"agent","payload":{"text":"And what is my name?","attachments":[]},"timestamp":"","channel":"library","account":"","sender":"","user_id":"owner","session_id":"ses_92eaf3b082aa0370498daf4c","direct":true,"dedupe":[],"files":[],"only_known":false,"strangers":"serve","asks":true,"typed":false,"request_id":""}','waiting',0,0,0,1.79607974399765658382e+09,NULL,NULL);
CREATE TABLE uploads (
  upload_id TEXT PRIMARY KEY, user_id TEXT NOT NULL, ref TEXT NOT NULL, created_at REAL NOT NULL, sent INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE usage (
  user_id TEXT NOT NULL, day TEXT NOT NULL, model TEXT NOT NULL, input_tokens INTEGER NOT NULL,
  output_tokens INTEGER NOT NULL, calls INTEGER NOT NULL, cached_tokens INTEGER NOT NULL DEFAULT 0, cost REAL,
  PRIMARY KEY (user_id, day, model)
) WITHOUT ROWID;
INSERT INTO "usage" VALUES('owner','2026-11-30','scripted',1038,21,2,0,NULL);
CREATE TABLE users (
  user_id TEXT PRIMARY KEY, role TEXT NOT NULL, token_hash TEXT UNIQUE, created_at REAL NOT NULL
) WITHOUT ROWID;
INSERT INTO "users" VALUES('owner','admin','4c5dc9b7708905f77f5e5d16316b5dfb425e68cb326dcd55a860e90a7707031e',1.79607974381328248979e+09);
CREATE INDEX sessions_by_user ON sessions (user_id, updated_at);
CREATE INDEX turns_open ON turns (n) WHERE state IN ('waiting', 'running');
CREATE INDEX turns_by_session ON turns (session_id, n);
CREATE INDEX dedupe_by_age ON dedupe (created_at);
CREATE INDEX approvals_by_turn ON approvals (turn_id, call_id);
CREATE INDEX deliveries_open ON deliveries (channel, account, conversation, n, part)
  WHERE state IN ('pending', 'sending');
CREATE INDEX deliveries_by_user ON deliveries (user_id, n);
CREATE INDEX timers_by_time ON timers (next_at) WHERE next_at IS NOT NULL;
CREATE INDEX uploads_unsent ON uploads (created_at) WHERE NOT sent;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('turns',3);
COMMIT;
