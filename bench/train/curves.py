"""Learning curves over seeds, beside the peer's: the difference over the last tenth.

    python -m bench curves --algorithm sac --env-id HalfCheetah-v5 --timesteps 100000 --seeds 5

Ours are trained, `--jobs` of them side by side; the peer's are taken from the stored result
(`--peer` trains those that are missing, minutes each). Printed and stored: the mean return of the
last tenth of the steps of every seed, and the lower 95 % bound of the relative difference of the
means (Welch's t-interval, one-sided, over the peer's mean): as good as the peer is what lies above
-15 %.
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
from bench.train.settings import add_options, complete, worker_settings, worker_suffix
from bench.train.speed import last_tenth, run_in_process
from hotloop.statistics import student_t


def lower_bound(ours: list[float], peer: list[float], quantile: float = 0.95) -> float:
    """Lower one-sided bound of (mean(ours) − mean(peer)) / |mean(peer)|, by Welch's t.

    Args:
        ours: at least two.
        peer: at least two.
        quantile: how sure it is.
    """
    squares = [statistics.variance(runs) / len(runs) for runs in (ours, peer)]
    error = math.sqrt(sum(squares))
    if error == 0:  # all alike, as where every seed has reached the greatest return
        return (statistics.fmean(ours) - statistics.fmean(peer)) / abs(statistics.fmean(peer))
    freedom = sum(squares) ** 2 / sum(
        square**2 / (len(runs) - 1) for square, runs in zip(squares, (ours, peer), strict=True)
    )
    difference = statistics.fmean(ours) - statistics.fmean(peer)
    return (difference - student_t(freedom, quantile) * error) / abs(statistics.fmean(peer))


def main() -> int:
    """Train, compare, print, store."""
    parser = argparse.ArgumentParser(prog="python -m bench curves", description=__doc__)
    add_options(parser)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=1, help="trainings side by side")
    parser.add_argument("--against", default="sb3", choices=["sb3"])
    parser.add_argument("--execution", default="auto", choices=["auto", "eager", "compile"])
    parser.add_argument("--peer", action="store_true", help="train the peer's missing seeds")
    parser.add_argument("--keep", action="store_true", help="train only our missing seeds too")
    options = parser.parse_args()
    complete(parser, options)
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
    own = []
    if options.keep:
        with contextlib.suppress(FileNotFoundError):
            own = storage.load(name)["runs"]["hotloop"]
    runs: dict[str, list[dict[str, Any]]] = {"hotloop": own, options.against: stored}
    wanted = [
        (who, seed)
        for who in (["hotloop", options.against] if options.peer else ["hotloop"])
        for seed in range(1, options.seeds + 1)
        if seed not in [run["seed"] for run in runs[who]]
    ]
    about = {
        "benchmark": f"{options.algorithm} {options.env_id}",
        "command": " ".join(["python -m bench curves", *sys.argv[1:]]),
        "timesteps": options.timesteps,
        "precision": options.precision,
        **worker_settings(options),
    }
    with ThreadPoolExecutor(options.jobs) as pool:
        trainings = {
            pool.submit(run_in_process, who, options, seed): (who, seed) for who, seed in wanted
        }
        for training in as_completed(trainings):
            who, seed = trainings[training]
            kept = {"seed": seed, "episodes": training.result()["episodes"]}
            print(f"{who:8} seed {seed}: {last_tenth(kept, options.timesteps):.4g}", flush=True)
            runs[who] = sorted([*runs[who], kept], key=lambda run: run["seed"])
            storage.save(name, {**about, "runs": runs})  # hours of work: none of it is lost
    late = {who: [last_tenth(run, options.timesteps) for run in done] for who, done in runs.items()}
    ours, peer = late["hotloop"], late[options.against]
    bound = lower_bound(ours, peer)
    result = {
        **about,
        "return_last_tenth": {
            who: [float(f"{x:.4g}") for x in values] for who, values in late.items()
        },
        "relative_difference": (statistics.fmean(ours) - statistics.fmean(peer))
        / abs(statistics.fmean(peer)),
        "lower_95_bound": bound,
        "runs": runs,
    }
    path = storage.save(name, result)
    for who, values in late.items():
        print(f"{who:8} {statistics.fmean(values):.4g} over {len(values)} seeds")
    print(
        f"relative difference {result['relative_difference']:+.1%}, lower 95 % bound {bound:+.1%}: "
        f"{'as good as' if bound > -0.15 else 'not shown to be as good as'} {options.against}"
    )
    print(f"stored: {path.relative_to(storage.RESULTS.parent.parent)}")
    return 0
