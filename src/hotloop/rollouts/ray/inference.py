"""Central inference on Ray: actors that compute the network for workers, in batches.

Each request contains a reference to its weights in Ray's store. An inference actor therefore has no
state to lose: Ray restarts it after a failure, and sends the requests again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hotloop import timing
from hotloop.base.children import add_module_paths
from hotloop.errors import HotloopError, first_line
from hotloop.policies import ActingPolicy, Exploration, Network, PolicySnapshot, network_from_json
from hotloop.rollouts.inference.batching import NetworkOutputs, run_network, split_requests
from hotloop.rollouts.ray.cluster import actor_error, import_ray
from hotloop.rollouts.ray.recording import RecordingOptions, start_recording
from hotloop.timing import span
from hotloop.types import Array

# Number of cached policies, and of publications that workers may use at a time.
_MAX_POLICIES = 8
# Time limit for an answer, including the start of another actor.
_ANSWER_S = 120.0


class WeightsRef(NamedTuple):
    """A reference to the weights of a publication.

    Attributes:
        publication: Number of the publication. Two may have the same version and different
            `obs_scale`.
        ref: Reference to the `PolicySnapshot` in Ray's store, in a list so that Ray does not
            resolve it.
    """

    publication: int
    ref: list[Any]


class Answer(NamedTuple):
    """The outputs of the network for a request, and the node and process that computed them."""

    outputs: NetworkOutputs
    location: tuple[str, int]


class _Request(NamedTuple):
    """An open request."""

    weights: WeightsRef
    obs: Array
    memory: Array | None
    future: asyncio.Future[Answer]


class InferenceActor:
    """Computes a network for the workers. A batch contains all requests that are open.

    Args:
        network: Network as JSON.
        device: Device of torch. The host computes perceptrons without torch.
        options: Options of the actor's timing recording.
        paths: Directories in which the learner searches for modules.
    """

    def __init__(
        self,
        network: Mapping[str, Any],
        device: str,
        options: RecordingOptions,
        paths: Sequence[str] = (),
    ) -> None:
        add_module_paths(paths)
        self._name, self._location = options.component, (start_recording(options), os.getpid())
        self._network, self._device = network_from_json(dict(network)), device
        self._policies: dict[int, ActingPolicy] = {}  # by publication, most recent last
        self._requests: list[_Request] = []
        self._answering: asyncio.Task[None] | None = None
        self._waiting = contextlib.ExitStack()  # the span between two batches
        self._waiting.enter_context(span("wait", kind="wait"))

    async def ready(self) -> tuple[str, int]:
        """Compute the network once, and return the node and the process."""
        network = self._network
        policy = ActingPolicy(
            network, PolicySnapshot(0, network.initial_parameters(0)), device=self._device
        )
        obs = np.zeros((1, *network.obs_spec.shape), network.obs_spec.dtype)
        policy.head_and_value(obs, None, policy.new_memory(1))
        return self._location

    async def evaluate(self, weights: WeightsRef, obs: Array, memory: Array | None) -> Answer:
        """Return the network's outputs, in arrays that Ray makes read-only.

        Args:
            weights: Reference to the weights.
            obs: Raw observations, (B, *obs_shape).
            memory: Hidden states, float32, (B, M). None: there are none.
        """
        future = asyncio.get_running_loop().create_future()
        self._requests.append(_Request(weights, obs, memory, future))
        if self._answering is None:
            self._answering = asyncio.create_task(self._answer_requests())
        return await future

    async def close(self) -> None:
        """Close the recording."""
        self._waiting.close()
        timing.stop()

    async def _answer_requests(self) -> None:
        """Answer requests until none is open."""
        try:
            while self._requests:
                num_requests = -1
                while num_requests != len(self._requests):  # take requests that arrive meanwhile
                    num_requests = len(self._requests)
                    await asyncio.sleep(0)
                batch, self._requests = split_requests(
                    self._requests, lambda request: request.weights.publication
                )
                await self._answer(batch)
        finally:
            self._answering = None

    async def _answer(self, batch: list[_Request]) -> None:
        outputs: list[NetworkOutputs] = []
        failure: HotloopError | None = None
        try:
            policy = await self._policy(batch[0].weights)
            self._waiting.close()
            outputs = run_network(policy, [x.obs for x in batch], [x.memory for x in batch])
        except Exception as error:  # the worker may lack torch's errors
            failure = HotloopError(f"{self._name}: {type(error).__name__}: {first_line(error)}")
        finally:
            self._waiting.enter_context(span("wait", kind="wait"))
        for index, request in enumerate(batch):
            if request.future.done():
                continue
            if failure is None:
                request.future.set_result(Answer(outputs[index], self._location))
            else:
                request.future.set_exception(failure)

    async def _policy(self, weights: WeightsRef) -> ActingPolicy:
        policy = self._policies.pop(weights.publication, None)
        if policy is None:
            snapshot: PolicySnapshot = await weights.ref[0]
            self._waiting.close()
            with span("load_weights", kind="transfer"):
                if len(self._policies) >= _MAX_POLICIES:
                    policy = self._policies.pop(next(iter(self._policies)))
                    policy.load(writable(snapshot))
                else:
                    policy = ActingPolicy(
                        self._network, writable(snapshot), is_noisy=True, device=self._device
                    )
        self._policies[weights.publication] = policy
        return policy


class RemotePolicy(ActingPolicy):
    """A policy whose network an `InferenceActor` computes. Actions are sampled locally.

    Args:
        network: Network of the policy.
        snapshot: Parameters of the policy.
        exploration: See `ActingPolicy`.
        inference: The inference actor.
        on_wait: Called before each wait for an answer.

    Attributes:
        answer_location: Node and process that computed the last answer. None: there was no answer.
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
        self.answer_location: tuple[str, int] | None = None
        self._weights: WeightsRef | None = None
        self._last_value: Array | None = None
        super().__init__(network, snapshot, exploration=exploration)
        self.has_last_value = network.has_value

    def set_weights(self, weights: WeightsRef) -> None:
        """Use these weights from now on."""
        self._weights = weights

    def head(self, obs: Array, out: Array | None = None, memory: Array | None = None) -> Array:
        """Return the head's outputs; see `ActingPolicy.head`.

        Raises:
            HotloopError: The inference actor did not answer, or failed.
        """
        head, self._last_value, next_memory = self._request(obs, memory)
        if memory is not None and next_memory is not None:
            np.copyto(memory, next_memory)
        if out is None:
            return head
        np.copyto(out, head)
        return out

    def value(self, obs: Array, memory: Array | None = None) -> Array:
        """Return the values; see `ActingPolicy.value`.

        Raises:
            HotloopError: The inference actor did not answer, or failed.
        """
        value = self._request(obs, memory).value
        assert value is not None
        return value

    def last_value(self) -> Array:
        assert self._last_value is not None
        return self._last_value

    def _make_forward(self, device: str) -> Any:
        return _RemoteForward()

    def _request(self, obs: Array, memory: Array | None) -> NetworkOutputs:
        ray = self._ray
        self._on_wait()
        with span("wait_for_inference", kind="wait"):
            try:
                ref = self._inference.evaluate.remote(self._weights, obs, memory)
                answer: Answer = ray.get(ref, timeout=_ANSWER_S)
            except ray.exceptions.GetTimeoutError as error:
                raise HotloopError(
                    f"no inference actor has answered within {_ANSWER_S:.0f} s: it hangs, dies "
                    "repeatedly, or has no resources to start: check `ray status`"
                ) from error
            except ray.exceptions.RayError as error:
                cause = getattr(error, "cause", None)
                failure = (
                    cause if isinstance(cause, HotloopError) else actor_error(error, "inference")
                )
                raise HotloopError(str(failure)) from error  # a new worker would fail too
        self.answer_location = answer.location
        return answer.outputs


class _RemoteForward:
    """A placeholder for the local network, which has nothing to load."""

    def load(self, snapshot: PolicySnapshot) -> None:
        pass

    def refresh(self) -> None:
        pass


def writable(snapshot: PolicySnapshot) -> PolicySnapshot:
    """Return a snapshot with writable arrays. Those in Ray's store are read-only."""
    params = {name: array.copy() for name, array in snapshot.params.items()}
    return PolicySnapshot(snapshot.version, params, snapshot.obs_scale)
