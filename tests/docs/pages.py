"""Read code blocks and headings of the pages."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parent.parent.parent / "docs"


def blocks(page: Path) -> list[tuple[str, str]]:
    """Return the language and the text of a page's fenced blocks, in order."""
    text = page.read_text(encoding="utf-8")
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives a page's headings."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    return {_anchor(head) for head in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}


def _anchor(head: str) -> str:
    head = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", head).strip().lower()
    return re.sub(r"[^\w\- ]", "", head).replace(" ", "-")
