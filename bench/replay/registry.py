"""Contenders of `bench replay`: hotloop's buffers, the post's procedures, other libraries."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bench.measuring import import_library
from bench.replay.contenders import (
    ACTION,
    BATCH,
    CHUNK,
    OBS,
    Contender,
    Fields,
    Steps,
    Weights,
    fields,
)
from bench.replay.peers import SB3, Cpprb, SumTree, Tianshou, TorchRL
from bench.replay.post import PROCEDURES, Procedure


class HotloopContender(Contender):
    """hotloop's buffer with a sampler."""

    def __init__(self, size: int, sampler: str, weights: str = "", shared: bool = False) -> None:
        replay = import_library("hotloop.replay")
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
        """Fill the buffer to exactly `size` entries."""
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
        """Return tensors without a copy."""
        views = batch.torch()
        importance = getattr(views, "importance", None)
        return views.obs, views.action, views.reward, views.next_obs, views.terminated, importance

    def update(self, batch: Any, weight: npt.NDArray[Any]) -> None:
        """Write weights by entry number."""
        if self.weights is not None:
            self.buffer.update_weights(batch.index, weight)

    def prepare_add(self, step: dict[str, Any], weight: float) -> Callable[[], None]:
        """Return the library's own call."""
        if self.weights is None or self.weights.kind == "td":
            return functools.partial(self.buffer.add, **step)
        return functools.partial(self.buffer.add, **step, weight=weight)

    def add(self, step: dict[str, Any], weight: float) -> None:
        """Add a transition, with a weight unless the sampler gives new entries the maximum."""
        if self.weights is None or self.weights.kind == "td":
            self.buffer.add(**step)
        else:
            self.buffer.add(**step, weight=weight)


class PostContender(Contender):
    """A procedure of the post with one NumPy array per field."""

    def __init__(self, size: int, procedure: str) -> None:
        self.torch = import_library("torch")
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
        for slots, rows in Steps().chunks(size):
            rows["done"] = rows["terminated"]
            for name, values in self.fields.items():
                values[slots] = rows[name]

    def sample(self) -> Any:
        """Sample by the procedure, and gather by fancy indexing."""
        index = self.procedure.draw(self.procedure.probabilities(), BATCH)
        return index, [values[index] for values in self.fields.values()]

    def tensors(self, batch: Any) -> tuple[Any, ...]:
        """Return tensors without a copy."""
        return (*map(self.torch.from_numpy, batch[1]), None)

    def update(self, batch: Any, weight: npt.NDArray[Any]) -> None:
        """Write weights by fancy indexing."""
        self.procedure.write(batch[0], weight)

    def add(self, step: dict[str, Any], weight: float) -> None:
        """Add a transition with one assignment per field."""
        slot = self.next_number % self.size
        for name, values in self.fields.items():
            values[slot] = step["terminated" if name == "done" else name]
        self.procedure.write(slot, weight)
        self.next_number += 1


class ReplayEntry(NamedTuple):
    """A contender's label, and a function that makes it with a size."""

    label: str
    make: Callable[[int], Contender]
    bytes_per_entry: int = 260
    """Approximate memory. The contender is skipped if there is less memory."""


def _hotloop(label: str, sampler: str, weights: str = "", shared: bool = False) -> ReplayEntry:
    return ReplayEntry(
        f"hotloop, {label}", lambda size: HotloopContender(size, sampler, weights, shared)
    )


WAYS: dict[str, ReplayEntry] = {
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
    "sb3": ReplayEntry("Stable-Baselines3, uniform", SB3),
    "cpprb": ReplayEntry("cpprb, prioritized", Cpprb),
    "tianshou": ReplayEntry("tianshou, prioritized", Tianshou, 400),
    "torchrl": ReplayEntry("torchrl, prioritized", TorchRL),
    "sumtree": ReplayEntry("sumtree, draws only, with replacement", SumTree, 40),
    "seed_numpy_old": ReplayEntry(
        "the post's old way, NumPy", lambda size: PostContender(size, "numpy_old")
    ),
    "seed_torch_new": ReplayEntry(
        "the post's new way, PyTorch", lambda size: PostContender(size, "torch_new")
    ),
}
