"""Cost of each part of a training over its size: where it stops being linear.

    python -m bench scaling [--only replay …] [--repeats 3]

Each figure is a training of its own process with one thread, except for `replay`, which fills a
buffer and draws from it. Sizes alternate between repeats, and the figures are medians:

- `environments`: time of a transition of PPO on CartPole-v1, without the update.
- `workers`: transitions per second of PPO, variable schedule, with environments that sleep 20 ms,
  over those of the environments alone.
- `replay`: 256 weighted draws from N transitions, and 256 new weights.
- `networks`, `batch`: a compiled update of SAC on HalfCheetah-v5 with two hidden layers.
- `seeds`: time of a transition of one of S vectorized seeds of PPO on CartPole-v1, compiled, with
  its update.

`scaling.json`: for each part, `sizes` and `values`, a list of repeats for each size. Stored results
of other parts stay.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from bench import storage
from bench.markdown import table
from hotloop import timing
from hotloop.runs import RunDirectory

STEP_S, WIDTH, BATCH = 0.02, 256, 256


class Sleeping(gymnasium.Env[np.ndarray, Any]):
    """An environment whose steps sleep 20 ms."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        time.sleep(STEP_S)
        return np.zeros(4, np.float32), 0.0, False, False, {}


def _train(run_dir: Path, algorithm: str, *options: str) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "hotloop", "train", algorithm]
    command += ["--torch-threads", "1", "--run-dir", str(run_dir), *options]
    subprocess.run(command, check=True, capture_output=True)


def _spans(run_dir: Path, name: str) -> timing.Node:
    """Return the span of a name in the tree of the learner, wherever it is."""
    recordings, _ = timing.read_directory(run_dir / "timing")
    tree = next(x for x in recordings if x.component == "learner").tree()
    return next(node for node in _nodes(tree) if node.name == name)


def _nodes(node: timing.Node) -> Iterator[timing.Node]:
    yield node
    for child in node.children.values():
        yield from _nodes(child)


