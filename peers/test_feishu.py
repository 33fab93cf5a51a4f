import json
import time

import lark_oapi as lark
import pytest
from lark_oapi.core.model import RawRequest
from lark_oapi.core.utils import AESCipher

from miniclaw.channel.platforms.feishu_crypto import decrypt, encrypt
from miniclaw.channel.standins.feishu import event_of
from miniclaw.channel_settings import FeishuAccount

KEY, TOKEN = "miniclaw-test-encrypt-key-01", "vt_miniclaw_0123456789abcdef"
ACCOUNT = FeishuAccount.model_validate({"app_id": "cli_x", "encrypt_key": KEY, "verification_token": TOKEN})


@pytest.mark.parametrize("length", range(0, 40))
def test_lark_oapi_decrypts_what_we_encrypt_at_every_padding(length):
    text = "é" * length
    assert AESCipher(KEY).decrypt_str(encrypt(KEY, text)) == text
    assert decrypt(KEY, encrypt(KEY, text)) == text


def test_lark_oapi_hands_our_event_to_its_handler():
    heard = []
    builder = lark.EventDispatcherHandler.builder(KEY, TOKEN)
    handler = builder.register_p2_im_message_receive_v1(
        lambda data: heard.append(data.event.message.content)
    ).build()
    event = event_of(ACCOUNT, "你好 👋", now=time.time())
    request = RawRequest()
    request.uri, request.body, request.headers = "/webhooks/feishu", event.body, dict(event.headers)
    assert handler.do(request).status_code == 200
    assert [json.loads(content)["text"] for content in heard] == ["你好 👋"]
    request.headers["X-Lark-Signature"] = "0" * 64
    assert handler.do(request).status_code == 500
    assert len(heard) == 1
