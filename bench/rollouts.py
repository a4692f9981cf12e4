"""Rollouts by workers: steps of uneven length, beside peers that step in lock-step.

    python -m bench rollouts
    python -m bench rollouts --part lockstep --rounds 3
    python -m bench rollouts --quick

Each way is measured in a process of its own, one after another, in another order each round, so
that what else the machine does hits all of them; kept are the median and the extremes over the
rounds. `--quick` has small sizes, shows whether everything runs, and keeps its results apart.

Parts, each of which is stored by itself, with the machine and all libraries' versions:

- `lockstep`: 24 workers of one environment, whose steps sleep 3 ms, each with probability 0.1
  independently 100 ms; and again with 1 % of the steps ending the episode and resets of 2 s.
  `rollouts_lockstep.json`: `cases`, by name: `about`, `law` (transitions a second by arithmetic,
  and at 20 % load), `ways`, by name: `about`, `law` (its key there), and the figures of
  `rollout_ways.sample` by load.
- `diagnostic`: a post's table. `rollouts_diagnostic.json`: `ways`, by name: `about` and the figures
  of `rollout_ways.diagnose`, `hours` and `hours_wasted` over 20,000,000 transitions; `published`.
- `curves`: expected speed-up over lock-step by the standard deviation of steps and of resets, and
  points of it measured. `rollouts_curves.json`: `panels`, by name: `about`, `std` (over the mean),
  `ways` (lists), `points`. Drawn to docs/workers-curves.png; and docs/workers-waiting.png, who
  waits when, by the same arithmetic.
- `cheap`: CartPole, two workers of eight environments, beside the bare environments in two
  processes. `rollouts_cheap.json`: `ways`, by name: `about`, `rate`, `of_bare`.
- `overhead`: of a fragment, by an environment that does nothing; and what starting takes.
  `rollouts_overhead.json`: `fragments`: `num_steps`, `num_envs`, `inline`, `processes`, `overhead`
  (seconds); `start`: the figures of `rollout_ways.start`.
- `ppo`: whole trainings on CartPole. `rollouts_ppo.json`: `ways`, by name: `about` and the figures
  of `train.summary`; `ratio`, of the rate to Stable-Baselines3's, and `ratio_total`.

- `auto`: whole trainings with `--workers auto` beside inline, where environments take microseconds,
  tenths of a millisecond and tens of milliseconds. `rollouts_auto.json`: `cases`, a list: `about`,
  `timesteps`, `inline` and `auto` (seconds in all), `workers` (that were chosen), `ratio` (of the
  rates).

A figure is {"median", "min", "max"}; what could not be measured is {"missing": why}.
"""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import statistics
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from bench import storage, train
from bench.parts import run_parts
from bench.rollout_arithmetic import loaded, rates, timelines, uneven
from bench.rollout_ways import CARTPOLE, UNEVEN, measure

FIGURES = Path(__file__).parent.parent / "docs"
LIBRARIES = ("envpool",)
LOAD = 0.2
TRANSITIONS_OF_THE_SEED = 20_000_000
# The post's diagnostic of its own experiment, in seconds, and the whole in hours: 24 cores, another
# machine, an environment of its own.
PUBLISHED = {
    "Stable Baselines (vectorised)": {
        "sampling_s": 150.0,
        "optimising_s": 13.0,
        "reset_s": 0.1,
        "inference_s": 0.8e-3,
        "step_s": 24e-3,
        "hours": [7.0, 10.0],
    },
    "RLlib (batched)": {
        "sampling_s": 20.0,
        "optimising_s": 13.0,
        "reset_s": 0.1,
        "inference_s": 1e-3,
        "step_s": 3e-3,
        "hours": [1.5, 2.5],
    },
}


