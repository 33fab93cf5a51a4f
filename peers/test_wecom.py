import time
import xml.etree.ElementTree as tree

import pytest
from wechatpy.enterprise.crypto import WeChatCrypto
from wechatpy.exceptions import InvalidSignatureException

from miniclaw.channel.platforms.wecom_crypto import WeComCrypto
from miniclaw.channel.standins.wecom import event_of
from miniclaw.channel_settings import WeComAccount

TOKEN, KEY, CORP = "miniclawTestToken01", "abcdefghijklmnopqrstuvwxyz0123456789ABCDEFG", "ww0123456789abcdef"
ACCOUNT = WeComAccount.model_validate(
    {"corp_id": CORP, "agent_id": 1000002, "token": TOKEN, "encoding_aes_key": KEY}
)


def test_wechatpy_reads_our_event_and_refuses_it_with_another_signature():
    event = event_of(ACCOUNT, "你好 <b>&</b> 👋", now=time.time())
    crypto = WeChatCrypto(TOKEN, KEY, CORP)
    query = (event.query["timestamp"], event.query["nonce"])
    clear = crypto.decrypt_message(event.body.decode(), event.query["msg_signature"], *query)
    assert tree.fromstring(clear).findtext("Content") == "你好 <b>&</b> 👋"
    with pytest.raises(InvalidSignatureException):
        crypto.decrypt_message(event.body.decode(), "0" * 40, *query)


@pytest.mark.parametrize("length", range(0, 70))
def test_we_read_what_wechatpy_encrypts_at_every_padding(length):
    text = "x" * length or "<xml/>"
    moment, nonce = str(int(time.time())), "1372623149"
    encrypted = tree.fromstring(WeChatCrypto(TOKEN, KEY, CORP).encrypt_message(text, nonce, moment))
    ours = WeComCrypto(TOKEN, KEY, CORP)
    ours.check(encrypted.findtext("MsgSignature"), moment, nonce, encrypted.findtext("Encrypt"))
    assert ours.decrypt(encrypted.findtext("Encrypt")) == text
