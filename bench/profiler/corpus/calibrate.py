"""Calibration: durations of programs, passes of their slots, and costs of a cause's lines.

A program runs once unchanged for its durations, and once with a counter in each slot. A cause's
lines run alone at a few sizes, slow and fixed, with substitutes for the roles.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.profiler.corpus import plant
from bench.profiler.corpus.cause import Cause, causes
from bench.profiler.corpus.template import CALIBRATION, MARKER, Program, calibration, programs

NUM_SLOTS = 32
# Number of passes with negligible counting time.
NEGLIGIBLE = 300_000
# Shared with forked processes.
COUNTERS = f"""\
import mmap as _mmap, numpy as _np, atexit as _atexit, os as _os
_counts = _np.frombuffer(_mmap.mmap(-1, {NUM_SLOTS * 8}), _np.int64)
_owner = _os.getpid()
@_atexit.register
def _write_counts():
    if _os.getpid() == _owner:
        open("counts.txt", "w").write(" ".join(map(str, _counts)))
"""
COUNTED = """\
class _Counted{number}(gym.Wrapper):
    def step(self, action):
        _counts[{number}] += 1
        return self.env.step(action)
"""
# Program that measures a cause's lines with substitutes for roles.
HARNESS = """\
import itertools, json, sys, time
import numpy as np
import os, tempfile
os.chdir(tempfile.mkdtemp())
{roles}
{imports}
{module}
def measured(text, num, limit_s=1.5):
    code = compile(text or "pass", "<lines>", "exec")
    began = time.perf_counter()
    for at in range(num):
        globals()["count"] = at
        exec(code, globals())
        if time.perf_counter() - began > limit_s:
            break
    return time.perf_counter() - began, at + 1
"""
ROLES = {
    "obs": "obs = np.random.default_rng(0).normal(size=8).astype(np.float32)",
    "action": "action = 1",
    "reward": "reward = 1.0",
    "count": "count = 12",
    "net": "import torch\ntorch.set_num_threads(1)\n"
    "net = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), "
    "torch.nn.Tanh(), torch.nn.Linear(64, 2))",
}


def calibrate(names: list[str]) -> int:
    """Measure the named programs and causes, those without figures (`missing`), or all."""
    known = calibration()
    missing = names == ["missing"]
    for program in programs().values():
        if (missing and program.name in known["programs"]) or (
            names and not missing and program.name not in names
        ):
            continue
        known["programs"][program.name] = of_program(program)
        print(program.name, known["programs"][program.name], flush=True)
        _write(known)
    for cause in causes().values():
        if cause.expected is not None or (missing and cause.name in known["causes"]):
            continue
        if names and not missing and cause.name not in names:
            continue
        known["causes"][cause.name] = of_cause(cause)
        print(cause.name, known["causes"][cause.name], flush=True)
        _write(known)
    return 0


def _write(known: dict[str, Any]) -> None:
    known = {
        "programs": {
            name: figures
            for name, figures in sorted(known["programs"].items())
            if name in programs()
        },
        "causes": {
            name: figures for name, figures in sorted(known["causes"].items()) if name in causes()
        },
    }
    text = ",\n".join(
        f"{json.dumps(kind)}: {{\n"
        + ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in entries.items())
        + "\n}"
        for kind, entries in known.items()
    )
    CALIBRATION.write_text("{\n" + text + "\n}\n")


def of_program(program: Program) -> dict[str, Any]:
    """Return a program's seconds before and in its loop, and the passes of each slot."""
    from bench.profiler.corpus.run import run

    arguments = [plant.SCRIPT, program.option, str(program.length)]
    with tempfile.TemporaryDirectory(prefix="corpus-") as name:
        folder = Path(name)
        (folder / plant.SCRIPT).write_text(_with_counters(program))
        whole_s, loop_s = run(arguments, folder)
        counts = [int(count) for count in (folder / "counts.txt").read_text().split()]
        if max(counts) > NEGLIGIBLE:
            (folder / plant.SCRIPT).write_text(plant.healthy(program))
            whole_s, loop_s = run(arguments, folder)
    calls = {str(number): counts[number] for number in range(len(program.slots))}
    return {"start_s": round(whole_s - loop_s, 2), "loop_s": round(loop_s, 2), "calls": calls}


def _with_counters(program: Program) -> str:
    slots = {slot.line: (number, slot) for number, slot in enumerate(program.slots)}
    lines: list[str] = []
    for index, line in enumerate(program.lines):
        match = MARKER.match(line)
        if index in slots:
            number, slot = slots[index]
            env = slot.roles.get("env")
            wrapped = f"{env} = _Counted{number}({env})"
            text = wrapped if slot.kind == "wrap" else f"_counts[{number}] += 1"
            lines.append(slot.indent + text)
        elif match and match[2] == "globals":
            lines += COUNTERS.splitlines()
            for number, slot in slots.values():
                lines += COUNTED.format(number=number).splitlines() if slot.kind == "wrap" else []
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def of_cause(cause: Cause) -> list[float]:
    """Return the microseconds of a call of size 0, and per unit of size (and earlier call)."""
    if cause.cost_us is not None:
        return list(cause.cost_us)
    low, high = cause.sizes
    middle = (low * high) ** 0.5
    sizes = [low] if high == low else [low, middle]
    costs = []
    for size in sizes:
        slow_us, num = _lines_us(cause, size, True)
        costs.append(
            (size, slow_us - (0 if cause.grows else _lines_us(cause, size, False)[0]), num)
        )
    if cause.grows:
        # The cost of each of n calls is proportional to the number of earlier calls.
        per = max(us / (size * num / 2) for size, us, num in costs)
        return [0.5, round(per, 6)]
    if len(costs) == 1:
        return [round(max(costs[0][1], 0.1), 3), 0.0]
    (small, small_us, _), (large, large_us, _) = costs
    per = max((large_us - small_us) / (large - small), 0.0)
    return [round(max(small_us - per * small, 0.0), 3), round(per, 6)]


def _lines_us(cause: Cause, size: float, is_slow: bool) -> tuple[float, int]:
    """Return the mean microseconds of a call, and the number of calls."""
    size_text = str(max(1, round(size))) if cause.is_whole else repr(float(f"{size:.4g}"))
    names = {name: name for name in cause.state_names} | {"size": size_text}
    roles = {role: role for role in cause.roles}
    module = [cause.shared, cause.slow_globals if is_slow else cause.fixed_globals, cause.state]
    text = "\n".join(plant._fill("\n".join(module), names))
    body = "\n".join(plant._fill(cause.slow if is_slow else cause.fixed, names | roles))
    harness = HARNESS.format(
        roles="\n".join(ROLES[role] for role in sorted(cause.roles, key=list(ROLES).index)),
        imports=cause.imports,
        module=text,
    )
    harness += f"print('loop', *measured({body!r}, 200000))\n"
    with tempfile.TemporaryDirectory(prefix="corpus-") as name:
        path = Path(name) / "lines.py"
        path.write_text(harness)
        completed = subprocess.run(
            [sys.executable, str(path)], capture_output=True, text=True, timeout=120
        )
    if completed.returncode:
        raise RuntimeError(f"{cause.name}: {completed.stderr[-800:]}")
    seconds, num = re.findall(r"loop ([\d.e-]+) (\d+)", completed.stdout)[-1]
    return float(seconds) / int(num) * 1e6, int(num)