class Scale(NamedTuple):
    """How much is measured."""

    seconds: float = 20.0
    """Of one measurement with sleeping environments; of those with resets half as much again."""
    workers: int = 24
    num_steps: int = 128
    iterations: int = 10
    lockstep_iterations: int = 3
    cheap_seconds: float = 5.0
    num_fragments: int = 300
    """Drawn for the arithmetic."""
    points: int = 21
    timesteps: int = 102_400


QUICK = Scale(1.0, 3, 8, 3, 2, 0.5, 20, 3, 4_096)

OURS = {
    "variable": "hotloop, `variable`",
    "variable overlap": "hotloop, `variable`, overlapped",
    "async": "hotloop, `async`",
    "barrier": "hotloop, `barrier`",
    "barrier overlap": "hotloop, `barrier`, overlapped",
}
PEERS = {
    "sb3": "Stable-Baselines3, SubprocVecEnv",
    "gymnasium": "Gymnasium, AsyncVectorEnv",
}
LAWS = {"barrier": "barrier", "barrier overlap": "overlap", "sb3": "lockstep"}
LAWS["gymnasium"] = "lockstep"


def spread(values: list[float]) -> dict[str, float]:
    """Median and range over rounds."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def alternate(
    measures: Mapping[str, Callable[[], dict[str, Any]]], rounds: int
) -> dict[str, dict[str, Any]]:
    """Take all measurements in turn, in the other direction every other round.

    Returns:
        By name the spread of each figure over the rounds, or `missing`.
    """
    series: dict[str, dict[str, list[float]]] = {name: {} for name in measures}
    missing: dict[str, str] = {}
    for number in range(rounds):
        for name in list(measures)[:: 1 if number % 2 == 0 else -1]:
            if name in missing:
                continue
            figures = measures[name]()
            if "missing" in figures:
                missing[name] = figures["missing"]
                print(f"  {name}: {figures['missing']}")
                continue
            for figure, value in figures.items():
                series[name].setdefault(figure, []).append(value)
            print(".", end="", flush=True)
    print()
    return {
        name: {"missing": missing[name]}
        if name in missing
        else {figure: spread(values) for figure, values in figures.items()}
        for name, figures in series.items()
    }


def store(part: str, result: dict[str, Any]) -> None:
    """Write one part's result."""
    versions = {}
    for library in LIBRARIES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[library] = importlib.metadata.version(library)
    path = storage.save(f"rollouts_{part}", {"peers_versions": versions, **result})
    print(f"stored: {path.parent.name}/{path.name}")


def figure_path(name: str, scale: Scale) -> Path:
    """Where a figure is drawn."""
    return (storage.RESULTS if scale is QUICK else FIGURES) / name


# --- steps of uneven length -----------------------------------------------------------------------

CASES: dict[str, tuple[str, dict[str, float], float]] = {
    "steps": ("steps of 3 ms, one in ten of 100 ms", {}, 1.0),
    "resets": (
        "the same, 1 % of the steps followed by a reset of 2 s",
        {"end_share": 0.01, "reset_s": 2.0},
        1.5,
    ),
}


