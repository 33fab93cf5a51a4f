"""弄坏它：五种坏法。"""

FILES: dict[str, str] = {
    "no closing line": "---\nname: refund\n",
    "stands there twice": "---\nname: refund\nname: refund\n---\n正文",
    "`description` is missing": "---\nname: refund\n---\n正文",
    "its directory, `refund`": "---\nname: return\ndescription: 退款\n---\n正文",
    "no instructions": "---\nname: refund\ndescription: 退款\n---\n",
}
