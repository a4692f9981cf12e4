"""Central inference on Ray: actors that compute the network for workers, in batches.

What workers ask brings along where the weights lie in Ray's store, so an inference actor knows
nothing that another one in its place would not: Ray starts it again where it dies, and asks again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from hotloop.policies import ActingPolicy, Exploration, Network, PolicySnapshot, network_from_json
from hotloop.rollouts.ray.recording import Recorded, record
from hotloop.timing import span
from hotloop.types import Array

# Policies that are kept: of two versions, where some workers are behind.
_KEPT = 2


class Answer(NamedTuple):
    """What the network gives.

    Attributes:
        head: float32, (B, H).
        value: float32, (B,); None: there is no value function.
        memory: float32, (B, M), what is remembered then; None: nothing is.
    """

    head: Array
    value: Array | None
    memory: Array | None


class _Asked(NamedTuple):
    """A question that waits."""

    version: int
    weights: list[Any]
    obs: Array
    memory: Array | None
    answer: asyncio.Future[Answer]


class Inference:
    """Computes a network for whoever asks: all that there is at once, and waits for no more.

    Args:
        network: as JSON.
        device: of torch; perceptrons are computed on the host without it.
        recorded: where it records.
    """

    def __init__(self, network: Mapping[str, Any], device: str, recorded: Recorded) -> None:
        self.node = record(recorded)
        self._network, self._device = network_from_json(dict(network)), device
        self._policies: dict[int, ActingPolicy] = {}
        self._asked: list[_Asked] = []
        self._computing: asyncio.Task[None] | None = None
        self._waiting = contextlib.ExitStack()  # between two batches
        self._waiting.enter_context(span("wait", kind="wait"))

    async def ready(self) -> str:
        """Return the node that it is on."""
        return self.node

    async def ask(
        self, version: int, weights: list[Any], obs: Array, memory: Array | None
    ) -> Answer:
        """Compute the network.

        Args:
            version: of the weights.
            weights: a reference to their `PolicySnapshot` in Ray's store, in a list, which Ray
                leaves as it is.
            obs: (B, *obs_shape), raw.
            memory: float32, (B, M), what is remembered; None: nothing is.
        """
        answer = asyncio.get_running_loop().create_future()
        self._asked.append(_Asked(version, weights, obs, memory, answer))
        if self._computing is None:
            self._computing = asyncio.create_task(self._compute())
        return await answer

    async def close(self) -> None:
        """End what is recorded."""
        self._waiting.close()

    async def _compute(self) -> None:
        """Answer until nobody asks."""
        while self._asked:
            count = -1
            while count != len(self._asked):  # what has come meanwhile is taken in first
                count = len(self._asked)
                await asyncio.sleep(0)
            version = self._asked[0].version
            batch = [one for one in self._asked if one.version == version]
            self._asked = [one for one in self._asked if one.version != version]
            try:
                policy = await self._policy(version, batch[0].weights)
                self._waiting.close()
                answers = _computed(policy, batch)
            except Exception as error:  # the worker that asked tells it
                for one in batch:
                    one.answer.set_exception(error)
            else:
                for one, answer in zip(batch, answers, strict=True):
                    one.answer.set_result(answer)
            self._waiting.enter_context(span("wait", kind="wait"))
        self._computing = None

    async def _policy(self, version: int, weights: list[Any]) -> ActingPolicy:
        """Return the policy of a version."""
        if version not in self._policies:
            snapshot: PolicySnapshot = await weights[0]
            self._waiting.close()
            with span("load_weights", kind="transfer"):
                while len(self._policies) >= _KEPT:
                    del self._policies[min(self._policies)]
                self._policies[version] = ActingPolicy(
                    self._network, owned(snapshot), device=self._device
                )
        return self._policies[version]


def _computed(policy: ActingPolicy, batch: list[_Asked]) -> list[Answer]:
    """Compute a batch, and share out what comes of it."""
    with span("copy_obs", kind="transfer"):
        obs = np.concatenate([one.obs for one in batch])
        memory = None
        if policy.memory_size:
            memory = np.concatenate([one.memory for one in batch if one.memory is not None])
    with span("forward"):
        head, value = policy.head_and_value(obs, None, memory)
    stops = np.cumsum([len(one.obs) for one in batch])[:-1]
    heads = np.split(head, stops)
    values = [None] * len(batch) if value is None else np.split(value, stops)
    memories = [None] * len(batch) if memory is None else np.split(memory, stops)
    return [Answer(*one) for one in zip(heads, values, memories, strict=True)]


class AskingPolicy(ActingPolicy):
    """A policy whose network an `Inference` computes; actions are drawn here.

    Args:
        network: what acts.
        snapshot: its parameters.
        exploration: see `ActingPolicy`.
        ray: connected.
        inference: the actor.
    """

    def __init__(
        self,
        network: Network,
        snapshot: PolicySnapshot,
        *,
        exploration: Exploration | None,
        ray: Any,
        inference: Any,
    ) -> None:
        self._ray, self._inference = ray, inference
        self._weights: list[Any] = []
        self._last_value: Array | None = None
        super().__init__(network, snapshot, exploration=exploration)
        self.tells_value = network.has_value

    def read(self, weights: list[Any]) -> None:
        """Have the weights be found there: see `Inference.ask`."""
        self._weights = weights

    def head(self, obs: Array, out: Array | None = None, memory: Array | None = None) -> Array:
        """See `ActingPolicy.head`."""
        head, self._last_value, after = self._ask(obs, memory)
        if memory is not None and after is not None:
            np.copyto(memory, after)
        if out is None:
            return head
        np.copyto(out, head)
        return out

    def value(self, obs: Array, memory: Array | None = None) -> Array:
        """See `ActingPolicy.value`."""
        value = self._ask(obs, memory).value
        assert value is not None
        return value

    def last_value(self) -> Array:
        """See `ActingPolicy.last_value`."""
        assert self._last_value is not None
        return self._last_value

    def _make_forward(self, device: str) -> Any:
        return _Elsewhere()

    def _ask(self, obs: Array, memory: Array | None) -> Answer:
        with span("wait_for_inference", kind="wait"):
            asked = self._inference.ask.remote(self.version, self._weights, obs, memory)
            return self._ray.get(asked)


class _Elsewhere:
    """A network that is computed elsewhere: there is nothing to load."""

    def load(self, snapshot: PolicySnapshot) -> None:
        pass

    def refresh(self) -> None:
        pass


def owned(snapshot: PolicySnapshot) -> PolicySnapshot:
    """Return one whose arrays may be written to: those of Ray's store may not."""
    params = {name: array.copy() for name, array in snapshot.params.items()}
    return PolicySnapshot(snapshot.version, params, snapshot.obs_scale)
