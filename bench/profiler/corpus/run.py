"""Measure whether a diagnosis names the cause in programs that it has never seen.

    python -m bench corpus --half tune --cases 30 --quick
    python -m bench corpus --half unseen --cases 30 --jobs 2
    python -m bench corpus --half tune --case cleanrl_ppo/sleep --keep /tmp/kept
    python -m bench corpus --again /tmp/kept
    python -m bench corpus --calibrate

Each case is one of programs/ with a cause of the same half planted in one of its slots, in a random
form and size. It runs slow and fixed by itself, which is its gain, and slow with
the profiler, whose findings are scored. A finding names the cause if one of its first three places
is a planted line. A case whose gain is below 1.25 is counted apart. Then the half's programs run
with nothing planted: whatever is found there is a false alarm.

`--quick` leaves out the bare runs, healthy programs and storing; the gain is the expected one.
`--keep` keeps scripts, profiles and truths, of which `--again` makes and scores new diagnoses; of a
whole measurement these are stored in place of the first ones.
Of the unseen half only numbers are printed unless `--show` is given.

`corpus.json`: `halves`, by name: `seed`, `rounds`, `cases`, a list (what was planted, `measured`
and `measured_loop`, the slow script's time over the fixed one's, `found` and its score),
`healthy`, a list (`program`, `found`, `alarms`), and `summary`.
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
from bench.profiler.corpus.score import alarms, is_there, score, summary, told
from bench.profiler.corpus.template import Program, programs

# What runs a script recorded.
RECORDER = "hotloop.profiler.collect.script"
INTERVAL_S = 0.01
# What was measured, beside what is kept of it.
ABOUT = "measurement.json"
TIMEOUT_S = 150
LOOP = re.compile(r"loop ([\d.]+) s\b")


def run(command: Sequence[str], folder: Path) -> tuple[float, float]:
    """Seconds of a whole run and of its loop, as it says itself."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, cwd=folder, timeout=TIMEOUT_S
    )
    whole_s = time.perf_counter() - began
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-800:]}"
        )
    said = LOOP.findall(done.stdout)
    return whole_s, float(said[-1]) if said else whole_s


def record(arguments: Sequence[str], folder: Path, out: Path) -> tuple[float, float]:
    """Run `train.py` under the profiler."""
    settings = json.dumps({"directory": str(out), "interval_s": INTERVAL_S, "hooks": True})
    return run(["-m", RECORDER, settings, plant.SCRIPT, *arguments], folder)


def findings(out: Path) -> list[dict[str, Any]]:
    """What the diagnosis of a recording says, what saves most first."""
    from hotloop.profiler import read
    from hotloop.profiler.diagnose import diagnose

    return [told(one) for one in diagnose(read(out))]


# --- a case, a healthy program --------------------------------------------------------------------


