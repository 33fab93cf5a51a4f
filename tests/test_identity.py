"""Who speaks: tokens, browser logins, and the people and groups of platforms."""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miniclaw.db import Database
from miniclaw.errors import ConfigError
from miniclaw.gateway.protocol import new_id
from miniclaw.identity import LOGIN_LIFETIME, OWNER, Identities, is_user_id
from miniclaw.redis.people import RedisIdentities, RedisTimers
from miniclaw.schedules import Schedule
from miniclaw.timer_store import Timer, TimerStore
from tests.support.core import START, FakeClock, open_database
from tests.support.redis import fresh_prefix, needs_redis, open_link


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    async with open_database(tmp_path) as database:
        yield database


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


async def started(database: Database, clock: FakeClock, *, token: str = "secret") -> Identities:
    identities = Identities(database, clock=clock)
    await identities.start(token)
    return identities


async def login(identities: Identities, user_id: str) -> str:
    """The cookie of a browser of a user, who is made where there is none."""
    await identities.ensure(user_id)
    cookie = await identities.login(await identities.new_token(user_id))
    assert cookie is not None
    return cookie


async def user_for(database: Database, identities: Identities, *person: str) -> str:
    return await database.write(lambda connection: identities.user_for(connection, *person))


async def group_for(database: Database, identities: Identities, *group: str) -> str:
    return await database.write(lambda connection: identities.group_for(connection, *group))


# --- tokens -----------------------------------------------------------------------------------------------


async def test_the_owners_token_is_the_owner_and_no_other_token_is_anybody(
    database: Database, clock: FakeClock
) -> None:
    identities = await started(database, clock, token="secret")
    assert identities.user_of_token("secret") == OWNER
    for wrong in ("", "Secret", "secret ", hashlib.sha256(b"secret").hexdigest(), "\udcff\x00", "密码"):
        assert identities.user_of_token(wrong) is None


async def test_a_changed_owners_token_replaces_the_former_one(database: Database, clock: FakeClock) -> None:
    await started(database, clock, token="old")
    identities = await started(database, clock, token="new")
    assert identities.user_of_token("new") == OWNER
    assert identities.user_of_token("old") is None


async def test_tokens_of_other_users_are_known_after_a_start_and_no_secret_is_in_the_file(
    database: Database, clock: FakeClock, tmp_path: Path
) -> None:
    digest = hashlib.sha256(b"bobs-token").hexdigest()
    row = ("bob", "user", digest, 0.0)
    await database.write(lambda c: c.execute("INSERT INTO users VALUES (?, ?, ?, ?)", row).rowcount)
    identities = await started(database, clock, token="owners-token")
    assert identities.user_of_token("bobs-token") == "bob"
    cookie = await identities.login("bobs-token")
    assert cookie is not None
    await database.close()
    stored = (tmp_path / "miniclaw.db").read_bytes()
    assert b"bob" in stored
    for secret in (b"owners-token", b"bobs-token", cookie.encode()):
        assert secret not in stored


async def test_an_owners_token_that_is_somebody_elses_is_refused(
    database: Database, clock: FakeClock
) -> None:
    row = ("bob", "user", hashlib.sha256(b"bobs-token").hexdigest(), 0.0)
    await database.write(lambda c: c.execute("INSERT INTO users VALUES (?, ?, ?, ?)", row).rowcount)
    with pytest.raises(ConfigError, match="`bob`"):
        await started(database, clock, token="bobs-token")
    assert (await started(database, clock)).user_of_token("bobs-token") == "bob"


async def test_a_user_that_is_ensured_exists_once_and_has_no_token(
    database: Database, clock: FakeClock
) -> None:
    identities = await started(database, clock)
    assert not identities.exists("hook")
    await identities.ensure("hook")
    await identities.ensure("hook")
    assert identities.exists("hook")
    assert database.read("SELECT role, token_hash FROM users WHERE user_id = 'hook'") == [("user", None)]


@pytest.mark.parametrize("bad", ["", "Ann", "1ann", "a" * 33, "a b", "ann\n", "../ann", "ann.b", "安"])
async def test_what_has_not_the_form_of_a_user_id_is_refused_and_makes_nobody(
    database: Database, clock: FakeClock, bad: str
) -> None:
    identities = await started(database, clock)
    with pytest.raises(ConfigError, match="user id"):
        await identities.ensure(bad)
    assert database.read("SELECT user_id FROM users") == [(OWNER,)]


