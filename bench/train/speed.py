"""Whole trainings compared with a peer: same task, same hyper-parameters, same threads.

    python -m bench train --algorithm ppo --env-id CartPole-v1 --against sb3
    python -m bench train --algorithm ppo --workers 2 --overlap
    python -m bench train --algorithm ppo --contender accelerated --repeats 3

Runs alternate, each in its own process. The figures are steps per second of the training loop, with
and without compilation, and the time from prompt to end (with imports and start-up): medians,
spread, ratios and learning curves. By default hotloop compiles its update to show its full speed.
`--execution auto` uses hotloop's default, and `--cold` gives every run an empty compiler cache.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from bench import storage
from bench.measuring import spread
from bench.train.other_peers import DISTRIBUTIONS, run_other_peer
from bench.train.peers import run_accelerated, run_sb3, run_sbx
from bench.train.settings import (
    COMMON,
    SETTINGS,
    add_options,
    check_contender,
    complete_options,
    settings_of,
    worker_settings,
    worker_suffix,
)


def run_hotloop(options: argparse.Namespace) -> dict[str, Any]:
    """Train once with hotloop."""
    from hotloop.runs import RunDirectory
    from hotloop.runs.episodes import episodes_from_metrics

    algorithm = importlib.import_module(f"hotloop.algorithms.{options.algorithm}")
    precision = {"precision": options.precision} if options.precision != "float32" else {}
    with tempfile.TemporaryDirectory() as folder:
        result = algorithm.train(
            algorithm.Config(
                env_id=options.env_id,
                total_timesteps=options.timesteps,
                seed=options.seed,
                torch_threads=options.threads,
                execution=options.execution,
                runs_dir=folder,
                **precision,
                **worker_settings(options),
                **settings_of(options),
            ),
            progress=False,
        )
        steps, returns = episodes_from_metrics(RunDirectory.open(result.run_dir).metrics())
        lines = RunDirectory.open(result.run_dir).metrics()
    return {
        "timesteps": result.timesteps,
        "loop_s": result.elapsed_s - result.compile_s,
        "compile_s": result.compile_s,
        "passed": [[line["timesteps"], line["elapsed_s"] - result.compile_s] for line in lines],
        "episodes": [[int(s), float(r)] for s, r in zip(steps, returns, strict=True)],
    }


RUNNERS = {
    "hotloop": run_hotloop,
    "accelerated": run_accelerated,
    "sb3": run_sb3,
    "sbx": run_sbx,
    **{name: functools.partial(run_other_peer, name) for name in DISTRIBUTIONS},
}


def learning_steps_per_s(run: dict[str, Any], learning_starts: int) -> float:
    """Return the steps per second while learning, without the first fifth as warm-up."""
    begin = learning_starts + 0.2 * (run["timesteps"] - learning_starts)
    late = [(steps, time_s) for steps, time_s in run["passed"] if steps >= begin]
    if len(late) < 2:
        return float("nan")
    (first, start), (last, end) = late[0], late[-1]
    return (last - first) / (end - start)


def run_in_process(name: str, options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Train once in a new process; return its figures with `total_s`, from start to exit."""
    python = options.peer_python if name in DISTRIBUTIONS else sys.executable
    command = [
        *(python, "-m", "bench.train.speed", "--worker", name),
        *("--env-id", options.env_id, "--timesteps", str(options.timesteps)),
        *("--seed", str(seed), "--threads", str(options.threads), "--execution", options.execution),
        *("--algorithm", options.algorithm, "--precision", options.precision),
        *("--workers", str(options.workers), *(["--overlap"] if options.overlap else [])),
        *(["--schedule", options.schedule] if options.schedule is not None else []),
        *(["--for-curves"] if options.for_curves else []),
    ]
    with tempfile.TemporaryDirectory() as cache:
        caches = ("TORCHINDUCTOR_CACHE_DIR", "HOTLOOP_CACHE")
        cold = {name: f"{cache}/{name}" for name in caches if getattr(options, "cold", False)}
        started = time.perf_counter()
        completed = subprocess.run(
            command, check=True, capture_output=True, text=True, env={**os.environ, **cold}
        )
        total_s = time.perf_counter() - started
    return {"seed": seed, "total_s": total_s, **json.loads(completed.stdout.splitlines()[-1])}


def last_tenth_return(run: dict[str, Any], timesteps: int) -> float:
    """Return the mean return of the episodes that ended in the last tenth of the steps."""
    late = [r for step, r in run["episodes"] if step > 0.9 * timesteps]
    return statistics.fmean(late) if late else float("nan")


def summarize(runs: list[dict[str, Any]], timesteps: int) -> dict[str, Any]:
    """Return medians and spread over runs."""
    rates = [run["timesteps"] / run["loop_s"] for run in runs]
    with_compiling = [run["timesteps"] / (run["loop_s"] + run["compile_s"]) for run in runs]
    return {
        "steps_per_s": spread(rates),
        "steps_per_s_with_compiling": spread(with_compiling),
        "compile_s": spread([run["compile_s"] for run in runs]),
        "total_s": spread([run["total_s"] for run in runs]),
        "return_last_tenth": [round(last_tenth_return(run, timesteps), 1) for run in runs],
    }


