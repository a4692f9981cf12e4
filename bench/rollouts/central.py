"""Central inference: a network of images, asked by each worker or by one process for all of them.

Environments sleep and give noise; the network is the one of Nature's DQN. Workers are processes of
this machine, or actors of a Ray of its own.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from pathlib import Path
from typing import Any

from bench.rollouts.clusters import ACTOR, cluster_of, cpu_s, environments, pids_of
from bench.rollouts.environments import SEEN
from bench.rollouts.scale import Scale, alternate, store

WAYS = {
    f"{backend} {inference}": f"{where}, {who}"
    for backend, where in (("processes", "processes"), ("ray", "Ray"))
    for inference, who in (("worker", "each worker"), ("central", "central"))
}
_MARKS = (ACTOR, b"ray::Inference", b"hotloop.rollouts")  # who steps or acts


def act_centrally(how: str, *, workers: int, num_steps: int, seconds: float) -> dict[str, float]:
    """Collect, each worker one environment.

    Returns:
        `rate`, transitions a second; `cpu_ms` of each, of all processes but Ray's own; `mib`, what
        the processes hold that step or act.
    """
    backend, _, inference = how.partition(" ")
    with cluster_of(1) if backend == "ray" else contextlib.nullcontext():
        return _collected(backend, inference, workers, num_steps, seconds)


def _collected(
    backend: str, inference: str, workers: int, num_steps: int, seconds: float
) -> dict[str, float]:
    from hotloop.policies import ActingPolicy, PolicySnapshot, actor_critic
    from hotloop.rollouts import CollectionOptions
    from hotloop.rollouts.workers.pool import WorkerPool

    if backend == "ray":
        more: dict[str, Any] = {"num_inference": int(inference == "central")}
        envs: Any = environments(SEEN, workers=workers, per_worker=1, **more)
    else:
        chosen: Any = inference
        envs = WorkerPool(SEEN, num_workers=workers, envs_per_worker=1, inference=chosen)
    network = actor_critic(envs, network="nature")
    params = network.initial_parameters(0)
    rollout = envs.rollout(
        ActingPolicy(network, PolicySnapshot(0, params)),
        CollectionOptions(num_steps=num_steps, seed=0, schedule="variable", overlap=True),
    )

    def advance(version: int) -> int:
        fragments = rollout.collect()
        rollout.publish(PolicySnapshot(version, params))
        return sum(int(fragment.valid.sum()) for fragment in fragments)

    try:
        for version in (1, 2):
            advance(version)
        pids, count, version = [os.getpid(), *pids_of(*_MARKS)], 0, 2
        began, before = time.perf_counter(), sum(map(cpu_s, pids))
        while time.perf_counter() - began < seconds:
            version += 1
            count += advance(version)
        passed_s = time.perf_counter() - began
        taken_s = sum(map(cpu_s, pids)) - before
        held = sum(map(_held_mib, pids_of(*_MARKS)))
    finally:
        rollout.close()
    return {"rate": count / passed_s, "cpu_ms": 1e3 * taken_s / count, "mib": held}


def _held_mib(pid: int) -> float:
    """Memory of a process; what it shares is divided among those that share it."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    line = next(line for line in lines if line.startswith("Pss:"))
    return int(line.split()[1]) / 1024


def central(scale: Scale, rounds: int) -> None:
    """Both ways, on this machine and on Ray."""
    from bench.rollouts.measure import measure

    sizes = {"workers": scale.workers // 3, "num_steps": scale.num_steps, "seconds": scale.seconds}
    measures = {way: functools.partial(measure, "act_centrally", how=way, **sizes) for way in WAYS}
    print("  ", end="", flush=True)
    found = alternate(measures, rounds)
    for way, figures in found.items():
        told = {key: one["median"] for key, one in figures.items() if key != "missing"}
        print(f"    {WAYS[way]:24} {', '.join(f'{k} {v:,.4g}' for k, v in told.items())}")
    store("central", {**sizes, "rounds": rounds, "about": WAYS, "ways": found})
