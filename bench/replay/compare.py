"""Replay buffers: a blog post's tables, growth, other libraries, and the share of a training loop.

    python -m bench replay
    python -m bench replay --part loop --rounds 7
    python -m bench replay --quick

Each contender has its own process and fills its buffer once. The processes then measure one round
each in turn, in a new order each time, so that other load on the machine affects all alike. A
round's figure is the median of its repeats. Median, minimum and maximum over the rounds are stored,
in seconds. `--quick` uses small sizes to test that everything runs and stores results in a
temporary folder.

Each part is stored in its own file with the machine and the libraries' versions:

- `tables`: the post's three tables (see post.py) at 1,000,000 entries.
  `replay_tables.json`: `ways`, by name: `about` and `seconds` (`probability`, `sampling`, `total`),
  or `missing`; `published`: the author's figures, by table and machine [old, new].
- `growth`: one sampling while the buffer fills. `replay_growth.json`: `fills`; `ways`, by name:
  `about`, `seconds` (a list over fills). Plot: docs/replay-growth.png.
- `peers`: sample + gather, conversion to tensors, and update, alone with warm caches.
  `replay_peers.json`: `ways`, by name: `about`, `sizes`, by number of entries: `sample`, `tensors`,
  `update`, `both` (sample and update), `add`.
- `loop`: the same within a SAC-like loop, with `learn` and `iteration`. `replay_loop.json`:
  likewise.
- `share`: replay's share of an update (sample, tensors and update over the iteration) and hours
  over 5,000,000 updates. `replay_share.json`: `ways`, by name: `about`, `seconds` (as above),
  `share`, `hours`, `hours_saved` (compared with the old way).
- `small`: `replay_small.json`: `add` and `extend_64` (seconds per call), `memory` (bytes: `fields`
  of an entry, and by layout `entry` and `parts`), `start` (`cold`, `warm`: `imports`,
  `first_calls`, `process`).

A figure is {"median", "min", "max"}; a missing figure is {"missing": reason}.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench import storage
from bench.measuring import spread
from bench.parts import run_parts
from bench.replay.contenders import BATCH, Steps
from bench.replay.post import PROCEDURES, PUBLISHED
from bench.replay.registry import WAYS
from bench.replay.workers import QUICK, Entrant, ReplayScale, compare, make_entrant

FIGURE = storage.DOCS / "replay-growth.png"
POST_UPDATES = 5_000_000
PEERS = ("numba", "cpprb", "tianshou", "torchrl", "sumtree", "pybind11")
HOTLOOPS = ("hotloop_proportional", "hotloop_uniform", "hotloop_prioritized", "hotloop_rank_based")


def print_figures(label: str, figures: dict[str, Any], names: Sequence[str]) -> None:
    """Print one line with figures in microseconds."""
    if "missing" in figures:
        return
    cells = [f"{name} {figures[name]['median'] * 1e6:,.1f}" for name in names if name in figures]
    print(f"  {label:52} {', '.join(cells)} µs")


def store(part: str, result: dict[str, Any]) -> None:
    """Store the result of a part."""
    path = storage.save(f"replay_{part}", result, peers=PEERS)
    print(f"stored: {path.parent.name}/{path.name}")


def tables(scale: ReplayScale, rounds: int) -> None:
    """Measure the post's three tables."""
    labels = {name: label for name, (label, _) in PROCEDURES.items()}
    labels["hotloop"] = "hotloop, the batch gathered as well"
    entrants = [Entrant(way, scale.large, label, 260) for way, label in labels.items()]
    ways = {}
    for entrant, figures in zip(entrants, compare("table", entrants, rounds, scale), strict=True):
        print_figures(entrant.label, figures, ("probability", "sampling", "total"))
        missing = "missing" in figures
        ways[entrant.way] = {
            "about": entrant.label,
            **(figures if missing else {"seconds": figures}),
        }
    store(
        "tables",
        {
            "entries": scale.large,
            "batch": BATCH,
            "rounds": rounds,
            "ways": ways,
            "published": PUBLISHED,
        },
    )


