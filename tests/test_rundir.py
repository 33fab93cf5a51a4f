"""`run/`: one holder at a time over real processes, what it tells others, and who may read it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from miniclaw.config import load_settings
from miniclaw.errors import ConfigError
from miniclaw.rundir import RunDir, RunningGateway, private_directory, read_or_make_token

HOLDER = """
import sys
from pathlib import Path
from miniclaw.errors import ConfigError
from miniclaw.rundir import RunDir, RunningGateway
run = RunDir(Path(sys.argv[1]))
try:
    run.acquire()
except ConfigError as error:
    sys.exit(str(error))
run.announce(RunningGateway(pid=1, gateway_port=2, web_port=None, token="t"))
print("held", flush=True)
sys.stdin.read()
run.release()
"""
"""Holds a directory until its standard input is closed."""

GATEWAY = RunningGateway(pid=7, gateway_port=8765, web_port=8080, token="秘密")


@contextmanager
def holder(data_dir: Path) -> Iterator[subprocess.Popen[str]]:
    """A second process that holds the directory."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(data_dir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# --- the lock ---------------------------------------------------------------------------------------------


def test_a_directory_held_by_another_process_is_refused_until_that_lets_go(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    with holder(tmp_path) as process:
        with pytest.raises(ConfigError, match="Another miniclaw is running.*--data-dir"):
            run.acquire()
        assert run.running() == RunningGateway(pid=1, gateway_port=2, web_port=None, token="t")
        process.communicate("")
        assert process.returncode == 0
        assert run.running() is None
        run.acquire()
    run.release()


def test_a_second_process_is_refused_while_this_one_holds_the_directory(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.acquire()
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    second = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", timeout=30
    )
    assert second.returncode == 1
    assert "Another miniclaw is running" in second.stderr
    run.release()


def test_a_killed_holder_leaves_a_directory_that_is_free_and_a_file_that_counts_for_nothing(
    tmp_path: Path,
) -> None:
    run = RunDir(tmp_path)
    with holder(tmp_path) as process:
        process.kill()
        process.wait(30)
        assert (tmp_path / "run" / "gateway.json").exists()
        assert run.running() is None
        run.acquire()
    run.release()


def test_a_refused_process_does_not_take_away_what_the_holder_announced(tmp_path: Path) -> None:
    run, refused = RunDir(tmp_path), RunDir(tmp_path)
    run.acquire()
    run.announce(GATEWAY)
    with pytest.raises(ConfigError):
        refused.acquire()
    refused.release()
    assert refused.running() == GATEWAY
    run.release()


def test_letting_go_removes_the_announcement_and_may_be_done_again(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.acquire()
    run.announce(GATEWAY)
    assert run.running() == GATEWAY
    run.release()
    run.release()
    assert not (tmp_path / "run" / "gateway.json").exists()
    assert run.running() is None


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '"x"', '{"pid": 1}', '{"pid": 1, "unknown": 2}', "\udcff"]
)
def test_an_announcement_that_cannot_be_read_is_no_running_gateway(tmp_path: Path, content: str) -> None:
    run = RunDir(tmp_path)
    run.acquire()
    (tmp_path / "run" / "gateway.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    assert run.running() is None
    run.release()


def test_asking_who_runs_makes_no_directory(tmp_path: Path) -> None:
    assert RunDir(tmp_path / "none").running() is None
    assert list(tmp_path.iterdir()) == []


def test_a_data_directory_that_cannot_be_made_is_said_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"file` cannot be written.*--data-dir"):
        RunDir(tmp_path / "file").acquire()


# --- who may read it --------------------------------------------------------------------------------------


@pytest.fixture
def open_umask() -> Iterator[None]:
    """The widest rights a process may have by default."""
    former = os.umask(0)
    yield
    os.umask(former)


@pytest.mark.usefixtures("open_umask")
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such modes")
def test_only_this_user_can_enter_the_directories_and_read_the_secrets(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    run = RunDir(data_dir)
    run.acquire()
    run.announce(GATEWAY)
    read_or_make_token(data_dir, None)
    assert mode(data_dir) == mode(data_dir / "run") == 0o700
    assert mode(data_dir / "run" / "gateway.json") == 0o600
    assert mode(data_dir / ".env") == 0o600
    run.release()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such modes")
def test_an_env_file_that_others_could_read_is_closed_to_them_when_it_gets_the_token(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("A=b\n", encoding="utf-8")
    (tmp_path / ".env").chmod(0o644)
    read_or_make_token(tmp_path, None)
    assert mode(tmp_path / ".env") == 0o600


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such modes")
def test_a_directory_that_is_older_and_open_to_others_is_closed_to_them(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(0o755)
    private_directory(tmp_path / "data")
    assert mode(tmp_path / "data") == 0o700


@pytest.mark.skipif(sys.platform == "win32", reason="Windows locks otherwise")
def test_two_who_ask_at_once_who_runs_do_not_take_each_other_for_it(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        process.kill()
        process.wait(30)
    import fcntl

    with (tmp_path / "run" / "lock").open(encoding="utf-8") as asking:
        fcntl.flock(asking, fcntl.LOCK_SH)
        assert RunDir(tmp_path).running() is None


def test_a_private_directory_may_be_there_already_and_keeps_what_is_in_it(tmp_path: Path) -> None:
    private_directory(tmp_path / "a" / "b")
    (tmp_path / "a" / "b" / "file").touch()
    private_directory(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b" / "file").exists()


# --- the owner's token ------------------------------------------------------------------------------------


def settings_token(data_dir: Path) -> str | None:
    token = load_settings(env={}, data_dir=str(data_dir)).settings.gateway.token
    return token.get_secret_value() if token else None


def test_a_token_is_made_once_and_found_by_the_next_start(tmp_path: Path) -> None:
    made = read_or_make_token(tmp_path, settings_token(tmp_path))
    assert len(made) >= 40
    assert settings_token(tmp_path) == made
    assert read_or_make_token(tmp_path, settings_token(tmp_path)) == made
    assert (tmp_path / ".env").read_text(encoding="utf-8").count("MINICLAW_TOKEN") == 1


def test_a_fresh_installation_has_a_token_of_its_own_and_listens_on_this_machine_alone(
    tmp_path: Path,
) -> None:
    homes = [tmp_path / name for name in ("one", "two")]
    for home in homes:
        home.mkdir()
    tokens = [read_or_make_token(home, settings_token(home)) for home in homes]
    assert len(set(tokens)) == 2
    settings = load_settings(env={}, data_dir=str(homes[0])).settings
    assert {settings.web.host, settings.gateway.host} == {"127.0.0.1"}


def test_a_configured_token_is_taken_and_written_nowhere(tmp_path: Path) -> None:
    assert read_or_make_token(tmp_path, "mine") == "mine"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_a_token_goes_on_a_line_of_its_own(tmp_path: Path, end: str) -> None:
    (tmp_path / ".env").write_bytes(f"OPENAI_API_KEY=sk-1{end}".encode())
    made = read_or_make_token(tmp_path, None)
    loaded = load_settings(env={}, data_dir=str(tmp_path)).settings
    assert loaded.model.api_key is not None
    assert loaded.model.api_key.get_secret_value() == "sk-1"
    assert settings_token(tmp_path) == made


def test_a_token_that_cannot_be_kept_is_said_with_the_files_name(tmp_path: Path) -> None:
    (tmp_path / ".env").mkdir()
    with pytest.raises(ConfigError, match=r"\.env` cannot be written"):
        read_or_make_token(tmp_path, None)
