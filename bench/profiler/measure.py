"""Causes named by `hotloop profile`, its estimates of gains, and its overhead.

    python -m bench profiler
    python -m bench profiler --part examples --rounds 3
    python -m bench profiler --quick

The programs are those of examples/slow. Each is slow for a known, removable reason, and the rules
were developed with them. `python -m bench corpus` measures diagnoses of other programs. Each part
is stored in its own file:

- `examples`: each planted cause of examples/slow, with the other causes of its program removed.
  `profiler_examples.json`: `cases`, by name: `program`, `slow` and `fixed` (arguments), `rule` (of
  the planted cause), `first` (rounds in which it was named first), `rounds`, `estimate` (estimated
  gain), `measured` (wall time without profiler, slow over fixed), `error` (of the estimates'
  median); `twins`, by program: the rules with a gain in the healthy program, by round.
- `cost`: the time of a program's loop bare, with spans alone, and with the full profile, in turn.
  The start takes 0.1 to 0.2 s more, once. `profiler_cost.json`: `programs`, by name: `bare`,
  `spans`, `full` (seconds), `spans_cost`, `full_cost` (shares of bare, by medians), `says`
  (overhead in the report: spans, sampling).
- `report`: CPU time of `hotloop report DIR --html FILE`, with Python's start, for the same
  programs' profiles. `profiler_report.json`: `programs`, by name: `processes`, `recorded_s`,
  `cpu_s`.
- `stages`: shares of environments, acting, replay and updates, compared with manual timers in the
  scripts of staged/ (needs Stable-Baselines3). `profiler_stages.json`: `programs`, by name, by
  stage: `by_hand`, `by_profile` (shares, medians of `rounds`), `off` (median difference).
- `what-if`: elasticities measured by `hotloop profile --what-if`, compared with bare runs in which
  the stage is shorter, for ten programs, of which five were set aside during development; and the
  named bottleneck of ten drawn pipelines whose busiest stage is another one. `what_if.json`: `seen`
  and `unseen`, by program: `stages`, by name: `true`, `measured`, `error` (half of the 95 %
  interval), `samples` (estimate from samples), `pairs`; `is_close` (all within 0.1); `pipelines`, a
  list: `bottleneck`, `busiest`, `named`, `samples_name`, `elasticities`.

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
from bench.profiler.what_if.measure import measure as measure_what_if
from hotloop import timing
from hotloop.base.children import python_command
from hotloop.profiler.diagnose import Diagnosis, diagnose
from hotloop.profiler.session import Session
from hotloop.profiler.session.reading import read

EXAMPLES = storage.ROOT / "examples" / "slow"


class ProfilerScale(NamedTuple):
    """Sizes of the measurements.

    Attributes:
        seconds: approximate duration of a slow program.
    """

    seconds: float


class PlantedCause(NamedTuple):
    """A cause planted in a program.

    Attributes:
        program: stem of the program's file in examples/slow.
        rule: name of the rule that should find the cause.
        slow, fixed: arguments with and without the cause.
        length: option for the program's length, and its value for ten seconds.
    """

    program: str
    rule: str
    slow: tuple[str, ...]
    fixed: tuple[str, ...]
    length: tuple[str, int]


_NO_CONFIG = ("--fix", "config")
_NO_LOGGING = (*_NO_CONFIG, "--fix", "logging")
_HEALTHY = ("--healthy",)
CASES: dict[str, PlantedCause] = {
    "replay": PlantedCause("weighted_replay", "replay-grows", (), _HEALTHY, ("--updates", 400)),
    "config": PlantedCause("bandit_sweep", "configuration-objects", (), _NO_CONFIG, ("--runs", 50)),
    "logging": PlantedCause("bandit_sweep", "logging", _NO_CONFIG, _NO_LOGGING, ("--runs", 200)),
    "argmax": PlantedCause("bandit_sweep", "slow-argmax", _NO_LOGGING, _HEALTHY, ("--runs", 700)),
    "lockstep": PlantedCause(
        "lockstep_envs", "lockstep-stragglers", (), _HEALTHY, ("--steps", 400)
    ),
    "tiny": PlantedCause(
        "eager_update", "tiny-operations", ("--fix", "sync"), _HEALTHY, ("--updates", 1000)
    ),
    "sync": PlantedCause(
        "eager_update", "host-sync", ("--fix", "tiny"), _HEALTHY, ("--updates", 1600)
    ),
    "pipeline": PlantedCause(
        "starved_pipeline", "starved-pipeline", (), _HEALTHY, ("--fragments", 1000)
    ),
}


def _command(case: PlantedCause, arguments: Sequence[str], scale: ProfilerScale) -> list[str]:
    option, ten_seconds = case.length
    length = max(1, round(ten_seconds * scale.seconds / 10))
    program = [str(EXAMPLES / f"{case.program}.py")]
    return [*program, option, str(length), *arguments]


class ProgramTimes(NamedTuple):
    """Durations of a finished program.

    Attributes:
        whole_s: wall time with start and imports.
        loop_s: duration of the loop, printed in the program's last line, at least 0.1 s.
    """

    whole_s: float
    loop_s: float


def _run(command: Sequence[str]) -> ProgramTimes:
    start_s = time.perf_counter()
    completed = subprocess.run(
        command, check=True, capture_output=True, text=True, cwd=storage.ROOT
    )
    whole_s = time.perf_counter() - start_s
    printed = re.findall(r"([\d.]+) s\b", completed.stdout)
    return ProgramTimes(whole_s, float(printed[-1]) if printed else whole_s)


def run_bare(command: Sequence[str]) -> ProgramTimes:
    """Run a program without the profiler."""
    return _run([sys.executable, *command])


def run_profiled(command: Sequence[str], interval_s: float = 0.01) -> tuple[ProgramTimes, Session]:
    """Run a program with the profiler; return its durations and the profile."""
    with tempfile.TemporaryDirectory(prefix="bench-profile-") as out:
        settings = json.dumps({"directory": out, "interval_s": interval_s, "hooks": True})
        ran = _run(python_command("hotloop.profiler.collect.script", settings, *command))
        return ran, read(out)


def _rules_and_gains(diagnoses: Sequence[Diagnosis]) -> list[list[Any]]:
    return [
        [diagnosis.rule, None if diagnosis.gain is None else round(diagnosis.gain, 3)]
        for diagnosis in diagnoses
    ]


def _figure(values: Sequence[float]) -> dict[str, float]:
    return {
        "median": round(float(np.median(values)), 4),
        "min": round(min(values), 4),
        "max": round(max(values), 4),
    }


# --- the parts ------------------------------------------------------------------------------------


def examples(scale: ProfilerScale, rounds: int) -> None:
    """See the module's docstring."""
    firsts: dict[str, list[bool]] = {name: [] for name in CASES}
    estimates: dict[str, list[float]] = {name: [] for name in CASES}
    ratios: dict[str, list[float]] = {name: [] for name in CASES}
    alarms: dict[str, list[list[str]]] = {}
    for _ in range(rounds):
        for name, case in CASES.items():
            slow = _command(case, case.slow, scale)
            diagnoses = diagnose(run_profiled(slow)[1])
            firsts[name].append(bool(diagnoses) and diagnoses[0].rule == case.rule)
            estimates[name] += [
                diagnosis.gain
                for diagnosis in diagnoses
                if diagnosis.rule == case.rule and diagnosis.gain
            ]
            ratios[name].append(
                run_bare(slow).whole_s / run_bare(_command(case, case.fixed, scale)).whole_s
            )
            print(
                f"  {name:10} {_rules_and_gains(diagnoses)}, measured {ratios[name][-1]:.2f}",
                flush=True,
            )
        for program in dict.fromkeys(case.program for case in CASES.values()):
            # The longest of the program's cases, since a fixed program is much faster.
            case = max(
                (case for case in CASES.values() if case.program == program),
                key=lambda case: case.length[1],
            )
            diagnoses = diagnose(run_profiled(_command(case, _HEALTHY, scale))[1])
            alarms.setdefault(program, []).append(
                [diagnosis.rule for diagnosis in diagnoses if diagnosis.gain]
            )
            print(
                f"  {program} --healthy: {_rules_and_gains(diagnoses) or 'nothing found'}",
                flush=True,
            )
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


