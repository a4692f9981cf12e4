"""HTML kit: escaped text, tables, and pages that are one self-contained file.

The values on a page are untrusted: they are escaped, and a policy in the page blocks scripts other
than the page's own.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hotloop.base.files import atomic_write

_NO_SCRIPT = (
    "<noscript><p>Charts need JavaScript. The tables are complete without it.</p></noscript>"
)


def escaped(value: object) -> str:
    """Return a value as escaped text."""
    return html.escape(str(value), quote=True)


def prose(sentence: str) -> str:
    """Return a sentence as HTML, with the parts in backquotes as code."""
    parts = escaped(sentence).split("`")
    if len(parts) % 2 == 0:
        return escaped(sentence)
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))


def preformatted(text: object) -> str:
    """Return a text in a fixed-width font, for the cell of a notebook."""
    return f"<pre style='font-family: monospace; line-height: 1.3'>{escaped(text)}</pre>"


def aligned_rows(rows: Mapping[str, object]) -> str:
    """Return labels and values as two columns in a fixed-width font, without empty values."""
    texts = {label: str(value) for label, value in rows.items() if value}
    width = max(map(len, texts), default=0)
    return preformatted("\n".join(f"{label:{width}}  {value}" for label, value in texts.items()))


def table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], caption: str, *, kind: str = ""
) -> str:
    """Return a table. The first cell of a row is its heading. Cells are HTML, headings are text.

    Args:
        caption: description of the content.
        kind: CSS class, empty for none.
    """
    style = f' class="{kind}"' if kind else ""
    head = "".join(f'<th scope="col">{escaped(heading)}</th>' for heading in headings)
    body = "\n".join(
        f'<tr><th scope="row">{cells[0]}</th>{"".join(f"<td>{x}</td>" for x in cells[1:])}</tr>'
        for cells in rows
    )
    return (
        f'<div class="scroll"><table{style}><caption><span>{escaped(caption)}</span></caption>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def figure_list(figures: Sequence[tuple[str, str]]) -> str:
    """Return the names and values of important numbers."""
    items = "".join(
        f"<div><dt>{escaped(name)}</dt><dd>{escaped(value)}</dd></div>" for name, value in figures
    )
    return f'<dl class="figures">{items}</dl>'


def data_uri(content: bytes, media_type: str) -> str:
    """Return the address of an embedded file."""
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


class Section(NamedTuple):
    """A section of the page.

    Attributes:
        name: its anchor.
        title: its title, as text.
        content: HTML. A section with empty content is not shown.
    """

    name: str
    title: str
    content: str


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page.

    Attributes:
        kind: subject of the page: "profile", "run", "sweep".
        title, overview: its title, and a sentence below the heading.
        figures: names and values of the most important numbers.
        sections: its sections.
        has_media: whether images and videos are embedded.
        footer: a sentence, empty for none.
        script: JavaScript that draws charts, empty for none.
        chart_data: JSON values for the script.
    """

    kind: str
    title: str
    overview: str
    figures: Sequence[tuple[str, str]]
    sections: Sequence[Section]
    has_media: bool = False
    footer: str = ""
    script: str = ""
    chart_data: object = None

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the page.

        Raises:
            OutputError: The file can't be written.
        """
        page = self.render()
        with atomic_write(Path(path)) as partial:
            # File names may contain characters that can't be encoded.
            partial.write_text(page, encoding="utf-8", errors="replace")

    def render(self) -> str:
        """Return the page."""
        sections = [
            (escaped(name), escaped(title), content)
            for name, title, content in self.sections
            if content
        ]
        links = "".join(f'<li><a href="#{name}">{title}</a></li>' for name, title, _ in sections)
        body = "\n".join(
            f'<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">{title}'
            f"</h2>\n{content}</section>"
            for name, title, content in sections
        )
        digest = base64.b64encode(hashlib.sha256(self.script.encode()).digest()).decode()
        style = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
        return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; \
style-src 'unsafe-inline'; script-src 'sha256-{digest}'\
{"; img-src data:; media-src data:" if self.has_media else ""}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escaped(self.title)} – hotloop {self.kind}</title>
<style>{style}</style>
</head>
<body>
<header>
<a class="skip" href="#report">Skip to the report</a>
<h1>hotloop {self.kind}</h1>
<p class="overview">{escaped(self.overview)}</p>
{figure_list(self.figures)}
<nav aria-label="Sections"><ul>{links}</ul></nav>
<p id="failure" role="alert" hidden></p>
{_NO_SCRIPT if self.script else ""}
</header>
<main id="report">
{body}
</main>
{self._end() if self.script else ""}
</body>
</html>
"""

    def _end(self) -> str:
        """Return the footer, the charts' data and the script."""
        return f"""<footer><p>{escaped(self.footer)}</p></footer>
<script type="application/json" id="session">{_json(self.chart_data)}</script>
<script>{self.script}</script>"""


def _json(data: object) -> str:
    """Return JSON that can neither end its HTML element nor start another one."""
    plain = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return plain.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
