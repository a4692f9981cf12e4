"""Updates with synthetic batches of an environment's shapes, without a simulator."""

from __future__ import annotations

import importlib
import math
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch

from bench.accelerate.rows import Row


class Spaces(NamedTuple):
    """Observation and action space of an environment."""

    obs_spec: Any
    action_spec: Any


class Updates(NamedTuple):
    """A learner with a fixed batch.

    Attributes:
        learner: learner with its state.
        batch: batch on the learner's device.
        batch_size: B.
    """

    learner: Any
    batch: Any
    batch_size: int

    def make(self, count: int) -> None:
        """Make updates without synchronization and discard their metrics."""
        for _ in range(count):
            self.learner.update(self.batch)
        self.learner.metrics.clear()


def make_updates(row: Row, mode: str, device: torch.device, seed: int = 1) -> Updates:
    """Return a learner of a row with a synthetic batch.

    Raises:
        ConfigError: this machine does not support `mode`.
    """
    from hotloop.learner import UpdateRule
    from hotloop.training.learners import make_learner

    algorithm = importlib.import_module(f"hotloop.algorithms.{row.algorithm}").algorithm
    config = algorithm.config(
        env_id=row.env_id,
        execution=mode,
        device=str(device),
        seed=seed,
        torch_threads=1,
        total_timesteps=1_000_000,
        **row.options,
    )
    nets = algorithm.networks(config, spaces(row), device)
    if row.algorithm == "ppo":
        # A convolution of 256 frames takes a core half a second.
        size = config.minibatch_size if device.type != "cpu" else min(32, config.minibatch_size)
        rules = [UpdateRule(function=partial(algorithm.update, nets=nets, config=config))]
    else:
        size = config.batch_size
        rules = [update.rule(nets, config) for update in algorithm.updates]
    learner = make_learner(
        algorithm,
        config,
        nets,
        rules,
        device=device,
        stream=1,
        num_batches=1_000_000,
        batch_size=size,
    )
    return Updates(learner, make_batch(row, size, device, seed), size)


def make_launches(row: Row, mode: str, device: torch.device) -> tuple[Any, Any]:
    """Return a learner and the launches of its updates from a full buffer on the device.

    Raises:
        ConfigError: this machine does not support `mode`.
    """
    from hotloop.training.device_replay import Launches, ReplayOnDevice

    num_rows = 4096
    updates = make_updates(row, mode, device)
    algorithm = importlib.import_module(f"hotloop.algorithms.{row.algorithm}").algorithm
    options = {"replay_device": "device", "buffer_size": num_rows, "updates_per_launch": 2}
    options |= {"train_frequency": 20, "update_to_data": 1.0}
    config = algorithm.config(env_id=row.env_id, seed=1, **{**row.options, **options})
    obs_spec, action_spec = spaces(row)
    replay = ReplayOnDevice(
        config,
        SimpleNamespace(num_envs=1, obs_spec=obs_spec, action_spec=action_spec),  # pyright: ignore
        device,
        is_scaled=config.normalize_obs,
    )
    batch = make_batch(row, num_rows, torch.device("cpu"), seed=2)
    steps = {name: getattr(batch, name).numpy() for name in ("obs", "action", "reward", "next_obs")}
    steps["terminated"] = batch.discount.numpy() == 0
    steps["truncated"] = np.zeros(num_rows, np.bool_)
    replay.buffer.extend(**steps)
    return updates.learner, Launches(updates.learner, replay, 2)


def spaces(row: Row) -> Spaces:
    """Return the spaces of a row's environment without making it."""
    from hotloop.envs.spaces import ActionSpec, ObsField, ObsSpec

    shape, dtype = row.obs
    size = math.prod(shape)
    part = ObsField(
        name="", start=0, stop=size, shape=shape, encoding="box", dtype=dtype, raw_shape=shape
    )
    kind, number = row.action
    if kind == "box":
        bounds = (-1.0,) * number, (1.0,) * number
        action = ActionSpec(
            kind="box", shape=(number,), dtype="float32", low=bounds[0], high=bounds[1]
        )
    else:
        action = ActionSpec(kind="discrete", shape=(), dtype="int64", num_actions=number)
    return Spaces(ObsSpec(shape=shape, dtype=dtype, layout=(part,)), action)


def make_batch(row: Row, size: int, device: torch.device, seed: int = 0) -> Any:
    """Return a synthetic batch of B rows, the same on every machine."""
    rng = np.random.default_rng(seed)

    def obs() -> np.ndarray:
        shape, dtype = row.obs
        if dtype == "uint8":
            return rng.integers(0, 256, (size, *shape), np.uint8)
        return rng.standard_normal((size, *shape), np.float32)

    def numbers() -> np.ndarray:
        return rng.standard_normal(size, np.float32)

    kind, number = row.action
    if kind == "box":
        action: np.ndarray = rng.uniform(-0.9, 0.9, (size, number)).astype(np.float32)
    else:
        action = rng.integers(0, number, size)
    if row.algorithm == "ppo":
        from hotloop.algorithms import ppo

        batch_type: Any = ppo.Batch
        fields: dict[str, Any] = {
            "obs": obs(),
            "action": action,
            "log_prob": -1.0 + 0.1 * numbers(),
            "value": numbers(),
            "advantages": numbers(),
            "returns": numbers(),
        }
    else:
        from hotloop.training import ReplayBatch

        batch_type = ReplayBatch
        fields = {
            "obs": obs(),
            "action": action,
            "reward": numbers(),
            "next_obs": obs(),
            "discount": (rng.random(size) > 0.05).astype(np.float32),
            "importance": np.ones(size, np.float32),
        }
    return batch_type(**{name: torch.from_numpy(x).to(device) for name, x in fields.items()})
