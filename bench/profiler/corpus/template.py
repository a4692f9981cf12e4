"""Programs with marked slots.

A marker is a separate comment line, indented like the code that may replace it:

    #: length --steps 20000        option for the length of the run, and its default
    #: imports                     place for imports
    #: globals                     place for variables and functions of the module
    #: setup                       slot that runs once before the loop
    #: wrap env=env                place to wrap an environment
    #: step obs=state count=t      slot that runs many times: its kind, and names by role

`count` is a changing integer, which increases by one per pass with `steady=yes`. Two roles are
numbers: `copies`, the number of wrapped environments, and `parallel`, the number of processes that
pass the slot at the same time.

A program's folder is its half. The first part of its name is its style.
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
# A line for the type checker, which is removed.
UNCHECKED = "# type: ignore"


@dataclass(frozen=True)
class Slot:
    """A place for a cause.

    Attributes:
        line: line of the marker, from 0.
        indent: indentation of the code there.
        kind: kind of the slot, see the module's docstring.
        roles: names in scope, by role.
    """

    line: int
    indent: str
    kind: str
    roles: dict[str, str]


@dataclass(frozen=True)
class Program:
    """A template.

    Attributes:
        name, style, half: parts of its path.
        lines: lines with markers.
        option: option for the length of the run.
        length: default of the option.
        slots: slots in the order of the file.
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
        """All names in the program."""
        return set(re.findall(r"[A-Za-z_]\w*", "\n".join(self.lines)))


def parse(path: Path) -> Program:
    """Read a template."""
    lines = [text for text in path.read_text().splitlines() if text != UNCHECKED]
    option, length, slots = "", 0, []
    for number, line in enumerate(lines):
        match = MARKER.match(line)
        if match is None:
            continue
        indent, kind, arguments = match.groups()
        if kind == "length":
            option, length = arguments.split()[0], int(arguments.split()[1])
        elif kind not in ("imports", "globals"):
            roles = dict(pair.split("=", 1) for pair in arguments.split())
            slots.append(Slot(number, indent, kind, roles))
    style = path.stem.split("_")[0]
    return Program(path.stem, style, path.parent.name, tuple(lines), option, length, tuple(slots))


@cache
def programs() -> dict[str, Program]:
    """Return all templates by name."""
    return {path.stem: parse(path) for path in sorted(HERE.glob("programs/*/*.py"))}


def calibration() -> dict[str, dict[str, Any]]:
    """Return the measured costs of programs and causes."""
    if not CALIBRATION.exists():
        return {"programs": {}, "causes": {}}
    return json.loads(CALIBRATION.read_text())
