"""`hotloop plan`: what a cluster comes to, and what of it saturates first."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotloop.cli import need
from hotloop.cli.tables import plain_table, print_table, wide_console
from hotloop.errors import ConfigError

if TYPE_CHECKING:
    from hotloop.rollouts.forecast import Measured
    from hotloop.rollouts.planning import Cluster, Planned

_SCHEDULES = ("barrier", "variable", "lag:1", "async")
_FORMATS = (".png", ".svg", ".pdf")
# Of a transition in a fragment, beside what is observed before and after it: an action of eight
# bytes, the reward, three bits, two values and a log-probability.
_OTHER_BYTES = 27


def run(args: list[str]) -> int:
    """Reckon; see `hotloop plan --help`."""
    options = _parser().parse_args(args)
    _check(options)
    from hotloop.rollouts.planning import counts_up_to, curve, need_room

    measured, obs_bytes = _measured(options)
    cluster = _cluster(options, obs_bytes)
    need_room(cluster)
    planned = curve(measured, cluster, counts_up_to(cluster.workers))
    if options.json:
        json.dump(_to_json(planned, cluster), sys.stdout)
        print()
    else:
        _print(planned, cluster, measured)
    if options.plot is not None:
        _plot(planned, options.plot)
        if not options.json:
            print(f"\n{options.plot}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hotloop plan",
        description="Reckon how fast a training on several machines is, what of it saturates "
        "first, and how that goes with the number of workers. It is a forecast: docs/cluster.md "
        "has what was measured beside it.",
    )
    add = parser.add_argument
    add("--workers", type=int, required=True, metavar="W", help="workers, over all machines")
    add("--env-id", metavar="ID", help="measure this environment here, instead of --step-ms")
    add("--step-ms", type=float, metavar="MS", help="a step of an environment, resets included")
    add("--slow-ms", type=float, metavar="MS", help="a slow step, where some are slower")
    add("--slow-share", type=float, default=0.0, metavar="P", help="share of slow steps, 0 to 1")
    add(
        "--busy-share",
        type=float,
        metavar="P",
        help="share of a step in which it computes, 0 to 1; the rest it waits (default: 1 with "
        "--cores-per-node, else 0)",
    )
    add("--envs-per-worker", type=int, default=1, metavar="N", help="default: %(default)s")
    add("--num-steps", type=int, default=128, metavar="T", help="of a fragment; default: 128")
    add("--schedule", choices=_SCHEDULES, default="async", help="default: %(default)s")
    add("--overlap", action="store_true", help="barrier, variable: collect while learning")
    add("--obs-bytes", type=int, metavar="B", help="of an observation (default: 32)")
    add("--weights-bytes", type=int, default=100_000, metavar="B", help="default: %(default)s")
    add(
        "--learner-steps-per-s",
        type=float,
        default=math.inf,
        metavar="R",
        help="transitions that the learner can learn from (default: it is no limit); a run's "
        "`learn` span says it",
    )
    add("--nodes", type=int, default=1, metavar="M", help="machines; default: 1")
    add("--cores-per-node", type=int, metavar="C", help="default: as many as it takes")
    add("--network-gbit", type=float, default=10.0, metavar="G", help="of a machine; default: 10")
    add("--object-store-gb", type=float, metavar="G", help="Ray's, on the learner's machine")
    add("--plot", type=Path, metavar="FILE", help="draw the curve: .png, .svg or .pdf")
    add("--json", action="store_true", help="print one JSON object instead of the table")
    return parser


def _check(options: argparse.Namespace) -> None:
    """Refuse numbers that make no sense.

    Raises:
        ConfigError: one of them.
    """
    for name in (
        *("workers", "step_ms", "slow_ms", "envs_per_worker", "num_steps", "obs_bytes", "nodes"),
        *("weights_bytes", "learner_steps_per_s", "cores_per_node", "network_gbit"),
        "object_store_gb",
    ):
        number = getattr(options, name)
        if number is not None and not number > 0:
            raise ConfigError(f"`--{name.replace('_', '-')}` must be positive, got {number:g}")
    for name in ("slow_share", "busy_share"):
        number = getattr(options, name)
        if number is not None and not 0 <= number <= 1:
            raise ConfigError(f"`--{name.replace('_', '-')}` must be 0 to 1, got {number:g}")
    if (options.step_ms is None) == (options.env_id is None):
        raise ConfigError("pass either `--step-ms`, or `--env-id` to have its steps measured here")
    if (options.slow_ms is None) != (options.slow_share == 0):
        raise ConfigError("`--slow-ms` and `--slow-share` go together: how slow, and how often")
    if options.env_id is not None and options.slow_ms is not None:
        raise ConfigError("`--slow-ms` is for `--step-ms`: with `--env-id` steps are measured")
    if options.overlap and options.schedule in ("lag:1", "async"):
        raise ConfigError(f"`--schedule {options.schedule}` overlaps by itself: leave `--overlap`")
    if options.plot is not None and options.plot.suffix not in _FORMATS:
        raise ConfigError(f"`--plot` must end in {', '.join(_FORMATS)}, got '{options.plot}'")


def _measured(options: argparse.Namespace) -> tuple[Measured, int]:
    """Return what is known of an environment, and bytes of an observation."""
    from hotloop.rollouts.planning import two_speeds

    busy_share, obs_bytes = options.busy_share, options.obs_bytes or 32
    if options.env_id is None:
        if busy_share is None:
            busy_share = 0.0 if options.cores_per_node is None else 1.0
        slow_s = None if options.slow_ms is None else options.slow_ms / 1e3
        measured = two_speeds(options.step_ms / 1e3, slow_s, options.slow_share)
        return dataclasses.replace(measured, busy_share=busy_share), obs_bytes
    import numpy as np

    from hotloop.envs import make_vec
    from hotloop.policies import actor_critic
    from hotloop.rollouts.probe import measure

    envs = make_vec(options.env_id, None)
    spec = envs.obs_spec
    obs_bytes = options.obs_bytes or np.zeros(spec.shape, spec.dtype).nbytes
    envs.close()
    measured = measure(options.env_id, actor_critic, num_envs=options.envs_per_worker)
    if busy_share is not None:
        measured = dataclasses.replace(measured, busy_share=busy_share)
    return measured, obs_bytes


def _cluster(options: argparse.Namespace, obs_bytes: int) -> Cluster:
    from hotloop.rollouts.planning import Cluster

    store_gb = options.object_store_gb
    return Cluster(
        workers=options.workers,
        envs_per_worker=options.envs_per_worker,
        num_steps=options.num_steps,
        schedule=options.schedule,
        overlap=options.overlap,
        transition_bytes=2 * obs_bytes + _OTHER_BYTES,
        weights_bytes=options.weights_bytes,
        learner_steps_per_s=options.learner_steps_per_s,
        nodes=options.nodes,
        cores_per_node=options.cores_per_node,
        network_bytes_per_s=options.network_gbit * 1e9 / 8,
        store_bytes=None if store_gb is None else store_gb * 1e9,
    )


def _print(planned: list[Planned], cluster: Cluster, measured: Measured) -> None:
    table = plain_table()
    for heading in ("workers", "steps/s", "of ideal"):
        table.add_column(heading, justify="right")
    table.add_column("limit")
    for one in planned:
        table.add_row(f"{one.workers:,}", f"{one.steps_per_s:,.0f}", f"{one.share:.1%}", one.limit)
    print_table(table, wide_console())
    last = planned[-1]
    used = sorted(last.used.items(), key=lambda item: -item[1])
    print(f"\nin use with {last.workers:,} workers:")
    for name, share in used:
        print(f"  {name:14} {share:6.1%}")
    print(
        f"\nin flight: {cluster.stored_bytes / 1e6:,.1f} MB at most, in fragments of "
        f"{cluster.fragment_bytes / 1e3:,.1f} kB"
    )
    print(f"what saturates first: {_advice(last, cluster, measured)}")
    if measured.num_steps:
        print(f"measured here: {measured}")


def _advice(last: Planned, cluster: Cluster, measured: Measured) -> str:
    """Say what is full, and what would help."""
    waits = cluster.schedule in ("barrier", "lag:1") and measured.sd_s > 0.1 * measured.mean_s
    if last.limit == "environments" and last.share < 0.9:
        turns = cluster.schedule in ("barrier", "variable") and not cluster.overlap
        return "environments, which " + (
            "wait for the slowest of each iteration: `--schedule variable` or async would not"
            if waits
            else "stand still while the learner learns: `--overlap` or async would not"
            if turns
            else "wait for others"
        )
    fullest = max(share for name, share in last.used.items() if name != "environments")
    most = max(last.workers, math.floor(last.workers / fullest))
    return {
        "environments": f"environments: more workers make it faster, up to some {most:,}",
        "cores": "cores: more of them, or machines, make it faster; workers alone do not",
        "learner": "the learner: more workers are of no use; larger minibatches, or a GPU",
        "network in": "the learner's network, by what comes in: smaller observations",
        "network out": "the learner's network, by weights going out: longer fragments",
        "object store": "the object store",
    }[last.limit]


def _plot(planned: list[Planned], path: Path) -> None:
    """Draw throughput against workers."""
    need("matplotlib", extra="train", purpose="drawing a curve")
    from hotloop.errors import OutputError
    from hotloop.runs.plots import new_figure

    figure = new_figure(6, 4)
    axes = figure.subplots()
    workers = [one.workers for one in planned]
    axes.plot(workers, [one.ideal_per_s for one in planned], "--", color="0.6", label="ideal")
    axes.plot(workers, [one.steps_per_s for one in planned], "o-", label="forecast")
    axes.set(xscale="log", yscale="log", xlabel="workers", ylabel="transitions a second")
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    try:
        figure.savefig(path)
    except OSError as error:
        raise OutputError(f"{path} can't be written: {error}") from error


def _to_json(planned: list[Planned], cluster: Cluster) -> dict[str, Any]:
    return {
        "curve": [{**vars(one), "share": one.share} for one in planned],
        "fragment_bytes": cluster.fragment_bytes,
        "stored_bytes": cluster.stored_bytes,
    }
