"""Environments that Ray actors step."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hotloop.base import startup
from hotloop.base.children import module_paths
from hotloop.envs import EnvSpec
from hotloop.errors import ConfigError, EnvironmentFailure
from hotloop.policies import ActingPolicy, Network
from hotloop.rollouts.failures import Failures, compare_spaces
from hotloop.rollouts.fleet import FleetRollout
from hotloop.rollouts.protocol import CollectionOptions
from hotloop.rollouts.ray.actor import Actor, ActorInfo, ActorOptions
from hotloop.rollouts.ray.cluster import actor_error, check_resources, connect
from hotloop.rollouts.ray.following import FollowingActors
from hotloop.rollouts.ray.inference import InferenceActor
from hotloop.rollouts.ray.node_watch import NodeWatches
from hotloop.rollouts.ray.recording import RecordingOptions
from hotloop.rollouts.ray.transport import ActorTransport
from hotloop.timing import span

# Time limit for the start of an actor, which may lack resources or hang in its environments.
_START_S = 120.0
_CLOSE_S = 3.0


@dataclass(frozen=True, kw_only=True)
class RayOptions:
    """The cluster, and the resources that the actors use.

    Attributes:
        address: Address of a cluster. None: start one on this machine.
        resources: Resources of each actor, such as {"num_cpus": 1}.
        workers_per_node: Maximum number of actors per node, if there are enough nodes. None: no
            limit.
        runtime_env: Ray's `runtime_env` of the actors.
        num_inference: Actors that compute the network for all workers. 0: each worker computes it
            itself.
        inference_resources: Resources of each inference actor. It computes on its GPU, if it has
            one.
    """

    address: str | None = None
    resources: Mapping[str, float] = field(default_factory=dict)
    workers_per_node: int | None = None
    runtime_env: Mapping[str, Any] = field(default_factory=dict)
    num_inference: int = 0
    inference_resources: Mapping[str, float] = field(default_factory=dict)


class RayEnvironments:
    """Environments of W actors.

    Args:
        spec: Environments. Actors must be able to import a factory by name.
        options: The cluster.
        num_workers: W.
        envs_per_worker: Environments of each actor.
        agents: Index of each agent of several policies, by policy; see `rollout`.
        timing_dir: Directory for recordings. Recordings on other nodes are copied to it.
        step_timeout_s: Seconds for a step or a reset before the actor ends. None: no limit.
        max_failures: Maximum total number of replacements of environments and actors.

    Attributes:
        num_envs, obs_spec, action_spec, can_replay: See `Environments`.

    Raises:
        MissingExtraError: Ray is not installed.
        ConfigError: Ray does not answer or has no room, or a factory can't be imported.
        SpaceError: The actors' spaces differ.
        EnvironmentFailure: An environment can't be made, with the actor's number.
    """

    def __init__(
        self,
        spec: EnvSpec,
        options: RayOptions,
        *,
        num_workers: int,
        envs_per_worker: int = 1,
        agents: Mapping[str, Sequence[int]] | None = None,
        timing_dir: str | Path = "",
        step_timeout_s: float | None = 300.0,
        max_failures: int = 100,
    ) -> None:
        self.num_workers, self.envs_per_worker = num_workers, envs_per_worker
        self.num_envs = num_workers * envs_per_worker
        self.failures, self.step_timeout_s = Failures(max_failures), step_timeout_s
        # An actor steps its environments in sequence.
        self.max_step_s = None if step_timeout_s is None else step_timeout_s * envs_per_worker
        self.start_timeout_s = None if step_timeout_s is None else max(_START_S, step_timeout_s)
        self.timing_dir = str(timing_dir)
        self.actors: list[Any] = []
        self._servers: list[Any] = []
        self._inference_locations: list[set[tuple[str, int]]] = []
        self._spec = EnvSpec.from_json(spec.to_json())  # actors import a factory by name
        self._resources = {"num_cpus": 1, **options.resources}
        self._num_inference = options.num_inference
        requested = options.inference_resources
        # An actor with a GPU requests no core: workers may use all cores of its node.
        self._inference_resources = {"num_cpus": int(not requested.get("num_gpus")), **requested}
        self._per_node = options.workers_per_node
        self._nodes: dict[int, str] = {}
        self.watches: NodeWatches | None = None
        self._agents = {} if agents is None else agents
        self._transports: list[ActorTransport] = []
        self._rollouts: list[FleetRollout] = []
        self._exit_stack = contextlib.ExitStack()
        num_cpus = num_workers * self._resources["num_cpus"]
        num_cpus += options.num_inference * self._inference_resources["num_cpus"]
        # Connect to Ray, and start the actors.
        try:
            with span("start_ray"):
                self.ray = self._exit_stack.enter_context(
                    connect(options.address, num_cpus=num_cpus, runtime_env=options.runtime_env)
                )
            demands = {"workers": (self._resources, num_workers)}
            if options.num_inference:
                demands["inference_actors"] = (self._inference_resources, options.num_inference)
            check_resources(self.ray, demands)
            context = self.ray.get_runtime_context()
            self._learner_node, self._job = context.get_node_id(), context.get_job_id()
            with span("start_workers"):
                if timing_dir:
                    with contextlib.suppress(OSError):  # then nothing is recorded
                        Path(timing_dir).mkdir(parents=True, exist_ok=True)
                self.actors = [self.start(worker) for worker in range(num_workers)]
                hint = "its node has no room, or making its environments hangs"
                actor_infos: list[ActorInfo] = [
                    self._await_ready(actor, f"worker {worker}", hint)
                    for worker, actor in enumerate(self.actors)
                ]
                for worker, info in enumerate(actor_infos):
                    compare_spaces(actor_infos[0], info, worker)
        except BaseException:
            self.close()
            raise
        # Watch the actors' nodes.
        self.watches = NodeWatches(self.ray, self.timing_dir)
        for info in actor_infos:
            self.watches.add_node(info.node)
        self.obs_spec, self.action_spec, self.can_replay, *_ = actor_infos[0]

    def start(self, worker: int, first_episode: int | None = None) -> Any:
        """Start an actor, which makes its environments, and return it."""
        first_env = worker * self.envs_per_worker
        if first_episode is None:
            first_episode = self._spec.first_episode
        actor_options = ActorOptions(
            worker=worker,
            spec=replace(self._spec, first_env=first_env, first_episode=first_episode),
            num_envs=self.envs_per_worker,
            max_failures=self.failures.max_failures,
            timeout_s=self.max_step_s,
            recording=self._recording_options(f"worker-{worker}"),
            paths=module_paths(),
            agents=self._agents,
        )
        ray_options = _ray_options(self._resources)
        remote_class = self.ray.remote(Actor).options(
            **ray_options, scheduling_strategy=self._scheduling_strategy(worker), max_concurrency=1
        )
        return remote_class.remote(actor_options)

    def inference_of(self, worker: int) -> Any:
        """Return the actor that computes a worker's network. None: the worker does."""
        return self._servers[worker % len(self._servers)] if self._servers else None

    def _start_inference(self, network: Network) -> None:
        """Start the inference actors, and wait until they are ready."""
        resources = self._inference_resources
        device = "cuda" if resources.get("num_gpus", 0) else "cpu"
        if device == "cuda" and network.acts_without_torch:
            raise ConfigError(
                "NumPy computes perceptrons, but `inference_resources` request a GPU: omit "
                "`num_gpus`, or choose a `network` that acts through torch"
            )
        remote_class = self.ray.remote(InferenceActor).options(
            **_ray_options(resources),
            scheduling_strategy="SPREAD",
            # An inference actor has no state: Ray restarts it, and sends its requests again.
            max_restarts=self.failures.max_failures,
            max_task_retries=-1,
        )
        for number in range(self._num_inference):
            recording = self._recording_options(f"inference-{number}")
            self._servers.append(
                remote_class.remote(network.to_json(), device, recording, module_paths())
            )
        assert self.watches is not None
        for number, actor in enumerate(self._servers):
            location = self._await_ready(actor, f"inference actor {number}", "its node has no room")
            self._inference_locations.append({location})
            self.watches.add_node(location[0])

    def on_answer(self, worker: int, location: tuple[str, int]) -> None:
        """Record where a worker's network was computed, and warn if the actor was restarted."""
        number = worker % len(self._servers)
        if location in self._inference_locations[number]:
            return
        self._inference_locations[number].add(location)
        assert self.watches is not None
        self.watches.add_node(location[0])
        warnings.warn(
            f"inference actor {number} died, and Ray has restarted it on node {location[0]}",
            RuntimeWarning,
            stacklevel=2,
        )

    def _recording_options(self, component: str) -> RecordingOptions:
        profile = os.environ.get("HOTLOOP_PROFILE", "")
        functions = os.environ.get(startup.VARIABLE, "")
        return RecordingOptions(
            component, self.timing_dir, self._learner_node, self._job, profile, functions
        )

    def _scheduling_strategy(self, worker: int) -> Any:
        """Choose the node with the fewest actors, or leave the choice to Ray."""
        if self._per_node is None:
            return "SPREAD"
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        num_cores = self._resources.get("num_cpus", 1)
        nodes = [node for node in self.ray.nodes() if node["Alive"]]
        node_ids = [x["NodeID"] for x in nodes if x["Resources"].get("CPU", 0.0) >= num_cores]
        if not self.actors and len(node_ids) * self._per_node < self.num_workers:
            raise ConfigError(
                f"{self.num_workers} workers, {self._per_node} per node, need "
                f"{-(-self.num_workers // self._per_node)} nodes of {num_cores:g} cores or more, "
                f"but the cluster has {len(node_ids)}: raise `workers_per_node`, or add nodes"
            )
        self._nodes.pop(worker, None)
        counts = Counter(self._nodes.values())
        self._nodes[worker] = min(
            node_ids, key=lambda node: counts[node], default=self._learner_node
        )
        return NodeAffinitySchedulingStrategy(self._nodes[worker], soft=True)

    def _await_ready(self, actor: Any, name: str, hint: str) -> Any:
        """Wait for an actor's answer, and return it. `hint` is a possible cause of a delay."""
        errors = self.ray.exceptions
        try:
            return self.ray.get(actor.ready.remote(), timeout=_START_S)
        except errors.GetTimeoutError as error:
            raise EnvironmentFailure(
                f"{name} was not ready within {_START_S:.0f} s: {hint}: check `ray status`"
            ) from error
        except errors.RayError as error:
            raise actor_error(error, name, is_starting=True) from error

    def rollout(
        self,
        policy: ActingPolicy,
        options: CollectionOptions,
        *,
        num_envs: int | None = None,
        make: Callable[..., FleetRollout] = FleetRollout,
    ) -> FleetRollout:
        """Start the only rollout, or that of the next of several policies.

        Args:
            policy: Acting policy.
            options: Collection options.
            num_envs: Environments of each actor that the policy acts in. None: all.
            make: Makes the rollout.
        """
        policy.check_importable()
        if self._num_inference:
            with span("start_inference"):
                self._start_inference(policy.network)
        if self._transports:
            leader = self._transports[0]
            transport = FollowingActors(leader, self, policy, options, num_envs)
        else:
            transport = ActorTransport(self, policy, options, num_envs)
        rollout = make(transport, policy, options, close=self.close)
        if isinstance(transport, FollowingActors):
            self._transports[0].followers.append((transport, rollout))
        self._transports.append(transport)
        self._rollouts.append(rollout)
        return rollout

    def close(self) -> None:
        """End the actors, and Ray if it was started here. Further calls have no effect."""
        actors = self.actors + self._servers
        self.actors, self._servers = [], []
        if actors:
            closing = [actor.close.remote() for actor in actors]
            with contextlib.suppress(Exception):  # the code below kills actors that failed to close
                self.ray.wait(closing, num_returns=len(closing), timeout=_CLOSE_S)
            if self.watches is not None:
                self.watches.end()
            for actor in actors:
                with contextlib.suppress(Exception):
                    self.ray.kill(actor)
        for rollout in self._rollouts:
            rollout.store_accounting()
        self._exit_stack.close()


def _ray_options(resources: Mapping[str, float]) -> dict[str, Any]:
    counts: dict[str, Any] = {name: x for name, x in resources.items() if name.startswith("num_")}
    return {**counts, "resources": {name: x for name, x in resources.items() if name not in counts}}
