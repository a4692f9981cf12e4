"""Measured elasticities, compared with runs in which a stage is shorter."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench import storage
from bench.profiler.what_if import pipelines, seen, unseen
from bench.profiler.what_if.scaled import Program
from hotloop.profiler.what_if.result import WhatIf, read_result

FOLDER = Path(__file__).parent
NUM_PIPELINES = 10
CLOSE = 0.1
# Factors of a stage for its true elasticity. A bottleneck must remain one.
_SERIAL_FACTOR, _OTHER_FACTOR = 0.5, 0.8
# Bare runs, whole and shorter in turn, and the seconds of each.
_BARE_RUNS, _BARE_S = 9, 1.0


def measure(seconds: float) -> None:
    """Measure all programs and pipelines, print and store."""
    seconds = max(30.0, 3 * seconds)
    halves = {
        half: {
            name: _compare(f"{half}.py", name, program, seconds)
            for name, program in module.PROGRAMS.items()
        }
        for half, module in (("seen", seen), ("unseen", unseen))
    }
    drawn = [_judge_pipeline(seed, seconds) for seed in range(NUM_PIPELINES)]
    storage.save("what_if", {"seconds": seconds, **halves, "pipelines": drawn})


def _compare(script: str, name: str, program: Program, seconds: float) -> dict[str, Any]:
    """Return true and measured elasticities of a program's stages."""
    options = [option for stage in program.stages for option in ("--what-if-at", stage)]
    result = _profile(options, [str(FOLDER / script), name, str(seconds)])
    stages: dict[str, Any] = {}
    factor = _SERIAL_FACTOR if program.is_serial else _OTHER_FACTOR
    for stage in program.stages:
        ratios = [
            _period_ns(script, name, [f"{stage}={factor}"]) / _period_ns(script, name, [])
            for _ in range(_BARE_RUNS)
        ]
        true = (1 - statistics.median(ratios)) / (1 - factor)
        effect = next((e for e in result.effects if e.place.startswith(stage)), None)
        stages[stage] = {
            "true": round(true, 3),
            "measured": None if effect is None else round(effect.elasticity, 3),
            "error": None if effect is None else round(effect.error, 3),
            "samples": None if effect is None else round(effect.share, 3),
            "pairs": 0 if effect is None else effect.pairs,
        }
        print(f"  {name}, {stage}: {stages[stage]} {result.problem}", flush=True)
    is_close = all(
        x["measured"] is not None and abs(x["measured"] - x["true"]) <= CLOSE
        for x in stages.values()
    )
    return {"stages": stages, "is_close": is_close, "progress": result.progress}


def _judge_pipeline(seed: int, seconds: float) -> dict[str, Any]:
    """Return whether the bottleneck of a pipeline was named."""
    plan = pipelines.plan(seed)
    result = _profile([], [str(FOLDER / "pipelines.py"), str(seed), str(seconds)])
    place = result.bottleneck.place if result.bottleneck is not None else ""
    named = next((stage for stage in pipelines.STAGES if f" in {stage}" in place), place)
    busiest = result.busiest.place if result.busiest is not None else ""
    row = {
        "processes": plan.uses_processes,
        "bottleneck": plan.bottleneck,
        "busiest": plan.busiest,
        "named": named.partition(" (")[0],
        "samples_name": next((s for s in pipelines.STAGES if f" in {s}" in busiest), busiest),
        "elasticities": [
            [e.place, round(e.elasticity, 2), round(e.error, 2)] for e in result.effects
        ],
    }
    print(f"  pipeline {seed}: {row} {result.problem}", flush=True)
    return row


def _profile(options: list[str], command: list[str]) -> WhatIf:
    with tempfile.TemporaryDirectory(prefix="bench-what-if-") as folder:
        out = Path(folder) / "profile"
        profile = [sys.executable, "-m", "hotloop", "profile", "--what-if", *options]
        _run([*profile, "--out", str(out), *command])
        return read_result(out) or WhatIf(problem="there is no result")


def _period_ns(script: str, name: str, scaled: list[str]) -> float:
    command = [sys.executable, str(FOLDER / script), name, str(_BARE_S), *scaled]
    result = json.loads(_run(command).splitlines()[-1])
    return result["duration_ns"] / max(1, result["units"])


def _run(command: list[str]) -> str:
    path = os.pathsep.join([str(storage.ROOT), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, check=True, capture_output=True, text=True, env=environment
    ).stdout
