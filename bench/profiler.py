"""Does `hotloop profile` name the cause, does its estimate hold, and what does it cost.

    python -m bench profiler
    python -m bench profiler --part examples --rounds 3
    python -m bench profiler --part severities --seconds 4 --only launch decay
    python -m bench profiler --quick

The programs are those of examples/slow, and the causes of bench/causes.py: slow for a reason that
is known and can be removed. Parts, each of which is stored by itself:

- `examples`: each planted cause of examples/slow, with the others of its program removed.
  `profiler_examples.json`: `cases`, by name: `program`, `slow` and `fixed` (arguments), `rule` (of
  the planted cause), `first` (rounds in which it was named first), `rounds`, `estimate` (the gain
  that was named) and `measured` (by the unprofiled program's wall time, slow over fixed), `error`
  (of the estimates' median); `twins`, by program: `alarms`, the rules that spoke up, by round.
- `severities`: each planted cause at random sizes, down to none. `profiler_severities.json`:
  `runs`, a list: `case`, `arguments`, `measured` (the slow program's wall time over the fixed
  one's, both unprofiled), `named` (rules and gains); `rules`, by name: `found`, `missed`, `false`,
  `precision`, `recall`, `error` (of the gains that were named, where it was found: named over
  measured, less one). A cause counts as there from a measured gain
  of its case's `there` on, as absent up to 1.05; what lies between is in `runs` alone: named or
  not, it is right. Stored after each case. With `--only`, those cases are measured, and what is
  stored of the others is kept: that is how a run goes on that was interrupted.
- `cost`: a program bare, with spans alone, and with the full profile, alternating; of its loop, as
  it says itself: starting takes 0.1 to 0.2 s more, once.
  `profiler_cost.json`: `programs`, by name: `bare`, `spans`, `full` (seconds), `spans_cost`,
  `full_cost` (shares of bare, by medians), `says` (what the report itself says: spans, sampling).

A figure is {"median", "min", "max"}.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench import storage
from bench.parts import run_parts
from hotloop import timing
from hotloop.profiler.diagnose import Diagnosis, diagnose
from hotloop.profiler.session import Session
from hotloop.profiler.session.reading import read

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples" / "slow"
CAUSES = ROOT / "bench" / "causes.py"
# Gains from which a cause counts as there, if its case says no other, and up to which as absent.
THERE, ABSENT = 1.25, 1.05


class Scale(NamedTuple):
    """How much is measured.

    Attributes:
        seconds: roughly, of a slow program.
        num_severities: of each planted cause.
        only: cases to measure severities of; empty: all.
    """

    seconds: float
    num_severities: int
    only: tuple[str, ...] = ()


class Case(NamedTuple):
    """A planted cause.

    A rule that speaks from a share of the time on, since less is not worth it, is asked for no less
    here. Its case is there from the gain on that this share is worth once removed, and a little:
    environments (half of the time, stepped four at once), choosing actions (a third, eight at
    once), collecting (a quarter, at the same time as learning), starting and a hot function (half,
    gone altogether), decay (a quarter fewer steps a second in the last third of the run), a starved
    pipeline (its other stages at work two thirds of the time at most).

    Attributes:
        program: its file's stem in examples/slow, or its name in bench/causes.py.
        rule: that should name it.
        slow, fixed: arguments with it and without.
        length: the option that sets how long the program runs, and its value for ten seconds.
        severity: arguments of a random size, from 0 (none of it) to 1.
        where: the folder that the program is a file of, or the file that it is a cause of.
        there: measured gain from which the cause counts as there.
    """

    program: str
    rule: str
    slow: tuple[str, ...]
    fixed: tuple[str, ...]
    length: tuple[str, int]
    severity: Callable[[float], tuple[str, ...]]
    where: Path = EXAMPLES
    there: float = THERE


def _between(low: float, high: float, severity: float) -> float:
    """Logarithmically."""
    return float(low * (high / low) ** severity)


def _rows(severity: float) -> tuple[str, ...]:
    # A batch's worth at least: it is drawn without replacement.
    return ("--rows", str(round(_between(300, 4000, severity))))


def _draws(own_us: float) -> Callable[[float], tuple[str, ...]]:
    """The more a reward costs to draw, the less the rest matters; fewer steps, to take as long.

    Args:
        own_us: what a step takes without it; a draw takes some 0.012.
    """

    def severity_of(severity: float) -> tuple[str, ...]:
        draws = _between(30 * own_us / 0.012, 1, severity)
        steps = 1000 * own_us / (own_us + 0.012 * draws)
        return ("--draws", str(round(draws)), "--steps", str(round(steps)))

    return severity_of


def _slow_ms(severity: float) -> tuple[str, ...]:
    return ("--slow-ms", f"{_between(3, 120, severity):.1f}")


def _width(severity: float) -> tuple[str, ...]:
    """The wider the networks, the less the rest matters."""
    return ("--width", str(round(_between(1000, 150, severity))))


def _obs(severity: float) -> tuple[str, ...]:
    return ("--obs", str(round(_between(8, 200, severity))))


def _cause(name: str, rule: str, low: float, high: float, there: float = THERE) -> Case:
    """Of bench/causes.py, whose lengths are seconds.

    Args:
        low, high: sizes from none of it to much; the first may be the larger.
    """

    def severity_of(severity: float) -> tuple[str, ...]:
        return ("--size", f"{_between(low, high, severity):.4g}")

    return Case(name, rule, (), ("--fixed",), ("--length", 10), severity_of, CAUSES, there)


_NO_CONFIG = ("--fix", "config")
_NO_LOGGING = (*_NO_CONFIG, "--fix", "logging")
_HEALTHY = ("--healthy",)
CASES: dict[str, Case] = {
    "replay": Case(
        "weighted_replay", "replay-grows", (), _HEALTHY, ("--updates", 400), _rows
    ),
    "config": Case(
        "bandit_sweep", "configuration-objects", (), _NO_CONFIG, ("--runs", 50), _draws(200)
    ),
    "logging": Case(
        "bandit_sweep", "logging", _NO_CONFIG, _NO_LOGGING, ("--runs", 200), _draws(60)
    ),
    "argmax": Case(
        "bandit_sweep", "slow-argmax", _NO_LOGGING, _HEALTHY, ("--runs", 700), _draws(20)
    ),
    "lockstep": Case(
        "lockstep_envs", "lockstep-stragglers", (), _HEALTHY, ("--steps", 400), _slow_ms
    ),
    "tiny": Case(
        "eager_update",
        "tiny-operations",
        ("--fix", "sync"),
        _HEALTHY,
        ("--updates", 1000),
        _width,
    ),
    "sync": Case(
        "eager_update", "host-sync", ("--fix", "tiny"), _HEALTHY, ("--updates", 1600), _width
    ),
    "pipeline": Case(
        "starved_pipeline",
        "starved-pipeline",
        (),
        _HEALTHY,
        ("--fragments", 1000),
        _obs,
        there=1.6,
    ),
    "environment": _cause("environment", "environment-bound", 0.05, 8, there=1.6),
    "transfer": _cause("transfer", "transfer-dearer-than-step", 3, 0.005),
    "threads": _cause("threads", "too-many-threads", 4, 32),
    "acting": _cause("acting", "tiny-batches", 30, 0.01, there=1.4),
    "start": _cause("start", "start-up", 12, 0.3, there=2.2),
    "decay": _cause("decay", "decay", 1, 200, there=1.35),
    "pegged": _cause("pegged", "pegged-core", 0.03, 1, there=1.3),
    "function": _cause("function", "hot-function", 2, 600, there=2.2),
    "launch": _cause("launch", "launch-bound", 400, 8),
}  # fmt: skip


def _command(case: Case, arguments: Sequence[str], scale: Scale) -> list[str]:
    option, ten_seconds = case.length
    length = max(1, round(ten_seconds * scale.seconds / 10))
    if case.where == CAUSES:
        program = [str(CAUSES), case.program]
    else:
        program = [str(case.where / f"{case.program}.py")]
    return [*program, option, str(length), *arguments]


class Ran(NamedTuple):
    """A program that has ended.

    Attributes:
        whole_s: wall time, starting and importing included.
        loop_s: of its loop, as it says itself in its last line; 0.1 s are the least.
    """

    whole_s: float
    loop_s: float


def _run(command: Sequence[str]) -> Ran:
    began = time.perf_counter()
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    whole_s = time.perf_counter() - began
    said = re.findall(r"([\d.]+) s\b", done.stdout)
    return Ran(whole_s, float(said[-1]) if said else whole_s)


def bare(command: Sequence[str]) -> Ran:
    """A program by itself."""
    return _run([sys.executable, *command])


def profiled(command: Sequence[str], interval_s: float = 0.01) -> tuple[Ran, Session]:
    """A program with a profile of it, without the report."""
    with tempfile.TemporaryDirectory(prefix="bench-profile-") as out:
        settings = json.dumps({"directory": out, "interval_s": interval_s, "hooks": True})
        ran = _run([sys.executable, "-m", "hotloop.profiler.collect.script", settings, *command])
        return ran, read(out)


def _named(found: Sequence[Diagnosis]) -> list[list[Any]]:
    return [[one.rule, None if one.gain is None else round(one.gain, 3)] for one in found]


def _figure(values: Sequence[float]) -> dict[str, float]:
    return {
        "median": round(float(np.median(values)), 4),
        "min": round(min(values), 4),
        "max": round(max(values), 4),
    }


# --- the parts ------------------------------------------------------------------------------------


def examples(scale: Scale, rounds: int) -> None:
    """See the top of the file."""
    # Others have no healthy twin that is meant to be without a word of any rule.
    cases_of_examples = {name: case for name, case in CASES.items() if case.where == EXAMPLES}
    firsts: dict[str, list[bool]] = {name: [] for name in cases_of_examples}
    estimates: dict[str, list[float]] = {name: [] for name in cases_of_examples}
    ratios: dict[str, list[float]] = {name: [] for name in cases_of_examples}
    alarms: dict[str, list[list[str]]] = {}
    for _ in range(rounds):
        for name, case in cases_of_examples.items():
            slow = _command(case, case.slow, scale)
            found = diagnose(profiled(slow)[1])
            firsts[name].append(bool(found) and found[0].rule == case.rule)
            estimates[name] += [one.gain for one in found if one.rule == case.rule and one.gain]
            ratios[name].append(
                bare(slow).whole_s / bare(_command(case, case.fixed, scale)).whole_s
            )
            print(f"  {name:10} {_named(found)}, measured {ratios[name][-1]:.2f}", flush=True)
        for program in dict.fromkeys(case.program for case in cases_of_examples.values()):
            # The longest of its cases: a fixed program takes a fraction of the slow one's time.
            case = max(
                (case for case in cases_of_examples.values() if case.program == program),
                key=lambda case: case.length[1],
            )
            found = diagnose(profiled(_command(case, _HEALTHY, scale))[1])
            alarms.setdefault(program, []).append([one.rule for one in found])
            print(f"  {program} --healthy: {_named(found) or 'nothing found'}", flush=True)
    cases: dict[str, Any] = {}
    for name, case in cases_of_examples.items():
        estimate = float(np.median(estimates[name])) if estimates[name] else None
        measured = float(np.median(ratios[name]))
        cases[name] = {
            "program": case.program,
            "slow": list(case.slow),
            "fixed": list(case.fixed),
            "rule": case.rule,
            "first": sum(firsts[name]),
            "rounds": rounds,
            "estimate": _figure(estimates[name]) if estimates[name] else None,
            "measured": _figure(ratios[name]),
            "error": None if estimate is None else round(estimate / measured - 1, 4),
        }
    storage.save("profiler_examples", {"cases": cases, "twins": alarms})


def severities(scale: Scale, rounds: int) -> None:
    """See the top of the file; `rounds` is not used: every severity is drawn anew."""
    chosen, rules = scale.only or tuple(CASES), {}
    runs = [run for run in _stored_runs() if run["case"] not in chosen] if scale.only else []
    for name in chosen:
        case = CASES[name]
        # Of each case by itself: its sizes are the same, whatever else is measured.
        rng = np.random.default_rng(list(name.encode()))
        for number in range(scale.num_severities):
            # Stratified: all sizes come up, in whatever few there are.
            severity = (number + rng.random()) / scale.num_severities
            arguments = case.severity(severity)
            slow = _command(case, (*case.slow, *arguments), scale)
            fixed = _command(case, (*case.fixed, *arguments), scale)
            found = diagnose(profiled(slow)[1])
            runs.append(
                {
                    "case": name,
                    "arguments": list(arguments),
                    "measured": round(bare(slow).whole_s / bare(fixed).whole_s, 3),
                    "named": _named(found),
                }
            )
            print(f"  {runs[-1]}", flush=True)
        # After each: what was measured stays, should one of the next fail or take too long.
        rules = {case.rule: _score(case.rule, name, runs) for name, case in CASES.items()}
        storage.save("profiler_severities", {"runs": runs, "rules": rules})
    for rule, score in rules.items():
        print(f"  {rule:24} {score}")


def _stored_runs() -> list[dict[str, Any]]:
    """Of severities; empty: there are none."""
    try:
        return storage.load("profiler_severities")["runs"]
    except FileNotFoundError:
        return []


def _score(rule: str, planted: str, runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A rule's own runs tell what it misses; what it names without cause, all runs do.

    A program that has another cause of the same kind in it is none of the latter.
    """
    program, there = CASES[planted].program, CASES[planted].there
    found = missed = false = 0
    errors: list[float] = []
    for run in runs:
        gains = [gain for one, gain in run["named"] if one == rule]
        is_named = bool(gains)
        if run["case"] == planted:
            found += is_named and run["measured"] >= there
            if run["measured"] >= there:
                errors += [gain / run["measured"] - 1 for gain in gains if gain is not None]
            missed += not is_named and run["measured"] >= there
            false += is_named and run["measured"] <= ABSENT
        elif CASES[run["case"]].program != program:
            false += is_named
    return {
        "found": found,
        "missed": missed,
        "false": false,
        "precision": round(found / (found + false), 3) if found + false else None,
        "recall": round(found / (found + missed), 3) if found + missed else None,
        "error": _figure(errors) if errors else None,
    }


