"""Replay buffers: a post's tables made again, growth, peers, and what it is in a training loop.

    python -m bench replay
    python -m bench replay --part loop --rounds 7
    python -m bench replay --quick

Each contender lives in a process of its own, filled once; then they are told in turn to measure
one round each, in another order each time, so that what else the machine does hits all of them. A
round's figure is the median of its repeats; kept are the median and the extremes over the rounds,
in seconds. `--quick` has small sizes, shows whether everything runs, and keeps its results apart.

Parts, each of which is stored by itself, with the machine and all libraries' versions:

- `tables`: the post's three tables (see post.py) at 1,000,000 entries.
  `replay_tables.json`: `ways`, by name: `about` and `seconds` (`probability`, `sampling`, `total`),
  or `missing`; `published`: the author's figures, by table and machine [old, new].
- `growth`: one sampling while the buffer fills. `replay_growth.json`: `fills`; `ways`, by name:
  `about`, `seconds` (a list, one for each fill). Drawn to docs/replay-growth.png.
- `peers`: sample + gather, hand-over as tensors, and update, alone (hot). `replay_peers.json`:
  `ways`, by name: `about`, `sizes`, by number of entries: `sample`, `tensors`, `update`, `both`
  (sample and update), `add`.
- `loop`: the same within a SAC-like loop, and `learn`, `iteration`. `replay_loop.json`: likewise.
- `share`: the replay's part of an update (sample, tensors and update over the iteration) and hours
  over 5,000,000 updates. `replay_share.json`: `ways`, by name: `about`, `seconds` (as above),
  `share`, `hours`, `hours_saved` (against the old way).
- `small`: `replay_small.json`: `add` and `extend_64` (seconds a call), `memory` (bytes: `fields` of
  an entry, and by layout `entry` and `parts`), `start` (`cold`, `warm`: `imports`, `first_calls`,
  `process`).

A figure is {"median", "min", "max"}; what could not be measured is {"missing": why}.
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
from bench.replay.ways import WAYS
from bench.replay.workers import QUICK, Entrant, Scale, compare, entrant

FIGURE = storage.DOCS / "replay-growth.png"
UPDATES_OF_THE_SEED = 5_000_000
PEERS = ("numba", "cpprb", "tianshou", "torchrl", "sumtree", "pybind11")
HOTLOOPS = ("hotloop_proportional", "hotloop_uniform", "hotloop_prioritized", "hotloop_rank_based")


def show(about: str, figures: dict[str, Any], names: Sequence[str]) -> None:
    """One line, in microseconds."""
    if "missing" in figures:
        return
    cells = [f"{name} {figures[name]['median'] * 1e6:,.1f}" for name in names if name in figures]
    print(f"  {about:52} {', '.join(cells)} µs")


def store(part: str, result: dict[str, Any]) -> None:
    """Write one part's result."""
    path = storage.save(f"replay_{part}", result, peers=PEERS)
    print(f"stored: {path.parent.name}/{path.name}")


def tables(scale: Scale, rounds: int) -> None:
    """The seed's three tables."""
    abouts = {name: about for name, (about, _) in PROCEDURES.items()}
    abouts["hotloop"] = "hotloop, the batch gathered as well"
    entrants = [Entrant(way, scale.large, about, 260) for way, about in abouts.items()]
    ways = {}
    for one, figures in zip(entrants, compare("table", entrants, rounds, scale), strict=True):
        show(one.about, figures, ("probability", "sampling", "total"))
        missing = "missing" in figures
        ways[one.way] = {"about": one.about, **(figures if missing else {"seconds": figures})}
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


