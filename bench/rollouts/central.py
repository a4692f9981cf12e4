"""Inference with an image network, in each worker or in one central process.

Environments sleep and return noise. The network is that of Nature's DQN. Workers are processes on
this machine, or actors of a local Ray cluster.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from pathlib import Path
from typing import Any

from bench.rollouts.clusters import ACTOR, cpu_s, find_pids, make_environments, start_cluster
from bench.rollouts.environments import NOISE_IMAGES
from bench.rollouts.scale import RolloutScale, alternate, store

WAYS = {
    f"{backend} {inference}": f"{backend_label}, {inference_label}"
    for backend, backend_label in (("processes", "processes"), ("ray", "Ray"))
    for inference, inference_label in (("worker", "each worker"), ("central", "central"))
}
_MARKS = (
    ACTOR,
    b"ray::Inference",
    b"hotloop.rollouts",
)  # in commands of stepping or acting processes


def act_centrally(method: str, *, workers: int, num_steps: int, seconds: float) -> dict[str, float]:
    """Collect with one environment per worker.

    Returns:
        `rate`, transitions per second; `cpu_ms`, CPU time per transition of all processes except
        Ray's own; `mib`, memory of the stepping and acting processes.
    """
    backend, _, inference = method.partition(" ")
    with start_cluster(1) if backend == "ray" else contextlib.nullcontext():
        return _collect(backend, inference, workers, num_steps, seconds)


def _collect(
    backend: str, inference: str, workers: int, num_steps: int, seconds: float
) -> dict[str, float]:
    from hotloop.envs import EnvSpec
    from hotloop.policies import ActingPolicy, PolicySnapshot, actor_critic
    from hotloop.rollouts import CollectionOptions
    from hotloop.rollouts.processes.pool import WorkerPool

    if backend == "ray":
        num_inference = int(inference == "central")
        envs: Any = make_environments(
            EnvSpec(NOISE_IMAGES), workers=workers, per_worker=1, num_inference=num_inference
        )
    else:
        chosen: Any = inference
        envs = WorkerPool(
            EnvSpec(NOISE_IMAGES), num_workers=workers, envs_per_worker=1, inference=chosen
        )
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
        pids, count, version = [os.getpid(), *find_pids(*_MARKS)], 0, 2
        start_s, before = time.perf_counter(), sum(map(cpu_s, pids))
        while time.perf_counter() - start_s < seconds:
            version += 1
            count += advance(version)
        passed_s = time.perf_counter() - start_s
        used_s = sum(map(cpu_s, pids)) - before
        memory_mib = sum(map(_memory_mib, find_pids(*_MARKS)))
    finally:
        rollout.close()
    return {"rate": count / passed_s, "cpu_ms": 1e3 * used_s / count, "mib": memory_mib}


def _memory_mib(pid: int) -> float:
    """Return the memory of a process, with shared memory divided among its users."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    line = next(line for line in lines if line.startswith("Pss:"))
    return int(line.split()[1]) / 1024


def central(scale: RolloutScale, rounds: int) -> None:
    """Measure both ways on this machine and on Ray."""
    from bench.rollouts.measure import measure

    sizes = {"workers": scale.workers // 3, "num_steps": scale.num_steps, "seconds": scale.seconds}
    measures = {
        way: functools.partial(measure, "act_centrally", method=way, **sizes) for way in WAYS
    }
    print("  ", end="", flush=True)
    results = alternate(measures, rounds)
    for way, figures in results.items():
        medians = {key: figure["median"] for key, figure in figures.items() if key != "missing"}
        print(f"    {WAYS[way]:24} {', '.join(f'{k} {v:,.4g}' for k, v in medians.items())}")
    store("central", {**sizes, "rounds": rounds, "about": WAYS, "ways": results})