COST_PROGRAMS = {
    "one process, torch": ("tiny", _HEALTHY),
    "a process pool": ("argmax", _HEALTHY),
    "processes in lock-step": ("lockstep", ()),
}


def cost(scale: Scale, rounds: int) -> None:
    """See the top of the file."""
    programs: dict[str, Any] = {}
    for about, (name, arguments) in COST_PROGRAMS.items():
        command = _command(CASES[name], arguments, scale)
        seconds: dict[str, list[float]] = {"bare": [], "spans": [], "full": []}
        says: list[tuple[float, float]] = []
        for _ in range(rounds):
            seconds["bare"].append(bare(command).loop_s)
            seconds["spans"].append(profiled(command, interval_s=0)[0].loop_s)
            ran, session = profiled(command)
            seconds["full"].append(ran.loop_s)
            says.append(_own_cost(session))
        medians = {way: float(np.median(values)) for way, values in seconds.items()}
        programs[about] = {
            **{way: _figure(values) for way, values in seconds.items()},
            "spans_cost": round(medians["spans"] / medians["bare"] - 1, 4),
            "full_cost": round(medians["full"] / medians["bare"] - 1, 4),
            "says": {
                "spans": _figure([spans for spans, _ in says]),
                "sampling": _figure([sampling for _, sampling in says]),
            },
        }
        print(f"  {about}: {programs[about]}", flush=True)
    storage.save("profiler_cost", {"programs": programs})


def _own_cost(session: Session) -> tuple[float, float]:
    """What the report says that spans and sampling took of the processes' time."""
    whole = sum(process.duration_ns for process in session.processes)
    spans = sum(node.count for process in session.processes for _, node in process.tree.walk())
    sampling = sum(process.own_ns for process in session.processes)
    return spans * timing.overhead() / whole, sampling / whole


def main() -> int:
    """Measure, print and store."""
    return run_parts(
        "profiler",
        __doc__,
        {"examples": examples, "severities": severities, "cost": cost},
        scale=Scale(seconds=15.0, num_severities=20),
        quick=Scale(seconds=4.0, num_severities=2),
        seconds="of a slow program, roughly",
        only=tuple(CASES),
    )


if __name__ == "__main__":
    sys.exit(main())