def growth(scale: Scale, rounds: int) -> None:
    """Time per sampling against fill."""
    fills = [scale.large * point // scale.points for point in range(1, scale.points + 1)]
    # Below two batches the old way may find too few entries with weight.
    fills = sorted({max(2 * BATCH, fill) for fill in (scale.large // 1_000, *fills)})
    abouts = {name: PROCEDURES[name][0] for name in ("numpy_old", "torch_new")}
    abouts["hotloop"] = "hotloop, the batch gathered as well"
    entrants = [Entrant(way, scale.large, about, 260) for way, about in abouts.items()]
    short = scale._replace(seconds=scale.seconds / 4) if scale is not QUICK else scale
    figures = compare("table", entrants, rounds, short, [{"fill": fill} for fill in fills])
    ways: dict[str, Any] = {}
    for number, one in enumerate(entrants):
        points = figures[number * len(fills) : (number + 1) * len(fills)]
        if "missing" in points[0]:
            ways[one.way] = {"about": one.about, **points[0]}
            continue
        show(f"{one.about}, at {fills[-1]:,}", points[-1], ("total",))
        ways[one.way] = {"about": one.about, "seconds": [point["total"] for point in points]}
    store("growth", {"fills": fills, "batch": BATCH, "rounds": rounds, "ways": ways})
    path = FIGURE if scale is not QUICK else storage.RESULTS / FIGURE.name
    draw_growth(fills, ways, path)
    print(f"drawn: {path.name}")


def draw_growth(fills: list[int], ways: dict[str, Any], path: Path) -> None:
    """The figure: as its author drew it, and again with a logarithmic axis."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    colours = {"numpy_old": "tab:red", "torch_new": "tab:green", "hotloop": "tab:blue"}
    labels = {"numpy_old": "old: NumPy", "torch_new": "new: PyTorch", "hotloop": "hotloop"}
    figure, panels = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for panel, scale in zip(panels, ("linear", "log"), strict=True):
        for way, colour in colours.items():
            if "seconds" not in ways[way]:
                continue
            points = ways[way]["seconds"]
            low, middle, high = (
                [point[name] * 1e3 for point in points] for name in ("min", "median", "max")
            )
            panel.plot(fills, middle, color=colour, label=labels[way])
            panel.fill_between(fills, low, high, color=colour, alpha=0.2, linewidth=0)
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
    """Collect the sizes of each way."""
    ways: dict[str, Any] = {}
    for one, measured in zip(entrants, figures, strict=True):
        ways.setdefault(one.way, {"about": one.about, "sizes": {}})
        ways[one.way]["sizes"][str(one.size)] = measured
    return ways


def peers(scale: Scale, rounds: int) -> None:
    """All contenders alone."""
    others = ("hotloop_long_tail", "sb3", "cpprb", "tianshou", "torchrl", "sumtree")
    entrants: list[Entrant] = []
    results: list[dict[str, Any]] = []
    for size in (*scale.sizes, scale.huge):
        ways = (*HOTLOOPS, "sumtree") if size == scale.huge else (*HOTLOOPS, *others)
        print(f"{size:,} entries ", end="")
        some = [entrant(way, size) for way in ways]
        figures = compare("alone", some, rounds, scale)
        for one, measured in zip(some, figures, strict=True):
            if one.way == "sumtree" and "sample" in measured:
                measured = {"sample": measured["sample"]}
            show(one.about, measured, ("sample", "tensors", "update", "both", "add"))
            entrants.append(one)
            results.append(measured)
    store("peers", {"batch": BATCH, "rounds": rounds, "ways": by_way(entrants, results)})


LOOP_NAMES = ("sample", "tensors", "update", "both", "add", "learn", "iteration")


def loop(scale: Scale, rounds: int) -> None:
    """All contenders within the loop."""
    entrants = [entrant("hotloop_proportional", size) for size in (*scale.sizes, scale.huge)]
    entrants += [
        entrant(way, scale.large) for way in WAYS if way not in ("hotloop_proportional", "sumtree")
    ]
    figures = compare("loop", entrants, rounds, scale)
    for one, measured in zip(entrants, figures, strict=True):
        show(f"{one.about}, {one.size:,}", measured, LOOP_NAMES)
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


def share(scale: Scale, rounds: int) -> None:
    """What replay takes of training, and hours."""
    names = ("seed_numpy_old", "seed_torch_new", "sb3", "hotloop_proportional")
    entrants = [entrant(way, scale.large) for way in names]
    figures = compare("loop", entrants, rounds, scale)
    ways: dict[str, Any] = {}
    hours_of_the_old = None
    for one, measured in zip(entrants, figures, strict=True):
        if "missing" in measured:
            ways[one.way] = {"about": one.about, **measured}
            continue
        replay, whole = (measured[name]["median"] for name in ("replay", "iteration"))
        hours = replay * UPDATES_OF_THE_SEED / 3_600
        ways[one.way] = {
            "about": one.about,
            "seconds": measured,
            "share": replay / whole,
            "hours": hours,
            "hours_saved": None if hours_of_the_old is None else hours_of_the_old - hours,
        }
        if one.way == "seed_numpy_old":
            hours_of_the_old = hours
        print(
            f"  {one.about:52} {replay / whole:.1%} of {whole * 1e3:.2f} ms, {hours:.1f} h replay"
        )
    store("share", {"updates": UPDATES_OF_THE_SEED, "rounds": rounds, "ways": ways})


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


def start(cache: str) -> dict[str, Any]:
    """A process that does everything once; `missing`, if it fails."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", START],
        env={**os.environ, "NUMBA_CACHE_DIR": cache},
        capture_output=True,
        text=True,
    )
    process = time.perf_counter() - began
    if done.returncode:
        return {"missing": f"failed: {''.join(done.stderr.strip().splitlines()[-1:])[:200]}"}
    return {**json.loads(done.stdout.splitlines()[-1]), "process": process}


def small(scale: Scale, rounds: int) -> None:
    """add, extend, memory, and what a process pays once."""
    adding = [entrant("hotloop_proportional", scale.large), entrant("hotloop_shared", scale.large)]
    adds = compare("alone", adding, rounds, scale)
    layouts = {"plain": "next_obs stored", "shared": "next_obs shared"}
    extending = [Entrant(way, scale.large, f"hotloop, {it}", 260) for way, it in layouts.items()]
    extends = compare("extend", extending, rounds, scale)
    sizes = compare("memory", extending, 1, scale)
    result: dict[str, Any] = {"rounds": rounds, "add": {}, "extend_64": {}, "memory": {}}
    for one, added, extended, parts in zip(extending, adds, extends, sizes, strict=True):
        result["add"][one.way] = added.get("add", added)
        result["extend_64"][one.way] = extended.get("extend_64", extended)
        if "missing" in parts:
            result["memory"][one.way] = parts
            continue
        counts = {name: int(figure["median"]) for name, figure in parts.items()}
        entry = counts.get("total", sum(counts.values())) / one.size
        result["memory"][one.way] = {"entry": entry, "parts": counts, "entries": one.size}
        show(f"add, {one.about}", added, ("add",))
        show(f"extend of 64, {one.about}", extended, ("extend_64",))
        print(f"  memory, {one.about}: {entry:.1f} bytes an entry")
    step = Steps().rows(0, 1)
    result["memory"]["fields"] = {
        "plain": sum(values.nbytes for values in step.values()),
        "shared": sum(values.nbytes for name, values in step.items() if name != "next_obs"),
    }
    result["start"] = starts(scale.starts)
    store("small", result)


def starts(count: int) -> dict[str, Any]:
    """Processes with an empty cache of compiled functions, each followed by two with a full one."""
    kinds: dict[str, list[dict[str, float]]] = {"cold": [], "warm": []}
    for _ in range(count):
        with tempfile.TemporaryDirectory() as cache:
            for kind in ("cold", "warm", "warm"):
                figures = start(cache)
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


RUN: dict[str, Callable[[Scale, int], None]] = {
    "tables": tables,
    "growth": growth,
    "peers": peers,
    "loop": loop,
    "share": share,
    "small": small,
}


def main() -> int:
    """Measure, print, store."""
    seconds = "of a round's one measurement"
    return run_parts("replay", __doc__, RUN, scale=Scale(), quick=QUICK, seconds=seconds)
