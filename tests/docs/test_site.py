"""The site builds without a warning, its links are valid and its pages are legible."""

from __future__ import annotations

import functools
import http.server
import os
import pkgutil
import sys
import threading
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.docs.site import ROOT, pages, reference

sys.path.insert(0, str(ROOT / "docs" / "_ext"))

import public_names
from project import REPOSITORY

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# Sphinx makes these pages, and no other page links to them.
GENERATED = {"genindex.html", "py-modindex.html", "search.html"}


def test_every_link_and_anchor_leads_somewhere(site):
    found, broken = pages(site), []
    for path, page in found.items():
        for link in page.links + page.sources:
            to = urlsplit(link)
            if to.scheme or to.netloc:
                if link.startswith(REPOSITORY):
                    parts = to.path.removeprefix(urlsplit(REPOSITORY).path).split("/", 2)
                    if parts[0] in ("blob", "tree") and not (ROOT / unquote(parts[2])).exists():
                        broken.append(f"{path}: {link} (no such file)")
                elif to.scheme not in ("https", "http", "data") or " " in link:
                    broken.append(f"{path}: {link}")
                elif to.scheme != "data" and "." not in to.netloc:
                    broken.append(f"{path}: {link} (no such host)")
                continue
            target = Path(os.path.normpath(path.parent / unquote(to.path))) if to.path else path
            anchors = found[target].anchors if target in found else {""}
            if not (site / target).is_file():
                broken.append(f"{path}: {link}")
            elif unquote(to.fragment) not in anchors | {""}:
                broken.append(f"{path}: {link} (no such anchor)")
    assert not broken, "\n".join(broken)


def test_every_page_is_reached_from_the_index(site):
    found = pages(site)
    reached, new = set(), [Path("index.html")]
    while new:
        path = new.pop()
        if path in reached or path not in found:
            continue
        reached.add(path)
        for link in found[path].links:
            to = urlsplit(link)
            if to.path and not to.scheme:
                new.append(Path(os.path.normpath(path.parent / to.path)))
    assert set(found) - reached - set(map(Path, GENERATED)) == set()
    sources = {
        path.relative_to(ROOT / "docs").with_suffix(".html")
        for path in (ROOT / "docs").rglob("*.md")
    }
    assert sources <= reached


def test_every_public_name_is_in_the_reference(site):
    documented = reference(site)
    by_last_part: dict[str, list[str]] = {}
    for name in documented:
        by_last_part.setdefault(name.rpartition(".")[2], []).append(name)
    missing = []
    for name in public_names.names():
        if name in documented:
            continue
        thing = pkgutil.resolve_name(name)
        # Another module with the same name may document it.
        same_name = by_last_part.get(name.rpartition(".")[2], ())
        if not any(described(other) is thing for other in same_name):
            missing.append(name)
    assert len(documented) > 500
    assert not missing


def described(name: str) -> object:
    """Return the object of a reference name, or None for an attribute of instances only."""
    try:
        return pkgutil.resolve_name(name)
    except AttributeError:
        return None


# Elements that overflow on the right without a parent that scrolls or clips them.
STICKING_OUT = """
(() => {
  const width = document.documentElement.clientWidth;
  const kept = (element) => {
    for (let p = element.parentElement; p && p !== document.body; p = p.parentElement) {
      if (getComputedStyle(p).overflowX !== "visible") return true;
    }
    return false;
  };
  return [...document.querySelectorAll("article, article *")]
    .filter((one) => one.getBoundingClientRect().right > width + 1 && !kept(one))
    .map((one) => one.tagName + " " + one.textContent.slice(0, 60))
    .concat(document.documentElement.scrollWidth > width + 1 ? ["the page"] : [])
    .slice(0, 5);
})()
"""
MISSING_IMAGES = """
[...document.images].filter((one) => !one.complete || !one.naturalWidth).map((one) => one.src)
"""
# Text whose contrast to its background is below 4.5 : 1 (WCAG 2.1, level AA).
PALE = """
(() => {
  const parsed = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => {
    const linear = [r, g, b].map((one) => {
      const x = one / 255;
      return x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  const behind = (element) => {
    for (let p = element; p; p = p.parentElement) {
      const colour = parsed(getComputedStyle(p).backgroundColor);
      if (colour.length < 4 || colour[3] > 0.5) return colour;
    }
    return [255, 255, 255];
  };
  const reported = new Map();
  const walker = document.createTreeWalker(document.querySelector("article"), NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || element.matches(".headerlink, script, style")) continue;
    if (!element.checkVisibility()) continue;
    const [a, b] = [light(parsed(getComputedStyle(element).color)), light(behind(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) reported.set(element.tagName + "." + element.className, ratio.toFixed(2));
  }
  return [...reported].slice(0, 8);
})()
"""

# Width in pixels, dark or light, and checks. Colors do not depend on widths, nor widths on colors.
VIEWS = (1280, False, (STICKING_OUT, PALE)), (1280, True, (PALE,)), (390, False, (STICKING_OUT,))


def test_every_page_can_be_read_wide_and_narrow_light_and_dark(site, chromium):
    wrong = []
    for path in pages(site):
        chromium.open(site / path)
        for width, dark, checks in VIEWS:
            chromium.look(width=width, dark=dark)
            view = f"{path}, {width} pixels, {'dark' if dark else 'light'}"
            for check in checks:
                wrong += [f"{view}: {problem}" for problem in chromium.evaluate(check)]
        wrong += [f"{path}: {problem}" for problem in chromium.evaluate(MISSING_IMAGES)]
        wrong += [f"{path}: {problem}" for problem in chromium.problems]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("body", "check", "expected"),
    [
        ('<p style="width: 2000px">wide</p>', STICKING_OUT, "P wide"),
        ('<p style="color: #999; background: #fff">pale</p>', PALE, "P."),
        ('<img src="nowhere.png">', MISSING_IMAGES, "nowhere.png"),
    ],
)
def test_the_page_checks_find_faults(body, check, expected, tmp_path, chromium):
    page = tmp_path / "page.html"
    page.write_text(f"<!doctype html><article><p>fine</p>{body}</article>")
    chromium.open(page)
    (problem, *_) = chromium.evaluate(check)
    assert expected in str(problem)


def test_the_search_finds_a_word(site, chromium):
    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            chromium.open(f"http://127.0.0.1:{server.server_port}/search.html?q=lockstep")
            # The page adds its results one at a time and fetches a summary for each.
            found = chromium.evaluate(
                """new Promise((go) => {
                  const look = () => {
                    const items = [...document.querySelectorAll("ul.search li")];
                    const done = Search.status.innerText.includes("found")
                      && items.every((item) => item.querySelector(".context, span"));
                    if (!done) setTimeout(look, 50);
                    else go(items.map((item) => item.querySelector("a").getAttribute("href")));
                  };
                  look();
                })"""
            )
        finally:
            server.shutdown()
    assert any(link.startswith("profiler.html") for link in found)
    assert not chromium.problems


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves the site and writes no log."""

    def log_message(self, format: str, *args: object) -> None:
        pass
