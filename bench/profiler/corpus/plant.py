"""Cases: a program with a cause in one of its slots, as two scripts and their truth."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.profiler.corpus.cause import NAME, Cause, causes
from bench.profiler.corpus.template import MARKER, Program, Slot, calibration, programs

SCRIPT = "train.py"
HALVES = {"tune": "tune", "unseen": "held_out"}
GAINS = (1.15, 3.5)
# Longest duration of a slow script in seconds, and smallest share of its program's length.
LONGEST_S, SHORTEST = 14.0, 0.4
FEWEST_CALLS = 15
# Range of acceptable expected gains, relative to the drawn gain.
NEAR = (0.92, 1.2)
# A cause that imports one of these is planted only in programs that import it.
HEAVY = ("torch", "jax", "gymnasium", "asyncio", "stable_baselines3")
INDENT = "    "


@dataclass(frozen=True)
class Case:
    """A program with a planted cause.

    Attributes:
        program, cause: names of both.
        slot: number of the slot in the program.
        form: inline (lines of the loop), function, method or wrapper.
        size: size of the cause's lines.
        every: passes of the slot per call.
        length: length of the program.
        expected: gain by the calibration, or None if it does not follow from it.
    """

    program: str
    cause: str
    slot: int
    form: str
    size: float
    every: int
    length: int
    expected: float | None

    @property
    def name(self) -> str:
        """Program and cause in the form of `--case`."""
        return f"{self.program}/{self.cause}"


@dataclass(frozen=True)
class Script:
    """A program's text and the line numbers of the planted lines, from 1."""

    text: str
    planted: tuple[int, ...]


# --- combinations and sizes -----------------------------------------------------------------------


def forms(program: Program, cause: Cause, slot: Slot) -> list[str]:
    """Return the possible forms of a cause in a slot, empty if it does not fit."""
    text, words = "\n".join(program.lines), program.words
    libraries = [library for library in HEAVY if re.search(rf"\b{library}\b", cause.imports)]
    if any(
        f"import {library}" not in text and f"from {library}" not in text for library in libraries
    ):
        return []
    if program.style in cause.avoid or (cause.styles and program.style not in cause.styles):
        return []
    if slot.kind == "wrap":
        fits = "wrapper" in cause.forms and "step" in cause.kinds
        fits = fits and cause.roles <= {"obs", "reward", "action", "count"}
        return ["wrapper"] if fits and not cause.fixed_globals else []
    if slot.kind not in cause.kinds or not cause.roles <= set(slot.roles):
        return []
    module = "\n".join([cause.shared, cause.slow_globals])
    defined = re.findall(r"^(?:def|class) (\w+)|^(\w+(?:, \w+)*) = ", module, re.M)
    if {name for pair in defined for name in re.findall(r"\w+", " ".join(pair))} & words:
        return []
    if slot.kind in ("setup", "asetup"):
        return ["inline"]
    helpers = {cause.helper, _class(cause.helper)}
    found_forms = [
        form for form in ("function", "method") if form in cause.forms and not helpers & words
    ]
    if "inline" in cause.forms and not cause.local_names & words:
        found_forms.append("inline")
    return found_forms


def combinations(half: str) -> dict[tuple[str, str], list[tuple[int, str]]]:
    """Return slots and forms by program and cause. `half` is `tune` or `unseen`."""
    places_by_pair: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for program in programs().values():
        for cause in causes().values():
            if {program.half, cause.half} != {HALVES[half]}:
                continue
            places = [
                (number, form)
                for number, slot in enumerate(program.slots)
                for form in forms(program, cause, slot)
            ]
            if places:
                places_by_pair[program.name, cause.name] = places
    return places_by_pair


