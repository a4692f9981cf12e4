"""Rollouts on Ray: actors on simulated nodes, RLlib's env runners, and the forecast.

Environments sleep, so that dozens of them run on two cores. Each node is a separate raylet with its
own store and processes. The network between nodes is not simulated.
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
from typing import TYPE_CHECKING, Any

from bench.measuring import Missing
from bench.rollouts.environments import UNEVEN
from bench.rollouts.scale import QUICK, RolloutScale, alternate, store

if TYPE_CHECKING:
    from hotloop.envs import EnvSpec

# Bytes of each node's object store.
_STORE = 200 * 2**20
_SHARE = 0.02  # share of a core that Ray reserves for a sleeping environment
_NODES = 8
ACTOR = b"ray::Actor"  # in the command of a process that steps environments


@contextlib.contextmanager
def start_cluster(nodes: int) -> Iterator[Any]:
    """Start a head node for the learner and further nodes, and connect to them.

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


def make_environments(
    spec: EnvSpec, *, workers: int, per_worker: int, num_inference: int = 0
) -> Any:
    """Return environments of actors that share cores."""
    from hotloop.rollouts.ray.environments import RayEnvironments, RayOptions

    options = RayOptions(resources={"num_cpus": _SHARE}, num_inference=num_inference)
    return RayEnvironments(spec, options, num_workers=workers, envs_per_worker=per_worker)


class RLlib:
    """RLlib's env runners, sampled synchronously like its PPO or as they are ready like its IMPALA.

    Args:
        env_kwargs: arguments of `Uneven`.
        workers: W, with one environment each.
        num_steps: T.
        waits: whether to wait for all env runners.
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
        """Collect T steps of each runner, or the fragments that are ready."""
        if self._waits:
            episodes = self._sample(
                worker_set=self._group,
                max_env_steps=self.num_envs * self._steps,
                sample_timeout_s=120.0,
                _uses_new_env_runners=True,
            )
            return sum(len(episode) for episode in episodes)
        while True:
            ready = self._group.foreach_env_runner_async_fetch_ready(
                func="sample", kwargs={"num_timesteps": self._steps}, tag="s", timeout_seconds=0.05
            )
            if ready:
                return sum(len(episode) for episodes in ready for episode in episodes)

    def close(self) -> None:
        """Stop the actors."""
        self._algorithm.stop()


def make_uneven(config: Mapping[str, Any]) -> Any:
    """Return an environment for RLlib's registry."""
    from bench.rollouts.environments import Uneven

    return Uneven(**config)


# --- measurements in their own process ------------------------------------------------------------


def sample_on_ray(nodes: int = 1, **arguments: Any) -> dict[str, float]:
    """Call `measure.sample` on a cluster of `nodes` nodes."""
    from bench.rollouts.measure import sample

    with start_cluster(nodes):
        return sample(**arguments)


def fragments_on_ray(**arguments: Any) -> dict[str, float]:
    """Call `measure.fragments` with an actor."""
    from bench.rollouts.measure import fragments

    with start_cluster(1):
        return fragments(**arguments)


def start_on_ray(workers: int) -> dict[str, float]:
    """Start Ray and all workers.

    Returns:
        `ray_s`, seconds to start Ray; `ready_s`, seconds until environments can be stepped;
        `cpu_s`, CPU time of a worker's process until then; `processes`, number of actors.
    """
    start_s = time.perf_counter()
    with start_cluster(1):
        ray_s = time.perf_counter() - start_s
        start_s = time.perf_counter()
        from hotloop.envs import EnvSpec

        envs = make_environments(EnvSpec(UNEVEN), workers=workers, per_worker=1)
        ready_s = time.perf_counter() - start_s
        times = [cpu_s(pid) for pid in find_pids(ACTOR)]
        envs.close()
    return {
        "ray_s": ray_s,
        "ready_s": ready_s,
        "cpu_s": statistics.median(times),
        "processes": float(len(times)),
    }


def recover_on_ray(kills: int) -> dict[str, float]:
    """Return the additional seconds of a fragment after an actor or a node is lost."""
    from bench.rollouts.samplers import make_sampler

    clock = time.perf_counter
    delays_s: dict[str, list[float]] = {"actor": [], "node": []}
    with start_cluster(3) as cluster:
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
            start_s = clock()
            sampler.advance()
            usual.append(clock() - start_s)
        for _ in range(kills):
            os.kill(find_pids(ACTOR)[0], signal.SIGKILL)
            start_s = clock()
            sampler.advance()
            delays_s["actor"].append(clock() - start_s - statistics.median(usual))
        for _ in range(2):
            node = cluster.added.pop()
            cluster.remove_node(node, allow_graceful=False)
            start_s = clock()
            sampler.advance()
            delays_s["node"].append(clock() - start_s - statistics.median(usual))
        sampler.close()
    return {
        f"{lost}_{name}_s": function(values)
        for lost, values in delays_s.items()
        for name, function in (("median", statistics.median), ("worst", max))
    }


