"""Forecasts of a cluster's speed of collecting and learning, and of the limiting resource.

Pure functions that add the network, the object store and the learner to the forecast of the workers
in `forecast`. `bench/results` compares the forecasts with measurements.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal

from hotloop.errors import ConfigError
from hotloop.rollouts.planning.forecast import CollectionTask, EnvTiming, forecast

PlanSchedule = Literal["barrier", "variable", "lag:1", "async"]

# The learner's time for handling a fragment, without learning, and the minimum transfer time.
HANDLING_S = 0.5e-3
LATENCY_S = 2e-3
# `variable` collects eighths of fragments. `_QUEUED` parts of a worker are queued on average.
PARTS = 8
_QUEUED = 1.5
# Fragments of a worker that are finished or in progress, by schedule.
_AHEAD = {"barrier": 1, "variable": 2, "lag:1": 2, "async": 2}
# Utilization from which a resource counts as saturated: the queues before it grow.
_SATURATED = 0.95
# Minimum speed-up by another schedule to advise it.
_MIN_SPEEDUP = 1.1


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A training setup on several machines.

    Attributes:
        workers: W.
        envs_per_worker: n.
        num_steps: T, rows of a fragment.
        schedule: See `hotloop.appo`. For `lag:1`, pass `barrier` with `overlap`.
        overlap: barrier, variable: collect while the learner learns.
        transition_bytes: Size of a transition in a fragment.
        weights_bytes: Size of the network's parameters.
        learner_steps_per_s: Maximum transitions per second of the learner, infinite without limit.
        nodes: Number of machines, including the learner's.
        cores_per_node: Cores of each machine, None without limit.
        network_bytes_per_s: Bandwidth of each machine in each direction.
        store_bytes: Size of Ray's object store on the learner's machine, None without limit.
    """

    workers: int
    envs_per_worker: int = 1
    num_steps: int = 128
    schedule: PlanSchedule = "variable"
    overlap: bool = False
    transition_bytes: int = 64
    weights_bytes: int = 100_000
    learner_steps_per_s: float = math.inf
    nodes: int = 1
    cores_per_node: int | None = None
    network_bytes_per_s: float = 1.25e9
    store_bytes: float | None = None

    @property
    def overlaps(self) -> bool:
        """Whether workers collect while the learner learns."""
        return self.overlap or self.schedule in ("lag:1", "async")

    @property
    def has_barrier(self) -> bool:
        """Whether the learner waits for the slowest worker."""
        return self.schedule in ("barrier", "lag:1")

    @property
    def fragment_bytes(self) -> int:
        """Size of a worker's fragment."""
        return self.num_steps * self.envs_per_worker * self.transition_bytes

    @property
    def stored_bytes(self) -> int:
        """Maximum size of stored objects: fragments in flight and two versions of the weights."""
        ahead = _AHEAD[self.schedule] if not self.overlap else 2
        return self.workers * ahead * self.fragment_bytes + 2 * self.weights_bytes


@dataclass(frozen=True, kw_only=True)
class ClusterForecast:
    """Forecast of a cluster.

    Attributes:
        workers: W.
        steps_per_s: Transitions per second that are collected and learned from.
        ideal_per_s: Transitions per second if only the environments took time.
        used: Utilization of each resource: environments, cores, learner, network in, network out,
            object store.
        limit: Resource that saturates first.
    """

    workers: int
    steps_per_s: float
    ideal_per_s: float
    used: dict[str, float]
    limit: str

    @property
    def share(self) -> float:
        """Share of the ideal speed."""
        return self.steps_per_s / self.ideal_per_s


def forecast_cluster(env_timing: EnvTiming, cluster: Cluster) -> ClusterForecast:
    """Return the forecast of a cluster.

    For the transitions of an iteration, collecting takes c (`forecast`), receiving i, learning l,
    and sending weights o. An iteration of `barrier` takes c + i' + l + o, where i' is the receiving
    time that is left when the slowest worker has finished. With overlapping it takes
    max(c + i', l, o). `async` does not wait: max(c, i, l, o). An overlapping `variable` does not
    wait either. Without overlapping, its workers continue with requested parts, 1.5 of eight on
    average.
    """
    # Time of each stage of an iteration.
    workers, num_envs = cluster.workers, cluster.workers * cluster.envs_per_worker
    transitions = num_envs * cluster.num_steps
    overlaps, waits = cluster.overlaps, cluster.has_barrier
    cores = cluster.nodes * cluster.cores_per_node if cluster.cores_per_node else 10**9
    schedule = "barrier" if waits else "async"  # `variable` requests parts ahead
    task = CollectionTask(
        num_envs=num_envs,
        num_steps=cluster.num_steps,
        schedule=schedule,
        overlap=overlaps,
        num_cores=cores,
    )
    collection = forecast(env_timing, task, workers, schedule)
    collect_s = transitions / collection.steps_per_s
    remote_share = 1 - 1 / cluster.nodes
    learn_s = transitions / cluster.learner_steps_per_s + workers * HANDLING_S
    in_s = workers * cluster.fragment_bytes * remote_share / cluster.network_bytes_per_s
    out_s = cluster.weights_bytes * (cluster.nodes - 1) / cluster.network_bytes_per_s
    # During the wait for the slowest worker, the others' fragments are already in transfer.
    late_s = max(in_s - collection.wait_share * collect_s, in_s / workers)
    # Time of an iteration.
    if waits and overlaps:
        period_s = max(collect_s + LATENCY_S + late_s, learn_s, out_s)
    elif waits:
        period_s = collect_s + LATENCY_S + late_s + learn_s + out_s
    elif overlaps:
        period_s = max(collect_s, learn_s, in_s, out_s)
    else:
        learner_s = learn_s + out_s
        ahead_s = min(learner_s, _QUEUED / PARTS * collect_s)
        period_s = max(collect_s - ahead_s, in_s - learner_s, 0.0) + learner_s
    # Utilization of each resource.
    row_s = env_timing.row_s(cluster.envs_per_worker)
    used = {
        "environments": row_s * cluster.num_steps / period_s,
        "learner": learn_s / period_s,
        "network in": in_s / period_s,
        "network out": out_s / period_s,
    }
    if cluster.cores_per_node:
        busy_s = workers * cluster.num_steps * env_timing.row_busy_s(cluster.envs_per_worker)
        used["cores"] = busy_s / (task.worker_cores(schedule) * period_s)
    if cluster.store_bytes is not None:
        used["object store"] = cluster.stored_bytes / cluster.store_bytes
    times = {key: x for key, x in used.items() if key != "object store"}
    limit = max(times, key=lambda key: times[key])
    if limit == "environments" and used.get("cores", 0.0) > _SATURATED:
        limit = "cores"
    if used.get("object store", 0.0) > 1:
        limit = "object store"
    return ClusterForecast(
        workers=workers,
        steps_per_s=transitions / period_s,
        ideal_per_s=num_envs / row_s,
        used=used,
        limit=limit,
    )


