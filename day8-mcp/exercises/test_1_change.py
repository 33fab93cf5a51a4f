"""运行：pytest exercises/test_1_change.py"""

import re

from ex_1_change import remote_name

HINT = "提示：`re.sub(r'[^A-Za-z0-9_-]', '_', …)`；指纹可以用 `hashlib.sha256` 的前 8 个字，不要用 `hash()`。"
PAIRS = [
    ("shop", "look"),
    ("shop", "look.up"),
    ("shop", "look_up"),
    ("shop", "查订单"),
    ("shop", "退订单"),
    ("店", "look"),
    ("a" * 80, "b"),
    ("a" * 80, "c"),
    ("a_", "b"),
    ("a", "_b"),
    ("a__b", "c"),
    ("a", "b__c"),
]


def test_a_plain_name_stays_readable() -> None:
    assert remote_name("shop", "look") == "mcp__shop__look", HINT


def test_every_name_is_one_that_the_registry_takes() -> None:
    for pair in PAIRS:
        assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", remote_name(*pair)), HINT


def test_different_tools_have_different_names_and_the_same_the_same() -> None:
    names = [remote_name(*pair) for pair in PAIRS]
    assert len(set(names)) == len(names), HINT
    assert names == [remote_name(*pair) for pair in PAIRS], HINT