def find_pids(*marks: bytes) -> list[int]:
    """Return the other processes whose command contains one of the marks."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            line, pid = path.read_bytes(), int(path.parent.name)
            if pid != os.getpid() and any(mark in line for mark in marks):
                pids.append(pid)
    return sorted(pids)


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# --- the parts ------------------------------------------------------------------------------------

ON_RAY = {
    "ray variable": "hotloop, `variable`",
    "ray variable overlap": "hotloop, `variable`, overlapped",
    "ray async fragments": "hotloop, `async`",
    "ray barrier": "hotloop, `barrier`",
    "rllib": "RLlib's env runners, synchronous as in PPO",
    "rllib async": "RLlib's env runners, asynchronous as in IMPALA",
}


def on_ray(scale: RolloutScale, rounds: int) -> None:
    """Measure uneven steps on one and eight nodes, overhead, start and recovery."""
    from bench.rollouts.measure import measure

    load = 0.2
    arguments = {"env": UNEVEN, "num_steps": scale.num_steps, "seconds": scale.seconds}
    measures: dict[str, Callable[[], dict[str, Any]]] = {}
    many_workers = 2 * scale.workers
    for method in ON_RAY:
        loads = [0.0, load] if method.startswith("ray") else [0.0]
        measures[method] = functools.partial(
            measure, "sample_on_ray", method=method, workers=scale.workers, loads=loads, **arguments
        )
    for method in ("ray variable overlap", "ray async fragments"):
        measures[f"{method}, {_NODES} nodes"] = functools.partial(
            measure,
            "sample_on_ray",
            method=method,
            workers=many_workers,
            nodes=_NODES,
            loads=[0.0, load],
            **arguments,
        )
    for method, way in (("inline", "fragments"), ("ray barrier", "fragments_on_ray")):
        measures[f"fragment {method}"] = functools.partial(
            measure,
            way,
            method=method,
            num_steps=scale.num_steps,
            per_worker=8,
            seconds=scale.cheap_seconds,
        )
    measures["start"] = functools.partial(measure, "start_on_ray", workers=scale.workers)
    kills = 3 if scale is QUICK else 10
    measures["recovery"] = functools.partial(measure, "recover_on_ray", kills=kills)
    print("  ", end="", flush=True)
    results = alternate(measures, rounds)
    for name, figures in results.items():
        medians = {key: figure["median"] for key, figure in figures.items() if key != "missing"}
        print(f"    {name:40} {', '.join(f'{k} {v:,.4g}' for k, v in medians.items())}")
    sizes = {"workers": scale.workers, "many": many_workers, "nodes": _NODES, "load": load}
    sizes |= {"num_steps": scale.num_steps, "rounds": rounds, "seconds": scale.seconds}
    store("ray", {**sizes, "about": ON_RAY, "ways": results})


def plan(scale: RolloutScale, rounds: int) -> None:
    """Compare forecasts with measurements on 1, 2, 4 and 8 nodes."""
    from bench.rollouts.measure import measure
    from hotloop.rollouts.planning.cluster import Cluster, forecast_cluster, two_speed_timing

    speeds = {"fast_s": 0.003, "slow_s": 0.1, "slow_share": 0.1}
    measured = two_speed_timing(speeds["fast_s"], speeds["slow_s"], speeds["slow_share"])
    workers_per_node = 2 if scale is QUICK else 8
    measures, forecasts = {}, {}
    for nodes in (1, 2) if scale is QUICK else (1, 2, 4, 8):
        for method, schedule, overlap in (
            ("ray barrier", "barrier", False),
            ("ray variable overlap", "variable", True),
            ("ray async fragments", "async", False),
        ):
            name = f"{nodes} {schedule}"
            cluster = Cluster(
                workers=nodes * workers_per_node,
                num_steps=scale.num_steps,
                schedule=schedule,  # pyright: ignore[reportArgumentType]
                overlap=overlap,
                nodes=nodes,
            )
            forecasts[name] = forecast_cluster(measured, cluster)
            measures[name] = functools.partial(
                measure,
                "sample_on_ray",
                method=method,
                env=UNEVEN,
                workers=nodes * workers_per_node,
                nodes=nodes,
                num_steps=scale.num_steps,
                seconds=scale.seconds,
                env_kwargs=speeds,
            )
    print("  ", end="", flush=True)
    results = alternate(measures, rounds)
    rows: list[dict[str, Any]] = []
    for name, figures in results.items():
        nodes, schedule = name.split()
        row = {"nodes": int(nodes), "workers": int(nodes) * workers_per_node, "schedule": schedule}
        row |= {"forecast": forecasts[name].steps_per_s, **figures}
        rows.append(row)
        rate = figures.get("rate 0%", {}).get("median", float("nan"))
        print(f"    {name:14} forecast {row['forecast']:8,.0f}/s, measured {rate:8,.0f}/s")
    forecasts_alone = [
        vars(
            forecast_cluster(
                measured,
                Cluster(
                    workers=count, num_steps=scale.num_steps, schedule="async", nodes=count // 8
                ),
            )
        )
        for count in (256, 1024)
    ]
    store(
        "plan",
        {"num_steps": scale.num_steps, "rounds": rounds, "rows": rows, "only": forecasts_alone},
    )
