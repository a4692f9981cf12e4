"""Replay buffers of other libraries, as contenders."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.measuring import import_library
from bench.replay.contenders import (
    ACTION,
    BATCH,
    CHUNK,
    OBS,
    Contender,
    Steps,
    Weights,
)


class SB3(Contender):
    """Stable-Baselines3's uniform buffer."""

    def __init__(self, size: int) -> None:
        import_library("torch")
        buffers = import_library("stable_baselines3.common.buffers")
        box = import_library("gymnasium").spaces.Box
        self.buffer = buffers.ReplayBuffer(
            size,
            box(-math.inf, math.inf, (OBS,), np.float32),
            box(-1.0, 1.0, (ACTION,), np.float32),
            device="cpu",
        )
        self.next_number = size
        for slots_filled, rows in Steps().chunks(size):
            self.buffer.observations[slots_filled, 0] = rows["obs"]
            self.buffer.actions[slots_filled, 0] = rows["action"]
            self.buffer.rewards[slots_filled, 0] = rows["reward"]
            self.buffer.next_observations[slots_filled, 0] = rows["next_obs"]
        self.buffer.full = True

    def sample(self) -> Any:
        """Sample a batch of tensors."""
        return self.buffer.sample(BATCH)

    def tensors(self, batch: Any) -> tuple[Any, ...]:
        """Return the sampled tensors unchanged."""
        obs, reward, following = batch.observations, batch.rewards, batch.next_observations
        return obs, batch.actions, reward, following, batch.dones, None

    def add(self, step: dict[str, Any], weight: float) -> None:
        """Add a transition like `collect_rollouts`, as a batch of one environment."""
        self.buffer.add(
            step["obs"][None],
            step["next_obs"][None],
            step["action"][None],
            np.array([step["reward"]], np.float32),
            np.array([step["terminated"]]),
            [{"TimeLimit.truncated": step["truncated"]}],
        )


class Cpprb(Contender):
    """cpprb's prioritized buffer."""

    def __init__(self, size: int) -> None:
        self.torch = import_library("torch")
        self.weights = Weights("td")
        self.next_number = size
        self.buffer = import_library("cpprb").PrioritizedReplayBuffer(
            size,
            {
                "obs": {"shape": OBS},
                "act": {"shape": ACTION},
                "rew": {},
                "next_obs": {"shape": OBS},
                "done": {},
            },
            alpha=0.6,
        )
        for _, rows in Steps().chunks(size):
            self.buffer.add(
                obs=rows["obs"],
                act=rows["action"],
                rew=rows["reward"],
                next_obs=rows["next_obs"],
                done=rows["terminated"],
                priorities=self.weights.draw(len(rows["reward"])),
            )

    def sample(self) -> Any:
        """Sample a dict of new arrays."""
        return self.buffer.sample(BATCH, beta=0.4)

    def tensors(self, batch: Any) -> tuple[Any, ...]:
        """Return tensors without a copy."""
        names = ("obs", "act", "rew", "next_obs", "done", "weights")
        return tuple(self.torch.from_numpy(batch[name]) for name in names)

    def update(self, batch: Any, weight: npt.NDArray[Any]) -> None:
        """Write weights by slot."""
        self.buffer.update_priorities(batch["indexes"], weight)

    def add(self, step: dict[str, Any], weight: float) -> None:
        """Add a transition with the maximum priority."""
        self.buffer.add(
            obs=step["obs"],
            act=step["action"],
            rew=step["reward"],
            next_obs=step["next_obs"],
            done=step["terminated"],
        )


