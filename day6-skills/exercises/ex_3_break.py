"""弄坏它：五个文件，五种坏法。

每个键是程序该说的话，值是一个 `SKILL.md` 的全文（目录名是 `refund`）。写出能引出那句话的文件。
"""

FILES: dict[str, str] = {
    "no closing line": "",
    "stands there twice": "",
    "`description` is missing": "",
    "its directory, `refund`": "",
    "no instructions": "",
}
