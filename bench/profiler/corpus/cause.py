"""A cause: lines that slow a program down, and their fixed version.

The texts are lines of Python with placeholders: `$size`, names of `state`, and roles that a slot
provides (`$obs`, `$reward`, `$count`, `$net`, …). A cause's lines never change roles and use only
their own random generator, so the program does the same work with and without them.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass, field

# Kinds of slots that run many times.
REPEATED = ("step", "update", "episode", "env", "reset", "sample", "worker")
# Kinds of slots that run once before the loop.
SETUP = ("setup",)
FORMS = ("inline", "function", "method", "wrapper")
NAME = re.compile(r"\$(\w+)")


@dataclass(frozen=True)
class Cause:
    """A cause to plant.

    Attributes:
        name: name of the cause.
        waits: correct kinds of waiting; several if more than one answer is acceptable.
        slow, fixed: lines at the slot; `fixed` may be empty.
        slow_globals, fixed_globals: planted lines of the module.
        imports, shared: lines of the module in both scripts.
        state: single lines `name = value`, variables of the module or attributes.
        helper: name of the function; the class has the name in CapWords.
        sizes: smallest and largest `$size`.
        is_whole: whether sizes are whole numbers.
        grows: whether a call takes longer, the more calls came before.
        kinds: kinds of slots that it fits.
        forms: possible forms.
        styles: styles of programs that it fits, empty for all.
        avoid: styles that it does not fit.
        words: lower-case words that name the cause if it is no line of the loop.
        overlaps: whether its cost overlaps with the loop.
        cost_us: cost of a call and of each unit of size, if it cannot be measured in a separate
            loop.
        expected: gain, if the cost does not follow from a size.
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
        """Names of the state in order of definition."""
        return [line.split(" = ")[0] for line in self.state.splitlines()]

    @property
    def roles(self) -> set[str]:
        """Roles that a slot must provide."""
        own_names = {*self.state_names, "size"}
        return set(NAME.findall(self.slow + self.fixed)) - own_names

    @property
    def local_names(self) -> set[str]:
        """Names that its lines assign at the slot."""
        text = self.slow + "\n" + self.fixed
        assigned = set(re.findall(r"^\s*(\w+) [-+]?= ", text, re.M))
        for names in re.findall(
            r"\bfor ([\w, ()]+) in |\bas (\w+):|^\s*(\w+(?:, \w+)+) = ", text, re.M
        ):
            assigned |= set(re.findall(r"\w+", " ".join(names)))
        return assigned


def causes() -> dict[str, Cause]:
    """Return all causes with their half, by name."""
    from dataclasses import replace

    from bench.profiler.corpus import causes_held_out, causes_tune

    halves = {"tune": causes_tune.CAUSES, "held_out": causes_held_out.CAUSES}
    return {
        cause.name: replace(cause, half=half) for half, group in halves.items() for cause in group
    }
