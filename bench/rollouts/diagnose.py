"""Time of each part of a PPO iteration, as in a blog post."""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench.measuring import Missing
from bench.rollouts.environments import UNEVEN, SleepTotals, read_ledger
from bench.rollouts.peers import env_maker


class Sizes(NamedTuple):
    """Sizes of a training."""

    workers: int
    num_steps: int
    iterations: int
    epochs: int = 10
    minibatch: int = 256


def diagnose(method: str, *, sizes: list[int], env_kwargs: Mapping[str, Any]) -> dict[str, float]:
    """Measure the time of PPO's sampling, optimizing, steps, resets and acting.

    Args:
        method: `sb3`, or hotloop's schedule with an optional ` overlap`.
        sizes: values of `Sizes`.
        env_kwargs: arguments of `Uneven`.

    Returns:
        `sampling_s`, `optimising_s` and `wall_s` of an iteration (with overlap, the sum of the
        first two may exceed the wall time, or sampling may be the time spent waiting), `step_s`
        with `step_p50_s` and `step_p99_s` from the sampler's side, `reset_s`, `inference_s` of one
        action step, `waited` (share of time in which environments are idle), `rate` and `ideal` in
        transitions per second.
    """
    with tempfile.TemporaryDirectory() as folder:
        ledger = Path(folder, "ledger")
        ledger.mkdir()
        kwargs = {**env_kwargs, "ledger": str(ledger)}
        run = _diagnose_sb3 if method == "sb3" else _diagnose_hotloop
        figures, marks = run(method, Sizes(*sizes), kwargs, folder)
    (start_s, before), (end_s, after) = marks[0], marks[-1]
    slept, elapsed_s, workers = after.since(before), end_s - start_s, sizes[0]
    # Count the steps of environments, not the learned ones: with overlap, the number of transitions
    # in flight differs between start and end.
    rate = slept.steps / elapsed_s
    return {
        **figures,
        "wall_s": sizes[0] * sizes[1] / rate,
        "reset_s": slept.reset_s / slept.resets if slept.resets else 0.0,
        "slept_step_s": slept.step_s / slept.steps,
        "waited": 1.0 - slept.busy_s / (workers * elapsed_s),
        "rate": rate,
        "ideal": workers * slept.steps / slept.busy_s,
    }


Marks = list[tuple[float, SleepTotals]]


def _diagnose_hotloop(
    method: str, sizes: Sizes, env_kwargs: dict[str, Any], folder: str
) -> tuple[dict[str, float], Marks]:
    from hotloop import timing
    from hotloop.algorithms import ppo
    from hotloop.rollouts.accounting import time_shares

    schedule, _, overlap = method.partition(" ")
    marks: Marks = []

    def mark(progress: Any) -> None:
        marks.append((time.monotonic(), read_ledger(env_kwargs["ledger"])))

    result = ppo.train(
        ppo.Config(
            env_id=UNEVEN,
            env_kwargs=env_kwargs,
            workers=sizes.workers,
            envs_per_worker=1,
            num_steps=sizes.num_steps,
            total_timesteps=sizes.iterations * sizes.num_steps * sizes.workers,
            update_epochs=sizes.epochs,
            num_minibatches=max(1, sizes.num_steps * sizes.workers // sizes.minibatch),
            schedule=schedule,  # pyright: ignore[reportArgumentType]
            overlap=bool(overlap),
            execution="eager",
            runs_dir=folder,
        ),
        on_report=mark,
        progress=False,
    )
    recordings, _ = timing.read_directory(Path(result.run_dir) / "timing")
    trees = {recording.component: recording.tree() for recording in recordings}
    workers = [tree for name, tree in trees.items() if name.startswith("worker-")]
    shares = [time_shares(tree) for tree in workers]
    learner = trees["learner"]
    acting = [tree.find("act") for tree in workers]
    steps = [tree.find("env_step") for tree in workers]
    figures = {
        "sampling_s": learner.find("collect").mean_ns / 1e9,
        "optimising_s": learner.find("update").mean_ns / 1e9,
        "step_s": sum(node.total_ns for node in steps) / sum(node.count for node in steps) / 1e9,
        "step_p50_s": statistics.median(share["step_p50_s"] for share in shares),
        "step_p99_s": statistics.median(share["step_p99_s"] for share in shares),
        "inference_s": sum(node.total_ns for node in acting)
        / sum(node.count for node in acting)
        / 1e9,
    }
    return figures, marks[1:]  # the first mark is before the first iteration


def _diagnose_sb3(
    method: str, sizes: Sizes, env_kwargs: dict[str, Any], folder: str
) -> tuple[dict[str, float], Marks]:
    try:
        import torch
        from stable_baselines3 import PPO  # pyright: ignore[reportMissingImports]
        from stable_baselines3.common.callbacks import (  # pyright: ignore[reportMissingImports]
            BaseCallback,
        )
        from stable_baselines3.common.vec_env import (  # pyright: ignore[reportMissingImports]
            SubprocVecEnv,
        )
    except ImportError:
        raise Missing("not installed") from None
    marks: Marks = []
    sampling: list[float] = []
    series: dict[str, list[float]] = {"step": [], "inference": []}

    class Times(BaseCallback):
        """A callback that records start and duration of each fragment."""

        def _on_step(self) -> bool:
            return True

        def _mark(self) -> None:
            marks.append((time.monotonic(), read_ledger(env_kwargs["ledger"])))

        def _on_rollout_start(self) -> None:
            self._mark()

        def _on_rollout_end(self) -> None:
            sampling.append(time.monotonic() - marks[-1][0])

        def _on_training_end(self) -> None:
            self._mark()

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            start_s = time.perf_counter()
            answer = function(*arguments, **named)
            series[name].append(time.perf_counter() - start_s)
            return answer

        return call

    make = env_maker(UNEVEN, env_kwargs)
    envs: Any = SubprocVecEnv([make] * sizes.workers, start_method="fork")
    torch.set_num_threads(1)
    envs.step = timed("step", envs.step)
    size = sizes.num_steps * sizes.workers
    model = PPO(
        "MlpPolicy",
        envs,
        n_steps=sizes.num_steps,
        batch_size=min(size, sizes.minibatch),
        n_epochs=sizes.epochs,
        device="cpu",
        seed=1,
    )
    model.policy.forward = timed("inference", model.policy.forward)
    model.learn(sizes.iterations * size, callback=Times())
    envs.close()
    iterations = [end - begin for (begin, _), (end, _) in itertools.pairwise(marks)]
    optimising = [iteration - part for iteration, part in zip(iterations, sampling, strict=True)]
    figures = {
        "sampling_s": statistics.fmean(sampling),
        "optimising_s": statistics.fmean(optimising),
        "step_s": statistics.fmean(series["step"]),
        "step_p50_s": float(np.percentile(series["step"], 50)),
        "step_p99_s": float(np.percentile(series["step"], 99)),
        "inference_s": statistics.fmean(series["inference"]),
    }
    return figures, marks
