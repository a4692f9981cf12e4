"""Measure whether diagnoses name the cause in programs that no rule was tuned on.

    python -m bench corpus --half tune --cases 30 --quick
    python -m bench corpus --half unseen --cases 30 --jobs 2
    python -m bench corpus --half tune --case cleanrl_ppo/sleep --keep /tmp/kept
    python -m bench corpus --again /tmp/kept
    python -m bench corpus --calibrate

Each case is one of programs/ with a cause of the same half planted in one of its slots, in a random
form and size. The slow and the fixed script run without the profiler to measure the gain. The slow
script runs with the profiler, and the findings are scored. A finding names the cause if one of its
first three places is a planted line. Cases with a gain below 1.25 are counted separately. Then the
half's programs run without planted causes, and every finding there is a false alarm.

`--quick` skips runs without profiler, healthy programs and storing, and uses the expected gain.
`--keep` keeps scripts, profiles and truths. `--again` makes and scores new diagnoses of them, which
replace the stored ones if the measurement was complete.
For the unseen half only numbers are printed unless `--show` is given.

`corpus.json`: `halves`, by name: `seed`, `rounds`, `cases`, a list (the planted cause, `measured`
and `measured_loop`, time of the slow over the fixed script, `found` and its score), `healthy`, a
list (`program`, `found`, `alarms`), and `summary`.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench import storage
from bench.profiler.corpus import plant
from bench.profiler.corpus.score import alarms, finding_record, is_counted, score, summary
from bench.profiler.corpus.template import Program, programs
from hotloop.base.children import python_command

# Module that records a script.
RECORDER = "hotloop.profiler.collect.script"
INTERVAL_S = 0.01
# File with the options of a kept measurement.
MEASUREMENT_FILE = "measurement.json"
TIMEOUT_S = 150
LOOP = re.compile(r"loop ([\d.]+) s\b")


def run(command: Sequence[str], folder: Path) -> tuple[float, float]:
    """Run a script; return the seconds of the whole run and of its loop as it prints them."""
    start_s = time.perf_counter()
    completed = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, cwd=folder, timeout=TIMEOUT_S
    )
    whole_s = time.perf_counter() - start_s
    if completed.returncode:
        raise RuntimeError(
            f"{' '.join(command)} ended with {completed.returncode}: {completed.stderr[-800:]}"
        )
    printed = LOOP.findall(completed.stdout)
    return whole_s, float(printed[-1]) if printed else whole_s


def record(arguments: Sequence[str], folder: Path, out: Path) -> tuple[float, float]:
    """Run `train.py` under the profiler."""
    settings = json.dumps({"directory": str(out), "interval_s": INTERVAL_S, "hooks": True})
    return run(python_command(RECORDER, settings, plant.SCRIPT, *arguments)[1:], folder)


def findings(out: Path) -> list[dict[str, Any]]:
    """Return the findings of a recording's diagnosis, the largest gain first."""
    from hotloop.profiler import read
    from hotloop.profiler.diagnose import diagnose

    return [finding_record(finding) for finding in diagnose(read(out))]


# --- a case, a healthy program --------------------------------------------------------------------


def measure(case: plant.Case, folder: Path, rounds: int) -> dict[str, Any]:
    """Run a case. With 0 rounds it runs only with the profiler."""
    truth = plant.write(case, folder)
    arguments = truth["arguments"]
    try:
        if rounds:
            # In turn, so that other load on the machine affects both alike.
            pairs = [
                [run([plant.SCRIPT, *arguments], folder / way) for way in ("slow", "fixed")]
                for _ in range(rounds)
            ]
            slow, fixed = (
                [_median(values) for values in zip(*way, strict=True)]
                for way in zip(*pairs, strict=True)
            )
            truth["slow_s"], truth["fixed_s"] = (round(way[0], 2) for way in (slow, fixed))
            truth["measured"] = round(slow[0] / fixed[0], 3)
            truth["measured_loop"] = round(slow[1] / max(fixed[1], 1e-3), 3)
        whole_s, _ = record(arguments, folder / "slow", folder / "profile")
        truth["profiled_s"] = round(whole_s, 2)
        (folder / "truth.json").write_text(json.dumps(truth, indent=1) + "\n")
        return scored(truth, findings(folder / "profile"))
    except Exception as error:
        return failed(truth, error)


