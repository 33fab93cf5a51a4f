"""Run every benchmark and write `bench/RESULTS.md`.

    python bench/run.py [NAME …]

A script that fails or takes longer than its limit is named, the others still run, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
BENCH = ROOT / "bench"
LIMIT_SECONDS = 240
SCRIPTS = {
    "turn": "一轮对话的 CPU：一次工具调用、50 个流式片段、历史存盘",
    "gateway": "网关：一帧进出、空闲连接、一对多、整轮",
    "storage": "存储：追加、最后一页、最长停顿",
    "memory": "记忆：检索质量与一次检索的 CPU",
    "mcp": "MCP 服务器：一次工具调用",
    "startup": "启动：命令、导入、第一个回答、安装体积",
    "scale": "Redis：一轮的 CPU 与多个进程",
    "web": "网页：流式回复时的主线程",
}
VERSIONS = ("openai", "websockets", "aiohttp", "pydantic", "httpx", "orjson", "uvloop")


def cpu_name() -> str:
    """What the processor calls itself."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not on Linux
    return platform.processor() or platform.machine()


def run(name: str) -> tuple[str, bool, float]:
    """What a script printed, whether it ended well, and its seconds."""
    began = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, str(BENCH / f"{name}.py")],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            timeout=LIMIT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"did not end within {LIMIT_SECONDS} s", False, time.monotonic() - began
    if done.returncode != 0:
        sys.stderr.write(done.stderr)
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return done.stdout + last, False, time.monotonic() - began
    return done.stdout, True, time.monotonic() - began


def main() -> None:
    """Print the tables and write them down."""
    parser = argparse.ArgumentParser(description="run every benchmark")
    parser.add_argument("names", nargs="*", help=f"which ones; all of {', '.join(SCRIPTS)} when left out")
    args = parser.parse_args()
    unknown = set(args.names) - set(SCRIPTS)
    if unknown:
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}; there are: {', '.join(SCRIPTS)}")
    names = args.names or [name for name in SCRIPTS if (BENCH / f"{name}.py").exists()]
    versions = "、".join(f"{name} {importlib.metadata.version(name)}" for name in VERSIONS)
    lines = [
        "# 性能：最近一次 `make bench`",
        "",
        f"- 日期：{time.strftime('%Y-%m-%d', time.gmtime())}",
        f"- 机器：{cpu_name()}，{os.cpu_count()} 核，{platform.system()}，Python {platform.python_version()}",
        f"- 版本：{versions}",
        "",
        "数字是 CPU（用户加系统），除非写明。比值与同一次运行里的参照相比，所以换一台机器也能看；各脚本的说明在它们的开头。",
    ]
    broken = []
    for name in names:
        print(f"== {name}", flush=True)
        output, fine, seconds = run(name)
        print(output, flush=True)
        if not fine:
            broken.append(name)
        lines += [
            "",
            f"## {SCRIPTS[name]}",
            "",
            f"`bench/{name}.py`，{seconds:.0f} 秒",
            "",
            "```text",
            output.rstrip(),
            "```",
        ]
    if not args.names:
        (BENCH / "RESULTS.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    if broken:
        sys.exit(f"failed: {', '.join(broken)}")


if __name__ == "__main__":
    main()