def growth(scale: ReplayScale, rounds: int) -> None:
    """Measure the time of one sampling by number of entries."""
    fills = [scale.large * point // scale.points for point in range(1, scale.points + 1)]
    # With less than two batches the old way may have too few entries with weight.
    fills = sorted({max(2 * BATCH, fill) for fill in (scale.large // 1_000, *fills)})
    labels = {name: PROCEDURES[name][0] for name in ("numpy_old", "torch_new")}
    labels["hotloop"] = "hotloop, the batch gathered as well"
    entrants = [Entrant(way, scale.large, label, 260) for way, label in labels.items()]
    short = scale._replace(seconds=scale.seconds / 4) if scale is not QUICK else scale
    figures = compare("table", entrants, rounds, short, [{"fill": fill} for fill in fills])
    ways: dict[str, Any] = {}
    for number, entrant in enumerate(entrants):
        points = figures[number * len(fills) : (number + 1) * len(fills)]
        if "missing" in points[0]:
            ways[entrant.way] = {"about": entrant.label, **points[0]}
            continue
        print_figures(f"{entrant.label}, at {fills[-1]:,}", points[-1], ("total",))
        ways[entrant.way] = {
            "about": entrant.label,
            "seconds": [point["total"] for point in points],
        }
    store("growth", {"fills": fills, "batch": BATCH, "rounds": rounds, "ways": ways})
    path = FIGURE if scale is not QUICK else storage.RESULTS / FIGURE.name
    draw_growth(fills, ways, path)
    print(f"drawn: {path.name}")


def draw_growth(fills: list[int], ways: dict[str, Any], path: Path) -> None:
    """Draw the author's figure, with a linear and with a logarithmic axis."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    colors = {"numpy_old": "tab:red", "torch_new": "tab:green", "hotloop": "tab:blue"}
    labels = {"numpy_old": "old: NumPy", "torch_new": "new: PyTorch", "hotloop": "hotloop"}
    figure, panels = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for panel, scale in zip(panels, ("linear", "log"), strict=True):
        for way, color in colors.items():
            if "seconds" not in ways[way]:
                continue
            points = ways[way]["seconds"]
            low, middle, high = (
                [point[name] * 1e3 for point in points] for name in ("min", "median", "max")
            )
            panel.plot(fills, middle, color=color, label=labels[way])
            panel.fill_between(fills, low, high, color=color, alpha=0.2, linewidth=0)
        panel.set_yscale(scale)
        panel.set_xlabel("entries in the buffer")
        panel.set_ylabel("one sampling, ms")
        panel.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        panel.grid(alpha=0.3)
    panels[0].set_ylim(bottom=0)
    panels[0].legend()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def by_way(entrants: Sequence[Entrant], figures: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures by way and size."""
    ways: dict[str, Any] = {}
    for entrant, measured in zip(entrants, figures, strict=True):
        ways.setdefault(entrant.way, {"about": entrant.label, "sizes": {}})
        ways[entrant.way]["sizes"][str(entrant.size)] = measured
    return ways


def peers(scale: ReplayScale, rounds: int) -> None:
    """Measure all contenders alone."""
    other_ways = ("hotloop_long_tail", "sb3", "cpprb", "tianshou", "torchrl", "sumtree")
    entrants: list[Entrant] = []
    results: list[dict[str, Any]] = []
    for size in (*scale.sizes, scale.huge):
        ways = (*HOTLOOPS, "sumtree") if size == scale.huge else (*HOTLOOPS, *other_ways)
        print(f"{size:,} entries ", end="")
        contenders = [make_entrant(way, size) for way in ways]
        figures = compare("alone", contenders, rounds, scale)
        for entrant, measured in zip(contenders, figures, strict=True):
            if entrant.way == "sumtree" and "sample" in measured:
                measured = {"sample": measured["sample"]}
            print_figures(entrant.label, measured, ("sample", "tensors", "update", "both", "add"))
            entrants.append(entrant)
            results.append(measured)
    store("peers", {"batch": BATCH, "rounds": rounds, "ways": by_way(entrants, results)})


LOOP_NAMES = ("sample", "tensors", "update", "both", "add", "learn", "iteration")


def loop(scale: ReplayScale, rounds: int) -> None:
    """Measure all contenders within the loop."""
    entrants = [make_entrant("hotloop_proportional", size) for size in (*scale.sizes, scale.huge)]
    entrants += [
        make_entrant(way, scale.large)
        for way in WAYS
        if way not in ("hotloop_proportional", "sumtree")
    ]
    figures = compare("loop", entrants, rounds, scale)
    for entrant, measured in zip(entrants, figures, strict=True):
        print_figures(f"{entrant.label}, {entrant.size:,}", measured, LOOP_NAMES)
    store(
        "loop",
        {
            "batch": BATCH,
            "rounds": rounds,
            "updates": scale.updates,
            "threads": 2,
            "ways": by_way(entrants, figures),
        },
    )


def share(scale: ReplayScale, rounds: int) -> None:
    """Measure replay's share of training, and its hours."""
    names = ("seed_numpy_old", "seed_torch_new", "sb3", "hotloop_proportional")
    entrants = [make_entrant(way, scale.large) for way in names]
    figures = compare("loop", entrants, rounds, scale)
    ways: dict[str, Any] = {}
    hours_of_the_old = None
    for entrant, measured in zip(entrants, figures, strict=True):
        if "missing" in measured:
            ways[entrant.way] = {"about": entrant.label, **measured}
            continue
        replay_s, iteration_s = (measured[name]["median"] for name in ("replay", "iteration"))
        hours = replay_s * POST_UPDATES / 3_600
        ways[entrant.way] = {
            "about": entrant.label,
            "seconds": measured,
            "share": replay_s / iteration_s,
            "hours": hours,
            "hours_saved": None if hours_of_the_old is None else hours_of_the_old - hours,
        }
        if entrant.way == "seed_numpy_old":
            hours_of_the_old = hours
        print(
            f"  {entrant.label:52} {replay_s / iteration_s:.1%} of {iteration_s * 1e3:.2f} ms, "
            f"{hours:.1f} h replay"
        )
    store("share", {"updates": POST_UPDATES, "rounds": rounds, "ways": ways})


START = """
import json, time
began = time.perf_counter()
import numpy as np
from hotloop.replay import Proportional, ReplayBuffer
imported = time.perf_counter()
fields = {"obs": ((17,), np.float32), "action": ((6,), np.float32), "reward": ((), np.float32),
          "next_obs": ((17,), np.float32),
          "terminated": ((), np.bool_), "truncated": ((), np.bool_)}
sampler = Proportional(replacement=False)
buffer = ReplayBuffer(capacity=10_000, fields=fields, sampler=sampler, seed=0)
row = {name: np.zeros(shape, kind) for name, (shape, kind) in fields.items()}
rows = {name: np.zeros((1_000, *shape), kind) for name, (shape, kind) in fields.items()}
buffer.add(**row, weight=1.0)
buffer.extend(**rows, weight=np.ones(1_000))
batch = buffer.sample(256)
buffer.update_weights(batch.index, np.ones(256))
called = time.perf_counter()
print(json.dumps({"imports": imported - began, "first_calls": called - imported}))
"""


def time_process(cache: str) -> dict[str, Any]:
    """Time a process that calls everything once. Return `missing` if it fails."""
    start_s = time.perf_counter()
    completed = subprocess.run(
        [sys.executable, "-c", START],
        env={**os.environ, "HOTLOOP_CACHE": cache},
        capture_output=True,
        text=True,
    )
    process = time.perf_counter() - start_s
    if completed.returncode:
        return {"missing": f"failed: {''.join(completed.stderr.strip().splitlines()[-1:])[:200]}"}
    return {**json.loads(completed.stdout.splitlines()[-1]), "process": process}


def small(scale: ReplayScale, rounds: int) -> None:
    """Measure add, extend, memory, and a process's start."""
    add_entrants = [
        make_entrant("hotloop_proportional", scale.large),
        make_entrant("hotloop_shared", scale.large),
    ]
    adds = compare("alone", add_entrants, rounds, scale)
    layouts = {"plain": "next_obs stored", "shared": "next_obs shared"}
    layout_entrants = [
        Entrant(way, scale.large, f"hotloop, {description}", 260)
        for way, description in layouts.items()
    ]
    extends = compare("extend", layout_entrants, rounds, scale)
    sizes = compare("memory", layout_entrants, 1, scale)
    result: dict[str, Any] = {"rounds": rounds, "add": {}, "extend_64": {}, "memory": {}}
    for entrant, added, extended, parts in zip(layout_entrants, adds, extends, sizes, strict=True):
        result["add"][entrant.way] = added.get("add", added)
        result["extend_64"][entrant.way] = extended.get("extend_64", extended)
        if "missing" in parts:
            result["memory"][entrant.way] = parts
            continue
        counts = {name: int(figure["median"]) for name, figure in parts.items()}
        entry = counts.get("total", sum(counts.values())) / entrant.size
        result["memory"][entrant.way] = {"entry": entry, "parts": counts, "entries": entrant.size}
        print_figures(f"add, {entrant.label}", added, ("add",))
        print_figures(f"extend of 64, {entrant.label}", extended, ("extend_64",))
        print(f"  memory, {entrant.label}: {entry:.1f} bytes per entry")
    step = Steps().rows(0, 1)
    result["memory"]["fields"] = {
        "plain": sum(values.nbytes for values in step.values()),
        "shared": sum(values.nbytes for name, values in step.items() if name != "next_obs"),
    }
    result["start"] = time_processes(scale.starts)
    store("small", result)


def time_processes(count: int) -> dict[str, Any]:
    """Time processes with an empty cache of compiled functions, each with two warm ones after."""
    kinds: dict[str, list[dict[str, float]]] = {"cold": [], "warm": []}
    for _ in range(count):
        with tempfile.TemporaryDirectory() as cache:
            for kind in ("cold", "warm", "warm"):
                figures = time_process(cache)
                if "missing" in figures:
                    print(f"  start: {figures['missing']}")
                    return figures
                kinds[kind].append(figures)
    result = {}
    for kind, runs in kinds.items():
        result[kind] = {name: spread([run[name] for run in runs]) for name in runs[0]}
        cells = [f"{name} {result[kind][name]['median']:.2f} s" for name in result[kind]]
        print(f"  start, {kind} cache: {', '.join(cells)}")
    return result


RUN: dict[str, Callable[[ReplayScale, int], None]] = {
    "tables": tables,
    "growth": growth,
    "peers": peers,
    "loop": loop,
    "share": share,
    "small": small,
}


def main() -> int:
    """Run the chosen parts."""
    seconds = "duration of one measurement in a round"
    return run_parts("replay", __doc__, RUN, scale=ReplayScale(), quick=QUICK, seconds=seconds)
