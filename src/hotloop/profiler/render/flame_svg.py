"""A flame graph as one SVG file, with the little JavaScript that it needs in it.

The root is on top: processes and spans are what is read first, and a deep stack does not push them
out of sight. The same stacks give the same file.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from typing import NamedTuple
from xml.sax.saxutils import escape

from hotloop.profiler.session import Frame, is_library
from hotloop.timing.table import duration

WIDTH, _PAD, _ROW, _TOP, _BOTTOM = 1200, 10, 17, 62, 10
# Of the monospaced font, 12 pixels high.
_CHARACTER = 7.3
# Frames with less of the whole are left out: they would be a tenth of a pixel wide.
MIN_SHARE = 1e-4
_NO_TEXT = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

# Hue, saturation, and what the legend says. A function's lightness tells it from its neighbours.
_CLASSES = {
    "user": (32, 90, "your code"),
    "library": (168, 38, "libraries"),
    "python": (210, 12, "Python's own"),
    "span": (265, 55, "[span]"),
    "process": (0, 0, "process or thread"),
}


class _Node:
    """A frame within those around it."""

    __slots__ = ("children", "weight")

    def __init__(self) -> None:
        self.weight = 0
        self.children: dict[Frame, _Node] = {}


class _Placed(NamedTuple):
    """A frame where it is drawn; `start` and `weight` in nanoseconds."""

    frame: Frame
    depth: int
    start: int
    weight: int
    process: tuple[str, int]


def draw(stacks: Mapping[tuple[Frame, ...], int], title: str) -> str:
    """A flame graph.

    Args:
        stacks: nanoseconds by stack, from the outermost frame in, which is a process.
        title: what stands above.
    """
    root = _Node()
    for stack, weight in stacks.items():
        node = root
        node.weight += weight
        for frame in stack:
            node = node.children.setdefault(frame, _Node())
            node.weight += weight
    placed = _place(root)
    height = _TOP + (1 + max(one.depth for one in placed)) * _ROW + _BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}">',
        f"<style>{_STYLE}</style>",
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text class="title" x="{_PAD}" y="20">{_xml(_cut(title, WIDTH - 420))}</text>',
        *_legend(),
        f'<text class="details" x="{_PAD}" y="{_TOP - 6}"> </text>',
        f'<text class="matched" x="{WIDTH - _PAD}" y="{_TOP - 20}" text-anchor="end"> </text>',
        f'<foreignObject x="{WIDTH - 330}" y="5" width="320" height="26">'
        '<input xmlns="http://www.w3.org/1999/xhtml" type="search" '
        'placeholder="search: a regular expression"/></foreignObject>',
        *(_element(one, root.weight) for one in placed),
        f"<script><![CDATA[{_script()}]]></script>",
        "</svg>\n",
    ]
    return "\n".join(parts)


def _place(root: _Node) -> list[_Placed]:
    """All frames that can be seen, each before those within it."""
    smallest = root.weight * MIN_SHARE
    placed: list[_Placed] = []
    waiting = [(Frame("all", "", 0), root, 0, 0, ("all", root.weight))]
    while waiting:
        frame, node, depth, start, process = waiting.pop()
        placed.append(_Placed(frame, depth, start, node.weight, process))
        inner = []
        for child, below in sorted(
            node.children.items(), key=lambda item: (-item[1].weight, item[0])
        ):
            if below.weight >= smallest:
                own = (child.function, below.weight) if depth == 0 else process
                inner.append((child, below, depth + 1, start, own))
            start += below.weight
        waiting += reversed(inner)
    return placed


def _element(one: _Placed, total: int) -> str:
    scale = (WIDTH - 2 * _PAD) / total
    x, width = _PAD + one.start * scale, one.weight * scale
    y = _TOP + one.depth * _ROW
    name = _cut(one.frame.function, width)
    text = f'<text x="{x + 3:.1f}" y="{y + 12}">{_xml(name)}</text>' if name else ""
    return (
        f'<g class="f" data-d="{one.depth}" data-x="{one.start}" data-w="{one.weight}">'
        f"<title>{_xml(_about(one, total))}</title>"
        f'<rect x="{x:.2f}" y="{y}" width="{max(width - 0.4, 0.1):.2f}" height="{_ROW - 1}" '
        f'fill="{_colour(one.frame, one.depth)}"/>{text}</g>'
    )


def _about(one: _Placed, total: int) -> str:
    """The function, where it stands, and its share: a line each."""
    lines = [one.frame.function]
    if one.frame.file:
        lines.append(f"{one.frame.file}:{one.frame.first_line}")
    shares = f"{duration(one.weight)}, {one.weight / total:.2%} of all"
    name, weight = one.process
    if one.depth > 1:
        shares += f", {one.weight / weight:.2%} of {name}"
    return "\n".join([*lines, shares])


def _cut(text: str, width: float) -> str:
    """What of a text fits into so many pixels; nothing where that is less than three letters."""
    room = int((width - 6) / _CHARACTER)
    if room < 3:
        return ""
    return text if len(text) <= room else f"{text[: room - 1]}…"


def kind_of(frame: Frame, depth: int) -> str:
    """Whose code a frame is."""
    if not frame.file:
        return "span" if depth > 1 and frame.function.startswith("[") else "process"
    if not is_library(frame):
        return "user"
    installed = "/site-packages/" in frame.file or "/dist-packages/" in frame.file
    is_own = frame.file.startswith("<") or "/lib/python3" in frame.file
    return "python" if is_own and not installed else "library"


def _colour(frame: Frame, depth: int) -> str:
    hue, saturation, _ = _CLASSES[kind_of(frame, depth)]
    shade = zlib.crc32(frame.function.encode("utf-8", "replace")) % 14
    return f"hsl({hue},{saturation}%,{68 + shade}%)"


def _legend() -> list[str]:
    parts, x = [], _PAD
    for hue, saturation, what in _CLASSES.values():
        parts.append(
            f'<rect x="{x}" y="28" width="11" height="11" fill="hsl({hue},{saturation}%,74%)"/>'
            f'<text x="{x + 16}" y="38">{_xml(what)}</text>'
        )
        x += 16 + int(len(what) * _CHARACTER) + 18
    return parts


def _xml(text: str) -> str:
    return escape(_NO_TEXT.sub("�", text))


_STYLE = """
text { font: 12px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #111; }
text.title { font-size: 14px; font-weight: bold; }
g.f { cursor: pointer; }
g.f:hover rect { stroke: #000; stroke-width: 1; }
g.f text { pointer-events: none; }
g.around { opacity: 0.5; }
g.match rect { fill: #e3007b; }
g.match text { fill: #fff; }
input { width: 100%; box-sizing: border-box; font: 13px sans-serif; }
input.wrong { color: #c00; }
"""

_SCRIPT = r"""
(function () {
  "use strict";
  const script = document.currentScript;
  const svg = (script && script.closest("svg")) || document.documentElement;
  const width = WIDTH, pad = PAD, character = CHARACTER;
  const details = svg.querySelector("text.details");
  const matched = svg.querySelector("text.matched");
  const input = svg.querySelector("input");
  const frames = Array.from(svg.querySelectorAll("g.f"), (g) => {
    const about = g.querySelector("title").textContent.split("\n");
    return {
      g: g, about: about, name: about[0], where: about.slice(0, -1).join(" "),
      rect: g.querySelector("rect"), text: g.querySelector("text"),
      depth: Number(g.dataset.d), start: Number(g.dataset.x), weight: Number(g.dataset.w),
    };
  });
  const root = frames[0];

  function show(frame, x, wide, around) {
    frame.g.style.display = wide < 0.1 ? "none" : "";
    frame.g.classList.toggle("around", around);
    if (wide < 0.1) return;
    frame.rect.setAttribute("x", x);
    frame.rect.setAttribute("width", Math.max(wide - 0.4, 0.1));
    const room = Math.floor((wide - 6) / character);
    if (!frame.text) {
      if (room < 3) return;
      frame.text = document.createElementNS("http://www.w3.org/2000/svg", "text");
      frame.text.setAttribute("y", Number(frame.rect.getAttribute("y")) + 12);
      frame.g.appendChild(frame.text);
    }
    frame.text.setAttribute("x", x + 3);
    const letters = Array.from(frame.name);
    frame.text.textContent = room < 3 ? ""
      : letters.length <= room ? frame.name : letters.slice(0, room - 1).join("") + "…";
  }

  function zoom(to) {
    const scale = (width - 2 * pad) / to.weight, end = to.start + to.weight;
    for (const frame of frames) {
      const last = frame.start + frame.weight;
      if (frame.depth >= to.depth && frame.start >= to.start && last <= end) {
        show(frame, pad + (frame.start - to.start) * scale, frame.weight * scale, false);
      } else if (frame.depth < to.depth && frame.start <= to.start && last >= end) {
        show(frame, pad, width - 2 * pad, true);
      } else {
        frame.g.style.display = "none";
      }
    }
  }

  function search(pattern) {
    let expression = null;
    try {
      expression = pattern ? new RegExp(pattern) : null;
      input.classList.remove("wrong");
    } catch (error) {
      input.classList.add("wrong");
      matched.textContent = "not a regular expression";
      return;
    }
    // Frames stand before those within them: what lies in a found one is not counted again.
    let sum = 0, covered = -1;
    for (const frame of frames) {
      const found = expression !== null && frame !== root && expression.test(frame.where);
      frame.g.classList.toggle("match", found);
      if (found && frame.start >= covered) {
        sum += frame.weight;
        covered = frame.start + frame.weight;
      }
    }
    matched.textContent = expression ? (100 * sum / root.weight).toFixed(2) + "% matched" : "";
  }

  for (const frame of frames) {
    frame.g.addEventListener("click", () => zoom(frame));
    frame.g.addEventListener("mouseenter", () => {
      details.textContent = frame.about.join("   ");
    });
    frame.g.addEventListener("mouseleave", () => { details.textContent = " "; });
  }
  if (input) input.addEventListener("input", () => search(input.value));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") zoom(root);
  });
})();
"""


def _script() -> str:
    numbers = {"WIDTH": WIDTH, "PAD": _PAD, "CHARACTER": _CHARACTER}
    return re.sub("WIDTH|PAD|CHARACTER", lambda found: str(numbers[found.group()]), _SCRIPT)