def environments(size: int, folder: Path) -> float:
    """Return the seconds of a transition, with `size` environments in the learner's process."""
    num_steps = max(8, 4_096 // size)
    steps = 3 * max(num_steps * size, 8_192)
    options = ("--env-id", "CartPole-v1", "--execution", "eager", "--num-envs", str(size))
    options += ("--num-steps", str(num_steps), "--total-timesteps", str(steps))
    _train(folder, "ppo", *options, "--num-minibatches", "1", "--update-epochs", "1")
    collected = RunDirectory.open(folder).metrics()[-1]["timesteps"]
    return _spans(folder, "collect").total_ns / 1e9 / collected


def workers(size: int, folder: Path) -> float:
    """Return the share of the rate that `size` environments alone would reach."""
    env_id = f"{__name__}:Sleeping"
    options = ("--env-id", env_id, "--workers", str(size), "--num-envs", str(size))
    options += ("--schedule", "variable", "--num-steps", "64", "--execution", "eager")
    options += ("--total-timesteps", str(size * 64 * 8), "--num-minibatches", "1")
    _train(folder, "ppo", *options)
    # The first two iterations contain the start of the workers.
    metrics = RunDirectory.open(folder).metrics()
    first, last = metrics[2], metrics[-1]
    seconds = last["elapsed_s"] - first["elapsed_s"]
    return (last["timesteps"] - first["timesteps"]) / seconds * STEP_S / size


def replay(size: int, folder: Path) -> float:
    """Return the seconds of 256 draws and of new weights for them, with `size` transitions."""
    from hotloop.replay import Proportional, ReplayBuffer

    del folder
    rng = np.random.default_rng(0)
    env = gymnasium.make("Pendulum-v1")
    buffer = ReplayBuffer.for_env(env, capacity=size, sampler=Proportional(), seed=0)
    count = min(size, 100_000)
    rows = {
        "obs": rng.normal(size=(count, 3)).astype(np.float32),
        "next_obs": rng.normal(size=(count, 3)).astype(np.float32),
        "action": rng.normal(size=(count, 1)).astype(np.float32),
        "reward": np.zeros(count, np.float32),
        "terminated": np.zeros(count, bool),
        "truncated": np.zeros(count, bool),
    }
    for _ in range(size // count):
        buffer.extend(**rows, weight=rng.random(count))
    seconds = []
    for _ in range(2_000):
        weights = rng.random(BATCH)
        start_s = time.perf_counter()
        batch = buffer.sample(BATCH)
        buffer.update_weights(batch.index, weights)
        seconds.append(time.perf_counter() - start_s)
    return statistics.median(seconds)


def _sac_update(folder: Path, width: int, batch: int) -> float:
    starts = max(1_000, batch)
    options = ("--env-id", "HalfCheetah-v5", "--execution", "compile")
    options += ("--hidden-sizes", str(width), str(width), "--batch-size", str(batch))
    options += ("--learning-starts", str(starts), "--total-timesteps", str(starts + 100))
    _train(folder, "sac", *options)
    return _spans(folder, "update").percentile(50) / 1e9


def networks(size: int, folder: Path) -> float:
    """Return the seconds of an update with hidden layers of `size` units."""
    return _sac_update(folder, size, BATCH)


def batch(size: int, folder: Path) -> float:
    """Return the seconds of an update with `size` transitions."""
    return _sac_update(folder, WIDTH, size)


def seeds(size: int, folder: Path) -> float:
    """Return the seconds of a transition of one of `size` seeds that train as one."""
    options = ("--env-id", "CartPole-v1", "--execution", "compile", "--total-timesteps", "12288")
    vectorized = ("--seeds", f"1-{size}", "--lanes", "on", "--jobs", "1") if size > 1 else ()
    _train(folder, "ppo", *options, *vectorized)
    run_dir = folder / "seed_1" if size > 1 else folder
    metrics = RunDirectory.open(run_dir).metrics()
    first, last = metrics[1], metrics[-1]
    seconds = last["elapsed_s"] - first["elapsed_s"]
    return seconds / (last["timesteps"] - first["timesteps"]) / size


class Part(NamedTuple):
    """A part of a training, and the sizes to measure it at.

    Attributes:
        measure: measures a size in an empty folder.
        sizes: sizes.
        size_name: what the size counts.
        value_name: what is measured, with its unit.
        unit: factor from the stored value to that unit.
    """

    measure: Callable[[int, Path], float]
    sizes: tuple[int, ...]
    size_name: str
    value_name: str
    unit: float


PARTS = {
    "environments": Part(
        environments, (1, 4, 16, 64, 256, 1_024), "environments", "a transition, µs", 1e6
    ),
    "workers": Part(workers, (1, 2, 4, 8, 16, 32, 64), "workers", "share of the ideal rate", 1.0),
    "replay": Part(
        replay, (10_000, 100_000, 1_000_000, 10_000_000), "transitions", "256 draws, µs", 1e6
    ),
    "networks": Part(networks, (64, 128, 256, 512, 1_024), "units per layer", "an update, ms", 1e3),
    "batch": Part(batch, (64, 256, 1_024, 4_096, 16_384), "transitions", "an update, ms", 1e3),
    "seeds": Part(seeds, (1, 4, 16, 64), "seeds", "a transition of a seed, µs", 1e6),
}


def scaling_table(name: str) -> str:
    """Return a table of one part with a row per size, empty if it is not stored."""
    stored = storage.load("scaling")["parts"].get(name)
    if stored is None:
        return ""
    part = PARTS[name]
    medians = [statistics.median(values) * part.unit for values in stored["values"]]
    rows = [[part.size_name, part.value_name, "to the row above"]]
    for k, (size, value) in enumerate(zip(stored["sizes"], medians, strict=True)):
        ratio = f"{value / medians[k - 1]:.2f}" if k else "–"
        rows.append([f"{size:,}", f"{value:.3g}", ratio])
    return table(*rows)


def main() -> int:
    """Measure, store and print."""
    parser = argparse.ArgumentParser(
        prog="python -m bench scaling",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    for name in options.only:
        part = PARTS[name]
        values: list[list[float]] = [[] for _ in part.sizes]
        for _ in range(options.repeats):
            for size, measured in zip(part.sizes, values, strict=True):
                with tempfile.TemporaryDirectory(prefix="hotloop-") as folder:
                    measured.append(part.measure(size, Path(folder) / "run"))
        try:
            parts = storage.load("scaling")["parts"]
        except FileNotFoundError:
            parts = {}
        parts[name] = {"sizes": list(part.sizes), "values": values}
        storage.save("scaling", {"parts": {key: parts[key] for key in PARTS if key in parts}})
        print(f"{scaling_table(name)}\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