class Tianshou(Contender):
    """tianshou's prioritized buffer."""

    def __init__(self, size: int) -> None:
        self.torch = import_library("torch")
        tianshou = import_library("tianshou.data")
        self.make_batch = tianshou.Batch
        self.weights = Weights("td")
        self.next_number = size
        self.buffer = tianshou.PrioritizedReplayBuffer(size, alpha=0.6, beta=0.4)
        # One `add` allocates the arrays. Direct writes for the rest save minutes.
        steps = Steps()
        self.add(steps.transition(0), 0.0)
        names = {
            "obs": "obs",
            "act": "action",
            "rew": "reward",
            "obs_next": "next_obs",
            "terminated": "terminated",
            "truncated": "truncated",
            "done": "truncated",
        }
        for slots_filled, rows in steps.chunks(size):
            for peer_name, name in names.items():
                getattr(self.buffer, peer_name)[slots_filled] = rows[name]
            slots = np.arange(slots_filled.start, slots_filled.stop)
            self.buffer.update_weight(slots, self.weights.draw(len(slots)))
        self.buffer._size = size

    def sample(self) -> Any:
        """Sample a Batch and its slots."""
        return self.buffer.sample(BATCH)

    def tensors(self, batch: Any) -> tuple[Any, ...]:
        """Return tensors without a copy."""
        values = batch[0]
        arrays = values.obs, values.act, values.rew, values.obs_next, values.terminated
        return tuple(map(self.torch.from_numpy, (*arrays, values.weight)))

    def update(self, batch: Any, weight: npt.NDArray[Any]) -> None:
        """Write weights by slot."""
        self.buffer.update_weight(batch[1], weight)

    def add(self, step: dict[str, Any], weight: float) -> None:
        """Add a transition with the maximum priority."""
        self.buffer.add(
            self.make_batch(
                obs=step["obs"],
                act=step["action"],
                rew=step["reward"],
                terminated=step["terminated"],
                truncated=step["truncated"],
                obs_next=step["next_obs"],
                info={},
            )
        )


class TorchRL(Contender):
    """torchrl's prioritized buffer, over a storage of tensors."""

    def __init__(self, size: int) -> None:
        self.torch = import_library("torch")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torchrl = import_library("torchrl.data")
            import_library(
                "torchrl._torchrl"
            )  # its trees; torchrl itself only warns if they are broken
        self.make_batch = import_library("tensordict").TensorDict
        self.weights = Weights("td")
        self.next_number = size
        self.buffer = torchrl.TensorDictPrioritizedReplayBuffer(
            alpha=0.6,
            beta=0.4,
            storage=torchrl.LazyTensorStorage(size),
            batch_size=BATCH,
            priority_key="td_error",
        )
        for _, rows in Steps().chunks(size):
            count = len(rows["reward"])
            slots = self.buffer.extend(self.make_batch(self._named(rows), batch_size=[count]))
            priorities = self.torch.from_numpy(self.weights.draw(count).astype(np.float32))
            self.buffer.update_priority(slots, priorities)

    def _named(self, rows: dict[str, Any]) -> dict[str, Any]:
        torch = self.torch
        return {
            "obs": torch.as_tensor(rows["obs"]),
            "action": torch.as_tensor(rows["action"]),
            "reward": torch.as_tensor(rows["reward"], dtype=torch.float32),
            "next_obs": torch.as_tensor(rows["next_obs"]),
            "done": torch.as_tensor(rows["terminated"], dtype=torch.float32),
        }

    def sample(self) -> Any:
        """Sample a TensorDict."""
        return self.buffer.sample()

    def tensors(self, batch: Any) -> tuple[Any, ...]:
        """Return the sampled tensors unchanged."""
        # Importance weights are named priority_weight, or _weight in older versions.
        name = "priority_weight" if "priority_weight" in batch.keys() else "_weight"  # noqa: SIM118
        names = ("obs", "action", "reward", "next_obs", "done", name)
        return tuple(batch.get(name) for name in names)

    def update(self, batch: Any, weight: npt.NDArray[Any]) -> None:
        """Write weights by slot."""
        priority = self.torch.from_numpy(np.asarray(weight, np.float32))
        self.buffer.update_priority(batch.get("index"), priority)

    def add(self, step: dict[str, Any], weight: float) -> None:
        """Add a transition with the default priority."""
        self.buffer.add(self.make_batch(self._named(step), batch_size=[]))


class SumTree(Contender):
    """The package sumtree, a tree without a buffer. It only draws."""

    def __init__(self, size: int) -> None:
        self.weights = None
        self.next_number = size
        self.tree = import_library("sumtree").SumTree(size)
        weights = Weights("td")
        for start in range(0, size, CHUNK):
            for weight in weights.draw(min(CHUNK, size - start)):
                self.tree.add(weight)

    def sample(self) -> Any:
        """Sample lists of slots and weights with replacement."""
        return self.tree.sample(BATCH)

    def tensors(self, batch: Any) -> tuple[Any, ...]:
        """Return nothing, since there is no data."""
        return ()
