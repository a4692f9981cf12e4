"""The contenders of `python -m bench replay`: hotloop's buffers, the seed's procedures, the peers.

All hold the same transitions, sized like HalfCheetah's, and do the same four things: draw and
gather a batch, hand it over as torch tensors, write new weights for it, take one more transition.
"""

from __future__ import annotations

import functools
import importlib
import math
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bench.replay_seed import PROCEDURES, Floats, Missing, Procedure

OBS, ACTION, BATCH = 17, 6, 256
PERIOD, EPISODE, CHUNK = 100_000, 1_000, 100_000
Fields = dict[str, npt.NDArray[Any]]


def imported(name: str) -> Any:
    """A library.

    Raises:
        Missing: it is not installed, or does not load; the message says which.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise Missing("not installed") from None
    except (ImportError, OSError, RuntimeError) as error:
        # The first line, without the folders in it.
        line = re.sub(r"\S*/", "", str(error).splitlines()[0])
        raise Missing(f"does not load: {line[:120]}") from None


class Steps:
    """A stream of transitions, the same after each 100,000; an episode is 1,000 steps."""

    def __init__(self, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        states = rng.standard_normal((PERIOD, OBS), np.float32)
        following = np.roll(states, -1, axis=0)
        ends = slice(EPISODE - 1, None, EPISODE)  # what follows these is a reset
        following[ends] = rng.standard_normal(following[ends].shape, np.float32)
        self.fields: Fields = {
            "obs": states,
            "action": rng.uniform(-1, 1, (PERIOD, ACTION)).astype(np.float32),
            "reward": rng.standard_normal(PERIOD, np.float32),
            "next_obs": following,
            "terminated": np.zeros(PERIOD, np.bool_),
            "truncated": np.zeros(PERIOD, np.bool_),
        }
        self.fields["truncated"][ends] = True

    def rows(self, start: int, stop: int) -> Fields:
        """Transitions start … stop − 1."""
        wanted = np.arange(start, stop) % PERIOD
        return {name: values[wanted] for name, values in self.fields.items()}

    def chunks(self, size: int) -> Iterator[tuple[slice, Fields]]:
        """Transitions 0 … size − 1 in pieces."""
        for start in range(0, size, CHUNK):
            stop = min(start + CHUNK, size)
            yield slice(start, stop), self.rows(start, stop)

    def one(self, number: int) -> dict[str, Any]:
        """Transition `number`, as an environment would hand it out."""
        number %= PERIOD
        values = {name: values[number] for name, values in self.fields.items()}
        return values | {
            "reward": float(values["reward"]),
            "terminated": bool(values["terminated"]),
            "truncated": bool(values["truncated"]),
        }


class Weights:
    """Where weights come from.

    `returns` are like those of HalfCheetah, with negative ones among them; `long_tail` is
    lognormal, its maximum some hundred times its mean; `td` is what absolute TD errors look like.
    """

    def __init__(self, kind: str, seed: int = 0) -> None:
        self.kind = kind
        self.rng = np.random.default_rng(seed)

    def draw(self, count: int) -> Floats:
        """New weights."""
        if self.kind == "returns":
            return self.rng.normal(2_000.0, 1_500.0, count)
        if self.kind == "long_tail":
            return self.rng.lognormal(0.0, 1.5, count)
        return self.rng.exponential(1.0, count)


class Contender:
    """What each of them can do. `weights` is None where entries have none."""

    weights: Weights | None = None
    next_number: int

    def sample(self) -> Any:
        """Draw and gather a batch of 256."""
        raise NotImplementedError

    def tensors(self, batch: Any) -> tuple[Any, ...]:
        """obs, action, reward, next_obs, terminated and importance (or None) as tensors."""
        raise NotImplementedError

    def update(self, batch: Any, weight: npt.NDArray[Any]) -> None:
        """Write new weights for a batch."""

    def add(self, step: dict[str, Any], weight: float) -> None:
        """Take one more transition."""
        raise NotImplementedError

    def adding(self, step: dict[str, Any], weight: float) -> Callable[[], None]:
        """What does so, with as little of ours around it as can be."""
        return functools.partial(self.add, step, weight)


class Hotloop(Contender):
    """hotloop's buffer with one of its samplers."""

    def __init__(self, size: int, sampler: str, weights: str = "", shared: bool = False) -> None:
        replay = imported("hotloop.replay")
        samplers: dict[str, Callable[[], Any]] = {
            "proportional": lambda: replay.Proportional(replacement=False),
            "prioritized": replay.Prioritized,
            "rank_based": replay.RankBased,
            "uniform": replay.Uniform,
        }
        self.size = self.next_number = size
        self.weights = Weights(weights) if weights else None
        self.steps = Steps()
        self.make: Callable[[], Any] = lambda: replay.ReplayBuffer(
            capacity=size,
            fields=fields(),
            sampler=samplers[sampler](),
            seed=0,
            share_next_obs=shared,
        )
        self.buffer = self.make()
        self.fill(size)

    def fill(self, size: int) -> None:
        """Have exactly `size` entries."""
        if size < len(self.buffer):
            self.buffer = self.make()
        for start in range(len(self.buffer), size, CHUNK):
            stop = min(start + CHUNK, size)
            weight = {} if self.weights is None else {"weight": self.weights.draw(stop - start)}
            self.buffer.extend(**self.steps.rows(start, stop), **weight)

    def sample(self) -> Any:
        """Draw and gather a batch."""
        return self.buffer.sample(BATCH)

    def tensors(self, batch: Any) -> tuple[Any, ...]:
        """Without a copy."""
        views = batch.torch()
        importance = getattr(views, "importance", None)
        return views.obs, views.action, views.reward, views.next_obs, views.terminated, importance

    def update(self, batch: Any, weight: npt.NDArray[Any]) -> None:
        """By entries' numbers."""
        if self.weights is not None:
            self.buffer.update_weights(batch.index, weight)

    def adding(self, step: dict[str, Any], weight: float) -> Callable[[], None]:
        """The call of the library itself."""
        if self.weights is None or self.weights.kind == "td":
            return functools.partial(self.buffer.add, **step)
        return functools.partial(self.buffer.add, **step, weight=weight)

    def add(self, step: dict[str, Any], weight: float) -> None:
        """New entries of `Prioritized` and `RankBased` weigh the maximum; others are told."""
        if self.weights is None or self.weights.kind == "td":
            self.buffer.add(**step)
        else:
            self.buffer.add(**step, weight=weight)


