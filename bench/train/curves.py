"""Learning curves over seeds, compared with a peer by the last tenth of the steps.

    python -m bench curves --algorithm sac --env-id HalfCheetah-v5 --timesteps 100000 --seeds 5

hotloop's seeds are trained, `--jobs` of them at a time. The peer's are read from the stored result,
and `--peer` trains missing ones (minutes each). The figures are the mean return over the last tenth
of the steps of every seed, and the lower 95 % bound of the relative difference of the means
(Welch's one-sided t-interval, over the peer's mean). hotloop counts as equally good if the bound is
above -15 %.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from bench import storage
from bench.train.settings import add_options, complete_options, worker_settings, worker_suffix
from bench.train.speed import last_tenth_return, run_in_process
from hotloop.base.statistics import student_t


def lower_bound(values: list[float], peer: list[float], quantile: float = 0.95) -> float:
    """Return Welch's lower one-sided bound of (mean(values) − mean(peer)) / |mean(peer)|.

    Args:
        values: at least two values.
        peer: at least two values.
        quantile: confidence level.
    """
    squares = [statistics.variance(runs) / len(runs) for runs in (values, peer)]
    error = math.sqrt(sum(squares))
    if error == 0:  # no variance, such as when every seed reaches the maximum return
        return (statistics.fmean(values) - statistics.fmean(peer)) / abs(statistics.fmean(peer))
    freedom = sum(squares) ** 2 / sum(
        square**2 / (len(runs) - 1) for square, runs in zip(squares, (values, peer), strict=True)
    )
    difference = statistics.fmean(values) - statistics.fmean(peer)
    return (difference - student_t(freedom, quantile) * error) / abs(statistics.fmean(peer))


def main() -> int:
    """Train, compare, print and store."""
    parser = argparse.ArgumentParser(prog="python -m bench curves", description=__doc__)
    add_options(parser)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=1, help="concurrent trainings")
    parser.add_argument("--against", default="sb3", choices=["sb3"])
    parser.add_argument("--execution", default="auto", choices=["auto", "eager", "compile"])
    parser.add_argument("--peer", action="store_true", help="train the peer's missing seeds")
    parser.add_argument("--keep", action="store_true", help="train only hotloop's missing seeds")
    options = parser.parse_args()
    complete_options(parser, options)
    name = f"curves_{options.algorithm}_{storage.file_name(options.env_id)}"
    stored = []
    try:
        result = storage.load(name)
        stored = result["runs"][options.against]
        if result["timesteps"] != options.timesteps:
            parser.error(f"the stored curves have {result['timesteps']} steps: --timesteps")
    except FileNotFoundError:
        if not options.peer:
            parser.error(
                f"no stored curves of {options.against} on {options.env_id}: `--peer` trains them"
            )
    name += "" if options.precision == "float32" else f"_{options.precision}"
    name += worker_suffix(options)
    hotloop_runs = []
    if options.keep:
        with contextlib.suppress(FileNotFoundError):
            hotloop_runs = storage.load(name)["runs"]["hotloop"]
    runs: dict[str, list[dict[str, Any]]] = {"hotloop": hotloop_runs, options.against: stored}
    missing = [
        (contender, seed)
        for contender in (["hotloop", options.against] if options.peer else ["hotloop"])
        for seed in range(1, options.seeds + 1)
        if seed not in [run["seed"] for run in runs[contender]]
    ]
    settings = {
        "benchmark": f"{options.algorithm} {options.env_id}",
        "command": " ".join(["python -m bench curves", *sys.argv[1:]]),
        "timesteps": options.timesteps,
        "precision": options.precision,
        **worker_settings(options),
    }
    with ThreadPoolExecutor(options.jobs) as pool:
        trainings = {
            pool.submit(run_in_process, contender, options, seed): (contender, seed)
            for contender, seed in missing
        }
        for training in as_completed(trainings):
            contender, seed = trainings[training]
            seed_run = {"seed": seed, "episodes": training.result()["episodes"]}
            print(
                f"{contender:8} seed {seed}: {last_tenth_return(seed_run, options.timesteps):.4g}",
                flush=True,
            )
            runs[contender] = sorted([*runs[contender], seed_run], key=lambda run: run["seed"])
            storage.save(
                name, {**settings, "runs": runs}
            )  # a training takes long, so each is stored
    late = {
        contender: [last_tenth_return(run, options.timesteps) for run in contender_runs]
        for contender, contender_runs in runs.items()
    }
    hotloop, peer = late["hotloop"], late[options.against]
    bound = lower_bound(hotloop, peer)
    result = {
        **settings,
        "return_last_tenth": {
            contender: [float(f"{x:.4g}") for x in values] for contender, values in late.items()
        },
        "relative_difference": (statistics.fmean(hotloop) - statistics.fmean(peer))
        / abs(statistics.fmean(peer)),
        "lower_95_bound": bound,
        "runs": runs,
    }
    path = storage.save(name, result)
    for contender, values in late.items():
        print(f"{contender:8} {statistics.fmean(values):.4g} over {len(values)} seeds")
    print(
        f"relative difference {result['relative_difference']:+.1%}, lower 95 % bound {bound:+.1%}: "
        f"{'as good as' if bound > -0.15 else 'not shown to be as good as'} {options.against}"
    )
    print(f"stored: {path.relative_to(storage.RESULTS.parent.parent)}")
    return 0
