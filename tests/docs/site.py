"""The built site as tests read it: its pages, their links and what links lead to."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass
class Page:
    """What a page has.

    Attributes:
        path: within the site.
        links: what `a` and `link` elements name.
        sources: what images and scripts are loaded from.
        anchors: what a link may name after its `#`.
    """

    path: Path
    links: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)


class _Reader(HTMLParser):
    def __init__(self, page: Page) -> None:
        super().__init__()
        self._page = page

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "href":
                self._page.links.append(value or "")
            elif name == "src":
                self._page.sources.append(value or "")
            elif name == "id" or (name == "name" and tag == "a"):
                self._page.anchors.add(value or "")


def pages(site: Path) -> dict[Path, Page]:
    """Every page of the site, by its path within it."""
    found = {}
    for path in sorted(site.rglob("*.html")):
        if "_static" in path.parts:
            continue
        page = found[path.relative_to(site)] = Page(path.relative_to(site))
        _Reader(page).feed(path.read_text(encoding="utf-8"))
    return found


def reference(site: Path) -> set[str]:
    """Every name that the site's inventory has, of Python's domain."""
    _, _, packed = (site / "objects.inv").read_bytes().partition(b"zlib.\n")
    lines = zlib.decompress(packed).decode().splitlines()
    return {line.split(" ")[0] for line in lines if line.split(" ")[1].startswith("py:")}
