"""弄坏它：写出能引出每个错误码的帧（答案）。"""

from __future__ import annotations

FRAMES: dict[str, str] = {
    "bad_json": "[]",
    "bad_message": '{"msg_id": "m1", "msg_type": "text", "payload": {"txt": "4471"}}',
    "unsupported": '{"msg_id": "m2", "msg_type": "text", "payload": {"text": "4471"}}',
    "internal": '{"msg_id": "m3", "msg_type": "command", "payload": {"name": "crash"}}',
}