def lockstep(scale: Scale, rounds: int) -> None:
    """Everybody's rate beside the sum of the workers' rates alone."""
    cases: dict[str, Any] = {}
    for case, (about, env_kwargs, times) in CASES.items():
        law = uneven(**env_kwargs)
        sizes: dict[str, Any] = {
            "num_envs": scale.workers,
            "num_steps": scale.num_steps,
            "num_fragments": scale.num_fragments,
        }
        by_law, by_law_loaded = rates(law, **sizes), loaded(law, LOAD, **sizes)
        asked: dict[str, Any] = {
            "workers": scale.workers,
            "num_steps": scale.num_steps,
            "seconds": scale.seconds * times,
            "env_kwargs": env_kwargs,
        }
        measures = {
            how: functools.partial(
                measure, "sample", how=how, loads=[0.0, LOAD] if how in OURS else [0.0], **asked
            )
            for how in (*OURS, *PEERS)
        }
        print(f"  {about} ", end="", flush=True)
        found = alternate(measures, rounds)
        ways = {
            how: {"about": {**OURS, **PEERS}[how], "law": LAWS.get(how, "ideal"), **figures}
            for how, figures in found.items()
        }
        for how, way in ways.items():
            if "missing" in way:
                continue
            for load in ("0%", f"{LOAD:.0%}"):
                if f"rate {load}" in way:
                    expected = (by_law if load == "0%" else by_law_loaded)[way["law"]]
                    print(
                        f"    {how:18} load {load:4} {way[f'rate {load}']['median']:8,.0f}/s, "
                        f"{way[f'of_ideal {load}']['median']:6.1%} of the ideal, "
                        f"busy {way[f'busy {load}']['median']:6.1%}; arithmetic "
                        f"{expected:,.0f}/s, {expected / by_law['ideal']:.1%}"
                    )
        by_load = {"0%": by_law, f"{LOAD:.0%}": by_law_loaded}
        cases[case] = {"about": about, "law": by_load, "ways": ways}
    sizes = {"workers": scale.workers, "num_steps": scale.num_steps, "rounds": rounds}
    store("lockstep", {**sizes, "seconds": scale.seconds, "cases": cases})


# --- the post's table -----------------------------------------------------------------------------


def diagnostic(scale: Scale, rounds: int) -> None:
    """Sampling, optimising, reset, inference, step, and hours wasted."""
    env_kwargs = {"end_share": 0.01, "reset_s": 0.1}
    abouts = {
        "sb3": "Stable-Baselines3, 24 in lock-step",
        "barrier": OURS["barrier"],
        "barrier overlap": OURS["barrier overlap"],
        "variable": OURS["variable"],
        "variable overlap": OURS["variable overlap"],
    }
    measures = {
        how: functools.partial(
            measure,
            "diagnose",
            how=how,
            sizes=[
                scale.workers,
                scale.num_steps,
                scale.lockstep_iterations if how == "sb3" else scale.iterations,
            ],
            env_kwargs=env_kwargs,
        )
        for how in abouts
    }
    print("  ", end="")
    found = alternate(measures, rounds)
    ways: dict[str, Any] = {}
    for how, figures in found.items():
        ways[how] = {"about": abouts[how], **figures}
        if "missing" in figures:
            continue
        hours = TRANSITIONS_OF_THE_SEED / figures["rate"]["median"] / 3_600
        needed = TRANSITIONS_OF_THE_SEED / figures["ideal"]["median"] / 3_600
        ways[how] |= {"hours": hours, "hours_wasted": hours - needed}
        sampling, optimising, step, waited = (
            figures[name]["median"] for name in ("sampling_s", "optimising_s", "step_s", "waited")
        )
        print(
            f"    {how:18} sampling {sampling:.2f} s, optimising {optimising:.2f} s, step "
            f"{step * 1e3:.1f} ms, {waited:.0%} waited, {hours:.1f} h, {hours - needed:.1f} wasted"
        )
    store(
        "diagnostic",
        {
            "workers": scale.workers,
            "num_steps": scale.num_steps,
            "rounds": rounds,
            "transitions": TRANSITIONS_OF_THE_SEED,
            "env_kwargs": env_kwargs,
            "ways": ways,
            "published": PUBLISHED,
        },
    )


# --- speed-up over lock-step ----------------------------------------------------------------------

