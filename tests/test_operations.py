"""What an operator does: begin, look at the settings, back up and restore, look after sessions."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import re
import sqlite3
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from miniclaw import archive
from miniclaw.agent.scripted import ScriptedProvider
from miniclaw.agent.select import LocalServer
from miniclaw.cli import main
from miniclaw.config import load_settings
from miniclaw.errors import ConfigError, DirectoryBusy
from miniclaw.gateway.protocol import encode_json
from miniclaw.rundir import read_or_make_token
from miniclaw.session.outbox import Outbox, insert_deliveries
from miniclaw.skills.loader import SkillLoader
from miniclaw.whole_file import whole_file
from tests.support.agent import outcome, say, send
from tests.support.claw import running_claw
from tests.support.core import open_database
from tests.support.webhooks import echo
from tests.test_dispatcher import row as delivery
from tests.test_rundir import settings_token

Printed = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MINICLAW_MODEL__PROBE_LOCAL", "false")


# --- init -------------------------------------------------------------------------------------------------


def find(monkeypatch: pytest.MonkeyPatch, server: LocalServer | None) -> None:
    async def found() -> LocalServer | None:
        return server

    monkeypatch.setattr("miniclaw.agent.select.find_local_server", found)


def test_init_asks_three_things_offers_the_local_server_and_writes_what_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    find(monkeypatch, LocalServer("Ollama", "http://127.0.0.1:11434/v1", "qwen3"))
    asked: list[str] = []
    answers = iter(["", "sk-secret", "other"])

    def ask(question: str) -> str:
        asked.append(question)
        return next(answers)

    monkeypatch.setattr("builtins.input", ask)
    assert main(["init", "--data-dir", str(tmp_path)]) == 0
    assert len(asked) == 3 and "http://127.0.0.1:11434/v1" in asked[0] and "qwen3" in asked[2]
    assert (tmp_path / ".env").stat().st_mode & 0o777 == 0o600
    loaded = load_settings(env={}, data_dir=str(tmp_path))
    model = loaded.settings.model
    assert (model.base_url, model.name) == ("http://127.0.0.1:11434/v1", "other")
    assert model.api_key is not None and model.api_key.get_secret_value() == "sk-secret"
    before = (tmp_path / ".env").read_text(encoding="utf-8")
    assert main(["init", "--yes", "--data-dir", str(tmp_path)]) == 0
    assert (tmp_path / ".env").read_text(encoding="utf-8") == before
    assert capsys.readouterr().out.count("保留 / kept") == 4


def test_init_after_a_first_start_adds_what_the_env_lacks_and_changes_no_line_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`make run` has written the token there; the quick start says `init` next."""
    find(monkeypatch, LocalServer("Ollama", "http://127.0.0.1:11434/v1", "qwen3"))
    token = read_or_make_token(tmp_path, None)
    before = "OPENAI_API_KEY=\n# mine\nMINICLAW_TOKEN=" + token
    (tmp_path / ".env").write_text(before, encoding="utf-8")
    assert main(["init", "--yes", "--data-dir", str(tmp_path)]) == 0
    text = (tmp_path / ".env").read_text(encoding="utf-8")
    assert text.startswith(before + "\n") and (tmp_path / ".env").stat().st_mode & 0o777 == 0o600
    model = load_settings(env={}, data_dir=str(tmp_path)).settings.model
    assert (model.base_url, model.name) == ("http://127.0.0.1:11434/v1", "qwen3")

    asked: list[str] = []

    def ask(question: str) -> str:
        asked.append(question)
        return "sk-2"

    monkeypatch.setattr("builtins.input", ask)
    assert main(["init", "--data-dir", str(tmp_path)]) == 0
    assert len(asked) == 1 and "key" in asked[0], "only what is still missing"
    loaded = load_settings(env={}, data_dir=str(tmp_path)).settings
    assert loaded.model.api_key is not None and loaded.model.api_key.get_secret_value() == "sk-2"
    assert (loaded.model.name, settings_token(tmp_path)) == ("qwen3", token)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".env", "miniclaw.toml", "skills", "tools"]


def test_init_with_yes_takes_no_local_server_where_another_is_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find(monkeypatch, LocalServer("Ollama", "http://127.0.0.1:11434/v1", "qwen3"))
    (tmp_path / ".env").write_text("OPENAI_API_KEY=sk-theirs\n", encoding="utf-8")
    assert main(["init", "--yes", "--data-dir", str(tmp_path)]) == 0
    assert (tmp_path / ".env").read_text(encoding="utf-8") == "OPENAI_API_KEY=sk-theirs\n"


