"""Read the built site: its pages, their links and the link targets."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass
class Page:
    """The links and anchors of a page.

    Attributes:
        path: path within the site.
        links: targets of `a` and `link` elements.
        sources: addresses of images and scripts.
        anchors: names that a link may have after its `#`.
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
    """Return every page of the site, by its path."""
    found = {}
    for path in sorted(site.rglob("*.html")):
        if "_static" in path.parts:
            continue
        page = found[path.relative_to(site)] = Page(path.relative_to(site))
        _Reader(page).feed(path.read_text(encoding="utf-8"))
    return found


def reference(site: Path) -> set[str]:
    """Return every Python name in the site's inventory."""
    _, _, packed = (site / "objects.inv").read_bytes().partition(b"zlib.\n")
    lines = zlib.decompress(packed).decode().splitlines()
    return {line.split(" ")[0] for line in lines if line.split(" ")[1].startswith("py:")}