MEAN_STEP_S, MEAN_RESET_S = 0.01, 1.0
# The post's, of acting for all environments at once and for one; a worker with four acts for these
# at once.
ACT_ALL_S, ACT_ONE_S = 0.8e-3, 1e-3
# Ours, of acting for one.
ACT_OURS_S = 0.03e-3
PANELS: dict[str, tuple[str, dict[str, float], str, float, tuple[float, ...]]] = {
    "steps": (
        "steps of 10 ms on average, no resets",
        {"fast_s": MEAN_STEP_S, "slow_share": 0.0},
        "std_s",
        MEAN_STEP_S,
        (0.0, 0.5, 1.5),
    ),
    "resets": (
        "steps of 10 ms, 1 % of them followed by a reset of 1 s on average",
        {"fast_s": MEAN_STEP_S, "slow_share": 0.0, "end_share": 0.01, "reset_s": MEAN_RESET_S},
        "reset_std_s",
        MEAN_RESET_S,
        (0.0, 1.0),
    ),
}
LINES = {
    "batched": "batched: a fragment of each, then all wait (acting as in the post)",
    "hybrid": "hybrid: the same, four environments a worker",
    "barrier": "hotloop, `barrier`",
    "ideal": "hotloop, `variable` and `async`: nobody waits",
}
POINTS = {"barrier": "barrier", "variable overlap": "ideal"}


def expected(env_kwargs: Mapping[str, float], scale: Scale) -> dict[str, float]:
    """Speed-up over lock-step of each of `LINES`."""
    sizes: dict[str, Any] = {
        "num_envs": scale.workers,
        "num_steps": scale.num_steps,
        "num_fragments": scale.num_fragments,
    }
    law = uneven(**env_kwargs)
    post = rates(law, **sizes, act_s=(ACT_ALL_S, ACT_ONE_S, ACT_ONE_S))
    own = rates(law, **sizes, act_s=(ACT_ALL_S, ACT_OURS_S, ACT_OURS_S))
    found = {
        "batched": post["barrier"],
        "hybrid": post["hybrid"],
        "barrier": own["barrier"],
        "ideal": own["ideal"],
    }
    return {name: rate / post["lockstep"] for name, rate in found.items()}


def curves(scale: Scale, rounds: int) -> None:
    """Expected speed-up, with points that were measured."""
    panels: dict[str, Any] = {}
    for panel, (about, env_kwargs, varied, mean, at) in PANELS.items():
        stds = [2.0 * place / (scale.points - 1) for place in range(scale.points)]
        lines = [expected({**env_kwargs, varied: std * mean}, scale) for std in stds]
        points: list[dict[str, Any]] = []
        print(f"  {about} ", end="", flush=True)
        for std in at:
            asked: dict[str, Any] = {
                "workers": scale.workers,
                "num_steps": scale.num_steps,
                "seconds": scale.seconds,
                "env_kwargs": {**env_kwargs, varied: std * mean},
            }
            measures = {
                how: functools.partial(
                    measure, "sample", how=how, act_s=ACT_ALL_S if how == "sb3" else 0.0, **asked
                )
                for how in ("sb3", *POINTS)
            }
            found = alternate(measures, rounds)
            if any("missing" in figures for figures in found.values()):
                continue
            whole = {how: figures["rate 0%"]["median"] for how, figures in found.items()}
            ups = {how: whole[how] / whole["sb3"] for how in POINTS}
            should = expected(asked["env_kwargs"], scale)
            points.append({"std": std, "rates": whole, "speed_up": ups, "expected": should})
            cells = [f"{how} {up:.2f}" for how, up in ups.items()]
            cells += [f"{line} expected {should[line]:.2f}" for line in POINTS.values()]
            print(f"    σ = {std:g} × mean: {', '.join(cells)}")
        ways = {name: [line[name] for line in lines] for name in LINES}
        panels[panel] = {"about": about, "std": stds, "ways": ways, "points": points}
    result = {"workers": scale.workers, "num_steps": scale.num_steps, "rounds": rounds}
    store("curves", {**result, "lines": LINES, "panels": panels})
    path = figure_path("workers-curves.png", scale)
    draw_curves(panels, path)
    draw_waiting(figure_path("workers-waiting.png", scale))
    print(f"drawn: {path.name}, workers-waiting.png")


