"""一条记忆，和它作为 Markdown 文件的样子：人能打开，能改。"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from day1_gateway import MiniClawError

MEMORY_ID: Final = r"^mem_[a-z0-9]{1,64}$"
_LINE: Final = re.compile(r"(\w+): ?(.*)")


class MemoryStoreError(MiniClawError):
    """一条记忆、它的编号或主人被拒绝，或者文件读写不了。"""


class MemoryRecord(BaseModel):
    """记住的一件事。三种：`semantic` 事实，`episodic` 发生过的，`procedural` 怎么做。"""

    model_config = ConfigDict(frozen=True)

    memory_id: Annotated[str, StringConstraints(pattern=MEMORY_ID)]
    content: Annotated[str, StringConstraints(pattern=r"\S", max_length=16_384)]
    context: str = ""
    memory_type: Literal["episodic", "semantic", "procedural"] = "semantic"
    created_at: str
    updated_at: str

    @property
    def line(self) -> str:
        """模型读到的一行：编号、种类、日期、内容。"""
        context = f" ({self.context})" if self.context else ""
        return f"[{self.memory_id}, {self.memory_type}, {self.updated_at[:10]}] {self.content}{context}"


@dataclass(frozen=True, slots=True)
class MemorySearchResult:
    """一条记忆，和它与问题有多像；越大越像，不会是 0。"""

    record: MemoryRecord
    score: float


def moment_of(seconds: float) -> str:
    """RFC 3339，UTC，毫秒。"""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def make_record(fields: Mapping[str, Any]) -> MemoryRecord:
    """检查过的一条；哪个字段不对，`MemoryStoreError` 说出来。"""
    try:
        return MemoryRecord.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise MemoryStoreError(f"the memory's `{where}` cannot be used: {first['msg']}") from error


def render_record(record: MemoryRecord) -> str:
    """文件的内容：前面是说明，下面是那句话，一字不改。"""
    fields = record.model_dump(exclude={"memory_id", "content"})
    head = "".join(f"{name}: {json.dumps(value, ensure_ascii=False)}\n" for name, value in fields.items())
    return f"---\n{head}---\n{record.content}\n"


def parse_record(text: str, *, memory_id: str, modified: float) -> MemoryRecord:
    """文件里的一条；编号是文件名，没写时间就用文件的时间。没有说明的文件整个是内容。"""
    text = text if text.startswith("---\n") else text.replace("\r\n", "\n")  # 手写的，也许是 Windows 的
    head, body = "", text
    if text.startswith("---\n"):
        head, _, body = text[4:].partition("\n---\n")
    fields: dict[str, str] = {}
    for line in head.split("\n"):
        if match := _LINE.fullmatch(line):
            fields[match[1]] = _scalar(match[2])
    moment, content = moment_of(modified), body.removesuffix("\n")
    return make_record(
        {"created_at": moment, "updated_at": moment, **fields, "memory_id": memory_id, "content": content}
    )


def _scalar(text: str) -> str:
    """带引号的按 JSON 读，不带的就是它自己：手改的人不必记得引号。"""
    try:
        return str(json.loads(text)) if text.startswith('"') else text.strip()
    except ValueError:
        return text