def test_init_with_yes_asks_nothing_and_its_samples_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    find(monkeypatch, None)
    assert main(["init", "--yes", "--data-dir", str(tmp_path)]) == 0
    assert (tmp_path / ".env").read_text(encoding="utf-8") == ""
    text = (tmp_path / "miniclaw.toml").read_text(encoding="utf-8")
    (tmp_path / "all.toml").write_text(re.sub(r"\n#(?! )", "\n", text), encoding="utf-8")
    load_settings(env={}, data_dir=str(tmp_path))
    everything = load_settings(env={}, data_dir=str(tmp_path), config_file=str(tmp_path / "all.toml"))
    assert list(everything.settings.timers) == ["morning"]
    assert list(SkillLoader().load([tmp_path / "skills"]).skills) == ["haiku"]
    capsys.readouterr()
    counted = ["tools", "call", "word_count", '{"text": "a b\\nc"}', "--data-dir", str(tmp_path)]
    assert main(counted) == 0
    assert '"words": 3' in capsys.readouterr().out


# --- config show ------------------------------------------------------------------------------------------


def test_config_show_tells_where_each_value_comes_from_and_masks_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    toml = (
        '[web]\nport = 9000\n[prices.m]\ninput = 1\noutput = 2\n[[model.fallback]]\nname = "f"\n'
        'api_key = "sk-fallback"\nbase_url = "https://me:sk-in/url@host/v1?key=sk-query"\n'
    )
    (tmp_path / "miniclaw.toml").write_text(toml, encoding="utf-8")
    (tmp_path / ".env").write_text("OPENAI_API_KEY=sk-dotenv\n", encoding="utf-8")
    monkeypatch.setenv("OPENAI_MODEL", "from-env")
    common = ["config", "show", "--data-dir", str(tmp_path), "--log-level", "warning"]
    assert main([*common, "--changed", "--json"]) == 0
    rows = {r["name"]: (r["value"], r["origin"]) for r in json.loads(capsys.readouterr().out)["settings"]}
    assert rows == {
        "web.port": (9000, str(tmp_path / "miniclaw.toml")),
        "prices.m.input": (1.0, str(tmp_path / "miniclaw.toml")),
        "prices.m.output": (2.0, str(tmp_path / "miniclaw.toml")),
        "prices.m.cached": (None, str(tmp_path / "miniclaw.toml")),
        "model.fallback.0.name": ("f", str(tmp_path / "miniclaw.toml")),
        "model.fallback.0.base_url": (
            "https://********@host/v1?key=********",
            str(tmp_path / "miniclaw.toml"),
        ),
        "model.fallback.0.api_key": ("********", str(tmp_path / "miniclaw.toml")),
        "model.fallback.0.api": ("chat", str(tmp_path / "miniclaw.toml")),
        "model.api_key": ("********", str(tmp_path / ".env")),
        "model.name": ("from-env", "environment"),
        "model.probe_local": (False, "environment"),
        "log.level": ("warning", "argument"),
    }
    assert main(common) == 0
    shown = capsys.readouterr().out
    assert "gateway.port = 8765  # default" in shown and "sk-" not in shown


# --- backup and restore -----------------------------------------------------------------------------------


async def test_a_backup_of_a_running_gateway_is_restored_with_everything_in_it(tmp_path: Path) -> None:
    source, target, file = tmp_path / "a", tmp_path / "b", tmp_path / "copy.tar.gz"
    async with running_claw(source, ScriptedProvider([echo] * 40)) as claw:
        await claw.memory.save("owner", "Lives in Hangzhou")
        (source / "skills").mkdir()
        (source / "skills" / "mine.md").write_text("x", encoding="utf-8")
        (source / "skills" / "away").symlink_to("/etc/passwd")
        (source / ".env").write_text("OPENAI_API_KEY=sk-x\n", encoding="utf-8")
        (source / ".env").chmod(0o600)
        first = await send(claw, "first")
        await say(claw, "second", session_id=first.session_id)
        writing = asyncio.gather(*(say(claw, f"during {number}") for number in range(30)))
        count = await asyncio.to_thread(archive.back_up, source, file)
        await writing
    assert file.stat().st_mode & 0o777 == 0o600 and count >= 4
    with tarfile.open(file) as tar:
        names = set(tar.getnames())
    assert not [n for n in names if n.startswith(("run", "logs")) or n.endswith(("-wal", "-shm", "away"))]
    assert archive.restore(target, file) is None
    assert (target / "skills" / "mine.md").read_text(encoding="utf-8") == "x"
    assert (target / ".env").stat().st_mode & 0o777 == 0o600
    async with running_claw(target, ScriptedProvider([echo] * 40)) as claw:
        session = await claw.sessions.get(first.session_id or "")
        assert session is not None and len(session.messages) == 4
        assert [record.content for record in await claw.memory.list("owner")] == ["Lives in Hangzhou"]