@given(st.from_regex(r"[a-z][a-z0-9_-]{0,31}", fullmatch=True))
def test_every_user_id_of_the_documented_form_is_one(user_id: str) -> None:
    assert is_user_id(user_id)
    assert not is_user_id(user_id.upper())
    assert not is_user_id(user_id + "/")


# --- browser logins ---------------------------------------------------------------------------------------


async def test_a_login_is_its_user_until_it_is_too_old(database: Database, clock: FakeClock) -> None:
    identities = await started(database, clock)
    first, second = await login(identities, "ann"), await login(identities, "bob")
    assert first != second
    clock.advance(LOGIN_LIFETIME - 1)
    assert await identities.user_of_login(first) == "ann"
    assert await identities.user_of_login(second) == "bob"
    clock.advance(2)
    assert await identities.user_of_login(first) is None


@pytest.mark.parametrize("value", ["", "guess", "\udc80", "\x00"])
async def test_an_unknown_cookie_is_nobody(database: Database, clock: FakeClock, value: str) -> None:
    identities = await started(database, clock)
    await login(identities, "ann")
    assert await identities.user_of_login(value) is None


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=needs_redis)])
async def people(
    request: pytest.FixtureRequest, database: Database, clock: FakeClock
) -> AsyncIterator[tuple[Identities, TimerStore]]:
    """Users and their timers, of both back ends."""
    if request.param == "redis":
        async with open_link(fresh_prefix()) as link:
            identities = RedisIdentities(link, clock=clock)
            await identities.start("secret")
            yield identities, RedisTimers(link, clock=clock)
    else:
        yield await started(database, clock), TimerStore(database, clock=clock)


@pytest.mark.parametrize("by", ["remove", "new_token"])
async def test_who_logs_in_while_the_token_is_being_withdrawn_is_out_afterwards(
    people: tuple[Identities, TimerStore], by: str
) -> None:
    identities, _ = people
    token = await identities.add("ann")
    before = await identities.login(token)
    calls = [identities.login(token) for _ in range(5)]
    _, *cookies = await asyncio.gather(getattr(identities, by)("ann"), *calls)
    cookies = [cookie for cookie in (before, *cookies, await identities.login(token)) if cookie is not None]
    assert [await identities.user_of_login(cookie) for cookie in cookies] == [None] * len(cookies)


async def test_a_login_that_a_removed_user_has_left_is_nobodys_and_goes_with_a_wipe(
    database: Database, clock: FakeClock
) -> None:
    identities = await started(database, clock)
    left = (hashlib.sha256(b"left").hexdigest(), "gone", clock())
    await database.write(lambda c: c.execute("INSERT INTO logins VALUES (?, ?, ?)", left).rowcount)
    assert await identities.user_of_login("left") is None
    await identities.wipe("gone")
    assert database.read("SELECT * FROM logins") == []


async def test_a_removed_user_makes_no_timer_and_one_that_was_left_is_swept_out(
    people: tuple[Identities, TimerStore],
) -> None:
    identities, timers = people

    def timer(user_id: str) -> Timer:
        every = Schedule("every", "60s", "UTC")
        return Timer(
            timer_id=new_id("tmr"),
            user_id=user_id,
            scope=user_id,
            schedule=every,
            missed="once",
            text="x",
            origin={},
            anchor=START,
            next_at=START,
        )

    await identities.ensure("ann")
    await identities.ensure("bob")
    assert await timers.save(timer("ann")) and await timers.save(timer("bob"))
    await identities.remove("ann")
    assert not await timers.save(timer("ann"))
    await timers.forget_left()
    assert [one.user_id for one in timers.due(START)] == ["bob"]


async def test_logins_survive_a_start_and_old_ones_are_swept_out_by_it(
    database: Database, clock: FakeClock
) -> None:
    identities = await started(database, clock)
    await login(identities, "ann")
    clock.advance(LOGIN_LIFETIME + 1)
    young = await login(identities, "bob")
    identities = await started(database, clock)
    assert await identities.user_of_login(young) == "bob"
    assert database.read("SELECT user_id FROM logins") == [("bob",)]


async def test_a_changed_owners_token_shuts_out_the_browsers_that_the_former_one_let_in(
    database: Database, clock: FakeClock
) -> None:
    identities = await started(database, clock, token="leaked")
    owners, anns = await identities.login("leaked"), await login(identities, "ann")
    assert owners is not None
    identities = await started(database, clock, token="leaked")
    assert await identities.user_of_login(owners) == OWNER
    identities = await started(database, clock, token="new")
    assert await identities.user_of_login(owners) is None
    assert await identities.user_of_login(anns) == "ann"


