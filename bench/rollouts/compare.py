"""Rollouts by workers: steps of uneven duration, compared with lock-step vector environments.

    python -m bench rollouts
    python -m bench rollouts --part lockstep --rounds 3
    python -m bench rollouts --quick

Each way is measured in its own process, in a new order each round, so that other load on the
machine affects all alike. Median, minimum and maximum over the rounds are stored. `--quick` uses
small sizes to test that everything runs and stores results in a temporary folder.

Each part is stored in its own file with the machine and the libraries' versions:

- `lockstep`: 24 workers with one environment each. A step sleeps 3 ms, or 100 ms with probability
  0.1. A second case adds resets of 2 s after 1 % of the steps.
  `rollouts_lockstep.json`: `cases`, by name: `about`, `law` (expected transitions per second, idle
  and at 20 % load), `ways`, by name: `about`, `law` (its key there), and the figures of
  `measure.sample` by load.
- `diagnostic`: a blog post's table. `rollouts_diagnostic.json`: `ways`, by name: `about`, the
  figures of `measure.diagnose`, `hours` and `hours_wasted` over 20,000,000 transitions;
  `published`.
- `curves`: expected speed-up over lock-step by the standard deviation of steps and of resets, with
  measured points. `rollouts_curves.json`: `panels`, by name: `about`, `std` (over the mean), `ways`
  (lists), `points`. Plots: docs/workers-curves.png, and docs/workers-waiting.png with the expected
  timeline of steps and waits.
- `cheap`: CartPole with two workers of eight environments, compared with bare environments in two
  processes. `rollouts_cheap.json`: `ways`, by name: `about`, `rate`, `of_bare`.
- `overhead`: overhead of a fragment with an idle environment, and duration of the start.
  `rollouts_overhead.json`: `fragments`: `num_steps`, `num_envs`, `inline`, `processes`, `overhead`
  (seconds); `start`: the figures of `measure.start`.
- `ppo`: whole trainings on CartPole. `rollouts_ppo.json`: `ways`, by name: `about`, the figures of
  `bench.train.speed.summarize`, and the ratios to Stable-Baselines3 `ratio` and `ratio_total`.
- `auto`: whole trainings with `--workers auto` and inline, with environment steps of microseconds,
  tenths of a millisecond and tens of milliseconds. `rollouts_auto.json`: `cases`, a list: `about`,
  `timesteps`, `inline` and `auto` (total seconds), `workers` (chosen number), `ratio` (of rates).
- `ray`: the first case of `lockstep` by Ray actors on one node, and twice the number on eight
  simulated nodes, compared with RLlib's env runners. `rollouts_ray.json`: `ways`, by name: the
  figures of `measure.sample` by load, of `measure.fragments`, `clusters.start_on_ray` and
  `clusters.recover_on_ray`; `about`.
- `plan`: the forecast of `hotloop plan` and the measurement, on 1, 2, 4 and 8 nodes of 8 workers.
  `rollouts_plan.json`: `rows`: `nodes`, `workers`, `schedule`, `forecast` (transitions per second)
  and the figures of `measure.sample`; `only`: forecasts for 256 and 1,024 workers.
- `central`: inference with an image network in each worker or in one process, on this machine and
  on Ray. `rollouts_central.json`: `ways`, by name: the figures of `central.act_centrally`; `about`.

A figure is {"median", "min", "max"}; a missing figure is {"missing": reason}.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Mapping
from typing import Any

from bench.parts import run_parts
from bench.rollouts.arithmetic import rates, rates_under_load, uneven_law
from bench.rollouts.central import central
from bench.rollouts.clusters import on_ray, plan
from bench.rollouts.curves import curves
from bench.rollouts.environments import CARTPOLE, UNEVEN
from bench.rollouts.measure import measure
from bench.rollouts.scale import LAWS, OURS, PEERS, QUICK, RolloutScale, alternate, store
from bench.train import settings, speed

LOAD = 0.2
POST_TRANSITIONS = 20_000_000
# Figures of the post's experiment in seconds, and its total in hours, on another machine with 24
# cores and another environment.
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


# --- steps of uneven duration ---------------------------------------------------------------------

CASES: dict[str, tuple[str, dict[str, float], float]] = {
    "steps": ("steps of 3 ms, one in ten of 100 ms", {}, 1.0),
    "resets": (
        "the same, 1 % of the steps followed by a reset of 2 s",
        {"end_share": 0.01, "reset_s": 2.0},
        1.5,
    ),
}


def lockstep(scale: RolloutScale, rounds: int) -> None:
    """Measure all rates, and compare them with the sum of the workers' rates alone."""
    cases: dict[str, Any] = {}
    for case, (label, env_kwargs, duration_factor) in CASES.items():
        law = uneven_law(**env_kwargs)
        sizes: dict[str, Any] = {
            "num_envs": scale.workers,
            "num_steps": scale.num_steps,
            "num_fragments": scale.num_fragments,
        }
        by_law, by_law_loaded = rates(law, **sizes), rates_under_load(law, LOAD, **sizes)
        arguments: dict[str, Any] = {
            "workers": scale.workers,
            "num_steps": scale.num_steps,
            "seconds": scale.seconds * duration_factor,
            "env_kwargs": env_kwargs,
        }
        measures = {
            method: functools.partial(
                measure,
                "sample",
                method=method,
                loads=[0.0, LOAD] if method in OURS else [0.0],
                **arguments,
            )
            for method in (*OURS, *PEERS)
        }
        print(f"  {label} ", end="", flush=True)
        results = alternate(measures, rounds)
        ways = {
            method: {
                "about": {**OURS, **PEERS}[method],
                "law": LAWS.get(method, "ideal"),
                **figures,
            }
            for method, figures in results.items()
        }
        for method, way in ways.items():
            if "missing" in way:
                continue
            for load in ("0%", f"{LOAD:.0%}"):
                if f"rate {load}" in way:
                    expected = (by_law if load == "0%" else by_law_loaded)[way["law"]]
                    print(
                        f"    {method:18} load {load:4} {way[f'rate {load}']['median']:8,.0f}/s, "
                        f"{way[f'of_ideal {load}']['median']:6.1%} of the ideal, "
                        f"busy {way[f'busy {load}']['median']:6.1%}; arithmetic "
                        f"{expected:,.0f}/s, {expected / by_law['ideal']:.1%}"
                    )
        by_load = {"0%": by_law, f"{LOAD:.0%}": by_law_loaded}
        cases[case] = {"about": label, "law": by_load, "ways": ways}
    sizes = {"workers": scale.workers, "num_steps": scale.num_steps, "rounds": rounds}
    store("lockstep", {**sizes, "seconds": scale.seconds, "cases": cases})


