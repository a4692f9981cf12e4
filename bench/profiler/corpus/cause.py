"""A cause: lines that make a program take longer, and what one would write instead.

The texts are lines of Python with names to be filled in: `$size`, names of `state`, and roles that
a slot offers (`$obs`, `$reward`, `$count`, `$net`, …). Roles are never changed by a cause's lines,
and it draws from no generator but its own: with it and without, the program does the same work.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass, field

# Where something happens many times.
REPEATED = ("step", "update", "episode", "env", "reset", "sample", "worker")
# Once, before the loop.
SETUP = ("setup",)
FORMS = ("inline", "function", "method", "wrapper")
NAME = re.compile(r"\$(\w+)")


@dataclass(frozen=True)
class Cause:
    """What is planted.

    Attributes:
        name: of the cause.
        waits: what the time truly passes with; several where more than one answer is honest.
        slow, fixed: lines at the slot; `fixed` may be empty.
        slow_globals, fixed_globals: lines of the module, planted too.
        imports, shared: lines of the module that both scripts have.
        state: lines `name = value`, each of which is whole: variables of the module, or attributes.
        helper: what its function is called; its class takes the name in CapWords.
        sizes: least and largest `$size`.
        is_whole: whether sizes are whole numbers.
        grows: whether a call takes the longer, the more there were before.
        kinds: of the slots that it fits.
        forms: that it may take.
        styles: of the programs that it fits; empty: any.
        avoid: styles that it does not fit.
        words: that name the cause where no line of the loop is to blame; lower case.
        overlaps: whether its cost passes at the same time as the loop itself.
        cost_us: of a call, and of each unit of size, where it shows in no loop of its own.
        expected: gain of those whose cost does not follow from a size.
    """

    name: str
    waits: tuple[str, ...]
    slow: str
    fixed: str = ""
    slow_globals: str = ""
    fixed_globals: str = ""
    imports: str = ""
    shared: str = ""
    state: str = ""
    helper: str = "track"
    sizes: tuple[float, float] = (1, 1)
    is_whole: bool = True
    grows: bool = False
    kinds: tuple[str, ...] = REPEATED
    forms: tuple[str, ...] = FORMS
    styles: tuple[str, ...] = ()
    avoid: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    expected: float | None = None
    overlaps: bool = False
    cost_us: tuple[float, float] | None = None
    half: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        for name in ("slow", "fixed", "slow_globals", "fixed_globals", "shared", "state"):
            object.__setattr__(self, name, textwrap.dedent(getattr(self, name)).strip("\n"))
        imports = "\n".join(line.strip() for line in self.imports.split(";") if line.strip())
        object.__setattr__(self, "imports", imports)

    @property
    def state_names(self) -> list[str]:
        """In the order in which they are made."""
        return [line.split(" = ")[0] for line in self.state.splitlines()]

    @property
    def roles(self) -> set[str]:
        """That a slot must offer."""
        own = {*self.state_names, "size"}
        return set(NAME.findall(self.slow + self.fixed)) - own

    @property
    def local_names(self) -> set[str]:
        """That its lines assign where they stand."""
        text = self.slow + "\n" + self.fixed
        found = set(re.findall(r"^\s*(\w+) [-+]?= ", text, re.M))
        for names in re.findall(
            r"\bfor ([\w, ()]+) in |\bas (\w+):|^\s*(\w+(?:, \w+)+) = ", text, re.M
        ):
            found |= set(re.findall(r"\w+", " ".join(names)))
        return found


def causes() -> dict[str, Cause]:
    """All, by name; each knows its half."""
    from dataclasses import replace

    from bench.profiler.corpus import causes_held_out, causes_tune

    halves = {"tune": causes_tune.CAUSES, "held_out": causes_held_out.CAUSES}
    return {one.name: replace(one, half=half) for half, all_ in halves.items() for one in all_}
