"""`hotloop plan`: forecast the speed of a cluster, and what limits it first."""

from __future__ import annotations

import argparse
import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotloop.base.figures import check_plot_path
from hotloop.base.text_tables import print_json
from hotloop.cli.command_parser import CommandParser, count, positive, share
from hotloop.errors import ConfigError

if TYPE_CHECKING:
    from hotloop.rollouts.planning.cluster import Cluster
    from hotloop.rollouts.planning.forecast import EnvTiming

_SCHEDULES = ("barrier", "variable", "lag:1", "async")


def run(args: list[str]) -> int:
    """Run the command. See `hotloop plan --help`."""
    options = _parser().parse_args(args)
    _check(options)
    from hotloop.reports.cluster_plan import draw_plan, print_plan
    from hotloop.rollouts.planning.cluster import plan_cluster

    env_timing = _env_timing(options)
    plan = plan_cluster(env_timing, _cluster(options, env_timing))
    if options.json:
        print_json(plan.to_json())
    else:
        print_plan(plan)
    if options.plot is not None:
        draw_plan(plan.forecasts, options.plot)
        if not options.json:
            print(f"\n{options.plot}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="hotloop plan",
        description="Forecast the speed of a training on several machines for a growing number of "
        "workers, and the resource that saturates first. docs/cluster.md compares such forecasts "
        "with measurements.",
    )
    add = parser.add_argument
    add("--workers", type=count, required=True, metavar="W", help="workers, over all machines")
    add("--env-id", metavar="ID", help="measure this environment here, instead of --step-ms")
    add("--step-ms", type=positive, metavar="MS", help="time of a step, resets included")
    add("--slow-ms", type=positive, metavar="MS", help="time of a slow step, if steps differ")
    add("--slow-share", type=share, default=0.0, metavar="P", help="share of slow steps, 0 to 1")
    share_help = "share of a step that needs a core, 0 to 1; the rest is waiting (default: 1 with "
    share_help += "--cores-per-node, else 0)"
    add("--busy-share", type=share, metavar="P", help=share_help)
    add(
        "--envs-per-worker",
        type=count,
        default=1,
        metavar="N",
        help="environments of each worker (default: 1)",
    )
    steps_help = "steps of each environment between two updates (default: %(default)s)"
    add("--num-steps", type=count, default=128, metavar="T", help=steps_help)
    schedule_help = "when the learner updates, as in `hotloop train` (default: %(default)s)"
    add("--schedule", choices=_SCHEDULES, default="async", help=schedule_help)
    add("--overlap", action="store_true", help="collect while learning, with barrier or variable")
    add("--obs-bytes", type=count, metavar="B", help="bytes of an observation (default: 32)")
    weights_help = "bytes of the policy that workers receive (default: %(default)s)"
    add("--weights-bytes", type=count, default=100_000, metavar="B", help=weights_help)
    add(
        "--learner-steps-per-s",
        type=positive,
        default=math.inf,
        metavar="R",
        help="transitions that the learner can process (default: no limit); a run's `update` span "
        "has the time",
    )
    add("--nodes", type=count, default=1, metavar="M", help="machines (default: 1)")
    add("--cores-per-node", type=count, metavar="C", help="cores of each (default: no limit)")
    network_help = "Gbit/s between two machines (default: %(default)g)"
    add("--network-gbit", type=positive, default=10.0, metavar="G", help=network_help)
    store_help = "size of Ray's object store on the learner's machine (default: no limit)"
    add("--object-store-gb", type=positive, metavar="G", help=store_help)
    add("--plot", type=Path, metavar="FILE", help="draw the curve: .png, .svg or .pdf")
    add("--json", action="store_true", help="print one JSON object instead of the table")
    return parser


def _check(options: argparse.Namespace) -> None:
    """Raise ConfigError if options contradict each other."""
    if (options.step_ms is None) == (options.env_id is None):
        raise ConfigError("pass either `--step-ms`, or `--env-id` to measure an environment here")
    if (options.slow_ms is None) != (options.slow_share == 0):
        raise ConfigError("`--slow-ms` and `--slow-share` go together: pass both or neither")
    if options.env_id is not None and options.slow_ms is not None:
        raise ConfigError("`--slow-ms` needs `--step-ms`: with `--env-id` the steps are measured")
    if options.overlap and options.schedule in ("lag:1", "async"):
        raise ConfigError(f"`--schedule {options.schedule}` overlaps by itself: remove `--overlap`")
    if options.plot is not None:
        check_plot_path(options.plot, option="--plot")


def _env_timing(options: argparse.Namespace) -> EnvTiming:
    """Return the timing of an environment, and the size of its transitions."""
    from hotloop.rollouts.planning.cluster import two_speed_timing
    from hotloop.types import transition_bytes

    changes: dict[str, Any] = {}
    if options.env_id is None:
        slow_s = None if options.slow_ms is None else options.slow_ms / 1e3
        timing = two_speed_timing(options.step_ms / 1e3, slow_s, options.slow_share)
        changes["busy_share"] = 0.0 if options.cores_per_node is None else 1.0
        changes["transition_bytes"] = transition_bytes(32)
    else:
        from hotloop.envs import EnvSpec
        from hotloop.policies import actor_critic
        from hotloop.rollouts.planning.probe import measure

        timing = measure(EnvSpec(options.env_id), actor_critic, num_envs=options.envs_per_worker)
    if options.obs_bytes is not None:
        changes["transition_bytes"] = transition_bytes(options.obs_bytes)
    if options.busy_share is not None:
        changes["busy_share"] = options.busy_share
    return dataclasses.replace(timing, **changes)


def _cluster(options: argparse.Namespace, env_timing: EnvTiming) -> Cluster:
    from hotloop.rollouts.planning.cluster import Cluster

    return Cluster(
        workers=options.workers,
        envs_per_worker=options.envs_per_worker,
        num_steps=options.num_steps,
        schedule=options.schedule,
        overlap=options.overlap,
        transition_bytes=env_timing.transition_bytes,
        weights_bytes=options.weights_bytes,
        learner_steps_per_s=options.learner_steps_per_s,
        nodes=options.nodes,
        cores_per_node=options.cores_per_node,
        network_bytes_per_s=options.network_gbit * 1e9 / 8,
        store_bytes=options.object_store_gb and options.object_store_gb * 1e9,
    )
