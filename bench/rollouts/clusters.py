"""Rollouts on Ray: actors on nodes that are simulated here, RLlib's beside them, and the reckoning.

Environments sleep, so that dozens of them run on two cores. A node is a raylet of its own, with
its own store and its own processes; what lies between two nodes of a cluster is not simulated.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.measuring import Missing
from bench.rollouts.environments import UNEVEN
from bench.rollouts.scale import QUICK, Scale, alternate, store

# Ray's own processes, and so many bytes of a store of each node.
_STORE = 200 * 2**20
_SHARE = 0.02  # of a core, by Ray's account, for an environment that sleeps
_NODES = 8
ACTOR = b"ray::Actor"  # in a command of one that steps environments


@contextlib.contextmanager
def cluster_of(nodes: int) -> Iterator[Any]:
    """A head, on which the learner is, and so many nodes beside it; connected to.

    Raises:
        Missing: Ray is not installed.
    """
    paths = [str(Path.cwd()), *sys.path]
    os.environ |= {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
        from ray import cluster_utils
    except ImportError:
        raise Missing("not installed") from None
    options: dict[str, Any] = {"object_store_memory": _STORE, "num_cpus": 4}
    head = {**options, "num_cpus": 0 if nodes > 1 else 4, "include_dashboard": False}
    cluster: Any = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
    try:
        added = [cluster.add_node(**options) for _ in range(nodes if nodes > 1 else 0)]
        ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
        cluster.added = added
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def environments(env: str, *, workers: int, per_worker: int, **made: Any) -> Any:
    """Environments of actors, which share cores."""
    from hotloop.rollouts.ray.environments import RayEnvironments

    return RayEnvironments(
        env,
        num_workers=workers,
        envs_per_worker=per_worker,
        resources={"num_cpus": _SHARE},
        **made,
    )


class RLlib:
    """RLlib's env runners, as its PPO asks them, all together, or as its IMPALA does, who is ready.

    Args:
        env_kwargs: of `Uneven`.
        workers: W, of one environment each.
        num_steps: T.
        waits: for all of them.
    """

    def __init__(
        self, env_kwargs: Mapping[str, Any], *, workers: int, num_steps: int, waits: bool
    ) -> None:
        from ray import tune
        from ray.rllib.algorithms.ppo import PPOConfig
        from ray.rllib.execution.rollout_ops import synchronous_parallel_sample

        logging.disable(logging.WARNING)
        tune.register_env("uneven", make_uneven)
        config: Any = PPOConfig().environment("uneven", env_config=dict(env_kwargs))
        config = config.env_runners(
            num_env_runners=workers,
            num_cpus_per_env_runner=_SHARE,
            rollout_fragment_length=num_steps,
        ).rl_module(model_config={"fcnet_hiddens": [16]})
        config = config.training(train_batch_size_per_learner=workers * num_steps)
        self.num_envs = workers
        self._algorithm = config.build_algo()
        self._group: Any = self._algorithm.env_runner_group
        self._sample: Any = synchronous_parallel_sample
        self._steps, self._waits = num_steps, waits

    def advance(self) -> int:
        """T steps of each, or fragments of who is ready."""
        if self._waits:
            episodes = self._sample(
                worker_set=self._group,
                max_env_steps=self.num_envs * self._steps,
                sample_timeout_s=120.0,
                _uses_new_env_runners=True,
            )
            return sum(len(one) for one in episodes)
        while True:
            come = self._group.foreach_env_runner_async_fetch_ready(
                func="sample", kwargs={"num_timesteps": self._steps}, tag="s", timeout_seconds=0.05
            )
            if come:
                return sum(len(one) for episodes in come for one in episodes)

    def close(self) -> None:
        """End the actors."""
        self._algorithm.stop()


def make_uneven(config: Mapping[str, Any]) -> Any:
    """For RLlib, by its own way of naming environments."""
    from bench.rollouts.environments import Uneven

    return Uneven(**config)


# --- in a process of their own --------------------------------------------------------------------


def sample_on_ray(nodes: int = 1, **arguments: Any) -> dict[str, float]:
    """`measure.sample` on a cluster of so many nodes."""
    from bench.rollouts.measure import sample

    with cluster_of(nodes):
        return sample(**arguments)


def fragments_on_ray(**arguments: Any) -> dict[str, float]:
    """`measure.fragments` of an actor."""
    from bench.rollouts.measure import fragments

    with cluster_of(1):
        return fragments(**arguments)


def start_on_ray(workers: int) -> dict[str, float]:
    """Until all workers are ready.

    Returns:
        `ray_s`, starting Ray; `ready_s`, until environments can be stepped; `cpu_s`, of a worker's
        process until then; `processes`, of the actors.
    """
    began = time.perf_counter()
    with cluster_of(1):
        ray_s = time.perf_counter() - began
        began = time.perf_counter()
        envs = environments(UNEVEN, workers=workers, per_worker=1)
        ready_s = time.perf_counter() - began
        times = [cpu_s(pid) for pid in pids_of(ACTOR)]
        envs.close()
    return {
        "ray_s": ray_s,
        "ready_s": ready_s,
        "cpu_s": statistics.median(times),
        "processes": float(len(times)),
    }


def recover_on_ray(kills: int) -> dict[str, float]:
    """How long a fragment of all workers takes beyond the usual when an actor or a node is lost."""
    from bench.rollouts.samplers import make_sampler

    clock = time.perf_counter
    found: dict[str, list[float]] = {"actor": [], "node": []}
    with cluster_of(3) as cluster:
        sampler = make_sampler(
            "ray barrier",
            env=UNEVEN,
            workers=6,
            per_worker=1,
            num_steps=32,
            env_kwargs={"slow_share": 0.0},
        )
        usual: list[float] = []
        for _ in range(5):
            began = clock()
            sampler.advance()
            usual.append(clock() - began)
        for _ in range(kills):
            os.kill(pids_of(ACTOR)[0], signal.SIGKILL)
            began = clock()
            sampler.advance()
            found["actor"].append(clock() - began - statistics.median(usual))
        for _ in range(2):
            node = cluster.added.pop()
            cluster.remove_node(node, allow_graceful=False)
            began = clock()
            sampler.advance()
            found["node"].append(clock() - began - statistics.median(usual))
        sampler.close()
    return {
        f"{what}_{name}_s": function(values)
        for what, values in found.items()
        for name, function in (("median", statistics.median), ("worst", max))
    }


def pids_of(*marks: bytes) -> list[int]:
    """Processes, but this one, whose command has one of these marks."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            line, pid = path.read_bytes(), int(path.parent.name)
            if pid != os.getpid() and any(mark in line for mark in marks):
                found.append(pid)
    return sorted(found)