def draw_waiting(path: Path) -> None:
    """Who steps and who waits: a line for each environment, white where it waits."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    until_s, num_envs, num_steps = 1.5, 8, 32
    titles = {
        "lockstep": "lock-step: all wait in every step",
        "barrier": f"barrier: all wait after {num_steps} steps of each",
        "ideal": "variable, async: nobody waits",
    }
    found = timelines(uneven(), num_envs=num_envs, num_steps=num_steps, until_s=until_s, seed=1)
    figure, axes = pyplot.subplots(3, 1, figsize=(10, 5.5), sharex=True, layout="constrained")
    for ax, (way, title) in zip(axes, titles.items(), strict=True):
        for env, spans in enumerate(found[way]):
            is_slow = [duration > 0.05 for _, duration in spans]
            colours = ["tab:blue" if slow else "lightsteelblue" for slow in is_slow]
            ax.broken_barh(spans, (env - 0.4, 0.8), facecolors=colours)
        at_work = sum(duration for spans in found[way] for _, duration in spans)
        ax.set_title(f"{title} ({at_work / num_envs / until_s:.0%} at work)", fontsize=10)
        ax.set_yticks([])
        ax.set_ylabel(f"{num_envs} workers")
        ax.set_xlim(0, until_s)
    axes[-1].set_xlabel("s (light: steps of 3 ms, dark: of 100 ms, white: waiting)")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


COLOURS = {
    "batched": "tab:orange",
    "hybrid": "tab:green",
    "barrier": "tab:cyan",
    "ideal": "tab:blue",
}


def draw_curves(panels: Mapping[str, Any], path: Path) -> None:
    """Speed-up over lock-step by standard deviation; measured points on top."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    for ax, (name, panel) in zip(axes, panels.items(), strict=True):
        for line, ups in panel["ways"].items():
            label = LINES[line].replace("`", "")
            ax.plot(panel["std"], ups, color=COLOURS[line], label=label)
        for how, line in POINTS.items():
            where = [point["std"] for point in panel["points"]]
            ups = [point["speed_up"][how] for point in panel["points"]]
            ax.plot(where, ups, "o", color=COLOURS[line], markersize=6, markeredgecolor="black")
        what = "step" if name == "steps" else "reset"
        ax.axhline(1.0, color="grey", linewidth=0.8)
        ax.set_ylim(bottom=0)
        ax.set_title(panel["about"], fontsize=10)
        ax.set_xlabel(f"standard deviation of a {what}'s time, over the mean")
        ax.set_ylabel("transitions a second, over lock-step")
        ax.grid(alpha=0.3)
    axes[0].legend(fontsize=8)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


# --- cheap environments ---------------------------------------------------------------------------

CHEAP = {
    "bare": "bare environments, a plain loop in each of two processes",
    "barrier overlap": OURS["barrier overlap"],
    "barrier": OURS["barrier"],
    "variable overlap": OURS["variable overlap"],
    "async": OURS["async"],
    "async random": "hotloop, `async`, a random policy",
    "inline": "hotloop, `inline`",
    **PEERS,
    "envpool": "EnvPool (its own CartPole, in C++), all in a step",
    "envpool async": "EnvPool (its own CartPole, in C++), asynchronous, half of them in a step",
}


def cheap(scale: Scale, rounds: int) -> None:
    """CartPole: what of the bare environments' rate is left."""
    sizes: dict[str, Any] = {"workers": 2, "per_worker": 8, "seconds": scale.cheap_seconds}
    measures = {
        how: functools.partial(measure, "bare", **sizes)
        if how == "bare"
        else functools.partial(
            measure, "sample", how=how, env=CARTPOLE, num_steps=scale.num_steps, **sizes
        )
        for how in CHEAP
    }
    print("  ", end="")
    found = alternate(measures, rounds)
    ways: dict[str, Any] = {}
    for how, figures in found.items():
        ways[how] = {"about": CHEAP[how]}
        if "missing" in figures:
            ways[how] |= figures
            continue
        rate = figures["rate 0%"]
        ways[how] |= {"rate": rate, "of_bare": rate["median"] / _rate_of(found["bare"])}
        print(f"    {how:18} {rate['median']:12,.0f}/s, {ways[how]['of_bare']:6.1%} of the bare")
    store("cheap", {**sizes, "rounds": rounds, "ways": ways})


