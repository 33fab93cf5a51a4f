"""运行：pytest exercises/test_1_change.py"""

from ex_1_change import key_of


def test_two_people_in_one_group_have_two_sessions() -> None:
    assert key_of("slack", "C1", "alice") != key_of("slack", "C1", "bob"), "提示：钥匙里还缺一样东西。"


def test_one_person_in_two_groups_has_two_sessions() -> None:
    assert key_of("slack", "C1", "alice") != key_of("slack", "C2", "alice")
    assert key_of("slack", "C1", "alice") != key_of("feishu", "C1", "alice")


def test_the_same_place_gives_the_same_key() -> None:
    assert key_of("slack", "C1", "alice") == key_of("slack", "C1", "alice")
