"""Central inference on Ray: actors that compute the network for workers, in batches.

What workers ask brings along where the weights lie in Ray's store, so an inference actor knows
nothing that another one in its place would not: Ray starts it again where it dies, and asks again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from hotloop import timing
from hotloop.errors import HotloopError
from hotloop.policies import ActingPolicy, Exploration, Network, PolicySnapshot, network_from_json
from hotloop.rollouts.ray.cluster import first_line, import_ray, of_actor
from hotloop.rollouts.ray.recording import Recorded, record
from hotloop.timing import span
from hotloop.types import Array

# Policies that are kept: workers may be at as many publications.
_KEPT = 8
# A worker waits so long for an answer, another actor's start included.
_ANSWER_S = 120.0


class Weights(NamedTuple):
    """Where the weights of a publication lie.

    Attributes:
        publication: its number; two may have one version and another `obs_scale`.
        ref: a reference to their `PolicySnapshot` in Ray's store, in a list, which Ray leaves as it
            is.
    """

    publication: int
    ref: list[Any]


class Answer(NamedTuple):
    """What the network gives.

    Attributes:
        head: float32, (B, H).
        value: float32, (B,); None: there is no value function.
        memory: float32, (B, M), what is remembered then; None: nothing is.
        place: of whom: its node and its process.
    """

    head: Array
    value: Array | None
    memory: Array | None
    place: tuple[str, int]


class _Asked(NamedTuple):
    """A question that waits."""

    weights: Weights
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
        self._name, self._place = recorded.component, (record(recorded), os.getpid())
        self._network, self._device = network_from_json(dict(network)), device
        self._policies: dict[int, ActingPolicy] = {}  # by publication; who was asked last is last
        self._asked: list[_Asked] = []
        self._computing: asyncio.Task[None] | None = None
        self._waiting = contextlib.ExitStack()  # between two batches
        self._waiting.enter_context(span("wait", kind="wait"))

    async def ready(self) -> tuple[str, int]:
        """Compute the network once; return the node and the process."""
        network = self._network
        policy = ActingPolicy(
            network, PolicySnapshot(0, network.initial_parameters(0)), device=self._device
        )
        obs = np.zeros((1, *network.obs_spec.shape), network.obs_spec.dtype)
        policy.head_and_value(obs, None, policy.new_memory(1))
        return self._place

    async def ask(self, weights: Weights, obs: Array, memory: Array | None) -> Answer:
        """Compute the network.

        Args:
            weights: where they lie.
            obs: (B, *obs_shape), raw.
            memory: float32, (B, M), what is remembered; None: nothing is.

        Returns:
            What it gives, in arrays that Ray lets nobody write to.
        """
        answer = asyncio.get_running_loop().create_future()
        self._asked.append(_Asked(weights, obs, memory, answer))
        if self._computing is None:
            self._computing = asyncio.create_task(self._compute())
        return await answer

    async def close(self) -> None:
        """End what is recorded."""
        self._waiting.close()
        timing.stop()

    async def _compute(self) -> None:
        """Answer until nobody asks."""
        try:
            while self._asked:
                count = -1
                while count != len(self._asked):  # what has come meanwhile is taken in first
                    count = len(self._asked)
                    await asyncio.sleep(0)
                asked, weights = self._asked, self._asked[0].weights
                number = weights.publication
                self._asked = [one for one in asked if one.weights.publication != number]
                batch = [one for one in asked if one.weights.publication == number]
                await self._answer(weights, batch)
        finally:
            self._computing = None

    async def _answer(self, weights: Weights, batch: list[_Asked]) -> None:
        answers: list[Answer] = []
        failure: HotloopError | None = None
        try:
            policy = await self._policy(weights)
            self._waiting.close()
            answers = _computed(policy, batch, self._place)
        except Exception as error:  # the worker that asked tells it; it may know no error of torch
            failure = HotloopError(f"{self._name}: {type(error).__name__}: {first_line(error)}")
        finally:
            self._waiting.enter_context(span("wait", kind="wait"))
        for number, one in enumerate(batch):
            if one.answer.done():
                continue
            if failure is None:
                one.answer.set_result(answers[number])
            else:
                one.answer.set_exception(failure)

    async def _policy(self, weights: Weights) -> ActingPolicy:
        """Return the policy of a publication."""
        policy = self._policies.pop(weights.publication, None)
        if policy is None:
            snapshot: PolicySnapshot = await weights.ref[0]
            self._waiting.close()
            with span("load_weights", kind="transfer"):
                if len(self._policies) >= _KEPT:
                    policy = self._policies.pop(next(iter(self._policies)))
                    policy.load(owned(snapshot))
                else:
                    policy = ActingPolicy(self._network, owned(snapshot), device=self._device)
        self._policies[weights.publication] = policy
        return policy


def _computed(policy: ActingPolicy, batch: list[_Asked], place: tuple[str, int]) -> list[Answer]:
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
    return [Answer(*one, place) for one in zip(heads, values, memories, strict=True)]


class AskingPolicy(ActingPolicy):
    """A policy whose network an `Inference` computes; actions are drawn here.

    Args:
        network: what acts.
        snapshot: its parameters.
        exploration: see `ActingPolicy`.
        inference: the actor.
        on_wait: is called before it waits for an answer.

    Attributes:
        answered_by: the node and the process of the last answer; None: there was none.
    """

    def __init__(
        self,
        network: Network,
        snapshot: PolicySnapshot,
        *,
        exploration: Exploration | None,
        inference: Any,
        on_wait: Callable[[], None],
    ) -> None:
        self._ray, self._inference, self._on_wait = import_ray(), inference, on_wait
        self.answered_by: tuple[str, int] | None = None
        self._weights: Weights | None = None
        self._last_value: Array | None = None
        super().__init__(network, snapshot, exploration=exploration)
        self.tells_value = network.has_value

    def read(self, weights: Weights) -> None:
        """Have the weights be found there, from now on."""
        self._weights = weights

    def head(self, obs: Array, out: Array | None = None, memory: Array | None = None) -> Array:
        """See `ActingPolicy.head`.

        Raises:
            HotloopError: nobody has answered, or what answers has failed.
        """
        answer = self._ask(obs, memory)
        self._last_value = answer.value
        if memory is not None and answer.memory is not None:
            np.copyto(memory, answer.memory)
        if out is None:
            return answer.head
        np.copyto(out, answer.head)
        return out

    def value(self, obs: Array, memory: Array | None = None) -> Array:
        """See `ActingPolicy.value`.

        Raises:
            HotloopError: nobody has answered, or what answers has failed.
        """
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
        ray = self._ray
        self._on_wait()
        with span("wait_for_inference", kind="wait"):
            try:
                ref = self._inference.ask.remote(self._weights, obs, memory)
                answer: Answer = ray.get(ref, timeout=_ANSWER_S)
            except ray.exceptions.GetTimeoutError as error:
                raise HotloopError(
                    f"no inference actor has answered within {_ANSWER_S:.0f} s: it hangs, dies "
                    "again and again, or has no room to be started in: look at `ray status`"
                ) from error
            except ray.exceptions.RayError as error:
                cause = getattr(error, "cause", None)
                told = cause if isinstance(cause, HotloopError) else of_actor(error, "inference")
                raise HotloopError(str(told)) from error  # of no kind that another could mend
        self.answered_by = answer.place
        return answer


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
