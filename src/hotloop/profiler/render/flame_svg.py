"""Flame graph as one SVG file, which contains its style and its JavaScript (`flame_svg.js`).

The root is on top, so that processes and spans are read first and stay visible above a deep stack.
The same stacks always give the same file.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

from hotloop.profiler.session import Frame, is_library
from hotloop.timing.table import duration

WIDTH, _PAD, _ROW, _TOP, _BOTTOM = 1200, 10, 17, 62, 10
# Width of a character of the monospaced font, which is 12 pixels high.
_CHARACTER = 7.3
# Frames with a smaller share are omitted, since they would be a tenth of a pixel wide.
MIN_SHARE = 1e-4
_NO_TEXT = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

# Hue, saturation and legend. A function's lightness distinguishes it from its neighbors.
_CLASSES = {
    "user": (32, 90, "your code"),
    "library": (168, 38, "libraries"),
    "python": (210, 12, "Python itself"),
    "span": (265, 55, "[span]"),
    "process": (0, 0, "process or thread"),
}


class _Node:
    """A frame in the tree of frames."""

    __slots__ = ("children", "weight")

    def __init__(self) -> None:
        self.weight = 0
        self.children: dict[Frame, _Node] = {}


class PlacedFrame(NamedTuple):
    """A frame with its position in the graph. `start` and `weight` are in nanoseconds.

    `process` is the name and the weight of the outermost frame around it, a process.
    """

    frame: Frame
    depth: int
    start: int
    weight: int
    process: tuple[str, int]


def draw(stacks: Mapping[tuple[Frame, ...], int], title: str) -> str:
    """Return a flame graph as SVG.

    Args:
        stacks: nanoseconds by stack. A stack starts with the outermost frame, a process.
        title: the graph's title.
    """
    placed = place_frames(stacks, MIN_SHARE)
    total = placed[0].weight
    height = _TOP + (1 + max(item.depth for item in placed)) * _ROW + _BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}">',
        f"<style>{_style()}</style>",
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text class="title" x="{_PAD}" y="20">{_xml(_cut(title, WIDTH - 420))}</text>',
        *_legend(),
        f'<text class="details" x="{_PAD}" y="{_TOP - 6}"> </text>',
        f'<text class="matched" x="{WIDTH - _PAD}" y="{_TOP - 20}" text-anchor="end"> </text>',
        f'<foreignObject x="{WIDTH - 330}" y="5" width="320" height="26">'
        '<input xmlns="http://www.w3.org/1999/xhtml" type="search" '
        'placeholder="search: a regular expression"/></foreignObject>',
        *(_element(item, total) for item in placed),
        f"<script><![CDATA[{_script()}]]></script>",
        "</svg>\n",
    ]
    return "\n".join(parts)


def place_frames(stacks: Mapping[tuple[Frame, ...], int], min_share: float) -> list[PlacedFrame]:
    """Return the frames of stacks, each before its inner ones, and "all" first.

    Args:
        stacks: nanoseconds by stack.
        min_share: minimum share of a frame in all of the time.
    """
    root = _Node()
    for stack, weight in stacks.items():
        node = root
        node.weight += weight
        for frame in stack:
            node = node.children.setdefault(frame, _Node())
            node.weight += weight
    smallest = root.weight * min_share
    placed: list[PlacedFrame] = []
    pending = [(Frame("all", "", 0), root, 0, 0, ("all", root.weight))]
    while pending:
        frame, node, depth, start, process = pending.pop()
        placed.append(PlacedFrame(frame, depth, start, node.weight, process))
        inner = []
        for child, below in sorted(
            node.children.items(), key=lambda item: (-item[1].weight, item[0])
        ):
            if below.weight >= smallest:
                root_frame = (child.function, below.weight) if depth == 0 else process
                inner.append((child, below, depth + 1, start, root_frame))
            start += below.weight
        pending += reversed(inner)
    return placed


def _element(item: PlacedFrame, total: int) -> str:
    scale = (WIDTH - 2 * _PAD) / total
    x, width = _PAD + item.start * scale, item.weight * scale
    y = _TOP + item.depth * _ROW
    name = _cut(item.frame.function, width)
    text = f'<text x="{x + 3:.1f}" y="{y + 12}">{_xml(name)}</text>' if name else ""
    return (
        f'<g class="f" data-d="{item.depth}" data-x="{item.start}" data-w="{item.weight}">'
        f"<title>{_xml(_tooltip(item, total))}</title>"
        f'<rect x="{x:.2f}" y="{y}" width="{max(width - 0.4, 0.1):.2f}" height="{_ROW - 1}" '
        f'fill="{_color(item.frame, item.depth)}"/>{text}</g>'
    )


def _tooltip(item: PlacedFrame, total: int) -> str:
    """Return the function, its position and its share, one line each."""
    lines = [item.frame.function]
    if item.frame.file:
        lines.append(f"{item.frame.file}:{item.frame.first_line}")
    shares = f"{duration(item.weight)}, {item.weight / total:.2%} of all"
    name, weight = item.process
    if item.depth > 1:
        shares += f", {item.weight / weight:.2%} of {name}"
    return "\n".join([*lines, shares])


def _cut(text: str, width: float) -> str:
    """Return the part of a text that fits into `width` pixels, empty below three letters."""
    room = int((width - 6) / _CHARACTER)
    if room < 3:
        return ""
    return text if len(text) <= room else f"{text[: room - 1]}…"


def frame_class(frame: Frame, depth: int) -> str:
    """Return the class of a frame, a key of `_CLASSES`."""
    if not frame.file:
        return "span" if depth > 1 and frame.function.startswith("[") else "process"
    if not is_library(frame):
        return "user"
    installed = "/site-packages/" in frame.file or "/dist-packages/" in frame.file
    is_python = frame.file.startswith("<") or "/lib/python3" in frame.file
    return "python" if is_python and not installed else "library"


def _color(frame: Frame, depth: int) -> str:
    hue, saturation, _ = _CLASSES[frame_class(frame, depth)]
    shade = zlib.crc32(frame.function.encode("utf-8", "replace")) % 14
    return f"hsl({hue},{saturation}%,{68 + shade}%)"


def _legend() -> list[str]:
    parts, x = [], _PAD
    for hue, saturation, label in _CLASSES.values():
        parts.append(
            f'<rect x="{x}" y="28" width="11" height="11" fill="hsl({hue},{saturation}%,74%)"/>'
            f'<text x="{x + 16}" y="38">{_xml(label)}</text>'
        )
        x += 16 + int(len(label) * _CHARACTER) + 18
    return parts


def _xml(text: str) -> str:
    return escape(_NO_TEXT.sub("�", text))


def _style() -> str:
    return "\n" + Path(__file__).with_suffix(".css").read_text(encoding="utf-8")


def _script() -> str:
    numbers = {"WIDTH": WIDTH, "PAD": _PAD, "CHARACTER": _CHARACTER}
    script = Path(__file__).with_suffix(".js").read_text(encoding="utf-8")
    return "\n" + re.sub("WIDTH|PAD|CHARACTER", lambda match: str(numbers[match.group()]), script)
