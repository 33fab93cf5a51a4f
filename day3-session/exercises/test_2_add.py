"""运行：pytest exercises/test_2_add.py"""

from day3_session import Entry, Session
from ex_2_add import export


def talk(**metadata: str) -> Session:
    said = [("user", "4471 到哪了？"), ("tool", "{}"), ("assistant", "已发货")]
    entries = [Entry("t1", step, {"role": role, "content": text}) for step, (role, text) in enumerate(said)]
    return Session(session_id="ses_1", user_id="alice", channel="web", messages=entries, metadata=metadata)


def test_the_talk_is_written_down() -> None:
    wanted = "# 订单\n\n**我**：4471 到哪了？\n**小店**：已发货\n"
    assert export(talk(title="订单")) == wanted, "提示：遍历 session.messages，看 entry.message['role']。"


def test_without_a_title_the_id_stands_there() -> None:
    assert export(talk()).startswith("# ses_1\n"), "提示：metadata.get('title') or session.session_id。"