@dataclass(frozen=True, kw_only=True)
class ClusterPlan:
    """Forecasts of a cluster for a growing number of workers.

    Attributes:
        cluster: Cluster and settings.
        env_timing: Timing of one environment.
        forecasts: Forecasts for 1, 2, 4, … and W workers.
    """

    cluster: Cluster
    env_timing: EnvTiming
    forecasts: list[ClusterForecast]

    def advice(self) -> str:
        """Return what saturates first, and what would help."""
        last, timing = self.forecasts[-1], self.env_timing
        if last.limit == "environments" and last.share < 0.9:
            has_wait = self.cluster.has_barrier and timing.sd_s > 0.1 * timing.mean_s
            reason = "wait for the slowest one" if has_wait else "are idle while the learner learns"
            faster = " or ".join(f"`{option}`" for option in self._faster_schedules())
            advice = f": {faster} avoids it" if faster else ""
            return f"environments, which {reason} in each iteration{advice}"
        fullest = max(share for name, share in last.used.items() if name != "environments")
        max_workers = math.floor(last.workers / fullest)
        more = f": more workers make it faster, up to about {max_workers:,}"
        return {
            "environments": f"environments{more if max_workers > 1.05 * last.workers else ''}",
            "cores": "cores: more cores or machines make it faster, more workers alone do not",
            "learner": "the learner: more workers do not help, larger minibatches or a GPU do",
            "network in": "the learner's incoming network traffic: smaller observations help",
            "network out": "the learner's outgoing network traffic (weights): longer fragments "
            "help",
            "object store": "the object store",
        }[last.limit]

    def to_json(self) -> dict[str, Any]:
        """Return the curve and the sizes of fragments."""
        return {
            "curve": [{**vars(point), "share": point.share} for point in self.forecasts],
            "fragment_bytes": self.cluster.fragment_bytes,
            "stored_bytes": self.cluster.stored_bytes,
        }

    def _faster_schedules(self) -> list[str]:
        """Return the options of other schedules that are a tenth faster by the same forecast."""
        changes: dict[str, dict[str, Any]] = {"--schedule variable": {"schedule": "variable"}}
        if self.cluster.schedule in ("barrier", "variable"):
            changes["--overlap"] = {"overlap": True}
        changes["--schedule async"] = {"schedule": "async", "overlap": False}
        min_steps_per_s = _MIN_SPEEDUP * self.forecasts[-1].steps_per_s
        return [
            option
            for option, change in changes.items()
            if forecast_cluster(
                self.env_timing, dataclasses.replace(self.cluster, **change)
            ).steps_per_s
            > min_steps_per_s
        ]


def plan_cluster(env_timing: EnvTiming, cluster: Cluster) -> ClusterPlan:
    """Return the forecasts of a cluster for 1, 2, 4, … and W workers.

    Raises:
        ConfigError: The object store is too small for the fragments in flight and the weights.
    """
    size, workers = cluster.store_bytes, cluster.workers
    if size is not None and cluster.stored_bytes > size:
        raise ConfigError(
            f"{workers:,} workers have up to {cluster.stored_bytes / 1e9:.3g} GB in flight "
            f"(fragments of {cluster.fragment_bytes / 1e6:.3g} MB, weights), but the object store "
            f"has {size / 1e9:.3g} GB: set `--object-store-gb` to "
            f"{math.ceil(cluster.stored_bytes / 1e8) / 10:g} or more, or lower `--num-steps`"
        )
    counts = [*(2**k for k in range(workers.bit_length()) if 2**k < workers), workers]
    forecasts = [
        forecast_cluster(env_timing, dataclasses.replace(cluster, workers=count))
        for count in counts
    ]
    return ClusterPlan(cluster=cluster, env_timing=env_timing, forecasts=forecasts)


def two_speed_timing(step_s: float, slow_s: float | None, slow_share: float) -> EnvTiming:
    """Return the timing of an environment that only waits, with a share of slow steps.

    Args:
        step_s: Time of a step.
        slow_s: Time of a slow step. None means that all steps take the same time.
        slow_share: Share of slow steps.
    """
    slow_s = step_s if slow_s is None else slow_s
    mean_s = (1 - slow_share) * step_s + slow_share * slow_s
    sd_s = abs(slow_s - step_s) * math.sqrt(slow_share * (1 - slow_share))
    return EnvTiming(step_s=mean_s, step_sd_s=sd_s, busy_share=0.0)