def cost(scale: ProfilerScale, rounds: int) -> None:
    """See the module's docstring."""
    programs: dict[str, Any] = {}
    for label, (name, arguments) in COST_PROGRAMS.items():
        command = _command(CASES[name], arguments, scale)
        seconds: dict[str, list[float]] = {"bare": [], "spans": [], "full": []}
        reported: list[tuple[float, float]] = []
        for _ in range(rounds):
            seconds["bare"].append(run_bare(command).loop_s)
            seconds["spans"].append(run_profiled(command, interval_s=0)[0].loop_s)
            ran, session = run_profiled(command)
            seconds["full"].append(ran.loop_s)
            reported.append(_reported_cost(session))
        medians = {way: float(np.median(values)) for way, values in seconds.items()}
        programs[label] = {
            **{way: _figure(values) for way, values in seconds.items()},
            "spans_cost": round(medians["spans"] / medians["bare"] - 1, 4),
            "full_cost": round(medians["full"] / medians["bare"] - 1, 4),
            "says": {
                "spans": _figure([spans for spans, _ in reported]),
                "sampling": _figure([sampling for _, sampling in reported]),
            },
        }
        print(f"  {label}: {programs[label]}", flush=True)
    storage.save("profiler_cost", {"programs": programs})


def report(scale: ProfilerScale, rounds: int) -> None:
    """See the module's docstring."""
    programs: dict[str, Any] = {}
    for label, (name, arguments) in COST_PROGRAMS.items():
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
            programs[label] = {
                "processes": len(session.processes),
                "recorded_s": round((session.end_ns - session.start_ns) / 1e9, 1),
                "cpu_s": _figure(cpu_s),
            }
        print(f"  {label}: {programs[label]}", flush=True)
    storage.save("profiler_report", {"programs": programs})


def _run_quietly(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, cwd=storage.ROOT)


def _reported_cost(session: Session) -> tuple[float, float]:
    """Return the reported shares of spans and sampling in the processes' time."""
    total_ns = sum(process.duration_ns for process in session.processes)
    spans = sum(node.count for process in session.processes for _, node in process.tree.walk())
    sampling = sum(process.own_ns for process in session.processes)
    return spans * timing.overhead() / total_ns, sampling / total_ns


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
            "what-if": lambda scale, _: measure_what_if(scale.seconds),
        },
        scale=ProfilerScale(seconds=15.0),
        quick=ProfilerScale(seconds=4.0),
        seconds="approximate duration of a slow program",
    )