def measure(case: plant.Case, folder: Path, rounds: int) -> dict[str, Any]:
    """Run a case; no rounds: under the profiler alone."""
    truth = plant.write(case, folder)
    arguments = truth["arguments"]
    try:
        if rounds:
            # One after the other: what else the machine does meets both alike.
            pairs = [
                [run([plant.SCRIPT, *arguments], folder / way) for way in ("slow", "fixed")]
                for _ in range(rounds)
            ]
            slow, fixed = (
                [_median(one) for one in zip(*way, strict=True)] for way in zip(*pairs, strict=True)
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
    """A case's truth with what was found and its score."""
    return {**truth, "found": found, **score(found, truth)}


def failed(truth: dict[str, Any], error: Exception) -> dict[str, Any]:
    """A case that could not be measured."""
    said = "".join(traceback.format_exception_only(error)).strip()
    return {**truth, "failed": said}


def measure_healthy(program: Program, folder: Path) -> dict[str, Any]:
    """Run a program with nothing planted under the profiler."""
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


def again(kept: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Diagnose what was kept once more: cases and healthy programs."""
    cases, well = [], []
    for path in sorted(kept.glob("*/truth.json")):
        truth = json.loads(path.read_text())
        try:
            cases.append(scored(truth, findings(path.parent / "profile")))
        except Exception as error:
            cases.append(failed(truth, error))
    for path in sorted(kept.glob("*/healthy.json")):
        found = findings(path.parent / "profile")
        well.append({**json.loads(path.read_text()), "found": found, "alarms": alarms(found)})
    return cases, well


# --- what is printed ------------------------------------------------------------------------------


def _said(finding: dict[str, Any]) -> str:
    gain = "" if finding["gain"] is None else f" {finding['gain']:.2f}"
    places = " ".join(f"{file}:{line}" for file, line, _ in finding["places"][:3])
    return f"[{finding['rule'] or 'no rule'}{gain} {finding['wait']}] {finding['title']} ({places})"


def tell(number: int, case: dict[str, Any], show: bool) -> None:
    """A case's lines."""
    if not show:
        print(f"{number:3} {'failed' if 'failed' in case else case['outcome']}", flush=True)
        return
    gain = case.get("measured") or case["expected"]
    about = f"{case['program']}/{case['cause']} {case['form']} size {case['size']:g}"
    about += f" every {case['every']}, gain {gain}"
    if "failed" in case:
        print(f"{number:3} FAILED  {about}\n      {case['failed']}", flush=True)
        return
    weak = "" if is_there(case) else " (weaker)"
    print(f"{number:3} {case['outcome']:7} {about}{weak}", flush=True)
    if case["outcome"] != "first" or not case["wait_right"]:
        lines = case["planted"]
        print(f"      truth: lines {lines[0]}-{lines[-1]}, {'/'.join(case['waits'])}")
        for finding in case["found"][:3]:
            print(f"      said: {_said(finding)}", flush=True)


def tell_healthy(one: dict[str, Any], show: bool) -> None:
    """A healthy program's line."""
    name = one["program"] if show else "program"
    said = "; ".join(_said(finding) if show else "alarm" for finding in one["alarms"])
    print(f"  healthy {name}: {one.get('failed') or said or 'silent'}", flush=True)


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
    parser.add_argument("--keep", type=Path, metavar="DIR", help="scripts, profiles and truths")
    parser.add_argument("--again", type=Path, metavar="DIR", help="diagnose what was kept")
    parser.add_argument("--quick", action="store_true", help="under the profiler alone")
    parser.add_argument("--rounds", type=int, default=2, help="bare runs of each script")
    parser.add_argument("--jobs", type=int, default=1, help="cases at a time")
    parser.add_argument("--healthy", choices=("yes", "no", "only"), help="default: not if quick")
    parser.add_argument("--show", action="store_true", help="cases of the unseen half too")
    parser.add_argument("--calibrate", nargs="*", metavar="NAME", help="programs and causes; all")
    parser.add_argument("--list", action="store_true", help="what the half can combine")
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
        cases, well = again(options.again)
        for number, case in enumerate(cases):
            tell(number, case, show)
        for one in well:
            tell_healthy(one, show)
        about = options.again / ABOUT
        if about.is_file():
            _finish(json.loads(about.read_text(encoding="utf-8")), cases, well)
        else:
            _print_summary(summary([case for case in cases if "failed" not in case], well))
        return 0
    seed = options.seed
    if seed is None:
        seed = 0 if options.half == "tune" else time.time_ns() // 1_000_000_000
    return _measure(options, seed, show)


def _measure(options: argparse.Namespace, seed: int, show: bool) -> int:
    drawn = plant.draw(options.half, options.cases, seed, options.case)
    if options.healthy == "only":
        drawn = []
    well: list[Program] = []
    wants_healthy = options.healthy or ("no" if options.quick or options.case else "yes")
    if wants_healthy != "no":
        well = [one for one in programs().values() if one.half == plant.HALVES[options.half]]
    print(f"half {options.half}, seed {seed}: {len(drawn)} cases, {len(well)} healthy", flush=True)
    root = options.keep or Path(tempfile.mkdtemp(prefix="corpus-"))
    rounds = 0 if options.quick else options.rounds
    try:
        with ThreadPoolExecutor(options.jobs) as pool:
            ran = pool.map(
                lambda at: measure(drawn[at], root / f"case{at:03}", rounds), range(len(drawn))
            )
            cases = []
            for number, case in enumerate(ran):
                tell(number, case, show)
                cases.append(case)
            ran = pool.map(lambda one: measure_healthy(one, root / f"healthy_{one.name}"), well)
            told_well = []
            for one in ran:
                tell_healthy(one, show)
                told_well.append(one)
    finally:
        if not options.keep:
            shutil.rmtree(root, ignore_errors=True)
    is_whole = not options.quick and not options.case and options.healthy != "only"
    about = {"half": options.half, "seed": seed, "rounds": rounds, "is_stored": is_whole}
    if options.keep:
        (root / ABOUT).write_text(json.dumps(about), encoding="utf-8")
    _finish(about, cases, told_well)
    return 0


def _finish(about: dict[str, Any], cases: list[dict[str, Any]], well: list[dict[str, Any]]) -> None:
    """Print and, of a whole measurement, store."""
    counted = [case for case in cases if "failed" not in case]
    result = {
        "seed": about["seed"],
        "rounds": about["rounds"],
        "cases": counted,
        "failed": [case for case in cases if "failed" in case],
        "healthy": well,
        "summary": summary(counted, well),
    }
    _print_summary(result["summary"])
    if about["is_stored"]:
        _store(about["half"], result)


def _print_summary(figures: dict[str, Any]) -> None:
    print("  " + ", ".join(f"{name} {value}" for name, value in figures.items()))


def _store(half: str, result: dict[str, Any]) -> None:
    """The other half's result stays."""
    try:
        halves = storage.load("corpus")["halves"]
    except FileNotFoundError:
        halves = {}
    print(f"  stored in {storage.save('corpus', {'halves': {**halves, half: result}})}")
