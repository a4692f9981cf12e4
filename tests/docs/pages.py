"""What stands in the pages: blocks of code and headings."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parent.parent.parent / "docs"


def blocks(page: Path) -> list[tuple[str, str]]:
    """The fenced blocks of a page, in order: the word behind the fence, and the text."""
    text = page.read_text(encoding="utf-8")
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The names of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    return {_anchor(head) for head in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}


def _anchor(head: str) -> str:
    head = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", head).strip().lower()
    return re.sub(r"[^\w\- ]", "", head).replace(" ", "-")
