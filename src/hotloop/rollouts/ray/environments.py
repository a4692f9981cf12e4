"""Environments that actors of Ray step."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hotloop.envs import ActionSpec, ObsSpec
from hotloop.errors import ConfigError, EnvironmentFailure
from hotloop.policies import ActingPolicy, Network
from hotloop.rollouts.protocol import CollectionOptions
from hotloop.rollouts.ray.actor import Actor, Making, Ready
from hotloop.rollouts.ray.cluster import connected, need_resources, of_actor
from hotloop.rollouts.ray.inference import Inference
from hotloop.rollouts.ray.node_watch import Watches
from hotloop.rollouts.ray.recording import Recorded
from hotloop.rollouts.ray.rollout import RayRollout
from hotloop.rollouts.workers.pool import importable
from hotloop.timing import span

# An actor that does not start in so long has no room, or its environments hang.
_START_S = 120.0
_CLOSE_S = 3.0


class RayEnvironments:
    """Environments of W actors.

    Args:
        env: as for `make_vec`; by a name that actors can import.
        num_workers: W.
        envs_per_worker: environments of each.
        seed, env_kwargs, action_masks, first_episode, stagger, log_info: see `make_vec`.
        timing_dir: where actors record; what those of other nodes do is fetched.
        step_timeout_s: how long a step or a reset may take, before the actor ends; None: any time.
        max_failures: how often in all an environment or an actor is replaced.
        address: of a cluster; None: one is started on this machine.
        resources: of each actor, such as {"num_cpus": 1}.
        workers_per_node: actors of each node at most, while there are nodes enough; None: any.
        runtime_env: what actors run in, see Ray's `runtime_env`.
        num_inference: actors that compute the network for all others; 0: each does so itself.
        inference_resources: of each of them; with a GPU they compute on it.

    Raises:
        MissingExtraError: Ray is not installed.
        ConfigError: no Ray answers; it has no room; a factory can't be imported.
        EnvironmentFailure: an environment can't be made, with the actor's number.
    """

    def __init__(
        self,
        env: str | Callable[..., Any],
        *,
        num_workers: int,
        envs_per_worker: int = 1,
        seed: int = 0,
        env_kwargs: Mapping[str, Any] | None = None,
        action_masks: bool = False,
        first_episode: int = 0,
        stagger: int = 0,
        timing_dir: str | Path = "",
        step_timeout_s: float | None = 300.0,
        max_failures: int = 100,
        log_info: Sequence[str] = (),
        address: str | None = None,
        resources: Mapping[str, float] | None = None,
        workers_per_node: int | None = None,
        runtime_env: Mapping[str, Any] | None = None,
        num_inference: int = 0,
        inference_resources: Mapping[str, float] | None = None,
    ) -> None:
        self.num_workers, self.envs_per_worker = num_workers, envs_per_worker
        self.max_failures, self.step_timeout_s = max_failures, step_timeout_s
        # An actor steps its environments one after another.
        self.longest_step_s = None if step_timeout_s is None else step_timeout_s * envs_per_worker
        self.timing_dir = str(timing_dir)
        self.actors: list[Any] = []
        self._inference: list[Any] = []
        self._answered: list[set[tuple[str, int]]] = []  # where each inference actor has been
        self._env = importable(env)
        self._options = {
            "seed": seed,
            "env_kwargs": dict(env_kwargs or {}),
            "stagger": stagger,
            "action_masks": action_masks,
            "log_info": list(log_info),
        }
        self.first_episode = first_episode
        self._resources = {"num_cpus": 1, **(resources or {})}
        self._num_inference = num_inference
        given = dict(inference_resources or {})
        # Who has a GPU needs no core of its own: workers may have taken all of that node.
        self._inference_resources = {"num_cpus": int(not given.get("num_gpus")), **given}
        self._per_node = workers_per_node
        self._places: dict[int, str] = {}
        self.watches: Watches | None = None
        self._rollout: RayRollout | None = None
        self._exits = contextlib.ExitStack()
        num_cpus = num_workers * self._resources["num_cpus"]
        num_cpus += num_inference * self._inference_resources["num_cpus"]
        try:
            with span("start_ray"):
                self.ray = self._exits.enter_context(
                    connected(address, num_cpus=num_cpus, runtime_env=runtime_env or {})
                )
            wanted = {"workers": (self._resources, num_workers)}
            if num_inference:
                wanted["inference_actors"] = (self._inference_resources, num_inference)
            need_resources(self.ray, wanted)
            context = self.ray.get_runtime_context()
            self._learner_node, self._job = context.get_node_id(), context.get_job_id()
            with span("start_workers"):
                if timing_dir:
                    with contextlib.suppress(OSError):  # there will be no timing
                        Path(timing_dir).mkdir(parents=True, exist_ok=True)
                self.actors = [self.start(worker, first_episode) for worker in range(num_workers)]
                hint = "its node has no room, or making its environments hangs"
                ready: list[Ready] = [
                    self._ready(actor, f"worker {worker}", hint)
                    for worker, actor in enumerate(self.actors)
                ]
        except BaseException:
            self.close()
            raise
        self.ready = ready[0]
        self.watches = Watches(self.ray, self.timing_dir)
        for one in ready:
            self.watches.need(one.node)
        self._obs_spec = ObsSpec.from_json(dict(self.ready.obs_spec))
        self._action_spec = ActionSpec.from_json(dict(self.ready.action_spec))

    @property
    def num_envs(self) -> int:
        """N, over all workers."""
        return self.num_workers * self.envs_per_worker

    @property
    def obs_spec(self) -> ObsSpec:
        """Shape, dtype and layout of one observation."""
        return self._obs_spec

    @property
    def action_spec(self) -> ActionSpec:
        """Kind, shape and bounds of one action."""
        return self._action_spec

    @property
    def can_replay(self) -> bool:
        """Whether `Rollout.restore` can bring environments into the middle of an episode."""
        return self.ready.can_replay

    def start(self, worker: int, first_episode: int) -> Any:
        """Start an actor, which makes its environments, and return it."""
        making = Making(
            worker=worker,
            env=self._env,
            num_envs=self.envs_per_worker,
            options={
                **self._options,
                "first_env": worker * self.envs_per_worker,
                "first_episode": first_episode,
            },
            longest_s=self.longest_step_s,
            recorded=self._recorded(f"worker-{worker}"),
        )
        options = _options(self._resources)
        kind = self.ray.remote(Actor).options(
            **options, scheduling_strategy=self._place(worker), max_concurrency=1
        )
        return kind.remote(making)

    def inference_of(self, worker: int) -> Any:
        """Return the actor that computes the network for a worker; None: the worker does."""
        return self._inference[worker % len(self._inference)] if self._inference else None

    def _start_inference(self, network: Network) -> None:
        """Start the actors that compute the network, and wait until they can."""
        resources = self._inference_resources
        device = "cuda" if resources.get("num_gpus", 0) else "cpu"
        if device == "cuda" and network.layers.twin is not None:
            raise ConfigError(
                "perceptrons are computed by NumPy, and `inference_resources` ask for a GPU: leave "
                "`num_gpus` out, or choose a `network` that acts through torch"
            )
        kind = self.ray.remote(Inference).options(
            **_options(resources),
            scheduling_strategy="SPREAD",
            # It knows nothing that another one would not: Ray starts it again, and asks again.
            max_restarts=self.max_failures,
            max_task_retries=-1,
        )
        for number in range(self._num_inference):
            recorded = self._recorded(f"inference-{number}")
            self._inference.append(kind.remote(network.to_json(), device, recorded))
        assert self.watches is not None
        for number, actor in enumerate(self._inference):
            place = self._ready(actor, f"inference actor {number}", "its node has no room")
            self._answered.append({place})
            self.watches.need(place[0])

    def answered(self, worker: int, place: tuple[str, int]) -> None:
        """Know who has computed a worker's network: another actor, where the one before has died.

        Args:
            worker: its number.
            place: node and process.
        """
        number = worker % len(self._inference)
        if place in self._answered[number]:
            return
        self._answered[number].add(place)
        assert self.watches is not None
        self.watches.need(place[0])
        warnings.warn(
            f"inference actor {number} died, and Ray has started it again on node {place[0]}",
            RuntimeWarning,
            stacklevel=2,
        )

    def _recorded(self, component: str) -> Recorded:
        profile = os.environ.get("HOTLOOP_PROFILE", "")
        return Recorded(component, self.timing_dir, self._learner_node, self._job, profile)

    def _place(self, worker: int) -> Any:
        """Choose where an actor goes: where fewest are, or wherever Ray finds room."""
        if self._per_node is None:
            return "SPREAD"
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        wanted = self._resources.get("num_cpus", 1)
        nodes = [one for one in self.ray.nodes() if one["Alive"]]
        fit = [x["NodeID"] for x in nodes if x["Resources"].get("CPU", 0.0) >= wanted]
        if not self.actors and len(fit) * self._per_node < self.num_workers:
            raise ConfigError(
                f"{self.num_workers} workers, {self._per_node} a node, need "
                f"{-(-self.num_workers // self._per_node)} nodes of {wanted:g} cores or more, and "
                f"the cluster has {len(fit)}: raise `workers_per_node`, or add nodes"
            )
        self._places.pop(worker, None)
        count = Counter(self._places.values())
        self._places[worker] = min(fit, key=lambda node: count[node], default=self._learner_node)
        return NodeAffinitySchedulingStrategy(self._places[worker], soft=True)

    def _ready(self, actor: Any, name: str, hint: str) -> Any:
        """Wait until an actor is ready, and return what it says then.

        Args:
            actor: waited for.
            name: of it, for errors.
            hint: why it may take too long.
        """
        errors = self.ray.exceptions
        try:
            return self.ray.get(actor.ready.remote(), timeout=_START_S)
        except errors.GetTimeoutError as error:
            raise EnvironmentFailure(
                f"{name} was not ready within {_START_S:.0f} s: {hint}: look at `ray status`"
            ) from error
        except errors.RayError as error:
            raise of_actor(error, name) from error

    def rollout(self, policy: ActingPolicy, plan: CollectionOptions) -> RayRollout:
        """Begin to collect with them; once."""
        assert self._rollout is None
        if self._num_inference:
            with span("start_inference"):
                self._start_inference(policy.network)
        self._rollout = RayRollout(self, policy, plan)
        return self._rollout

    def close(self) -> None:
        """End the actors, and Ray where it was started here; harmless when repeated."""
        actors = self.actors + self._inference
        self.actors, self._inference = [], []
        if actors:
            ends = [actor.close.remote() for actor in actors]
            with contextlib.suppress(Exception):  # they are killed anyway
                self.ray.wait(ends, num_returns=len(ends), timeout=_CLOSE_S)
            if self.watches is not None:
                self.watches.end()
            for actor in actors:
                with contextlib.suppress(Exception):
                    self.ray.kill(actor)
        if self._rollout is not None:
            self._rollout.keep_account()
        self._exits.close()


def _options(resources: Mapping[str, float]) -> dict[str, Any]:
    """Return an actor's resources as Ray takes them."""
    asked: dict[str, Any] = {name: x for name, x in resources.items() if name.startswith("num_")}
    return {**asked, "resources": {name: x for name, x in resources.items() if name not in asked}}
