"""Programs with marked slots.

A marker is a comment line of its own, indented as what may stand there:

    #: length --steps 20000        the option that sets how long it runs, and its default
    #: imports                     where imports may be added
    #: globals                     where the module's variables and functions may be added
    #: setup                       once, before the loop
    #: wrap env=env                where an environment may be wrapped
    #: step obs=state count=t      a slot that is passed many times: its kind, and names by role

`count` is any whole number that changes; with `steady=yes` it goes up by one with each pass.
Two roles are numbers: `copies`, environments that the wrapping meets, and `parallel`, processes
that pass the slot at the same time.

A program's folder is its half, the first part of its name its style.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
CALIBRATION = HERE / "calibration.json"
MARKER = re.compile(r"^( *)#: (\w+)(.*)$")
# The type checker's own line: no reader's business.
UNCHECKED = "# type: ignore"


@dataclass(frozen=True)
class Slot:
    """Where something can be planted.

    Attributes:
        line: of its marker, from 0.
        indent: of what stands there.
        kind: see the top of the file.
        roles: names that are in scope, by what they are.
    """

    line: int
    indent: str
    kind: str
    roles: dict[str, str]


@dataclass(frozen=True)
class Program:
    """A template.

    Attributes:
        name, style, half: from its path.
        lines: with markers.
        option: that sets its length.
        length: the option's default.
        slots: in the order of the file.
    """

    name: str
    style: str
    half: str
    lines: tuple[str, ...]
    option: str
    length: int
    slots: tuple[Slot, ...]

    @cached_property
    def words(self) -> set[str]:
        """All names that occur in it."""
        return set(re.findall(r"[A-Za-z_]\w*", "\n".join(self.lines)))


def parse(path: Path) -> Program:
    """Read a template."""
    lines = [one for one in path.read_text().splitlines() if one != UNCHECKED]
    option, length, slots = "", 0, []
    for number, line in enumerate(lines):
        match = MARKER.match(line)
        if match is None:
            continue
        indent, kind, rest = match.groups()
        if kind == "length":
            option, length = rest.split()[0], int(rest.split()[1])
        elif kind not in ("imports", "globals"):
            roles = dict(pair.split("=", 1) for pair in rest.split())
            slots.append(Slot(number, indent, kind, roles))
    style = path.stem.split("_")[0]
    return Program(path.stem, style, path.parent.name, tuple(lines), option, length, tuple(slots))


@cache
def programs() -> dict[str, Program]:
    """All, by name."""
    return {path.stem: parse(path) for path in sorted(HERE.glob("programs/*/*.py"))}


def calibration() -> dict[str, dict[str, Any]]:
    """What programs and causes cost on the machine that it was measured on."""
    if not CALIBRATION.exists():
        return {"programs": {}, "causes": {}}
    return json.loads(CALIBRATION.read_text())