# --- the post's table -----------------------------------------------------------------------------


def diagnostic(scale: RolloutScale, rounds: int) -> None:
    """Measure sampling, optimizing, reset, inference, step, and wasted hours."""
    env_kwargs = {"end_share": 0.01, "reset_s": 0.1}
    labels = {
        "sb3": "Stable-Baselines3, 24 in lock-step",
        "barrier": OURS["barrier"],
        "barrier overlap": OURS["barrier overlap"],
        "variable": OURS["variable"],
        "variable overlap": OURS["variable overlap"],
    }
    measures = {
        method: functools.partial(
            measure,
            "diagnose",
            method=method,
            sizes=[
                scale.workers,
                scale.num_steps,
                scale.lockstep_iterations if method == "sb3" else scale.iterations,
            ],
            env_kwargs=env_kwargs,
        )
        for method in labels
    }
    print("  ", end="")
    results = alternate(measures, rounds)
    ways: dict[str, Any] = {}
    for method, figures in results.items():
        ways[method] = {"about": labels[method], **figures}
        if "missing" in figures:
            continue
        hours = POST_TRANSITIONS / figures["rate"]["median"] / 3_600
        ideal = POST_TRANSITIONS / figures["ideal"]["median"] / 3_600
        ways[method] |= {"hours": hours, "hours_wasted": hours - ideal}
        sampling, optimising, step, waited = (
            figures[name]["median"] for name in ("sampling_s", "optimising_s", "step_s", "waited")
        )
        print(
            f"    {method:18} sampling {sampling:.2f} s, optimizing {optimising:.2f} s, step "
            f"{step * 1e3:.1f} ms, {waited:.0%} waiting, {hours:.1f} h, "
            f"{hours - ideal:.1f} wasted"
        )
    store(
        "diagnostic",
        {
            "workers": scale.workers,
            "num_steps": scale.num_steps,
            "rounds": rounds,
            "transitions": POST_TRANSITIONS,
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


def cheap(scale: RolloutScale, rounds: int) -> None:
    """Measure CartPole's rates as a share of the bare environments' rate."""
    sizes: dict[str, Any] = {"workers": 2, "per_worker": 8, "seconds": scale.cheap_seconds}
    measures = {
        method: functools.partial(measure, "bare", **sizes)
        if method == "bare"
        else functools.partial(
            measure, "sample", method=method, env=CARTPOLE, num_steps=scale.num_steps, **sizes
        )
        for method in CHEAP
    }
    print("  ", end="")
    results = alternate(measures, rounds)
    ways: dict[str, Any] = {}
    for method, figures in results.items():
        ways[method] = {"about": CHEAP[method]}
        if "missing" in figures:
            ways[method] |= figures
            continue
        rate = figures["rate 0%"]
        ways[method] |= {"rate": rate, "of_bare": rate["median"] / _median_rate(results["bare"])}
        print(
            f"    {method:18} {rate['median']:12,.0f}/s, {ways[method]['of_bare']:6.1%} of the bare"
        )
    store("cheap", {**sizes, "rounds": rounds, "ways": ways})


def _median_rate(figures: Mapping[str, Any]) -> float:
    return figures["rate 0%"]["median"] if "rate 0%" in figures else float("nan")


# --- overhead of workers --------------------------------------------------------------------------


def overhead(scale: RolloutScale, rounds: int) -> None:
    """Measure a fragment's overhead over inline, and the start of a worker."""
    sizes = [(scale.num_steps, 8), (scale.num_steps, 1), (1, 8), (1, 1)]
    measures: dict[str, Callable[[], dict[str, Any]]] = {
        f"{num_steps} {num_envs} {method}": functools.partial(
            measure,
            "fragments",
            method=method,
            num_steps=num_steps,
            per_worker=num_envs,
            seconds=scale.cheap_seconds / 2,
        )
        for num_steps, num_envs in sizes
        for method in ("inline", "barrier")
    }
    measures["start"] = functools.partial(measure, "start")
    print("  ", end="")
    results = alternate(measures, rounds)
    rows: list[dict[str, Any]] = []
    for num_steps, num_envs in sizes:
        inline_figures, worker_figures = (
            results[f"{num_steps} {num_envs} {method}"] for method in ("inline", "barrier")
        )
        row: dict[str, Any] = {"num_steps": num_steps, "num_envs": num_envs}
        if "missing" not in {*inline_figures, *worker_figures}:
            inline, processes = inline_figures["seconds"], worker_figures["seconds"]
            extra_s = processes["median"] - inline["median"]
            row |= {"inline": inline, "processes": processes, "overhead": extra_s}
            print(
                f"    {num_steps:4} steps × {num_envs}: inline {inline['median'] * 1e3:.3f} ms, "
                f"a worker {processes['median'] * 1e3:.3f} ms, {extra_s * 1e3:+.3f} ms"
            )
            rows.append(row)
    start = results["start"]
    if "missing" not in start:
        print(
            f"    a worker is ready after {start['ready_s']['median']:.2f} s (imports alone "
            f"{start['imports_s']['median']:.2f} s) and uses "
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


def ppo(scale: RolloutScale, rounds: int) -> None:
    """Measure PPO on CartPole from prompt to end."""
    parser = argparse.ArgumentParser()
    settings.add_options(parser)
    options = parser.parse_args(["--algorithm", "ppo", "--timesteps", str(scale.timesteps)])
    settings.complete_options(parser, options)
    options.execution = "eager" if scale is QUICK else "compile"
    options_by_name = {
        name: argparse.Namespace(**{**vars(options), **extra})
        for name, (_, _, extra) in TRAININGS.items()
    }
    if options.execution == "compile":  # fill the compiler's cache
        for name in ("inline", "2 variable"):  # weights need another graph
            short = argparse.Namespace(**{**vars(options_by_name[name]), "timesteps": 2_048})
            speed.run_in_process("hotloop", short, 1)
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in TRAININGS}
    for seed in range(1, rounds + 1):
        for name in list(TRAININGS)[:: 1 if seed % 2 else -1]:
            run = speed.run_in_process(TRAININGS[name][1], options_by_name[name], seed)
            runs[name].append(run)
            print(
                f"    {name:18} seed {seed}: {run['timesteps'] / run['loop_s']:8,.0f} steps/s, "
                f"{run['total_s']:6.1f} s in total, "
                f"return {speed.last_tenth_return(run, options.timesteps):.1f}",
                flush=True,
            )
    summaries = {
        name: speed.summarize(name_runs, options.timesteps) for name, name_runs in runs.items()
    }
    peer = summaries["sb3"]
    ways: dict[str, Any] = {}
    for name, figures in summaries.items():
        rate = figures["steps_per_s"]["median"] / peer["steps_per_s"]["median"]
        total = peer["total_s"]["median"] / figures["total_s"]["median"]
        ways[name] = {"about": TRAININGS[name][0], **figures, "ratio": rate, "ratio_total": total}
        print(f"    {name:18} {rate:.2f} × Stable-Baselines3, {total:.2f} × in total")
    store("ppo", {"timesteps": options.timesteps, "rounds": rounds, "ways": ways})


# --- choice of workers ----------------------------------------------------------------------------

# Arguments of `measure.choose`, with eight environments.
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


def auto(scale: RolloutScale, rounds: int) -> None:
    """Compare the choice of `auto` with no workers."""
    cases: list[dict[str, Any]] = []
    for label, task in TASKS.items():
        if scale is QUICK:
            task = {**task, "timesteps": 2 * 8 * task["num_steps"]}
        measures = {
            name: functools.partial(measure, "choose", workers=workers, num_envs=8, **task)
            for name, workers in (("inline", 0), ("auto", "auto"))
        }
        print(f"  {label} ", end="")
        results = alternate(measures, rounds)
        case: dict[str, Any] = {"about": label, "timesteps": task["timesteps"]}
        if "missing" not in {*results["inline"], *results["auto"]}:
            inline, chosen = (results[name]["seconds"] for name in ("inline", "auto"))
            ratio = inline["median"] / chosen["median"]
            workers = results["auto"]["workers"]
            case |= {"inline": inline, "auto": chosen, "workers": workers, "ratio": ratio}
            print(
                f"    inline {inline['median']:.1f} s, auto {chosen['median']:.1f} s with "
                f"{workers['median']:g} workers: speed-up {ratio:.2f}"
            )
        cases.append(case)
    store("auto", {"rounds": rounds, "cases": cases})


RUN: dict[str, Callable[[RolloutScale, int], None]] = {
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
    """Run the chosen parts."""
    seconds = "duration of a measurement with sleeping environments"
    return run_parts("rollouts", __doc__, RUN, scale=RolloutScale(), quick=QUICK, seconds=seconds)
