"""日记：一个会写文件的工具。默认的风险是 write，所以每次调用都会先问人。"""

from datetime import date

from miniclaw.errors import ToolError
from miniclaw.tools import ToolContext, tool
from miniclaw.tools.workspace import Workspace


@tool
def write_diary(context: ToolContext, text: str) -> str:
    """Add a paragraph to today's page of the user's diary.

    Args:
        text: the paragraph, in the user's own words
    """
    if not text.strip():
        raise ToolError("The paragraph is empty. Ask the user what to write.")
    workspace, page = Workspace(context.workspace), f"diary/{date.today()}.md"
    with workspace.changing():
        try:
            before = workspace.read(page).decode("utf-8")
        except ToolError:  # today's first paragraph
            before = ""
        workspace.write(page, f"{before}{text.strip()}\n\n".encode())
    return f"Added to `{page}`."