def scored(truth: dict[str, Any], found: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a case's truth with findings and score."""
    return {**truth, "found": found, **score(found, truth)}


def failed(truth: dict[str, Any], error: Exception) -> dict[str, Any]:
    """Return a case that could not be measured."""
    message = "".join(traceback.format_exception_only(error)).strip()
    return {**truth, "failed": message}


def measure_healthy(program: Program, folder: Path) -> dict[str, Any]:
    """Run a program without planted causes with the profiler."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / plant.SCRIPT).write_text(plant.healthy(program))
    arguments = [program.option, str(program.length)]
    (folder / "healthy.json").write_text(json.dumps({"program": program.name}) + "\n")
    try:
        record(arguments, folder, folder / "profile")
        found = findings(folder / "profile")
        return {"program": program.name, "found": found, "alarms": alarms(found)}
    except Exception as error:
        return {"program": program.name, "found": [], "alarms": [], **failed({}, error)}


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def rediagnose(folder: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Diagnose kept cases and healthy programs again."""
    cases, healthy = [], []
    for path in sorted(folder.glob("*/truth.json")):
        truth = json.loads(path.read_text())
        try:
            cases.append(scored(truth, findings(path.parent / "profile")))
        except Exception as error:
            cases.append(failed(truth, error))
    for path in sorted(folder.glob("*/healthy.json")):
        found = findings(path.parent / "profile")
        healthy.append({**json.loads(path.read_text()), "found": found, "alarms": alarms(found)})
    return cases, healthy


# --- output ---------------------------------------------------------------------------------------


def _finding_text(finding: dict[str, Any]) -> str:
    gain = "" if finding["gain"] is None else f" {finding['gain']:.2f}"
    places = " ".join(f"{file}:{line}" for file, line, _ in finding["places"][:3])
    return f"[{finding['rule'] or 'no rule'}{gain} {finding['wait']}] {finding['title']} ({places})"


def print_case(number: int, case: dict[str, Any], show: bool) -> None:
    """Print the lines of a case."""
    if not show:
        print(f"{number:3} {'failed' if 'failed' in case else case['outcome']}", flush=True)
        return
    gain = case.get("measured") or case["expected"]
    description = f"{case['program']}/{case['cause']} {case['form']} size {case['size']:g}"
    description += f" every {case['every']}, gain {gain}"
    if "failed" in case:
        print(f"{number:3} FAILED  {description}\n      {case['failed']}", flush=True)
        return
    weak = "" if is_counted(case) else " (weaker)"
    print(f"{number:3} {case['outcome']:7} {description}{weak}", flush=True)
    if case["outcome"] != "first" or not case["wait_right"]:
        lines = case["planted"]
        print(f"      truth: lines {lines[0]}-{lines[-1]}, {'/'.join(case['waits'])}")
        for finding in case["found"][:3]:
            print(f"      found: {_finding_text(finding)}", flush=True)


def print_healthy(program: dict[str, Any], show: bool) -> None:
    """Print the line of a healthy program."""
    name = program["program"] if show else "program"
    alarm_text = "; ".join(
        _finding_text(finding) if show else "alarm" for finding in program["alarms"]
    )
    print(f"  healthy {name}: {program.get('failed') or alarm_text or 'no finding'}", flush=True)


def main() -> int:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(
        prog="python -m bench corpus",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--half", choices=sorted(plant.HALVES), default="tune")
    parser.add_argument("--cases", type=int, default=30)
    parser.add_argument("--seed", type=int, help="default: 0 for tune, the clock for unseen")
    parser.add_argument("--case", default="", metavar="PROGRAM/CAUSE", help="either may be *")
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="keep scripts, profiles and truths here"
    )
    parser.add_argument(
        "--again", type=Path, metavar="DIR", help="diagnose a kept measurement again"
    )
    parser.add_argument("--quick", action="store_true", help="run only with the profiler")
    parser.add_argument(
        "--rounds", type=int, default=2, help="runs of each script without the profiler"
    )
    parser.add_argument("--jobs", type=int, default=1, help="concurrent cases")
    parser.add_argument("--healthy", choices=("yes", "no", "only"), help="default: no with --quick")
    parser.add_argument("--show", action="store_true", help="also print cases of the unseen half")
    parser.add_argument(
        "--calibrate", nargs="*", metavar="NAME", help="programs and causes (default: all)"
    )
    parser.add_argument("--list", action="store_true", help="list the half's combinations")
    options = parser.parse_args()
    if options.calibrate is not None:
        from bench.profiler.corpus.calibrate import calibrate

        return calibrate(options.calibrate)
    show = options.show or options.half == "tune"
    if options.list:
        pairs = plant.combinations(options.half)
        for program, cause in pairs if show else ():
            print(f"{program}/{cause}")
        print(f"{len(pairs)} combinations")
        return 0
    if options.again:
        cases, healthy = rediagnose(options.again)
        for number, case in enumerate(cases):
            print_case(number, case, show)
        for program in healthy:
            print_healthy(program, show)
        measurement = options.again / MEASUREMENT_FILE
        if measurement.is_file():
            _finish(json.loads(measurement.read_text(encoding="utf-8")), cases, healthy)
        else:
            _print_summary(summary([case for case in cases if "failed" not in case], healthy))
        return 0
    seed = options.seed
    if seed is None:
        seed = 0 if options.half == "tune" else time.time_ns() // 1_000_000_000
    return _measure(options, seed, show)


def _measure(options: argparse.Namespace, seed: int, show: bool) -> int:
    planted = plant.draw(options.half, options.cases, seed, options.case)
    if options.healthy == "only":
        planted = []
    well: list[Program] = []
    wants_healthy = options.healthy or ("no" if options.quick or options.case else "yes")
    if wants_healthy != "no":
        well = [
            program for program in programs().values() if program.half == plant.HALVES[options.half]
        ]
    print(
        f"half {options.half}, seed {seed}: {len(planted)} cases, {len(well)} healthy", flush=True
    )
    root = options.keep or Path(tempfile.mkdtemp(prefix="corpus-"))
    rounds = 0 if options.quick else options.rounds
    try:
        with ThreadPoolExecutor(options.jobs) as pool:
            ran = pool.map(
                lambda index: measure(planted[index], root / f"case{index:03}", rounds),
                range(len(planted)),
            )
            cases = []
            for number, case in enumerate(ran):
                print_case(number, case, show)
                cases.append(case)
            ran = pool.map(
                lambda program: measure_healthy(program, root / f"healthy_{program.name}"), well
            )
            healthy = []
            for program in ran:
                print_healthy(program, show)
                healthy.append(program)
    finally:
        if not options.keep:
            shutil.rmtree(root, ignore_errors=True)
    is_whole = not options.quick and not options.case and options.healthy != "only"
    measurement = {"half": options.half, "seed": seed, "rounds": rounds, "is_stored": is_whole}
    if options.keep:
        (root / MEASUREMENT_FILE).write_text(json.dumps(measurement), encoding="utf-8")
    _finish(measurement, cases, healthy)
    return 0


def _finish(
    measurement: dict[str, Any], cases: list[dict[str, Any]], healthy: list[dict[str, Any]]
) -> None:
    """Print the summary, and store the result of a complete measurement."""
    counted = [case for case in cases if "failed" not in case]
    result = {
        "seed": measurement["seed"],
        "rounds": measurement["rounds"],
        "cases": counted,
        "failed": [case for case in cases if "failed" in case],
        "healthy": healthy,
        "summary": summary(counted, healthy),
    }
    _print_summary(result["summary"])
    if measurement["is_stored"]:
        _store(measurement["half"], result)


def _print_summary(figures: dict[str, Any]) -> None:
    print("  " + ", ".join(f"{name} {value}" for name, value in figures.items()))


def _store(half: str, result: dict[str, Any]) -> None:
    """Store a half's result beside that of the other half."""
    try:
        halves = storage.load("corpus")["halves"]
    except FileNotFoundError:
        halves = {}
    print(f"  stored in {storage.save('corpus', {'halves': {**halves, half: result}})}")