def fit(
    program: Program, cause: Cause, slot: int, form: str, gain: float, rng: np.random.Generator
) -> Case | None:
    """Choose size and length for a gain. Return None if the gain is impossible there."""
    known = calibration()
    times = known["programs"].get(program.name, {"start_s": 2, "loop_s": 4, "calls": {}})
    start_s, loop_s = times["start_s"], times["loop_s"]
    target = gain if cause.expected is None else cause.expected
    scale = float(np.clip((LONGEST_S / target - start_s) / loop_s, SHORTEST, 1.0))
    length = max(1, round(program.length * scale))
    whole_s = start_s + loop_s * scale

    def case(size: float, every: int, expected: float | None) -> Case:
        if cause.is_whole:
            size = round(size)
        size = float(f"{size:.4g}")
        return Case(program.name, cause.name, slot, form, size, every, length, expected)

    low, high = cause.sizes
    random_size = float(low * (high / low) ** rng.random())
    if cause.expected is not None:
        return case(random_size, 1, cause.expected)
    base, per = (micros * 1e-6 for micros in known["causes"].get(cause.name, (10, 1)))
    calls = times["calls"].get(str(slot), 1000) * scale
    roles = program.slots[slot].roles
    # Several processes may pass the slot at the same time.
    calls /= int(roles.get("parallel", 1))
    # Each wrapper has its own state, so the cost grows separately in each.
    copies = int(roles.get("copies", 1)) if form == "wrapper" else 1

    def sizes_of(num: float) -> float:
        return num * num / 2 / copies if cause.grows else num

    def cost(size: float, every: int) -> float:
        return calls / every * base + per * size * sizes_of(calls / every)

    hidden_s = loop_s * scale if cause.overlaps else 0.0
    want_s = (gain - 1) * whole_s + hidden_s
    ratio = cost(random_size, 1) / want_s
    every = max(1, round(math.sqrt(ratio) if cause.grows else ratio)) if ratio > 0 else 1
    # A round number, such as 10 or 250.
    unit = 10 ** max(0, int(math.log10(every)) - 1)
    every = max(1, every // unit * unit)
    num = calls / every
    per_size = per * sizes_of(num)
    size = (
        float(np.clip((want_s - num * base) / per_size, low, high)) if per_size > 0 else random_size
    )
    expected = 1 + max(0.0, cost(size, every) - hidden_s) / whole_s
    if num < FEWEST_CALLS or not NEAR[0] * gain <= expected <= NEAR[1] * gain:
        return None
    return case(size, every, round(expected, 3))


def draw(half: str, num_cases: int, seed: int, only: str = "") -> list[Case]:
    """Draw random cases: each cause in turn, in the least used program."""
    rng = np.random.default_rng(seed)
    places = combinations(half)
    if only:
        places = {key: value for key, value in places.items() if _matches(key, only)}
    if not places:
        return []
    used: Counter[str] = Counter()
    cases: list[Case] = []
    queue: list[str] = []
    for _ in range(50 * num_cases):
        if len(cases) == num_cases:
            break
        if not queue:
            queue = sorted({cause for _, cause in places})
            rng.shuffle(queue)
        name = queue.pop()
        fitting = [program for program, cause in places if cause == name]
        program = min(fitting, key=lambda program_name: (used[program_name], rng.random()))
        slot, form = places[program, name][rng.integers(len(places[program, name]))]
        gain = float(GAINS[0] * (GAINS[1] / GAINS[0]) ** rng.random())
        case = fit(programs()[program], causes()[name], slot, form, gain, rng)
        if case is None:
            used[program] += 0.1  # pyright: ignore
            queue.insert(0, name)
            continue
        used[program] += 1
        cases.append(case)
    return cases


def _matches(key: tuple[str, str], only: str) -> bool:
    program, _, cause = only.partition("/")
    return program in ("", "*", key[0]) and cause in ("", "*", key[1])


# --- scripts --------------------------------------------------------------------------------------


def scripts(case: Case) -> tuple[Script, Script]:
    """Return the slow and the fixed script of a case."""
    program, cause = programs()[case.program], causes()[case.cause]
    return tuple(_script(program, cause, case, is_slow) for is_slow in (True, False))  # pyright: ignore


def healthy(program: Program) -> str:
    """Return a template without its markers."""
    return _assemble(program, {}).text


def _class(helper: str) -> str:
    return "".join(part.capitalize() for part in helper.split("_"))


def _fill(text: str, names: dict[str, str]) -> list[str]:
    return NAME.sub(lambda match: names[match[1]], text).splitlines()


def _indented(lines: Iterable[str], indent: str = INDENT) -> list[str]:
    return [indent + line if line else line for line in lines]


def _script(program: Program, cause: Cause, case: Case, is_slow: bool) -> Script:
    slot = program.slots[case.slot]
    body = cause.slow if is_slow else cause.fixed
    size = str(int(case.size)) if cause.is_whole else repr(case.size)
    imports, shared = cause.imports.splitlines(), []
    # Names that the program already uses get a number.
    module_names = {
        name: f"{name}2" if name in program.words else name for name in cause.state_names
    }
    module_names |= {"size": size}
    count = slot.roles.get("count") if "steady" in slot.roles else None
    count = "self.num_steps" if case.form == "wrapper" else count
    if case.every > 1 and count is None:
        imports.append("import itertools")
        shared.append("ticks = itertools.count()")
        count = "next(ticks)"

    def guarded(lines: list[str]) -> list[str]:
        if case.every == 1 or not lines:
            return lines
        return [f"if {count} % {case.every} == 0:", *_indented(lines)]

    parts = [(line, False) for line in _fill(cause.shared, module_names)]
    extra = cause.slow_globals if is_slow else cause.fixed_globals
    parts += [(line, True) for line in _fill(extra, module_names)]
    slot_lines: list[tuple[str, bool]] = []
    if case.form in ("inline", "function"):
        shared += _state(cause, module_names)
    parts += [(line, False) for line in shared]
    roles = sorted(cause.roles)
    if case.form == "inline":
        slot_lines = [(line, True) for line in guarded(_fill(body, module_names | slot.roles))]
    elif case.form == "wrapper":
        names = _attributes(cause, module_names) | {"count": "self.num_steps"}
        parts += _wrapper(cause, module_names, guarded(_fill(body, names)))
        env = slot.roles["env"]
        slot_lines = [(f"{env} = {_class(cause.helper)}({env})", False)]
    elif body:
        arguments = [slot.roles[role] for role in roles]
        if case.form == "function":
            definition = [f"def {cause.helper}({', '.join(roles)}):"]
            definition += _indented(_fill(body, module_names | {role: role for role in roles}))
            call = f"{cause.helper}({', '.join(arguments)})"
        else:
            definition = _method(cause, module_names, _fill(body, _attributes(cause, module_names)))
            call = f"{cause.helper}.update({', '.join(arguments)})"
        parts += [(line, True) for line in ("", "", *definition)]
        slot_lines = [(line, True) for line in guarded([call])]
    if parts:
        parts += [("", False), ("", False)]
    known = set(program.lines)
    return _assemble(
        program,
        {
            "imports": [(line, False) for line in imports if line not in known],
            "globals": parts,
            slot.line: [
                (slot.indent + line if line else line, is_planted)
                for line, is_planted in slot_lines
            ],
        },
    )


def _attributes(cause: Cause, scope: dict[str, str]) -> dict[str, str]:
    """Return the names of state and roles within a method."""
    names = scope | {name: f"self.{name}" for name in cause.state_names}
    return names | {role: role for role in cause.roles}


def _state(cause: Cause, names: dict[str, str]) -> list[str]:
    """Return the lines that define the state under the given names."""
    lines = [line.split(" = ", 1) for line in cause.state.splitlines()]
    return _fill("\n".join(f"${name} = {value}" for name, value in lines), names)


def _method(cause: Cause, module_names: dict[str, str], body: list[str]) -> list[str]:
    lines = [f"class {_class(cause.helper)}:"]
    if cause.state:
        lines += [
            INDENT + "def __init__(self):",
            *_indented(_state(cause, _attributes(cause, module_names)), INDENT * 2),
            "",
        ]
    lines += [f"{INDENT}def update({', '.join(['self', *sorted(cause.roles)])}):"]
    lines += _indented(body, INDENT * 2)
    return [*lines, "", "", f"{cause.helper} = {_class(cause.helper)}()"]


def _wrapper(cause: Cause, module_names: dict[str, str], body: list[str]) -> list[tuple[str, bool]]:
    """Return the lines of a wrapper. Only the body counts as planted."""
    above = [
        *("", "", f"class {_class(cause.helper)}(gym.Wrapper):"),
        *(INDENT + "def __init__(self, env):", INDENT * 2 + "super().__init__(env)"),
        *_indented(
            ["self.num_steps = 0", *_state(cause, _attributes(cause, module_names))], INDENT * 2
        ),
        *("", INDENT + "def step(self, action):"),
        INDENT * 2 + "obs, reward, terminated, truncated, info = self.env.step(action)",
        INDENT * 2 + "self.num_steps += 1",
    ]
    below = INDENT * 2 + "return obs, reward, terminated, truncated, info"
    planted = [(line, True) for line in _indented(body, INDENT * 2)]
    return [*((line, False) for line in above), *planted, (below, False)]


def _assemble(program: Program, inserted: dict[str | int, list[tuple[str, bool]]]) -> Script:
    """Replace markers by the inserted lines, by kind or by line, and remove other markers."""
    out: list[tuple[str, bool]] = []
    for number, line in enumerate(program.lines):
        match = MARKER.match(line)
        if match is None:
            out.append((line, False))
        else:
            out += inserted.get(number) or inserted.get(match[2], [])
    # Empty lines do not count as planted.
    planted = tuple(
        line_number
        for line_number, (line, is_planted) in enumerate(out, 1)
        if is_planted and line.strip()
    )
    return Script("\n".join(line for line, _ in out).rstrip() + "\n", planted)


def write(case: Case, folder: Path) -> dict[str, Any]:
    """Write `slow/train.py`, `fixed/train.py` and `truth.json`; return the truth."""
    for script, way in zip(scripts(case), ("slow", "fixed"), strict=True):
        (folder / way).mkdir(parents=True, exist_ok=True)
        (folder / way / SCRIPT).write_text(script.text)
    cause, program = causes()[case.cause], programs()[case.program]
    truth = {
        **asdict(case),
        "half": "tune" if program.half == "tune" else "unseen",
        "arguments": [program.option, str(case.length)],
        "file": SCRIPT,
        "planted": list(scripts(case)[0].planted),
        "waits": list(cause.waits),
        "grows": cause.grows,
        "words": list(cause.words),
    }
    (folder / "truth.json").write_text(json.dumps(truth, indent=1) + "\n")
    return truth