def _rate_of(figures: Mapping[str, Any]) -> float:
    return figures["rate 0%"]["median"] if "rate 0%" in figures else float("nan")


# --- what workers themselves cost -----------------------------------------------------------------


def overhead(scale: Scale, rounds: int) -> None:
    """Of a fragment, over inline; and starting."""
    sizes = [(scale.num_steps, 8), (scale.num_steps, 1), (1, 8), (1, 1)]
    measures: dict[str, Callable[[], dict[str, Any]]] = {
        f"{num_steps} {num_envs} {how}": functools.partial(
            measure,
            "fragments",
            how=how,
            num_steps=num_steps,
            per_worker=num_envs,
            seconds=scale.cheap_seconds / 2,
        )
        for num_steps, num_envs in sizes
        for how in ("inline", "barrier")
    }
    measures["start"] = functools.partial(measure, "start")
    print("  ", end="")
    found = alternate(measures, rounds)
    rows: list[dict[str, Any]] = []
    for num_steps, num_envs in sizes:
        own, workers = (found[f"{num_steps} {num_envs} {how}"] for how in ("inline", "barrier"))
        row: dict[str, Any] = {"num_steps": num_steps, "num_envs": num_envs}
        if "missing" not in {*own, *workers}:
            inline, processes = own["seconds"], workers["seconds"]
            more = processes["median"] - inline["median"]
            row |= {"inline": inline, "processes": processes, "overhead": more}
            print(
                f"    {num_steps:4} steps × {num_envs}: inline {inline['median'] * 1e3:.3f} ms, "
                f"a worker {processes['median'] * 1e3:.3f} ms, {more * 1e3:+.3f} ms"
            )
            rows.append(row)
    start = found["start"]
    if "missing" not in start:
        print(
            f"    a worker is ready after {start['ready_s']['median']:.2f} s (its imports alone "
            f"{start['imports_s']['median']:.2f} s) and holds "
            f"{start['resident_bytes']['median'] / 1e6:.0f} MB, the imports "
            f"{start['imports_bytes']['median'] / 1e6:.0f} MB; torch: "
            f"{'yes' if start['has_torch']['max'] else 'no'}"
        )
    store("overhead", {"rounds": rounds, "fragments": rows, "start": start})


# --- whole trainings ------------------------------------------------------------------------------

TRAININGS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "sb3": ("Stable-Baselines3, in its own process", "sb3", {}),
    "inline": ("hotloop, inline", "hotloop", {}),
    "1 overlap": ("`--workers 1 --overlap`", "hotloop", {"workers": 1, "overlap": True}),
    "2 overlap": ("`--workers 2 --overlap`", "hotloop", {"workers": 2, "overlap": True}),
    "2 variable": (
        "`--workers 2 --schedule variable`",
        "hotloop",
        {"workers": 2, "schedule": "variable"},
    ),
    "2 variable overlap": (
        "`--workers 2 --schedule variable --overlap`",
        "hotloop",
        {"workers": 2, "schedule": "variable", "overlap": True},
    ),
}