def cpu_s(pid: int) -> float:
    """Seconds that a process has had of the cores."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# --- the parts ------------------------------------------------------------------------------------

ON_RAY = {
    "ray variable": "hotloop, `variable`",
    "ray variable overlap": "hotloop, `variable`, overlapped",
    "ray async fragments": "hotloop, `async`",
    "ray barrier": "hotloop, `barrier`",
    "rllib": "RLlib's env runners, all together, as PPO",
    "rllib async": "RLlib's env runners, who is ready, as IMPALA",
}


def on_ray(scale: Scale, rounds: int) -> None:
    """Uneven steps on one node and on eight; overhead; start; recovery."""
    from bench.rollouts.measure import measure

    load = 0.2
    asked = {"env": UNEVEN, "num_steps": scale.num_steps, "seconds": scale.seconds}
    measures: dict[str, Callable[[], dict[str, Any]]] = {}
    many = 2 * scale.workers
    for how in ON_RAY:
        loads = [0.0, load] if how.startswith("ray") else [0.0]
        measures[how] = functools.partial(
            measure, "sample_on_ray", how=how, workers=scale.workers, loads=loads, **asked
        )
    for how in ("ray variable overlap", "ray async fragments"):
        measures[f"{how}, {_NODES} nodes"] = functools.partial(
            measure,
            "sample_on_ray",
            how=how,
            workers=many,
            nodes=_NODES,
            loads=[0.0, load],
            **asked,
        )
    for how, way in (("inline", "fragments"), ("ray barrier", "fragments_on_ray")):
        measures[f"fragment {how}"] = functools.partial(
            measure,
            way,
            how=how,
            num_steps=scale.num_steps,
            per_worker=8,
            seconds=scale.cheap_seconds,
        )
    measures["start"] = functools.partial(measure, "start_on_ray", workers=scale.workers)
    kills = 3 if scale is QUICK else 10
    measures["recovery"] = functools.partial(measure, "recover_on_ray", kills=kills)
    print("  ", end="", flush=True)
    found = alternate(measures, rounds)
    for name, figures in found.items():
        told = {key: one["median"] for key, one in figures.items() if key != "missing"}
        print(f"    {name:40} {', '.join(f'{k} {v:,.4g}' for k, v in told.items())}")
    sizes = {"workers": scale.workers, "many": many, "nodes": _NODES, "load": load}
    sizes |= {"num_steps": scale.num_steps, "rounds": rounds, "seconds": scale.seconds}
    store("ray", {**sizes, "about": ON_RAY, "ways": found})


def plan(scale: Scale, rounds: int) -> None:
    """What is reckoned beside what is measured, on 1, 2, 4 and 8 nodes."""
    from bench.rollouts.measure import measure
    from hotloop.rollouts.planning import Cluster, reckon, two_speeds

    speeds = {"fast_s": 0.003, "slow_s": 0.1, "slow_share": 0.1}
    measured = two_speeds(speeds["fast_s"], speeds["slow_s"], speeds["slow_share"])
    each = 2 if scale is QUICK else 8
    measures, forecasts = {}, {}
    for nodes in (1, 2) if scale is QUICK else (1, 2, 4, 8):
        for how, schedule, overlap in (
            ("ray barrier", "barrier", False),
            ("ray variable overlap", "variable", True),
            ("ray async fragments", "async", False),
        ):
            name = f"{nodes} {schedule}"
            cluster = Cluster(
                workers=nodes * each,
                num_steps=scale.num_steps,
                schedule=schedule,  # pyright: ignore[reportArgumentType]
                overlap=overlap,
                nodes=nodes,
            )
            forecasts[name] = reckon(measured, cluster)
            measures[name] = functools.partial(
                measure,
                "sample_on_ray",
                how=how,
                env=UNEVEN,
                workers=nodes * each,
                nodes=nodes,
                num_steps=scale.num_steps,
                seconds=scale.seconds,
                env_kwargs=speeds,
            )
    print("  ", end="", flush=True)
    found = alternate(measures, rounds)
    rows: list[dict[str, Any]] = []
    for name, figures in found.items():
        nodes, schedule = name.split()
        row = {"nodes": int(nodes), "workers": int(nodes) * each, "schedule": schedule}
        row |= {"forecast": forecasts[name].steps_per_s, **figures}
        rows.append(row)
        rate = figures.get("rate 0%", {}).get("median", float("nan"))
        print(f"    {name:14} forecast {row['forecast']:8,.0f}/s, measured {rate:8,.0f}/s")
    only = [
        vars(
            reckon(
                measured,
                Cluster(
                    workers=count, num_steps=scale.num_steps, schedule="async", nodes=count // 8
                ),
            )
        )
        for count in (256, 1024)
    ]
    store("plan", {"num_steps": scale.num_steps, "rounds": rounds, "rows": rows, "only": only})
