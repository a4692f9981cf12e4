"""A reckoning of a cluster: how fast experience comes and is learned from, and what limits it.

Pure functions, on top of `forecast`, which reckons the workers; here come the network, the store,
the learner. What is said is a forecast: `bench/results` has what was measured beside it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hotloop.errors import ConfigError
from hotloop.rollouts.forecast import Measured, Task, forecast

PlanSchedule = Literal["barrier", "variable", "lag:1", "async"]

# What a fragment costs the learner beyond its learning, and how long it is on its way at least.
HANDLING_S = 0.5e-3
LATENCY_S = 2e-3
# `variable` collects eighths of fragments; so many of a worker's are queued on average.
PARTS = 8
_QUEUED = 1.5
# Fragments of a worker that are made or in the making, by schedule.
_AHEAD = {"barrier": 1, "variable": 2, "lag:1": 2, "async": 2}
# What is used so far is as good as full: queues before it grow.
_FULL = 0.95


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A training on several machines.

    Attributes:
        workers: W.
        envs_per_worker: n.
        num_steps: T, rows of a fragment.
        schedule: see `hotloop.appo`; `lag:1` is `barrier` that overlaps.
        overlap: barrier, variable: collect while the learner learns.
        transition_bytes: of one in a fragment.
        weights_bytes: of the network.
        learner_steps_per_s: transitions that the learner can learn from; infinite: it is no limit.
        nodes: machines, the learner's among them.
        cores_per_node: of each; None: as many as it takes.
        network_bytes_per_s: of each machine, each way.
        store_bytes: of Ray's object store on the learner's machine; None: as much as it takes.
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
    def fragment_bytes(self) -> int:
        """Of a worker's fragment."""
        return self.num_steps * self.envs_per_worker * self.transition_bytes

    @property
    def stored_bytes(self) -> int:
        """In the store at most: what is in flight, and the weights of two versions."""
        ahead = _AHEAD[self.schedule] if not self.overlap else 2
        return self.workers * ahead * self.fragment_bytes + 2 * self.weights_bytes


@dataclass(frozen=True, kw_only=True)
class Planned:
    """What comes of it.

    Attributes:
        workers: W.
        steps_per_s: transitions collected and learned from.
        ideal_per_s: if nothing but the environments took time.
        used: share that is used, of each: environments, cores, learner, network in, network out,
            object store.
        limit: what saturates first.
    """

    workers: int
    steps_per_s: float
    ideal_per_s: float
    used: dict[str, float]
    limit: str

    @property
    def share(self) -> float:
        """Of the ideal."""
        return self.steps_per_s / self.ideal_per_s