async def test_the_owner_is_an_admin_and_nobody_else_by_default(database: Database, clock: FakeClock) -> None:
    identities = await started(database, clock)
    await identities.ensure("hook")
    stranger = await user_for(database, identities, "slack", "T1", "U1")
    assert identities.is_admin(OWNER)
    assert not any(map(identities.is_admin, ("hook", stranger, "nobody", "")))


# --- platforms --------------------------------------------------------------------------------------------


async def test_a_platforms_person_gets_one_user_for_ever(tmp_path: Path, clock: FakeClock) -> None:
    async with open_database(tmp_path) as database:
        identities = await started(database, clock)
        first = await user_for(database, identities, "slack", "T1", "U1")
        assert await user_for(database, identities, "slack", "T1", "U1") == first
        assert identities.exists(first)
    async with open_database(tmp_path) as database:
        identities = await started(database, clock)
        assert await user_for(database, identities, "slack", "T1", "U1") == first


async def test_people_of_other_accounts_and_channels_are_other_users(
    database: Database, clock: FakeClock
) -> None:
    identities = await started(database, clock)
    people = [("slack", "T1", "U1"), ("slack", "T2", "U1"), ("feishu", "T1", "U1"), ("slack", "T1", "U2")]
    users = [await user_for(database, identities, *person) for person in people]
    assert len(set(users)) == len(people)


@pytest.mark.parametrize("person", ["owner", "ann", "../../etc", "", "组长", "x" * 500])
async def test_a_strangers_user_id_is_minted_and_never_made_from_the_platforms(
    database: Database, clock: FakeClock, person: str
) -> None:
    identities = await started(database, clock)
    user_id = await user_for(database, identities, "slack", "T1", person)
    assert is_user_id(user_id)
    assert user_id.startswith("u_")
    assert not person or person not in user_id


async def test_a_groups_scope_is_minted_once_and_is_no_user(database: Database, clock: FakeClock) -> None:
    identities = await started(database, clock)
    scope = await group_for(database, identities, "slack", "T1", "C1")
    assert scope.startswith("grp_")
    assert await group_for(database, identities, "slack", "T1", "C1") == scope
    assert await group_for(database, identities, "slack", "T1", "C2") != scope
    assert await group_for(database, identities, "slack", "T2", "C1") != scope
    assert not identities.exists(scope)


@pytest.mark.parametrize("person", ["C1", "group:C1", "group\x1fC1"])
async def test_no_name_that_a_person_can_have_reaches_a_groups_scope(
    database: Database, clock: FakeClock, person: str
) -> None:
    identities = await started(database, clock)
    scope = await group_for(database, identities, "slack", "T1", "C1")
    user_id = await user_for(database, identities, "slack", "T1", person)
    assert user_id != scope
    assert user_id.startswith("u_")


async def test_what_is_minted_in_a_transaction_that_fails_is_not_kept(
    database: Database, clock: FakeClock
) -> None:
    identities = await started(database, clock)

    def operation(connection: sqlite3.Connection) -> None:
        identities.user_for(connection, "slack", "T1", "U1")
        raise KeyError

    with pytest.raises(KeyError):
        await database.write(operation)
    assert database.read("SELECT * FROM identities") == []


async def test_a_pairing_code_links_the_stranger_who_was_shown_it(
    database: Database, clock: FakeClock
) -> None:
    identities = await started(database, clock)
    await identities.add("ann")
    code = await identities.pairing_code("slack", "T1", "U9")
    assert await identities.pairing_code("slack", "T1", "U9") == code
    assert await identities.pairing_code("slack", "T1", "U8") != code
    await identities.pair("ann", f" {code.lower()} ")
    assert await user_for(database, identities, "slack", "T1", "U9") == "ann"
    with pytest.raises(ConfigError, match="no pairing code"):
        await identities.pair("ann", code)


async def test_a_pairing_code_is_good_for_a_day_and_for_a_user_that_there_is(
    database: Database, clock: FakeClock
) -> None:
    identities = await started(database, clock)
    code = await identities.pairing_code("slack", "T1", "U9")
    with pytest.raises(ConfigError, match="no user `nobody`"):
        await identities.pair("nobody", code)
    clock.advance(24 * 3600 + 1)
    with pytest.raises(ConfigError, match="no pairing code"):
        await identities.pair("owner", code)
    assert await identities.pairing_code("slack", "T1", "U9") != code