def main() -> int:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(prog="python -m bench train", description=__doc__)
    add_options(parser)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--against", nargs="+", default=["sb3"], choices=["sb3", "sbx"], help="default: sb3"
    )
    parser.add_argument(
        "--contender",
        default="hotloop",
        choices=["hotloop", "accelerated"],
        help="hotloop, or the peer's classes from hotloop.accelerate",
    )
    parser.add_argument("--execution", default="compile", choices=["auto", "eager", "compile"])
    parser.add_argument("--cold", action="store_true", help="compile into an empty cache")
    parser.add_argument("--worker", choices=sorted(RUNNERS), help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    complete_options(parser, options)
    if options.algorithm == "ppo" and "sbx" in options.against:
        parser.error("expected sac, td3 or dqn with sbx, got ppo: remove sbx")
    if "sbx" in options.against and importlib.util.find_spec("sbx") is None:
        print("sbx is not installed (pip install sbx-rl, Python 3.11 or later) and is skipped")
        options.against.remove("sbx")
        if not options.against:
            parser.error("no peer remains: install sbx-rl, or measure against sb3")
    if options.worker:
        print(json.dumps(RUNNERS[options.worker](options)))
        return 0

    check_contender(parser, options)
    learning_starts = SETTINGS[options.algorithm][options.env_id].get("learning_starts", 0)
    if options.execution != "eager" and not options.cold:
        # Fill the compiler's cache, so that the measured runs have a warm one.
        short = argparse.Namespace(**{**vars(options), "timesteps": learning_starts + 1_000})
        run_in_process(options.contender, short, seed=1)
    runs: dict[str, list[dict[str, Any]]] = {
        options.contender: [],
        **{name: [] for name in options.against},
    }
    for seed in range(1, options.repeats + 1):
        # The order is reversed every other round.
        for name in list(runs)[:: 1 if seed % 2 else -1]:
            run = run_in_process(name, options, seed)
            runs[name].append(run)
            rate = run["timesteps"] / run["loop_s"]
            learning = learning_steps_per_s(run, learning_starts)
            print(
                f"{name:11} seed {seed}: {rate:8,.0f} steps/s, {learning:8,.0f} while learning, "
                f"{run['compile_s']:5.1f} s compiling, {run['total_s']:6.1f} s in total, "
                f"return {last_tenth_return(run, options.timesteps):.1f}",
                flush=True,
            )
    summaries = {
        name: summarize(contender_runs, options.timesteps) for name, contender_runs in runs.items()
    }
    for name, contender_runs in runs.items():
        rates = [learning_steps_per_s(run, learning_starts) for run in contender_runs]
        summaries[name]["steps_per_s_while_learning"] = spread(rates)
    contender = summaries[options.contender]
    ratios = {
        name: {
            "steps_per_s": contender["steps_per_s"]["median"] / peer["steps_per_s"]["median"],
            "with_compiling": contender["steps_per_s_with_compiling"]["median"]
            / peer["steps_per_s"]["median"],
            "while_learning": contender["steps_per_s_while_learning"]["median"]
            / peer["steps_per_s_while_learning"]["median"],
            "total": peer["total_s"]["median"] / contender["total_s"]["median"],
        }
        for name, peer in summaries.items()
        if name != options.contender
    }
    first = ratios[options.against[0]]
    result = {
        "benchmark": f"{options.algorithm} {options.env_id}",
        "command": " ".join(["python -m bench train", *sys.argv[1:]]),
        "settings": {
            **SETTINGS[options.algorithm][options.env_id],
            **COMMON[options.algorithm],
            "threads": options.threads,
            "timesteps": options.timesteps,
            "execution": options.execution,
            "precision": options.precision,
            **worker_settings(options),
            "cache": "cold" if options.cold else "warm",
        },
        "summaries": summaries,
        "ratios": ratios,
        "ratio_steps_per_s": first["steps_per_s"],
        "ratio_with_compiling": first["with_compiling"],
        "ratio_total": first["total"],
        "curves": {
            name: [{"seed": run["seed"], "episodes": run["episodes"]} for run in contender_runs]
            for name, contender_runs in runs.items()
        },
    }
    suffix = "" if options.execution == "compile" else f"_{options.execution}"
    suffix += "_cold" if options.cold else ""
    suffix += "" if options.precision == "float32" else f"_{options.precision}"
    suffix += worker_suffix(options)
    kind = "train" if options.contender == "hotloop" else options.contender
    path = storage.save(
        f"{kind}_{options.algorithm}_{storage.file_name(options.env_id)}{suffix}", result
    )
    for name, values in summaries.items():
        rate, total = values["steps_per_s"], values["total_s"]
        within = values["steps_per_s_with_compiling"]["median"]
        learning = values["steps_per_s_while_learning"]
        print(
            f"{name:11} {rate['median']:8,.0f} steps/s ({rate['min']:,.0f}–{rate['max']:,.0f}), "
            f"{within:,.0f} with compiling, {learning['median']:,.0f} "
            f"({learning['min']:,.0f}–{learning['max']:,.0f}) while learning, "
            f"{total['median']:.1f} s from prompt to end ({total['min']:.1f}–{total['max']:.1f})"
        )
    for name, ratio in ratios.items():
        print(
            f"ratio to {name}: {ratio['steps_per_s']:.2f} in steps/s, "
            f"{ratio['while_learning']:.2f} while learning, "
            f"{ratio['with_compiling']:.2f} with compiling, {ratio['total']:.2f} in total"
        )
    print(f"stored: {path.relative_to(storage.RESULTS.parent.parent)}")
    return 0


if __name__ == "__main__":  # an environment of a peer may lack libraries of other benchmarks
    sys.exit(main())
