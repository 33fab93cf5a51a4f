"""Files that a person uploads: what is taken, where it lies, and what the model gets of it."""

from __future__ import annotations

import asyncio
import base64
import io
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miniclaw.agent.adapt import fit_messages
from miniclaw.agent.incoming import safe_name
from miniclaw.agent.openai_provider import OpenAIProvider
from miniclaw.agent.quirks import Quirks
from miniclaw.agent.report import Report
from miniclaw.agent.responses import responses_body
from miniclaw.app import MiniClaw
from miniclaw.file_kinds import decode_text, kind_of
from miniclaw.gateway.protocol import FileRef, Inbound, TextPayload
from miniclaw.tools.paths import read_path
from tests.support.claw import TOKEN, running_claw, server_process
from tests.support.model import FakeModel, Message, Reply, echo

AUTH = {"Authorization": f"Bearer {TOKEN}"}
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
DATA_URL = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
S = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
R = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
A = "http://schemas.openxmlformats.org/drawingml/2006/main"


def packed(**parts: str | bytes) -> bytes:
    """An archive; `__` in a name stands for `/`."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(f"{name.replace('__', '/')}.xml", content)
    return buffer.getvalue()


def docx(body: str, prolog: str = "") -> bytes:
    return packed(word__document=f'{prolog}<w:document xmlns:w="{W}"><w:body>{body}</w:body></w:document>')


WORDS = docx(
    "<w:p><w:pPr><w:tabs><w:tab/></w:tabs></w:pPr><w:r><w:t>第一段</w:t><w:tab/><w:t>其余</w:t></w:r></w:p>"
    "<w:tbl><w:tr><w:tc><w:p><w:r><w:t>甲</w:t></w:r></w:p></w:tc><w:tc><w:p><w:r><w:t>乙</w:t></w:r></w:p></w:tc></w:tr></w:tbl>"
)
DIRECTORY = WORDS.index(b"PK\x01\x02")
WITH_UNKNOWN_PACKING = b"".join(
    (WORDS[:8], b"\x61\0", WORDS[10 : DIRECTORY + 10], b"\x61\0", WORDS[DIRECTORY + 12 :])
)
"""The compression method of the one file is 97."""
SHEET = packed(
    xl__workbook=f'<workbook xmlns="{S}" xmlns:r="{R}"><sheets><sheet name="账" r:id="r7"/></sheets></workbook>',
    xl__sharedStrings=f'<sst xmlns="{S}"><si><t>收</t><rPh><t>しゅう</t></rPh><r><t>入</t></r></si></sst>',
    xl__worksheets__sheet1=f'<worksheet xmlns="{S}"><sheetData><row><c r="A1" t="s"><v>0</v></c>'
    '<c r="C1"><f>1+1</f><v>2</v></c></row></sheetData></worksheet>',
)
SLIDES = packed(
    ppt__presentation="<p/>",
    **{
        f"ppt__slides__slide{n}": f'<s xmlns:a="{A}"><a:p><a:r><a:t>page {n}</a:t></a:r></a:p></s>'
        for n in (10, 2)
    },
)
BOMB = docx(" " * 101_000_000)


def with_rels(data: bytes) -> bytes:
    """The workbook with its relationships, whose part ends in `.rels`."""
    buffer = io.BytesIO(data)
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.writestr(
            "xl/_rels/workbook.xml.rels",
            '<Relationships><Relationship Id="r7" Target="/xl/worksheets/sheet1.xml"/></Relationships>',
        )
    return buffer.getvalue()


def pdf(text: str) -> bytes:
    """The least of a PDF that shows a text."""
    stream = f"BT /F1 12 Tf 20 100 Td ({text}) Tj ET".encode()
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 300 200]/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>>>>>",
        b"<</Length %d>>stream\n%b\nendstream" % (len(stream), stream),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]
    data, offsets = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        offsets.append(len(data))
        data += b"%d 0 obj%b endobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    return (
        data
        + b"xref\n0 6\n0000000000 65535 f \n%btrailer<</Size 6/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF"
        % (
            table,
            len(data),
        )
    )


class Person:
    """Somebody with a token, over real HTTP."""

    def __init__(self, http: aiohttp.ClientSession, base: str, token: str = TOKEN) -> None:
        self._http = http
        self._base = base
        self._auth = {"Authorization": f"Bearer {token}"}

    async def upload(
        self, data: bytes, name: str, *, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        form = aiohttp.FormData(quote_fields=False)
        form.add_field("file", io.BytesIO(data), filename=name, content_type="application/octet-stream")
        async with self._http.post(
            f"{self._base}/api/uploads", data=form, headers=headers or self._auth
        ) as response:
            return response.status, await response.json()

    async def say(self, text: str, *ids: str, session_id: str | None = None) -> tuple[int, Any]:
        body = {"text": text, "attachments": [{"id": one} for one in ids], "session_id": session_id}
        url = f"{self._base}/api/messages?wait=30"
        async with self._http.post(url, json=body, headers=self._auth) as response:
            return response.status, await response.json()

    async def get(self, path: str) -> Any:
        async with self._http.get(f"{self._base}{path}", headers=self._auth) as response:
            return await response.json()


def said(model: FakeModel) -> Any:
    """The content of the last user message that the model got."""
    return next(m["content"] for m in reversed(model.requests[-1]["messages"]) if m["role"] == "user")


@asynccontextmanager
async def gateway(
    tmp_path: Path, model: FakeModel, **more: Any
) -> AsyncIterator[tuple[MiniClaw, Person, aiohttp.ClientSession, str]]:
    provider = OpenAIProvider("fake-chat", api_key="k", base_url=model.url)
    async with (
        running_claw(tmp_path, provider, web=True, **more) as claw,
        aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as http,
    ):
        assert claw.web is not None
        base = f"http://127.0.0.1:{claw.web.port}"
        yield claw, Person(http, base), http, base
    await provider.close()


async def test_each_kind_reaches_the_model_as_text_as_an_image_or_as_a_file_to_read(tmp_path: Path) -> None:
    workspace = tmp_path / "users" / "owner" / "workspace"
    async with FakeModel() as model, gateway(tmp_path, model) as (_, person, _, _):
        cases: list[tuple[str, bytes, str, list[str]]] = [
            ("说明.md", "# 标题\n正文".encode(), "text/plain", ["uploads/说明.md", "```\n# 标题\n正文\n```"]),
            ("old.txt", "旧的编码".encode("gb18030"), "text/plain", ["旧的编码"]),
            ("a.docx", WORDS, "wordprocessingml", ["第一段\t其余\n甲 \t乙 \t\n"]),
            ("a.xlsx", with_rels(SHEET), "spreadsheetml", ["[sheet 账]\n收入\t\t2\n"]),
            ("a.pptx", SLIDES, "presentationml", ["[slide 1]\npage 2\n[slide 2]\npage 10\n"]),
            ("a.pdf", pdf("Hello from a page"), "application/pdf", ["[page 1]\nHello from a page"]),
            ("long.txt", b"x" * 30_000, "text/plain", ["`read_file` reads its text from `uploads/long.txt`"]),
            ("empty.pdf", pdf(" "), "application/pdf", ["it holds no text"]),
        ]
        answers = await asyncio.gather(*(person.upload(data, name) for name, data, _, _ in cases[:4]))
        answers += await asyncio.gather(*(person.upload(data, name) for name, data, _, _ in cases[4:]))
        for (status, told), (name, data, kind, _) in zip(answers, cases, strict=True):
            assert (status, told["name"], told["bytes"]) == (201, name, len(data))
            assert kind in told["type"] and told["id"].startswith("upl_")
        status, answer = await person.say("看看", *(told["id"] for _, told in answers))
        assert status == 200 and "error" not in answer
        for name, _, _, pieces in cases:
            for piece in pieces:
                assert piece in said(model), name
        assert (workspace / "uploads" / "a.pdf.txt").read_text(encoding="utf-8").startswith("[page 1]\nHello")
        assert (workspace / "uploads" / "a.docx").read_bytes() == WORDS

        page = await person.get(f"/api/sessions/{answer['session_id']}/messages")
        first = page["messages"][0]
        assert first["content"] == "看看"
        assert [row["name"] for row in first["attachments"]] == [name for name, *_ in cases]


async def test_an_image_is_shown_to_a_model_that_takes_it_and_named_to_one_that_refuses(
    tmp_path: Path,
) -> None:
    def blind(messages: list[Message], number: int) -> Reply:
        if any(isinstance(message["content"], list) for message in messages):
            return {"status": 400, "message": "unknown variant `image_url`, expected `text`"}
        return echo(messages, number)

    async with FakeModel(lambda *_: {"text": "ok"}) as model, gateway(tmp_path, model) as (_, person, _, _):
        _, told = await person.upload(PNG, "../../点.png")
        assert told["type"] == "image/png" and told["name"] == "点.png"
        _, answer = await person.say("这是什么", told["id"])
        text, image = said(model)
        assert image == {"type": "image_url", "image_url": {"url": DATA_URL}}
        assert text["text"].startswith("这是什么\n\n[image 点.png: in the workspace as `uploads/点.png`")

        session_id = answer["session_id"]
        await person.say("再看", session_id=session_id)
        assert model.requests[-1]["messages"][1]["content"][1] == image, "it stays to be seen in later turns"

        model.script, before = blind, len(model.requests)
        status, answer = await person.say("还有呢", told["id"], session_id=session_id)
        assert status == 200 and "error" not in answer, answer["error"]
        assert isinstance(said(model), str) and "uploads/点.png" in said(model)
        assert len(model.requests) == before + 2
        await person.say("又来", told["id"], session_id=session_id)
        assert len(model.requests) == before + 3, "the refusal is remembered"
    stored = (tmp_path / "users" / "owner" / "workspace" / "uploads").iterdir()
    assert [path.name for path in stored] == ["点.png"]


async def test_what_is_not_taken_is_refused_by_its_content_and_nothing_is_kept(tmp_path: Path) -> None:
    limits = {"limits.upload_bytes": 1_000_000}
    entities = '<!DOCTYPE d [<!ENTITY a "aaaa">]>'
    async with FakeModel() as model, gateway(tmp_path, model, arguments=limits) as (_, person, http, base):
        for name, data, status, code in [
            ("harmless.png", b"MZ\x90\0\3\0\0\0" + bytes(200), 400, "unsupported"),
            ("a.docx", packed(evil=b"x"), 400, "unsupported"),
            ("a.docx", docx("&a;", entities), 400, "unsupported"),
            ("a.docx", WORDS[:-40], 400, "unsupported"),
            ("odd.docx", WITH_UNKNOWN_PACKING, 400, "unsupported"),
            ("bomb.docx", BOMB, 413, "too_large"),
            ("big.txt", b"x" * 1_000_001, 413, "too_large"),
            ("huge.txt", b"x" * 2_000_000, 413, "too_large"),
            ("none.txt", b"", 400, "bad_message"),
        ]:
            got, told = await person.upload(data, name)
            assert (got, told["error"]["code"]) == (status, code), name
            assert ("packed in a way" in told["error"]["message"]) == (name == "odd.docx"), told
        for kind in ("application/json", "multipart/form-data; boundary=y"):
            headers = {**AUTH, "Content-Type": kind}
            async with http.post(f"{base}/api/uploads", data=b"--x", headers=headers) as response:
                assert response.status == 400, kind
    assert not (tmp_path / "users" / "owner" / "workspace" / "uploads").exists()


async def test_an_upload_belongs_to_its_user_and_an_unknown_one_refuses_the_message(tmp_path: Path) -> None:
    async with FakeModel() as model, gateway(tmp_path, model) as (claw, person, http, base):
        other = Person(http, base, await claw.identities.add("bob"))
        _, theirs = await other.upload(b"secret", "s.txt")
        for upload_id in (theirs["id"], "upl_none"):
            status, told = await person.say("give", upload_id)
            assert (status, told["error"]["code"]) == (404, "not_found")
        status, told = await person.say("many", *(f"upl_{n}" for n in range(9)))
        assert (status, told["error"]["code"]) == (400, "bad_message")
        assert (await person.get("/api/sessions"))["sessions"] == [] and model.requests == []
        status, _ = await other.say("mine", theirs["id"])
        assert status == 200 and "secret" in said(model)


async def test_a_channel_without_uploads_takes_no_attachments(tmp_path: Path) -> None:
    async with running_claw(tmp_path) as claw:
        payload = TextPayload.model_validate({"text": "x", "attachments": [{"id": "upl_1"}]})
        message = {
            "msg_id": "m",
            "msg_type": "text",
            "payload": payload,
            "channel": "generic",
            "user_id": "owner",
        }
        receipt = await claw.router.route(Inbound.model_validate(message))
        assert (receipt.status, receipt.code) == ("refused", "unsupported")


async def test_a_browser_uploads_with_its_cookie_only_from_our_own_page(tmp_path: Path) -> None:
    async with FakeModel() as model, gateway(tmp_path, model) as (_, person, http, base):
        async with http.get(f"{base}/?token={TOKEN}", allow_redirects=False) as response:
            cookie = next(iter(response.cookies.values()))
        browser = {"Cookie": f"{cookie.key}={cookie.value}"}
        assert (await person.upload(b"a", "a.txt", headers=browser))[0] == 403
        assert (await person.upload(b"a", "a.txt", headers={**browser, "Origin": base}))[0] == 201


async def test_an_upload_that_no_message_carried_is_gone_after_a_day(tmp_path: Path) -> None:
    day, now = 24 * 3600.0, [1_800_000_000.0]
    async with FakeModel() as model, gateway(tmp_path, model, clock=lambda: now[0]) as (claw, person, _, _):
        assert claw.uploads is not None
        _, sent = await person.upload(b"kept", "a.txt")
        _, unsent = await person.upload("不要".encode("gb18030"), "a.txt")
        await person.say("hi", sent["id"])
        directory = tmp_path / "users" / "owner" / "workspace" / "uploads"
        assert len(list(directory.iterdir())) == 3, "one name, two files, and the text of the second"
        now[0] += day - 1
        await claw.uploads.forget_unsent()
        assert len(list(directory.iterdir())) == 3
        now[0] += 2
        assert (await person.say("late", unsent["id"]))[1]["error"]["code"] == "not_found"
        await claw.uploads.forget_unsent()
        assert [path.name for path in directory.iterdir()] == ["a.txt"]
        assert (await person.say("again", sent["id"]))[0] == 200


async def test_an_upload_outlives_a_kill_between_it_and_its_message(tmp_path: Path) -> None:
    async with FakeModel() as model:
        env = {"OPENAI_BASE_URL": model.url, "OPENAI_API_KEY": "k", "OPENAI_MODEL": "fake-chat"}
        async with server_process(tmp_path, env=env) as server, aiohttp.ClientSession() as http:
            person = Person(http, f"http://127.0.0.1:{server.web_port}")
            _, told = await person.upload(b"what was in it", "a.txt")
            await server.kill()
            await server.start()
            status, _ = await person.say("read", told["id"])
            assert status == 200 and "what was in it" in said(model)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=300))
def test_any_name_becomes_one_that_a_workspace_takes(name: str) -> None:
    plain = safe_name(FileRef(id="upl_abcdef", name=name))
    assert read_path(f"uploads/{plain}-abcdef.txt")[1].startswith(plain) and len(read_path(plain)) == 1


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=200))
def test_bytes_are_text_or_a_known_kind_or_neither_and_never_an_error(data: bytes) -> None:
    text = decode_text(data)
    assert text is None or "\0" not in text
    assert isinstance(kind_of(data), str)


IMAGE = {
    "role": "user",
    "content": [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": DATA_URL}}],
}


@pytest.mark.parametrize(
    ("words", "learned"),
    [
        ("invalid content type. image_url is only supported by certain models.", "never"),
        ("no endpoints found that support image input", "never"),
        ("messages[0].content must be a string", "never"),
        ("llava-less is not a multimodal model", "never"),
        ("could not process image", "not now"),
        ("image exceeds the maximum size", "not now"),
    ],
)
def test_a_refusal_of_images_is_told_from_one_of_this_image(words: str, learned: str) -> None:
    quirks, body = Quirks(), {"messages": [IMAGE]}
    assert quirks.learn(Report(message=words), body) == f"images={learned}"
    assert fit_messages([IMAGE], quirks, by="", renamed=False) == [{"role": "user", "content": "see"}]
    quirks.forget_passing()
    assert quirks.images == ("never" if learned == "never" else "taken")
    assert (
        Quirks().learn(Report(message=words), {"messages": [{"role": "user", "content": "x"}]}).find("images")
        < 0
    )


def test_the_responses_api_gets_images_by_its_own_names() -> None:
    body = responses_body([IMAGE], (), {}, Quirks(), by="")
    assert body["input"] == [
        {
            "type": "message",
            "role": "user",
            "content": [
                {"type": "input_text", "text": "see"},
                {"type": "input_image", "image_url": DATA_URL},
            ],
        }
    ]


async def test_a_name_that_turns_the_direction_of_text_shows_its_real_ending(tmp_path: Path) -> None:
    async with FakeModel() as model, gateway(tmp_path, model) as (_, person, _, _):
        status, told = await person.upload(b"text", "photo\u202egpj.txt")
        assert (status, told["name"]) == (201, "photo\ufffdgpj.txt")