def fields() -> dict[str, tuple[tuple[int, ...], Any]]:
    """HalfCheetah's fields, as hotloop's buffer wants them declared."""
    return {
        "obs": ((OBS,), np.float32),
        "action": ((ACTION,), np.float32),
        "reward": ((), np.float32),
        "next_obs": ((OBS,), np.float32),
        "terminated": ((), np.bool_),
        "truncated": ((), np.bool_),
    }


class Seed(Contender):
    """One of the seed's procedures over one NumPy array a field."""

    def __init__(self, size: int, procedure: str) -> None:
        self.torch = imported("torch")
        self.size = self.next_number = size
        self.weights = Weights("returns")
        self.procedure: Procedure = PROCEDURES[procedure][1](self.weights.draw(size), 0)
        self.fields: Fields = {
            "obs": np.empty((size, OBS), np.float32),
            "action": np.empty((size, ACTION), np.float32),
            "reward": np.empty(size, np.float32),
            "next_obs": np.empty((size, OBS), np.float32),
            "done": np.empty(size, np.float32),
        }
        for where, rows in Steps().chunks(size):
            rows["done"] = rows["terminated"]
            for name, values in self.fields.items():
                values[where] = rows[name]

    def sample(self) -> Any:
        """Probabilities, `choice` or `multinomial`, and a fancy index a field."""
        index = self.procedure.draw(self.procedure.probabilities(), BATCH)
        return index, [values[index] for values in self.fields.values()]

    def tensors(self, batch: Any) -> tuple[Any, ...]:
        """Without a copy."""
        return (*map(self.torch.from_numpy, batch[1]), None)

    def update(self, batch: Any, weight: npt.NDArray[Any]) -> None:
        """A fancy assignment."""
        self.procedure.write(batch[0], weight)

    def add(self, step: dict[str, Any], weight: float) -> None:
        """One assignment a field."""
        slot = self.next_number % self.size
        for name, values in self.fields.items():
            values[slot] = step["terminated" if name == "done" else name]
        self.procedure.write(slot, weight)
        self.next_number += 1


