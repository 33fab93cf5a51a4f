"""Settings: which source wins, what is refused and how it is said, where each value came from."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

import miniclaw
from miniclaw.config import FLAT_NAMES, LoadedSettings, Settings, find_data_dir, load_settings
from miniclaw.errors import ConfigError


def load(
    tmp_path: Path,
    *,
    toml: str | bytes | None = None,
    dotenv: str | bytes | None = None,
    env: Mapping[str, str] | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> LoadedSettings:
    """Settings from the sources that are given, and from nothing else."""
    for name, content in (("miniclaw.toml", toml), (".env", dotenv)):
        (tmp_path / name).unlink(missing_ok=True)
        if content is not None:
            (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return load_settings(arguments=arguments, env=env or {}, data_dir=str(tmp_path))


def value(settings: Settings, name: str) -> Any:
    """A setting by its dotted name; a secret as its text."""
    found: Any = settings
    for part in name.split("."):
        found = getattr(found, part)
    return found.get_secret_value() if isinstance(found, SecretStr) else found


# --- order and origins ------------------------------------------------------------------------------------


def test_without_any_source_everything_is_a_default_and_has_no_origin(tmp_path: Path) -> None:
    loaded = load(tmp_path)
    assert loaded.settings == Settings()
    assert loaded.origins == {}
    assert loaded.settings.gateway.port == 8765
    assert loaded.settings.web.port == 8080
    assert loaded.settings.limits.running == 256
    assert list(tmp_path.iterdir()) == []


def test_argument_beats_environment_beats_dotenv_beats_file_beats_default(tmp_path: Path) -> None:
    sources: dict[str, Any] = {
        "arguments": {"model.name": "from-argument"},
        "env": {"OPENAI_MODEL": "from-environment"},
        "dotenv": "OPENAI_MODEL=from-dotenv\n",
        "toml": '[model]\nname = "from-file"\n',
    }
    origins = {
        "arguments": "argument",
        "env": "environment",
        "dotenv": str(tmp_path / ".env"),
        "toml": str(tmp_path / "miniclaw.toml"),
    }
    seen = []
    while sources:
        loaded = load(tmp_path, **sources)
        seen.append(loaded.settings.model.name)
        best = next(iter(sources))
        assert loaded.origins["model.name"] == origins[best]
        del sources[best]
    assert seen == ["from-argument", "from-environment", "from-dotenv", "from-file"]
    assert load(tmp_path).settings.model.name is None


def test_sources_are_merged_key_by_key(tmp_path: Path) -> None:
    loaded = load(
        tmp_path,
        toml='[web]\nhost = "0.0.0.0"\nport = 1\n[limits]\nrunning = 3\n',
        env={"MINICLAW_WEB__PORT": "2"},
        arguments={"gateway.port": 0},
    )
    assert (loaded.settings.web.host, loaded.settings.web.port) == ("0.0.0.0", 2)
    assert (loaded.settings.limits.running, loaded.settings.gateway.port) == (3, 0)
    assert set(loaded.origins) == {"web.host", "web.port", "limits.running", "gateway.port"}


def test_the_data_directorys_dotenv_beats_the_projects_and_other_directories_are_not_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, data, elsewhere = (tmp_path / name for name in ("project", "data", "elsewhere"))
    for directory in (project, data, elsewhere):
        directory.mkdir()
    (project / ".env").write_text("OPENAI_MODEL=project\nOPENAI_API_KEY=key\n", encoding="utf-8")
    (data / ".env").write_text("OPENAI_MODEL=data\n", encoding="utf-8")
    (elsewhere / ".env").write_text("OPENAI_BASE_URL=http://elsewhere\n", encoding="utf-8")
    monkeypatch.chdir(elsewhere)
    loaded = load_settings(env={"MINICLAW_PROJECT": str(project)}, data_dir=str(data))
    assert loaded.settings.model.name == "data"
    assert value(loaded.settings, "model.api_key") == "key"
    assert loaded.settings.model.base_url is None
    assert loaded.origins["model.api_key"] == str(project / ".env")


@pytest.mark.parametrize("name", ["miniclaw", "stranger"])
def test_the_dotenv_of_the_checkout_that_the_program_runs_from_is_read_from_any_directory(
    tmp_path: Path, name: str
) -> None:
    for directory in ("clone", "elsewhere"):
        (tmp_path / directory).mkdir()
        (tmp_path / directory / ".env").write_text(f"OPENAI_MODEL={directory}\n", encoding="utf-8")
        written = f'[project]\nname = "{name if directory == "clone" else "miniclaw"}"\n'
        (tmp_path / directory / "pyproject.toml").write_text(written, encoding="utf-8")
    (tmp_path / "clone" / "miniclaw").symlink_to(Path(miniclaw.__file__).parent)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("OPENAI_", "MINICLAW_"))}
    shown = subprocess.run(
        [sys.executable, "-m", "miniclaw", "config", "show", "--changed", "--json"],
        cwd=tmp_path / "elsewhere",
        env={**env, "PYTHONPATH": str(tmp_path / "clone"), "PYTHONSAFEPATH": "1", "HOME": str(tmp_path)},
        capture_output=True,
        timeout=60,
        check=True,
    )
    values = [row["value"] for row in json.loads(shown.stdout)["settings"] if row["name"] == "model.name"]
    assert values == (["clone"] if name == "miniclaw" else [])


def test_a_dotenv_of_somebody_else_is_not_taken_for_our_projects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".env").write_text("OPENAI_MODEL=theirs\n", encoding="utf-8")
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "miniclaw"\n', encoding="utf-8")
    monkeypatch.setattr("miniclaw.config.CHECKOUTS", (tmp_path,))
    assert load_settings(env={}, data_dir=str(tmp_path / "data")).settings.model.name == "theirs"
    assert load_settings(env={"MINICLAW_PROJECT": ""}, data_dir=str(tmp_path / "data")).origins == {}
    if os.geteuid() == 0:
        os.chown(tmp_path / ".env", 65534, -1)
    else:
        monkeypatch.setattr("miniclaw.config.__file__", "/")
    assert load_settings(env={}, data_dir=str(tmp_path / "data")).settings.model.name is None


def test_a_named_file_is_read_instead_of_the_data_directorys(tmp_path: Path) -> None:
    (tmp_path / "miniclaw.toml").write_text("[web]\nport = 1\n", encoding="utf-8")
    other = tmp_path / "other.toml"
    other.write_text("[web]\nport = 2\n", encoding="utf-8")
    loaded = load_settings(env={}, data_dir=str(tmp_path), config_file=str(other))
    assert loaded.settings.web.port == 2
    assert loaded.origins == {"web.port": str(other)}


def test_the_process_environment_is_read_where_none_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINICLAW_HOME", str(tmp_path))
    monkeypatch.setenv("MINICLAW_LIMITS__RUNNING", "7")
    loaded = load_settings()
    assert loaded.data_dir == tmp_path
    assert loaded.settings.limits.running == 7


def test_loading_changes_no_environment_variable(tmp_path: Path) -> None:
    before = dict(os.environ)
    load(tmp_path, dotenv="OPENAI_API_KEY=from-file\nSOMETHING_ELSE=1\n")
    assert dict(os.environ) == before


def test_a_dotenv_value_is_taken_as_it_stands(tmp_path: Path) -> None:
    loaded = load(tmp_path, dotenv="OPENAI_API_KEY=a${HOME}$b\nOPENAI_MODEL='x # y'\n")
    assert value(loaded.settings, "model.api_key") == "a${HOME}$b"
    assert loaded.settings.model.name == "x # y"


def test_settings_cannot_be_changed_after_start(tmp_path: Path) -> None:
    settings = load(tmp_path).settings
    with pytest.raises(ValidationError):
        settings.web.port = 1


# --- names of the environment -----------------------------------------------------------------------------


@pytest.mark.parametrize(("variable", "name"), FLAT_NAMES.items())
def test_a_flat_name_sets_its_setting(tmp_path: Path, variable: str, name: str) -> None:
    text = "searxng" if variable == "SEARCH_BACKEND" else "4096"
    loaded = load(tmp_path, env={variable: f" {text} "})
    assert str(value(loaded.settings, name)) == text
    assert loaded.origins == {name: "environment"}


def test_of_two_flat_names_for_one_setting_the_official_one_wins(tmp_path: Path) -> None:
    env = {
        "OPENAI_BASE_URL": "http://a",
        "OPENAI_API_BASE": "http://b",
        "OPENAI_MODEL": "m",
        "OPENAI_API_MODEL": "n",
    }
    model = load(tmp_path, env=env).settings.model
    assert (model.base_url, model.name) == ("http://a", "m")


def test_the_long_name_beats_the_flat_one(tmp_path: Path) -> None:
    env = {"MINICLAW_MODEL__NAME": "long", "OPENAI_MODEL": "flat"}
    assert load(tmp_path, env=env).settings.model.name == "long"


def test_a_blank_flat_name_counts_as_unset(tmp_path: Path) -> None:
    loaded = load(
        tmp_path, env={"OPENAI_API_KEY": "", "OPENAI_MODEL": "  "}, dotenv="OPENAI_MODEL=m\nOPENAI_API_KEY\n"
    )
    assert loaded.settings.model.name == "m"
    assert loaded.settings.model.api_key is None


@pytest.mark.parametrize(
    ("variable", "text", "name", "expected"),
    [
        ("MINICLAW_WEB__PORT", "0", "web.port", 0),
        ("MINICLAW_WEB__PORT", "none", "web.port", None),
        ("MINICLAW_GATEWAY__PORT", "None", "gateway.port", None),
        ("MINICLAW_MODEL__PROBE_LOCAL", "false", "model.probe_local", False),
        ("MINICLAW_AGENT__TURN_TIMEOUT", "1.5", "agent.turn_timeout", 1.5),
        ("MINICLAW_APPROVAL__ALLOW", "a, b,,c ", "approval.allow", ("a", "b", "c")),
        ("MINICLAW_APPROVAL__ALLOW", "", "approval.allow", ()),
        ("MINICLAW_CHANNELS__GENERIC__USER", "hook", "channels.generic.user", "hook"),
        (
            "MINICLAW_CHANNELS__GENERIC__REPLY_HOSTS",
            "a.example",
            "channels.generic.reply_hosts",
            ("a.example",),
        ),
        ("MINICLAW_STORAGE__SYNC", "full", "storage.sync", "full"),
        ("MINICLAW_STORAGE__SESSION_TTL", '{"web": 60}', "storage.session_ttl", {"web": 60.0}),
    ],
)
def test_every_setting_has_a_long_name_with_numbers_lists_and_none(
    tmp_path: Path, variable: str, text: str, name: str, expected: object
) -> None:
    assert value(load(tmp_path, env={variable: text}).settings, name) == expected
    quoted = f"{variable}='{text}'\n"
    assert value(load(tmp_path, dotenv=quoted).settings, name) == expected


@pytest.mark.parametrize(
    "variable", ["MINICLAW_HOME", "MINICLAW_PROJECT", "MINICLAW_OTHER", "PATH", "OPENAI_LOG"]
)
def test_other_variables_are_no_settings_and_no_errors(tmp_path: Path, variable: str) -> None:
    assert load(tmp_path, env={variable: str(tmp_path)}).settings == Settings()


# --- what is refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("toml", "name"),
    [
        ("prot = 1\n", "prot"),
        ("[webb]\nport = 1\n", "webb"),
        ("[web]\nprot = 1\n", "web.prot"),
        ("[web.port]\nx = 1\n", "web.port"),
        ("[channels.slakc]\nx = 1\n", "channels.slakc"),
        ("[channels.generic]\nsecrte = 'x'\n", "channels.generic.secrte"),
        ('"a.b" = 1\n', "a"),
    ],
)
def test_an_unknown_key_in_the_file_is_refused_with_its_name_and_place(
    tmp_path: Path, toml: str, name: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, toml=toml)
    assert f"`{name}`" in str(caught.value)
    assert str(tmp_path / "miniclaw.toml") in str(caught.value)


@pytest.mark.parametrize(
    "variable", ["MINICLAW_WEB__PROT", "MINICLAW_WEBB__PORT", "MINICLAW__WEB", "MINICLAW_A__B__C"]
)
def test_an_unknown_long_name_is_refused_with_its_name_and_place(tmp_path: Path, variable: str) -> None:
    with pytest.raises(ConfigError, match=rf"{variable} \(environment\)"):
        load(tmp_path, env={variable: "1"})
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, dotenv=f"{variable}=1\n")
    assert f"{variable} ({tmp_path / '.env'})" in str(caught.value)


@pytest.mark.parametrize("name", ["web.prot", "webb.port", "web.port.x"])
def test_an_unknown_argument_is_refused_with_its_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=name.split(".")[0]):
        load(tmp_path, arguments={name: 1})


@pytest.mark.parametrize(
    ("source", "place"),
    [
        ({"toml": "[web]\nport = 70000\n"}, "miniclaw.toml"),
        ({"toml": "[web]\nport = 'x'\n"}, "miniclaw.toml"),
        ({"toml": "web = 5\n"}, "miniclaw.toml"),
        ({"env": {"MINICLAW_WEB__PORT": "-1"}}, "environment"),
        ({"env": {"MINICLAW_WEB__PORT": ""}}, "environment"),
        ({"dotenv": "MINICLAW_WEB__PORT=many\n"}, ".env"),
        ({"arguments": {"web.port": "many"}}, "argument"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_name_and_place(
    tmp_path: Path, source: dict[str, Any], place: str
) -> None:
    with pytest.raises(ConfigError, match=r"`web(\.port)?` \(.*\)") as caught:
        load(tmp_path, **source)
    assert place in str(caught.value)


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("limits.running", 0),
        ("limits.message_bytes", 10),
        ("agent.turn_timeout", 0),
        ("agent.turn_timeout", float("nan")),
        ("storage.sync", "sometimes"),
        ("log.level", "loud"),
        ("memory.recall", -1),
        ("storage.session_ttl", {"web": "soon"}),
    ],
)
def test_a_value_out_of_bounds_is_refused(tmp_path: Path, name: str, bad: object) -> None:
    with pytest.raises(ConfigError, match=rf"`{name}[^`]*` \(argument\)"):
        load(tmp_path, arguments={name: bad})


def test_a_section_set_to_a_value_is_refused_also_when_another_source_fills_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="`web`"):
        load(tmp_path, toml="web = 5\n", env={"MINICLAW_WEB__PORT": "1"})


@pytest.mark.parametrize(
    "content", [b"[web\nport = 1", b"[web]\nport = 1\nport = 2\n", b"\xff\xfe[", b"x = '\x00'"]
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ConfigError, match=r"miniclaw\.toml` cannot be read"):
        load(tmp_path, toml=content)


def test_a_dotenv_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\.env` cannot be read"):
        load(tmp_path, dotenv=b"OPENAI_API_KEY=\xff\xfe\n")


def test_a_named_file_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml` cannot be read"):
        load_settings(env={}, data_dir=str(tmp_path), config_file=str(tmp_path / "none.toml"))


def test_files_of_an_editor_that_writes_a_byte_order_mark_are_read_like_any_other(tmp_path: Path) -> None:
    loaded = load(
        tmp_path,
        toml=b"\xef\xbb\xbf[web]\r\nport = 1\r\n",
        dotenv=b"\xef\xbb\xbfOPENAI_API_KEY=sk-1\r\nOPENAI_MODEL=m\r\n",
    )
    assert loaded.settings.web.port == 1
    assert value(loaded.settings, "model.api_key") == "sk-1"
    assert loaded.settings.model.name == "m"


@pytest.mark.parametrize("show", [repr, str, lambda loaded: loaded.settings.model_dump_json()])
def test_secrets_do_not_show_when_settings_are_printed(tmp_path: Path, show: Any) -> None:
    env = {"OPENAI_API_KEY": "sk-1234", "MINICLAW_TOKEN": "sk-1234", "GENERIC_WEBHOOK_SECRET": "sk-1234"}
    assert "sk-1234" not in show(load(tmp_path, env=env))


def test_a_refused_secret_is_not_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, arguments={"model.api_key": ["sk-1234"]})
    assert "sk-1234" not in str(caught.value)


# --- the data directory -----------------------------------------------------------------------------------


def test_the_data_directory_is_the_argument_else_the_variable_else_in_the_home(tmp_path: Path) -> None:
    env = {"MINICLAW_HOME": str(tmp_path / "variable"), "HOME": str(tmp_path)}
    assert find_data_dir(str(tmp_path / "argument"), env) == tmp_path / "argument"
    assert find_data_dir(None, env) == tmp_path / "variable"
    assert find_data_dir(None, {"HOME": str(tmp_path)}) == tmp_path / ".miniclaw"


def test_a_relative_data_directory_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_data_dir("here", {}) == tmp_path / "here"


def test_where_the_home_cannot_be_written_the_data_directory_is_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_data_dir(None, {"HOME": str(tmp_path / "missing")}) == tmp_path / ".miniclaw"
