"""Learning curves over seeds, compared with a peer by the last tenth of the steps.

    python -m bench curves --algorithm sac --env-id HalfCheetah-v5 --timesteps 100000 --seeds 5
    python -m bench curves --against tianshou --timesteps 40960 --seeds 3 --peer --peer-python PATH

hotloop's seeds are trained, `--jobs` of them at a time, or those of `--contender accelerated`, the
peer's classes from hotloop.accelerate. The peer's are read from the stored results, and `--peer`
trains missing ones (minutes each). Each training is stored when it ends: after an interruption, the
same command with `--keep` continues. The figures are the mean return over the last tenth of the
steps of every seed, and the lower 95 % bound of the relative difference of the means (Welch's
one-sided t-interval, over the peer's mean). The contender counts as equally good if the bound is
above -15 %.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from bench import storage
from bench.train.other_peers import DISTRIBUTIONS
from bench.train.settings import (
    add_options,
    check_contender,
    complete_options,
    worker_settings,
    worker_suffix,
)
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
    parser.add_argument("--against", default="sb3", choices=["sb3", *DISTRIBUTIONS])
    parser.add_argument(
        "--peer-python",
        default=sys.executable,
        metavar="PATH",
        help="Python of an environment with a peer other than sb3",
    )
    parser.add_argument("--contender", default="hotloop", choices=["hotloop", "accelerated"])
    parser.add_argument("--execution", default="auto", choices=["auto", "eager", "compile"])
    parser.add_argument("--peer", action="store_true", help="train the peer's missing seeds")
    parser.add_argument("--keep", action="store_true", help="train only missing seeds")
    options = parser.parse_args()
    complete_options(parser, options)
    check_contender(parser, options)
    options.for_curves = True
    contender, task = options.contender, f"{options.algorithm}_{storage.file_name(options.env_id)}"
    name = f"curves_{task}" if contender == "hotloop" else f"{contender}_curves_{task}"
    peer_name = f"curves_{task}"
    if options.against != "sb3":
        if (options.algorithm, contender) != ("ppo", "hotloop"):
            parser.error(f"{options.against} is compared with hotloop's ppo")
        name = peer_name = f"{options.against}_curves_{task}"
    name += "" if options.precision == "float32" else f"_{options.precision}"
    name += worker_suffix(options)
    # Load the stored curves. The peer's were perhaps stored beside another contender's.
    own = _stored_runs(name, options.timesteps, parser)
    runs = {contender: own.get(contender, []) if options.keep else []}
    runs[options.against] = own.get(options.against, [])
    own_seeds = [run["seed"] for run in runs[options.against]]
    others = {
        run["seed"]: run
        for stored_name in (f"accelerated_{peer_name}", peer_name)
        for run in _stored_runs(stored_name, options.timesteps).get(options.against, [])
    }
    other = [run for seed, run in others.items() if seed not in own_seeds]
    if not (options.peer or own_seeds or other):
        parser.error(
            f"no stored curves of {options.against} on {options.env_id}: `--peer` trains them"
        )
    stored = {contender: runs[contender], options.against: [*runs[options.against], *other]}
    missing = [
        (side, seed)
        for seed in range(1, options.seeds + 1)
        for side in (list(runs) if options.peer else [contender])
        if seed not in [run["seed"] for run in stored[side]]
    ]

    # Train the missing seeds.
    versions: dict[str, str] = {}
    settings = {
        "benchmark": f"{options.algorithm} {options.env_id}",
        # Without paths of this machine.
        "command": " ".join(
            "PATH" if x == options.peer_python else x
            for x in ("python -m bench curves", *sys.argv[1:])
        ),
        "timesteps": options.timesteps,
        "precision": options.precision,
        "peer_versions": versions,
        **worker_settings(options),
    }
    with ThreadPoolExecutor(options.jobs) as pool:
        trainings = {
            pool.submit(run_in_process, side, options, seed): (side, seed) for side, seed in missing
        }
        for training in as_completed(trainings):
            side, seed = trainings[training]
            figures = training.result()
            versions.update(figures.get("versions", {}))
            seed_run = {"seed": seed, "episodes": figures["episodes"]}
            last_return = last_tenth_return(seed_run, options.timesteps)
            print(f"{side:11} seed {seed}: {last_return:.4g}", flush=True)
            runs[side] = sorted([*runs[side], seed_run], key=lambda run: run["seed"])
            storage.save(name, {**settings, "runs": runs})  # a training takes long

    # Compare.
    late = {
        side: [last_tenth_return(run, options.timesteps) for run in side_runs]
        for side, side_runs in {**runs, options.against: [*runs[options.against], *other]}.items()
    }
    bound = lower_bound(late[contender], late[options.against])
    means = {side: statistics.fmean(values) for side, values in late.items()}
    difference = (means[contender] - means[options.against]) / abs(means[options.against])
    result = {
        **settings,
        "return_last_tenth": {
            side: [float(f"{x:.4g}") for x in values] for side, values in late.items()
        },
        "relative_difference": difference,
        "lower_95_bound": bound,
        "runs": runs,
    }
    path = storage.save(name, result)
    for side, values in late.items():
        print(f"{side:11} {means[side]:.4g} over {len(values)} seeds")
    print(
        f"relative difference {difference:+.1%}, lower 95 % bound {bound:+.1%}: "
        f"{'as good as' if bound > -0.15 else 'not shown to be as good as'} {options.against}"
    )
    print(f"stored: {path.relative_to(storage.RESULTS.parent.parent)}")
    return 0


def _stored_runs(
    name: str, timesteps: int, parser: argparse.ArgumentParser | None = None
) -> dict[str, list[dict[str, Any]]]:
    """Return the runs of a stored result by contender, empty if there are none of that length.

    With `parser`, a result of another length is an error.
    """
    try:
        result = storage.load(name)
    except FileNotFoundError:
        return {}
    if result["timesteps"] == timesteps:
        return result["runs"]
    if parser:
        parser.error(f"the stored curves have {result['timesteps']} steps: --timesteps")
    return {}