class SB3(Contender):
    """Stable-Baselines3's uniform buffer."""

    def __init__(self, size: int) -> None:
        imported("torch")
        buffers = imported("stable_baselines3.common.buffers")
        box = imported("gymnasium").spaces.Box
        self.buffer = buffers.ReplayBuffer(
            size,
            box(-math.inf, math.inf, (OBS,), np.float32),
            box(-1.0, 1.0, (ACTION,), np.float32),
            device="cpu",
        )
        self.next_number = size
        for where, rows in Steps().chunks(size):
            self.buffer.observations[where, 0] = rows["obs"]
            self.buffer.actions[where, 0] = rows["action"]
            self.buffer.rewards[where, 0] = rows["reward"]
            self.buffer.next_observations[where, 0] = rows["next_obs"]
        self.buffer.full = True

    def sample(self) -> Any:
        """Comes as tensors."""
        return self.buffer.sample(BATCH)

    def tensors(self, batch: Any) -> tuple[Any, ...]:
        """They are already."""
        obs, reward, following = batch.observations, batch.rewards, batch.next_observations
        return obs, batch.actions, reward, following, batch.dones, None

    def add(self, step: dict[str, Any], weight: float) -> None:
        """As `collect_rollouts` calls it: one environment is a batch of one."""
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
        self.torch = imported("torch")
        self.weights = Weights("td")
        self.next_number = size
        self.buffer = imported("cpprb").PrioritizedReplayBuffer(
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
        """A dict of new arrays."""
        return self.buffer.sample(BATCH, beta=0.4)

    def tensors(self, batch: Any) -> tuple[Any, ...]:
        """Without a copy."""
        names = ("obs", "act", "rew", "next_obs", "done", "weights")
        return tuple(self.torch.from_numpy(batch[name]) for name in names)

    def update(self, batch: Any, weight: npt.NDArray[Any]) -> None:
        """By slots."""
        self.buffer.update_priorities(batch["indexes"], weight)

    def add(self, step: dict[str, Any], weight: float) -> None:
        """A new entry gets the maximum."""
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
        self.torch = imported("torch")
        tianshou = imported("tianshou.data")
        self.make_batch = tianshou.Batch
        self.weights = Weights("td")
        self.next_number = size
        self.buffer = tianshou.PrioritizedReplayBuffer(size, alpha=0.6, beta=0.4)
        # One `add` makes the arrays; the others are written past it, which takes minutes less.
        steps = Steps()
        self.add(steps.one(0), 0.0)
        names = {
            "obs": "obs",
            "act": "action",
            "rew": "reward",
            "obs_next": "next_obs",
            "terminated": "terminated",
            "truncated": "truncated",
            "done": "truncated",
        }
        for where, rows in steps.chunks(size):
            for theirs, ours in names.items():
                getattr(self.buffer, theirs)[where] = rows[ours]
            slots = np.arange(where.start, where.stop)
            self.buffer.update_weight(slots, self.weights.draw(len(slots)))
        self.buffer._size = size

    def sample(self) -> Any:
        """A Batch and its slots."""
        return self.buffer.sample(BATCH)

    def tensors(self, batch: Any) -> tuple[Any, ...]:
        """Without a copy."""
        values = batch[0]
        arrays = values.obs, values.act, values.rew, values.obs_next, values.terminated
        return tuple(map(self.torch.from_numpy, (*arrays, values.weight)))

    def update(self, batch: Any, weight: npt.NDArray[Any]) -> None:
        """By slots."""
        self.buffer.update_weight(batch[1], weight)

    def add(self, step: dict[str, Any], weight: float) -> None:
        """A new entry gets the maximum."""
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
        self.torch = imported("torch")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torchrl = imported("torchrl.data")
            imported("torchrl._torchrl")  # its trees; torchrl itself only warns where it is broken
        self.make_batch = imported("tensordict").TensorDict
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
            drawn = self.torch.from_numpy(self.weights.draw(count).astype(np.float32))
            self.buffer.update_priority(slots, drawn)

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
        """A TensorDict."""
        return self.buffer.sample()

    def tensors(self, batch: Any) -> tuple[Any, ...]:
        """They are already."""
        # Some versions call the importance weights priority_weight, older ones _weight.
        name = "priority_weight" if "priority_weight" in batch.keys() else "_weight"  # noqa: SIM118
        names = ("obs", "action", "reward", "next_obs", "done", name)
        return tuple(batch.get(name) for name in names)

    def update(self, batch: Any, weight: npt.NDArray[Any]) -> None:
        """By slots."""
        priority = self.torch.from_numpy(np.asarray(weight, np.float32))
        self.buffer.update_priority(batch.get("index"), priority)

    def add(self, step: dict[str, Any], weight: float) -> None:
        """A new entry gets the default priority."""
        self.buffer.add(self.make_batch(self._named(step), batch_size=[]))


class SumTree(Contender):
    """The package sumtree: a tree without a buffer, so that it only draws."""

    def __init__(self, size: int) -> None:
        self.weights = None
        self.next_number = size
        self.tree = imported("sumtree").SumTree(size)
        drawn = Weights("td")
        for start in range(0, size, CHUNK):
            for weight in drawn.draw(min(CHUNK, size - start)):
                self.tree.add(weight)

    def sample(self) -> Any:
        """With replacement; lists of slots and weights."""
        return self.tree.sample(BATCH)

    def tensors(self, batch: Any) -> tuple[Any, ...]:
        """There are none."""
        return ()


class Way(NamedTuple):
    """A contender's description, and how it is made for a size."""

    about: str
    make: Callable[[int], Contender]
    bytes_per_entry: int = 260
    """What it may need, roughly; left out where there is less memory."""


def _hotloop(about: str, sampler: str, weights: str = "", shared: bool = False) -> Way:
    return Way(f"hotloop, {about}", lambda size: Hotloop(size, sampler, weights, shared))


WAYS: dict[str, Way] = {
    "hotloop_proportional": _hotloop(
        "Proportional, without replacement", "proportional", "returns"
    ),
    "hotloop_long_tail": _hotloop("Proportional, long-tailed weights", "proportional", "long_tail"),
    "hotloop_shared": _hotloop(
        "Proportional, next_obs shared", "proportional", "returns", shared=True
    ),
    "hotloop_prioritized": _hotloop("Prioritized", "prioritized", "td"),
    "hotloop_rank_based": _hotloop("RankBased", "rank_based", "td"),
    "hotloop_uniform": _hotloop("Uniform", "uniform"),
    "sb3": Way("Stable-Baselines3, uniform", SB3),
    "cpprb": Way("cpprb, prioritized", Cpprb),
    "tianshou": Way("tianshou, prioritized", Tianshou, 400),
    "torchrl": Way("torchrl, prioritized", TorchRL),
    "sumtree": Way("sumtree, draws only, with replacement", SumTree, 40),
    "seed_numpy_old": Way("the post's old way, NumPy", lambda size: Seed(size, "numpy_old")),
    "seed_torch_new": Way("the post's new way, PyTorch", lambda size: Seed(size, "torch_new")),
}