async def test_a_restore_keeps_what_was_there_and_waits_for_no_running_gateway(tmp_path: Path) -> None:
    data, file = tmp_path / "data", tmp_path / "copy.tar.gz"
    async with running_claw(data, ScriptedProvider([echo])) as claw:
        await say(claw, "before")
        archive.back_up(data, file)
        with pytest.raises(DirectoryBusy):
            archive.restore(data, file)
    (data / "miniclaw.toml").write_text("# later", encoding="utf-8")
    aside = archive.restore(data, file)
    assert aside is not None and (aside / "miniclaw.toml").read_text(encoding="utf-8") == "# later"
    assert not (data / "miniclaw.toml").exists()
    archive.back_up(data, file)
    with tarfile.open(file) as tar:
        assert not [name for name in tar.getnames() if name.startswith("replaced-")]


KILLED_AT_A_RENAME = """
import os, sys
from pathlib import Path
from miniclaw import archive
rename, left = Path.rename, int(sys.argv[3])
def stopped(*args):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), 9)
    return rename(*args)
Path.rename = stopped
archive.restore(Path(sys.argv[1]), Path(sys.argv[2]))
"""


def marked(data: Path, value: str) -> None:
    """A database with a log that is not copied into it, as a killed gateway leaves them."""
    data.mkdir(exist_ok=True)
    code = "import os, sys, sqlite3; c = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
    code += "for s in sys.argv[2:]: c.execute(s)\nos.kill(os.getpid(), 9)"
    made = ("PRAGMA journal_mode=WAL", "CREATE TABLE marks (m)", f"INSERT INTO marks VALUES ('{value}')")
    subprocess.run([sys.executable, "-c", code, str(data / "miniclaw.db"), *made], check=False)
    assert (data / "miniclaw.db-wal").exists()


def marks(data: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(data / "miniclaw.db")) as database:
        return [row[0] for row in database.execute("SELECT m FROM marks")]


def test_a_backup_takes_what_there_is_of_a_file_that_is_being_shortened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, file = tmp_path / "data", tmp_path / "b.tar.gz"
    marked(data, "mine")
    (data / "notes").write_bytes(b"x" * 300_000)
    size_of = tarfile.TarFile.gettarinfo

    def measured(*given: Any, **named: Any) -> Any:
        info = size_of(*given, **named)
        if info.name == "notes":
            os.truncate(data / "notes", 1000)
        return info

    monkeypatch.setattr(tarfile.TarFile, "gettarinfo", measured)
    archive.back_up(data, file)
    archive.restore(tmp_path / "new", file)
    assert (tmp_path / "new" / "notes").read_bytes() == b"x" * 1000


def test_a_restore_that_nobody_can_agree_to_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data, file = tmp_path / "data", tmp_path / "b.tar.gz"
    marked(data, "mine")
    archive.back_up(data, file)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert main(["restore", str(file), "--data-dir", str(data)]) == 1
    assert "--yes" in capsys.readouterr().err


KILLED_WHILE_IT_LOOKS = """
import os, sys
from pathlib import Path
from miniclaw import archive
rename = os.rename
def stopped(*args):
    try:
        rename(*args)
    finally:
        os.kill(os.getpid(), 9)
os.rename = stopped
archive.restore(Path(sys.argv[1]), Path(sys.argv[2]))
"""


def test_a_restore_that_is_killed_while_it_looks_whether_it_can_move_leaves_nothing(tmp_path: Path) -> None:
    data, file = tmp_path / "data", tmp_path / "b.tar.gz"
    marked(data, "mine")
    archive.back_up(data, file)
    before = {path.name for path in data.iterdir()} | {"run"}
    command = [sys.executable, "-c", KILLED_WHILE_IT_LOOKS, str(data), str(file)]
    assert subprocess.run(command, check=False).returncode == -9
    assert {path.name for path in data.iterdir()} == before