def reckon(measured: Measured, cluster: Cluster) -> Planned:
    """Say how fast a cluster is.

    Of an iteration's transitions, collecting takes c (`forecast`), receiving i, learning l, sending
    weights o. An iteration of `barrier` takes c + i' + l + o, i' the receiving that is left when
    the slowest has come; where learning overlaps, max(c + i', l, o). `async` waits for nobody:
    max(c, i, l, o). So does `variable` that overlaps; where it does not, its workers go on with
    what they have been asked for, 1.5 parts of eight on average.

    Args:
        measured: one environment, stepped alone.
        cluster: what there is.
    """
    workers, num_envs = cluster.workers, cluster.workers * cluster.envs_per_worker
    transitions = num_envs * cluster.num_steps
    overlaps = cluster.overlap or cluster.schedule in ("lag:1", "async")
    cores = cluster.nodes * cluster.cores_per_node if cluster.cores_per_node else 10**9
    waits = cluster.schedule in ("barrier", "lag:1")
    schedule = "barrier" if waits else "async"  # of `variable`, parts are asked for ahead
    task = Task(
        num_envs=num_envs,
        num_steps=cluster.num_steps,
        schedule=schedule,
        overlap=overlaps,
        num_cores=cores,
    )
    collecting = forecast(measured, task, workers, schedule)
    collect_s = transitions / collecting.steps_per_s
    elsewhere = 1 - 1 / cluster.nodes
    learn_s = transitions / cluster.learner_steps_per_s + workers * HANDLING_S
    in_s = workers * cluster.fragment_bytes * elsewhere / cluster.network_bytes_per_s
    out_s = cluster.weights_bytes * (cluster.nodes - 1) / cluster.network_bytes_per_s
    # While the slowest is waited for, what the others have made is on its way.
    late_s = max(in_s - collecting.wait_share * collect_s, in_s / workers)
    if waits and overlaps:
        period_s = max(collect_s + LATENCY_S + late_s, learn_s, out_s)
    elif waits:
        period_s = collect_s + LATENCY_S + late_s + learn_s + out_s
    elif overlaps:
        period_s = max(collect_s, learn_s, in_s, out_s)
    else:
        rest_s = learn_s + out_s
        ahead_s = min(rest_s, _QUEUED / PARTS * collect_s)
        period_s = max(collect_s - ahead_s, in_s - rest_s, 0.0) + rest_s
    row_s = measured.loop_s + measured.acting_s(cluster.envs_per_worker)
    busy_s = row_s + cluster.envs_per_worker * measured.mean_s * measured.busy_share
    row_s += cluster.envs_per_worker * measured.mean_s
    used = {
        "environments": row_s * cluster.num_steps / period_s,
        "learner": learn_s / period_s,
        "network in": in_s / period_s,
        "network out": out_s / period_s,
    }
    if cluster.cores_per_node:
        usable = max(1, cores - overlaps)
        used["cores"] = workers * busy_s * cluster.num_steps / (usable * period_s)
    if cluster.store_bytes is not None:
        used["object store"] = cluster.stored_bytes / cluster.store_bytes
    times = {key: x for key, x in used.items() if key != "object store"}
    limit = max(times, key=lambda key: times[key])
    if limit == "environments" and used.get("cores", 0.0) > _FULL:
        limit = "cores"
    if used.get("object store", 0.0) > 1:
        limit = "object store"
    return Planned(
        workers=workers,
        steps_per_s=transitions / period_s,
        ideal_per_s=num_envs / row_s,
        used=used,
        limit=limit,
    )


def curve(measured: Measured, cluster: Cluster, counts: Sequence[int]) -> list[Planned]:
    """Say how fast it is with other numbers of workers; of all else it has as much."""
    return [reckon(measured, dataclasses.replace(cluster, workers=count)) for count in counts]


def counts_up_to(workers: int) -> list[int]:
    """Return 1, 2, 4 … and W."""
    return [*(2**k for k in range(workers.bit_length()) if 2**k < workers), workers]


def two_speeds(step_s: float, slow_s: float | None, slow_share: float) -> Measured:
    """Return an environment that waits for its steps: some of them are slow.

    Args:
        step_s: of a step.
        slow_s: of a slow one; None: all are alike.
        slow_share: of all steps.
    """
    slow_s = step_s if slow_s is None else slow_s
    mean_s = (1 - slow_share) * step_s + slow_share * slow_s
    sd_s = abs(slow_s - step_s) * math.sqrt(slow_share * (1 - slow_share))
    return Measured(step_s=mean_s, step_sd_s=sd_s, busy_share=0.0)


def need_room(cluster: Cluster) -> None:
    """Refuse an object store that is too small for what is in flight.

    Raises:
        ConfigError: it is, with what it takes.
    """
    size = cluster.store_bytes
    if size is not None and cluster.stored_bytes > size:
        raise ConfigError(
            f"{cluster.workers:,} workers have up to {cluster.stored_bytes / 1e9:.3g} GB in flight "
            f"(fragments of {cluster.fragment_bytes / 1e6:.3g} MB, weights), and the object store "
            f"has {size / 1e9:.3g} GB: pass `--object-store-gb` "
            f"{math.ceil(cluster.stored_bytes / 1e8) / 10:g} or more, or fewer `--num-steps`"
        )