def ppo(scale: Scale, rounds: int) -> None:
    """PPO on CartPole, from prompt to end."""
    parser = argparse.ArgumentParser()
    train.add_options(parser)
    options = parser.parse_args(["--algorithm", "ppo", "--timesteps", str(scale.timesteps)])
    train.complete(parser, options)
    options.compile = "off" if scale is QUICK else "on"
    asked = {
        name: argparse.Namespace(**{**vars(options), **extra})
        for name, (_, _, extra) in TRAININGS.items()
    }
    if options.compile == "on":  # fills the cache: what is measured is a warm one
        for name in ("inline", "2 variable"):  # weights make another graph
            short = argparse.Namespace(**{**vars(asked[name]), "timesteps": 2_048})
            train.run_in_process("hotloop", short, 1)
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in TRAININGS}
    for seed in range(1, rounds + 1):
        for name in list(TRAININGS)[:: 1 if seed % 2 else -1]:
            run = train.run_in_process(TRAININGS[name][1], asked[name], seed)
            runs[name].append(run)
            print(
                f"    {name:18} seed {seed}: {run['timesteps'] / run['loop_s']:8,.0f} steps/s, "
                f"{run['total_s']:6.1f} s in all, "
                f"return {train.last_tenth(run, options.timesteps):.1f}",
                flush=True,
            )
    summaries = {name: train.summary(done, options.timesteps) for name, done in runs.items()}
    peer = summaries["sb3"]
    ways: dict[str, Any] = {}
    for name, own in summaries.items():
        rate = own["steps_per_s"]["median"] / peer["steps_per_s"]["median"]
        total = peer["total_s"]["median"] / own["total_s"]["median"]
        ways[name] = {"about": TRAININGS[name][0], **own, "ratio": rate, "ratio_total": total}
        print(f"    {name:18} {rate:.2f} × Stable-Baselines3, {total:.2f} × in all")
    store("ppo", {"timesteps": options.timesteps, "rounds": rounds, "ways": ways})


# --- workers or none ------------------------------------------------------------------------------

# Of `rollout_ways.choose`, with eight environments.
TASKS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {"env": CARTPOLE, "num_steps": 128, "timesteps": 204_800},
    "HalfCheetah-v5": {"env": "HalfCheetah-v5", "num_steps": 256, "timesteps": 61_440},
    "steps of 3 ms": {
        "env": UNEVEN,
        "num_steps": 64,
        "timesteps": 5_120,
        "env_kwargs": {"slow_share": 0.0},
    },
    "steps of 3 ms, one in ten of 100 ms": {"env": UNEVEN, "num_steps": 32, "timesteps": 2_560},
}


def auto(scale: Scale, rounds: int) -> None:
    """What `auto` chooses beside no workers at all."""
    cases: list[dict[str, Any]] = []
    for about, task in TASKS.items():
        if scale is QUICK:
            task = {**task, "timesteps": 2 * 8 * task["num_steps"]}
        measures = {
            name: functools.partial(measure, "choose", workers=workers, num_envs=8, **task)
            for name, workers in (("inline", 0), ("auto", "auto"))
        }
        print(f"  {about} ", end="")
        found = alternate(measures, rounds)
        case: dict[str, Any] = {"about": about, "timesteps": task["timesteps"]}
        if "missing" not in {*found["inline"], *found["auto"]}:
            inline, own = (found[name]["seconds"] for name in ("inline", "auto"))
            ratio = inline["median"] / own["median"]
            workers = found["auto"]["workers"]
            case |= {"inline": inline, "auto": own, "workers": workers, "ratio": ratio}
            print(
                f"    inline {inline['median']:.1f} s, auto {own['median']:.1f} s with "
                f"{workers['median']:g} workers: {ratio:.2f} × as fast"
            )
        cases.append(case)
    store("auto", {"rounds": rounds, "cases": cases})


RUN: dict[str, Callable[[Scale, int], None]] = {
    "lockstep": lockstep,
    "diagnostic": diagnostic,
    "curves": curves,
    "cheap": cheap,
    "overhead": overhead,
    "ppo": ppo,
    "auto": auto,
}


def main() -> int:
    """Measure, print, store."""
    seconds = "of a measurement with sleeping environments"
    return run_parts("rollouts", __doc__, RUN, scale=Scale(), quick=QUICK, seconds=seconds)
