"""Our client against other people's servers: lists and calls every tool that needs no outside network.

`python tests/interop/mcp_peers.py JSON`, where the JSON is an object of `mcpServers` whose names are those
below; `{work}` in an argument is a directory that the run may write to. Each goes the way of the product:
`mcp.json`, registry, checked arguments, read results.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aiohttp import web

from miniclaw.mcp.client.host import Host
from miniclaw.mcp.client.questions import Questions
from miniclaw.mcp.client.servers import Servers
from miniclaw.tools.context import ToolContext
from miniclaw.tools.registry import ToolRegistry
from tests.support.mcp_servers import helpful, serve_http, until

Call = tuple[str, dict[str, Any], str]
"""A tool, its arguments, and a part of what it has to say."""

ADA = {"name": "艾达", "entityType": "person", "observations": ["writes programs"]}
KNOWS = {"from": "艾达", "to": "艾达", "relationType": "knows"}

CALLS: dict[str, list[Call]] = {
    "everything": [
        ("echo", {"message": "你好"}, "你好"),
        ("get-annotated-message", {"messageType": "success", "includeImage": True}, "image/png"),
        ("get-env", {}, "PATH"),
        ("get-resource-links", {"count": 3}, "[resource "),
        ("get-resource-reference", {"resourceType": "Text", "resourceId": 1}, "[resource "),
        ("get-resource-reference", {"resourceType": "Blob", "resourceId": 2}, "in the file"),
        ("get-structured-content", {"location": "Chicago"}, "temperature"),
        ("get-sum", {"a": 2, "b": 3}, "5"),
        ("get-tiny-image", {}, "in the file"),
        (
            "gzip-file-as-resource",
            {"name": "a.gz", "data": "data:text/plain,hello", "outputType": "resource"},
            "gzip",
        ),
        ("toggle-simulated-logging", {}, "log"),
        ("toggle-subscriber-updates", {}, "update"),
        ("trigger-long-running-operation", {"duration": 1, "steps": 3}, "completed"),
        ("get-roots-list", {}, "file://"),
        ("trigger-elicitation-request", {}, "provided"),
        ("trigger-sampling-request", {"prompt": "hello", "maxTokens": 10}, "sampled"),
    ],
    "filesystem": [
        ("write_file", {"path": "{work}/读我.txt", "content": "one\ntwo\n"}, "uccess"),
        ("read_file", {"path": "{work}/读我.txt"}, "two"),
        ("read_text_file", {"path": "{work}/读我.txt", "head": 1}, "one"),
        ("read_media_file", {"path": "{work}/读我.txt"}, ""),
        ("read_multiple_files", {"paths": ["{work}/读我.txt"]}, "two"),
        ("edit_file", {"path": "{work}/读我.txt", "edits": [{"oldText": "two", "newText": "三"}]}, "三"),
        ("create_directory", {"path": "{work}/目录"}, "uccess"),
        ("list_directory", {"path": "{work}"}, "读我.txt"),
        ("list_directory_with_sizes", {"path": "{work}"}, "目录"),
        ("directory_tree", {"path": "{work}"}, "目录"),
        ("move_file", {"source": "{work}/读我.txt", "destination": "{work}/目录/b.txt"}, "uccess"),
        ("search_files", {"path": "{work}", "pattern": "**/*.txt"}, "b.txt"),
        ("get_file_info", {"path": "{work}/目录/b.txt"}, "size"),
        ("list_allowed_directories", {}, "{work}"),
    ],
    "memory": [
        ("create_entities", {"entities": [ADA]}, "艾达"),
        ("create_relations", {"relations": [KNOWS]}, "knows"),
        ("add_observations", {"observations": [{"entityName": "艾达", "contents": ["likes tea"]}]}, "tea"),
        ("read_graph", {}, "likes tea"),
        ("search_nodes", {"query": "tea"}, "艾达"),
        ("open_nodes", {"names": ["艾达"]}, "艾达"),
        (
            "delete_observations",
            {"deletions": [{"entityName": "艾达", "observations": ["likes tea"]}]},
            "uccess",
        ),
        ("delete_relations", {"relations": [KNOWS]}, "uccess"),
        ("delete_entities", {"entityNames": ["艾达"]}, "uccess"),
    ],
    "time": [
        ("get_current_time", {"timezone": "Asia/Shanghai"}, "+08:00"),
        (
            "convert_time",
            {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"},
            "21:00",
        ),
    ],
    "git": [
        ("git_status", {"repo_path": "{work}/repo"}, "main"),
        ("git_diff_unstaged", {"repo_path": "{work}/repo"}, "changed"),
        ("git_add", {"repo_path": "{work}/repo", "files": ["a.txt"]}, "staged"),
        ("git_diff_staged", {"repo_path": "{work}/repo"}, "changed"),
        ("git_reset", {"repo_path": "{work}/repo"}, "reset"),
        ("git_add", {"repo_path": "{work}/repo", "files": ["a.txt"]}, "staged"),
        ("git_commit", {"repo_path": "{work}/repo", "message": "第二"}, "committed"),
        ("git_diff", {"repo_path": "{work}/repo", "target": "HEAD~1"}, "changed"),
        ("git_log", {"repo_path": "{work}/repo", "max_count": 2}, "第二"),
        ("git_show", {"repo_path": "{work}/repo", "revision": "HEAD"}, "第二"),
        ("git_create_branch", {"repo_path": "{work}/repo", "branch_name": "side"}, "side"),
        ("git_checkout", {"repo_path": "{work}/repo", "branch_name": "side"}, "side"),
        ("git_branch", {"repo_path": "{work}/repo", "branch_type": "local"}, "main"),
    ],
    "fetch": [("fetch", {"url": "{page}/hello.html"}, "Ada was here")],
    **{
        name: [("echo", {"text": "回声"}, "回声")]
        for name in ("sdk2-stdio", "sdk1-stdio", "sdk2-http", "sdk1-http", "sdk2-old-wire")
    },
}


class Agreeing(Questions):
    """Somebody who says yes to everything."""

    def __init__(self) -> None:
        pass

    def host(self, server: str, roots: Sequence[Path], context: ToolContext | None = None) -> Host:
        return helpful(*roots)


async def judge(config: dict[str, Any], work: Path) -> bool:
    """Every call of every server; prints a line a server."""
    _make_repository(work / "repo")
    config = {name: {**one, "roots": ["{work}"]} for name, one in config.items()}
    (work / "mcp.json").write_text(
        json.dumps({"mcpServers": config}).replace("{work}", str(work)), encoding="utf-8"
    )
    registry = ToolRegistry()
    servers = Servers(work, registry, questions=Agreeing())
    context = ToolContext(user_id="owner", scope="owner", session_id="s", turn_id="t", workspace=work / "ws")
    good = True
    async with serve_http(_page) as page:
        try:
            await servers.start()
            await until(lambda: all(row["state"] == "ready" for row in servers.status()), 60.0)
            for row in servers.status():
                good &= await _judge_one(row, registry, context, {"{work}": str(work), "{page}": page})
        finally:
            await servers.stop()
    return good


async def _judge_one(
    row: dict[str, Any], registry: ToolRegistry, context: ToolContext, places: dict[str, str]
) -> bool:
    name, faults, called = row["name"], [], set()
    for tool, arguments, expected in CALLS[name]:
        full = f"mcp__{name}__{tool}"
        if registry.find(full) is None:  # not every release has it
            continue
        called.add(full)
        text, wanted = json.dumps(arguments, ensure_ascii=False), expected
        for key, place in places.items():
            text, wanted = text.replace(key, place), wanted.replace(key, place)
        result = await registry.execute(full, json.loads(text), context)
        if not result.ok or wanted not in result.content:
            faults.append(f"  {tool}: {result.content[:300]}")
    library = f"mcp__{name}__library"
    if registry.find(library) is not None:
        listed = await registry.execute(library, {"action": "list"}, context)
        faults += [] if listed.ok else [f"  library: {listed.content[:300]}"]
        called.add(library)
    missed = [one for one in row["tools"] if one not in called]
    faults += [f"  not called: {one}" for one in missed]
    print(f"{name}: revision {row['version']}, {len(called)}/{len(row['tools'])} tools, {len(faults)} faults")
    for fault in faults:
        print(fault)
    return not faults


async def _page(request: web.Request) -> web.Response:
    if request.path == "/robots.txt":
        return web.Response(status=404)
    return web.Response(text="<html><body><p>Ada was here.</p></body></html>", content_type="text/html")


def _make_repository(path: Path) -> None:
    path.mkdir()
    (path / "a.txt").write_text("first\n", encoding="utf-8")
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    for command in (["init", "-q", "-b", "main"], ["add", "."], [*who, "commit", "-q", "-m", "第一"]):
        subprocess.run(["git", *command], cwd=path, check=True)
    for key, value in (("user.name", "a"), ("user.email", "a@b.c")):
        subprocess.run(["git", "config", key, value], cwd=path, check=True)
    (path / "a.txt").write_text("changed\n", encoding="utf-8")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="miniclaw-peers-") as directory:
        sys.exit(0 if asyncio.run(judge(json.loads(sys.argv[1]), Path(directory))) else 1)
