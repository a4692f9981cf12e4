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
  `measure.sample` by load.
- `diagnostic`: a post's table. `rollouts_diagnostic.json`: `ways`, by name: `about` and the figures
  of `measure.diagnose`, `hours` and `hours_wasted` over 20,000,000 transitions; `published`.
- `curves`: expected speed-up over lock-step by the standard deviation of steps and of resets, and
  points of it measured. `rollouts_curves.json`: `panels`, by name: `about`, `std` (over the mean),
  `ways` (lists), `points`. Drawn to docs/workers-curves.png; and docs/workers-waiting.png, who
  waits when, by the same arithmetic.
- `cheap`: CartPole, two workers of eight environments, beside the bare environments in two
  processes. `rollouts_cheap.json`: `ways`, by name: `about`, `rate`, `of_bare`.
- `overhead`: of a fragment, by an environment that does nothing; and what starting takes.
  `rollouts_overhead.json`: `fragments`: `num_steps`, `num_envs`, `inline`, `processes`, `overhead`
  (seconds); `start`: the figures of `measure.start`.
- `ppo`: whole trainings on CartPole. `rollouts_ppo.json`: `ways`, by name: `about` and the figures
  of `bench.train.speed.summary`; `ratio`, of the rate to Stable-Baselines3's, and `ratio_total`.

- `auto`: whole trainings with `--workers auto` beside inline, where environments take microseconds,
  tenths of a millisecond and tens of milliseconds. `rollouts_auto.json`: `cases`, a list: `about`,
  `timesteps`, `inline` and `auto` (seconds in all), `workers` (that were chosen), `ratio` (of the
  rates).
- `ray`: the first case of `lockstep` by actors of Ray, on one node and, twice as many, on eight
  that are simulated, beside RLlib's env runners. `rollouts_ray.json`: `ways`, by name: the figures
  of `measure.sample` by load, of `measure.fragments`, and of `clusters.start_on_ray` and
  `clusters.recover_on_ray`; `about`.
- `plan`: what `hotloop plan` forecasts of it, and what is measured, on 1, 2, 4 and 8 nodes of 8
  workers. `rollouts_plan.json`: `rows`: `nodes`, `workers`, `schedule`, `forecast` (transitions a
  second) and the figures of `measure.sample`; `only`: forecasts alone, of 256 and 1,024 workers.
- `central`: a network of images, asked by each worker or by one process for all, on this machine
  and on Ray. `rollouts_central.json`: `ways`, by name: the figures of `central.act_centrally`;
  `about`.

A figure is {"median", "min", "max"}; what could not be measured is {"missing": why}.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Mapping
from typing import Any

from bench.parts import run_parts
from bench.rollouts.arithmetic import loaded, rates, uneven
from bench.rollouts.central import central
from bench.rollouts.clusters import on_ray, plan
from bench.rollouts.curves import curves
from bench.rollouts.environments import CARTPOLE, UNEVEN
from bench.rollouts.measure import measure
from bench.rollouts.scale import LAWS, OURS, PEERS, QUICK, Scale, alternate, store
from bench.train import settings, speed

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
    settings.add_options(parser)
    options = parser.parse_args(["--algorithm", "ppo", "--timesteps", str(scale.timesteps)])
    settings.complete(parser, options)
    options.execution = "eager" if scale is QUICK else "compile"
    asked = {
        name: argparse.Namespace(**{**vars(options), **extra})
        for name, (_, _, extra) in TRAININGS.items()
    }
    if options.execution == "compile":  # fills the cache: what is measured is a warm one
        for name in ("inline", "2 variable"):  # weights make another graph
            short = argparse.Namespace(**{**vars(asked[name]), "timesteps": 2_048})
            speed.run_in_process("hotloop", short, 1)
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in TRAININGS}
    for seed in range(1, rounds + 1):
        for name in list(TRAININGS)[:: 1 if seed % 2 else -1]:
            run = speed.run_in_process(TRAININGS[name][1], asked[name], seed)
            runs[name].append(run)
            print(
                f"    {name:18} seed {seed}: {run['timesteps'] / run['loop_s']:8,.0f} steps/s, "
                f"{run['total_s']:6.1f} s in all, "
                f"return {speed.last_tenth(run, options.timesteps):.1f}",
                flush=True,
            )
    summaries = {name: speed.summary(done, options.timesteps) for name, done in runs.items()}
    peer = summaries["sb3"]
    ways: dict[str, Any] = {}
    for name, own in summaries.items():
        rate = own["steps_per_s"]["median"] / peer["steps_per_s"]["median"]
        total = peer["total_s"]["median"] / own["total_s"]["median"]
        ways[name] = {"about": TRAININGS[name][0], **own, "ratio": rate, "ratio_total": total}
        print(f"    {name:18} {rate:.2f} × Stable-Baselines3, {total:.2f} × in all")
    store("ppo", {"timesteps": options.timesteps, "rounds": rounds, "ways": ways})


# --- workers or none ------------------------------------------------------------------------------

# Of `measure.choose`, with eight environments.
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
    "ray": on_ray,
    "plan": plan,
    "central": central,
}


def main() -> int:
    """Measure, print, store."""
    seconds = "of a measurement with sleeping environments"
    return run_parts("rollouts", __doc__, RUN, scale=Scale(), quick=QUICK, seconds=seconds)
