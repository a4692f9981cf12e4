"""Causes that `hotloop profile` names, the gains that it estimates, and what it costs.

    python -m bench profiler
    python -m bench profiler --part examples --rounds 3
    python -m bench profiler --quick

The programs are those of examples/slow: slow for a reason that is known and can be removed, and
that rules were made with. What they say of other programs `python -m bench corpus` measures. Parts,
each of which is stored by itself:

- `examples`: each planted cause of examples/slow, with the others of its program removed.
  `profiler_examples.json`: `cases`, by name: `program`, `slow` and `fixed` (arguments), `rule` (of
  the planted cause), `first` (rounds in which it was named first), `rounds`, `estimate` (the gain
  that was named) and `measured` (by the unprofiled program's wall time, slow over fixed), `error`
  (of the estimates' median); `twins`, by program: `alarms`, the rules that spoke up, by round.
- `cost`: a program bare, with spans alone, and with the full profile, alternating; of its loop, as
  it says itself: starting takes 0.1 to 0.2 s more, once.
  `profiler_cost.json`: `programs`, by name: `bare`, `spans`, `full` (seconds), `spans_cost`,
  `full_cost` (shares of bare, by medians), `says` (what the report itself says: spans, sampling).

- `report`: CPU time of `hotloop report DIR --html FILE`, Python's start included, of the same
  programs' profiles. `profiler_report.json`: `programs`, by name: `processes`, `recorded_s`,
  `cpu_s`.
- `stages`: shares of environments, acting, replay and updates, beside timers placed by hand in
  the scripts of staged/ (it needs Stable-Baselines3). `profiler_stages.json`: `programs`, by name,
  by stage: `by_hand`, `by_profile` (shares, medians of `rounds`), `off` (of their differences).

A figure is {"median", "min", "max"}.
"""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench import storage
from bench.parts import run_parts
from bench.profiler import stages
from hotloop import timing
from hotloop.profiler.diagnose import Diagnosis, diagnose
from hotloop.profiler.session import Session
from hotloop.profiler.session.reading import read

EXAMPLES = storage.ROOT / "examples" / "slow"


class Scale(NamedTuple):
    """How much is measured.

    Attributes:
        seconds: roughly, of a slow program.
    """

    seconds: float


class Case(NamedTuple):
    """A planted cause.

    Attributes:
        program: its file's stem in examples/slow.
        rule: that should name it.
        slow, fixed: arguments with it and without.
        length: the option that sets how long the program runs, and its value for ten seconds.
    """

    program: str
    rule: str
    slow: tuple[str, ...]
    fixed: tuple[str, ...]
    length: tuple[str, int]


_NO_CONFIG = ("--fix", "config")
_NO_LOGGING = (*_NO_CONFIG, "--fix", "logging")
_HEALTHY = ("--healthy",)
CASES: dict[str, Case] = {
    "replay": Case("weighted_replay", "replay-grows", (), _HEALTHY, ("--updates", 400)),
    "config": Case("bandit_sweep", "configuration-objects", (), _NO_CONFIG, ("--runs", 50)),
    "logging": Case("bandit_sweep", "logging", _NO_CONFIG, _NO_LOGGING, ("--runs", 200)),
    "argmax": Case("bandit_sweep", "slow-argmax", _NO_LOGGING, _HEALTHY, ("--runs", 700)),
    "lockstep": Case("lockstep_envs", "lockstep-stragglers", (), _HEALTHY, ("--steps", 400)),
    "tiny": Case(
        "eager_update", "tiny-operations", ("--fix", "sync"), _HEALTHY, ("--updates", 1000)
    ),
    "sync": Case("eager_update", "host-sync", ("--fix", "tiny"), _HEALTHY, ("--updates", 1600)),
    "pipeline": Case("starved_pipeline", "starved-pipeline", (), _HEALTHY, ("--fragments", 1000)),
}


def _command(case: Case, arguments: Sequence[str], scale: Scale) -> list[str]:
    option, ten_seconds = case.length
    length = max(1, round(ten_seconds * scale.seconds / 10))
    program = [str(EXAMPLES / f"{case.program}.py")]
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
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=storage.ROOT)
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
    firsts: dict[str, list[bool]] = {name: [] for name in CASES}
    estimates: dict[str, list[float]] = {name: [] for name in CASES}
    ratios: dict[str, list[float]] = {name: [] for name in CASES}
    alarms: dict[str, list[list[str]]] = {}
    for _ in range(rounds):
        for name, case in CASES.items():
            slow = _command(case, case.slow, scale)
            found = diagnose(profiled(slow)[1])
            firsts[name].append(bool(found) and found[0].rule == case.rule)
            estimates[name] += [one.gain for one in found if one.rule == case.rule and one.gain]
            ratios[name].append(
                bare(slow).whole_s / bare(_command(case, case.fixed, scale)).whole_s
            )
            print(f"  {name:10} {_named(found)}, measured {ratios[name][-1]:.2f}", flush=True)
        for program in dict.fromkeys(case.program for case in CASES.values()):
            # The longest of its cases: a fixed program takes a fraction of the slow one's time.
            case = max(
                (case for case in CASES.values() if case.program == program),
                key=lambda case: case.length[1],
            )
            found = diagnose(profiled(_command(case, _HEALTHY, scale))[1])
            alarms.setdefault(program, []).append([one.rule for one in found if one.gain])
            print(f"  {program} --healthy: {_named(found) or 'nothing found'}", flush=True)
    cases: dict[str, Any] = {}
    for name, case in CASES.items():
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


def report(scale: Scale, rounds: int) -> None:
    """See the top of the file."""
    programs: dict[str, Any] = {}
    for about, (name, arguments) in COST_PROGRAMS.items():
        with tempfile.TemporaryDirectory(prefix="bench-report-") as folder:
            out = Path(folder) / "profile"
            command = [sys.executable, "-m", "hotloop", "profile", "--out", str(out)]
            _run_quietly([*command, *_command(CASES[name], arguments, scale)])
            session = read(out)
            page = [
                sys.executable,
                "-m",
                "hotloop",
                "report",
                str(out),
                "--html",
                f"{folder}/a.html",
            ]
            cpu_s: list[float] = []
            for _ in range(rounds):
                before = resource.getrusage(resource.RUSAGE_CHILDREN)
                _run_quietly(page)
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                cpu_s.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
            programs[about] = {
                "processes": len(session.processes),
                "recorded_s": round((session.end_ns - session.start_ns) / 1e9, 1),
                "cpu_s": _figure(cpu_s),
            }
        print(f"  {about}: {programs[about]}", flush=True)
    storage.save("profiler_report", {"programs": programs})


def _run_quietly(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, cwd=storage.ROOT)


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
        {
            "examples": examples,
            "cost": cost,
            "report": report,
            "stages": lambda scale, rounds: stages.measure(scale.seconds, rounds),
        },
        scale=Scale(seconds=15.0),
        quick=Scale(seconds=4.0),
        seconds="of a slow program, roughly",
    )