def test_what_a_restore_sets_aside_no_other_one_overwrites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, file = tmp_path / "data", tmp_path / "b.tar.gz"
    marked(tmp_path / "other", "backup")
    archive.back_up(tmp_path / "other", file)
    marked(data, "mine")
    monkeypatch.setattr("time.strftime", lambda form: "20260101-000000")  # all within one second
    asides = [archive.restore(data, file) for _ in range(3)]
    assert [marks(aside) for aside in asides if aside] == [["mine"], ["backup"], ["backup"]]
    assert marks(data) == ["backup"]


@pytest.mark.parametrize("number", [1, 2, 4, "error"])
def test_a_restore_that_stops_in_the_middle_is_told_and_ended_by_the_next(
    tmp_path: Path, number: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, file = tmp_path / "data", tmp_path / "b.tar.gz"
    marked(tmp_path / "other", "backup")
    archive.back_up(tmp_path / "other", file)
    marked(data, "mine")
    if number == "error":
        with monkeypatch.context() as patch, pytest.raises(ConfigError, match="disk on fire"):
            patch.setattr(Path, "rename", failing_from(2))
            archive.restore(data, file)
    else:
        command = [sys.executable, "-c", KILLED_AT_A_RENAME, str(data), str(file), str(number)]
        assert subprocess.run(command, check=False).returncode == -9
    with pytest.raises(ConfigError, match=r"replaced-.*restoring.*miniclaw restore"):
        load_settings(env={}, data_dir=str(data))
    before = tree(data)
    for command in (["backup", str(file)], ["init", "--yes"]):
        assert main([*command, "--data-dir", str(data)]) == 1
    assert tree(data) == before
    aside = archive.restore(data, file)
    first = min(path for path in data.iterdir() if path.name.startswith("replaced-"))
    assert aside is not None and aside != first
    assert (marks(first), marks(aside), marks(data)) == (["mine"], ["backup"], ["backup"])
    load_settings(env={}, data_dir=str(data))


def tree(data: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}


def failing_from(number: int, rename: Any = Path.rename) -> Any:
    def moved(path: Path, target: Path) -> Any:
        nonlocal number
        number -= 1
        if number <= 0:
            raise OSError(5, "disk on fire")
        return rename(path, target)

    return moved


def test_a_restore_that_cannot_move_one_name_puts_the_others_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as `-v ./miniclaw.toml:/data/miniclaw.toml`: what is mounted can be written, and not moved."""
    data, file = tmp_path / "data", tmp_path / "b.tar.gz"
    marked(data, "mine")
    archive.back_up(data, file)
    (data / "miniclaw.toml").touch()
    (data / "skills").mkdir()
    rename, before = Path.rename, {path.name for path in data.iterdir()} | {"run"}

    def moved(path: Path, target: Path) -> Path:
        if path.name == "miniclaw.toml":
            raise OSError(16, "Device or resource busy")
        return rename(path, target)

    with monkeypatch.context() as patch, pytest.raises(ConfigError, match=r"miniclaw\.toml` cannot be moved"):
        patch.setattr(Path, "rename", moved)
        archive.restore(data, file)
    assert {path.name for path in data.iterdir()} == before
    load_settings(env={}, data_dir=str(data))


@pytest.mark.parametrize(
    ("number", "way"), [(28, "make room"), (13, "the right to"), (5, "look at its disk")]
)
def test_a_restore_for_which_there_is_no_room_or_right_does_not_call_the_backup_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, way: str
) -> None:
    data, file = tmp_path / "data", tmp_path / "b.tar.gz"
    marked(data, "mine")
    archive.back_up(data, file)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(number, "no")

    monkeypatch.setattr(tarfile.TarFile, "extractall", full)
    with pytest.raises(ConfigError, match=f"restoring` cannot be written.*{way}"):
        archive.restore(data, file)
    assert marks(data) == ["mine"]


def test_what_came_in_the_way_of_a_restore_that_was_cut_off_is_moved_aside(tmp_path: Path) -> None:
    data, file = tmp_path / "data", tmp_path / "b.tar.gz"
    marked(tmp_path / "other", "backup")
    (tmp_path / "other" / "skills").mkdir()
    (tmp_path / "other" / "skills" / "theirs.md").touch()
    archive.back_up(tmp_path / "other", file)
    marked(data, "mine")
    (data / "skills").mkdir()
    moves = len(list(data.iterdir()))
    command = [sys.executable, "-c", KILLED_AT_A_RENAME, str(data), str(file), str(moves + 1)]
    assert subprocess.run(command, check=False).returncode == -9
    (data / "skills").mkdir()
    (data / "skills" / "mine.md").touch()
    archive.restore(data, file)
    assert [path.name for path in (data / "skills").iterdir()] == ["theirs.md"]
    first = min(path for path in data.iterdir() if path.name.startswith("replaced-"))
    assert (first / "skills-2" / "mine.md").exists() and marks(first) == ["mine"]


async def test_answers_that_were_on_their_way_in_a_backup_are_marked_and_open_turns_end(
    tmp_path: Path,
) -> None:
    data, file = tmp_path / "data", tmp_path / "b.tar.gz"
    reply = {"conversation": "c"}
    data.mkdir()
    async with open_database(data) as database:
        turns = []
        for n, state in enumerate(("finished", "finished", "finished", "running", "waiting", "waiting"), 1):
            kind = "command" if n == 6 else "text"
            message = {"msg_id": "m", "msg_type": kind, "payload": {"text": "x"}, "reply_to": reply}
            turns.append((f"t{n}", encode_json(message).decode(), state))
        statement = (
            "INSERT INTO turns (turn_id, session_id, user_id, channel, message, state, created_at) "
            "VALUES (?, 's', 'ann', 'chat', ?, ?, 1)"
        )
        await database.write(lambda c: c.executemany(statement, turns).rowcount)
        rows = [
            delivery("t1.0", n=1, state="sent"),
            delivery("t2.0", n=2),
            delivery("t3.0", n=3, state="sending", uncertain=2),
            delivery("t4.0", n=4, state="streaming"),
        ]
        await database.write(lambda c: insert_deliveries(c, rows))
        archive.back_up(data, file)
    archive.restore(data, file)
    async with open_database(data) as database:
        assert database.read("SELECT key, state, uncertain FROM deliveries ORDER BY key") == [
            ("t1.0", "sent", 0),
            ("t2.0", "pending", 1),
            ("t3.0", "sending", 2),
            ("t4.0", "dead", 1),
            ("t5.0", "pending", 1),
        ]
        ends = database.read("SELECT turn_id, state, outcome FROM turns WHERE n > 3 ORDER BY n")
        assert [row[:2] for row in ends] == [("t4", "failed"), ("t5", "failed"), ("t6", "waiting")]
        assert "send it again" in json.loads(ends[0][2])["data"]["message"]
        told = await Outbox(database, clock=lambda: 1.0).next_of("chat", "", "c")
        assert told is not None and told.uncertain


async def test_one_changed_byte_of_a_backup_is_seen(tmp_path: Path) -> None:
    async with running_claw(tmp_path / "data", ScriptedProvider([])) as claw:
        await claw.memory.save("owner", "I live in Hangzhou")
    file = tmp_path / "b.tar.gz"
    archive.back_up(tmp_path / "data", file)
    whole = file.read_bytes()
    for place in range(
        len(whole) // 4, len(whole), len(whole) // 12
    ):  # behind the head, which names the file
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(ConfigError, match="no sound backup"):
            archive.restore(tmp_path / "other", file)
    assert {path.name for path in (tmp_path / "other").iterdir()} == {"run"}


def test_a_backup_is_private_whatever_stood_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with contextlib.closing(sqlite3.connect(tmp_path / "data" / "miniclaw.db")) as database:
        database.execute("CREATE TABLE t (x)")
    file = tmp_path / "b.tar.gz"
    left = tmp_path / "b.tar.gz.part"
    left.touch()
    left.chmod(0o666)
    archive.back_up(tmp_path / "data", file)
    assert file.stat().st_mode & 0o777 == 0o600 and not left.exists()


def test_two_backups_into_one_file_at_once_are_each_whole_and_a_killed_one_leaves_nothing(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    with contextlib.closing(sqlite3.connect(data / "miniclaw.db")) as database:
        database.execute("CREATE TABLE t (x)")
    file, killed = data / "b.tar.gz", data / "b.tar.gz.abcdefgh.part"
    killed.write_bytes(b"half")
    with contextlib.suppress(InterruptedError), whole_file(file) as first:
        assert not killed.exists()
        first.write(b"a longer text than any backup is" * 1000)
        first.flush()
        assert archive.back_up(data, file) == 1  # without what the first has written
        with tarfile.open(file) as sound:
            assert sound.getnames() == ["backup.json", "miniclaw.db"]
        whole = file.read_bytes()
        raise InterruptedError
    assert file.read_bytes() == whole
    with whole_file(file) as first:
        archive.back_up(data, file)
        first.write(b"the last to end")
    assert file.read_bytes() == b"the last to end" and file.stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in data.iterdir()) == ["b.tar.gz", "miniclaw.db"]


def packed(path: Path, head: dict[str, Any], database: bytes, outside: str = "") -> Path:
    with tarfile.open(path, "w:gz") as tar:
        bodies = {"backup.json": json.dumps(head).encode(), "miniclaw.db": database, outside: b"x"}
        for name, body in bodies.items():
            if name:
                info = tarfile.TarInfo(name)
                info.size = len(body)
                tar.addfile(info, io.BytesIO(body))
    return path


@pytest.mark.parametrize(
    ("head", "database", "outside", "words"),
    [
        ({"format": 1, "schema": 10**6, "version": "9.9"}, b"", "", "made by miniclaw 9.9"),
        ({"format": 1, "schema": 1}, b"no database at all" * 100, "", "no sound backup"),
        ({"schema": 1}, b"", "", "no sound backup"),
        ({"format": 1, "schema": 1}, b"", "../escaped", "no sound backup"),
        ({"format": 1, "schema": 1}, b"", "run/lock", "what a backup leaves out"),
    ],
)
def test_what_is_no_backup_changes_nothing(
    tmp_path: Path, head: dict[str, Any], database: bytes, outside: str, words: str
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "miniclaw.toml").write_text("# mine", encoding="utf-8")
    with pytest.raises(ConfigError, match=words):
        archive.restore(data, packed(tmp_path / "x.tar.gz", head, database, outside))
    (tmp_path / "junk").write_text("junk", encoding="utf-8")
    with pytest.raises(ConfigError, match="no sound backup"):
        archive.restore(data, tmp_path / "junk")
    assert {path.name for path in data.iterdir()} == {"miniclaw.toml", "run"}
    assert {path.name for path in (data / "run").iterdir()} == {"lock"}


def test_the_commands_back_up_and_restore_after_a_yes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    data, file = tmp_path / "data", str(tmp_path / "copy.tar.gz")
    common = ["--data-dir", str(data)]
    assert main(["backup", file, *common]) == 1
    assert "no data" in capsys.readouterr().err
    data.mkdir()
    sqlite3.connect(data / "miniclaw.db").close()
    assert main(["backup", file, *common]) == 0
    monkeypatch.setattr("builtins.input", lambda question: "n")
    assert main(["restore", file, *common]) == 1
    assert main(["restore", file, "--yes", *common]) == 0
    assert "replaced-" in capsys.readouterr().out


# --- sessions ---------------------------------------------------------------------------------------------


def test_sessions_are_listed_shown_searched_exported_and_deleted(tmp_path: Path, capsys: Printed) -> None:
    async def talk() -> str:
        async with running_claw(tmp_path, ScriptedProvider([echo])) as claw:
            receipt = await send(claw, "find the blue whale")
            await outcome(claw, receipt.turn_id)
            return receipt.session_id or ""

    def run(*arguments: str, code: int = 0) -> str:
        assert main(["sessions", *arguments, "--data-dir", str(tmp_path)]) == code
        printed = capsys.readouterr()
        return printed.out + printed.err

    assert "no sessions" in run("list", code=1)
    session_id = asyncio.run(talk())
    assert session_id in (listed := run("list")) and "find the blue whale" in listed
    assert "nothing" in run("list", "--user-id", "ann")
    assert session_id in run("search", "blue", "whale")
    assert "## user" in run("show", session_id)
    assert "has no session" in run("show", session_id, "--user-id", "ann", code=1)
    assert run("export", session_id, str(tmp_path / "s.json"), "--format", "json") == ""
    exported = json.loads((tmp_path / "s.json").read_text(encoding="utf-8"))
    assert exported["messages"][0]["content"] == "find the blue whale"
    assert session_id in run("delete", session_id)
    assert "nothing" in run("list")
